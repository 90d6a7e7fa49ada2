"""Settings of the rules: `otel_rl.toml` beside the run's folder, or the file that ``OTEL_RL_RULES`` names.

A file that cannot be read, a name that nothing has and a value of the wrong kind are problems. They change nothing, and
the report and `otel-rl doctor` say them.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from otel_rl.config.parsers import expanded_path
from otel_rl.report.data.rule_settings import KlRange, RuleSettings
from otel_rl.report.findings.health import HEALTH
from otel_rl.report.findings.learning import LEARN
from otel_rl.report.findings.rule import Rule
from otel_rl.report.findings.timing import TIME

FILE: Final = "otel_rl.toml"
VARIABLE: Final = "OTEL_RL_RULES"
LARGEST: Final = 1 << 20
TABLES: Final[tuple[Sequence[Rule[Any]], ...]] = TIME, LEARN, HEALTH
RULES: Final = {rule.name: rule for table in TABLES for rule in table}
ENABLED, ADVICE = "enabled", "advice"
DEFAULTS: Final = "the defaults hold"


def rule_settings(root: Path, environ: Mapping[str, str] = os.environ) -> RuleSettings:
    """Return what a user changed for the runs in a folder."""
    named = environ.get(VARIABLE, "").strip()
    path = expanded_path(named) if named else root / FILE
    if not named and not path.is_file():
        return RuleSettings()
    try:
        return _settings(str(path), _parsed(path))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return RuleSettings(file=str(path), problems=[f"It cannot be read ({why}): {DEFAULTS}."])


def kl_range(kl: KlRange) -> str:
    """Write the range that is shown beside the KL."""
    whose = "defaults" if kl == KlRange() else "yours"
    usual = f"usually {kl.healthy_from:g} to {kl.healthy_to:g} nat"
    return f"{usual}; below {kl.stalled:g} stalled, above {kl.aggressive:g} too fast ({whose})"


def beyond(kl: KlRange, value: float | None) -> str:
    """Return the limit of the range that a KL is beyond; empty if it is none."""
    if value is not None and value > kl.aggressive:
        return f"> {kl.aggressive:g}"
    return f"< {kl.stalled:g}" if value is not None and value < kl.stalled else ""


def _parsed(path: Path) -> dict[str, Any]:
    try:
        toml = import_module("tomllib")
    except ModuleNotFoundError:
        raise ValueError("that needs Python 3.11 or newer") from None
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError("it is larger than 1 MiB")
    found: dict[str, Any] = toml.loads(content.decode())
    return found


def _settings(file: str, found: dict[str, Any]) -> RuleSettings:
    problems = [*_strangers("table", found, ("rules", "kl"))]
    kl = _numbers("kl", _table("kl", found.get("kl", {}), problems), asdict(KlRange()), problems)
    rules = _table("rules", found.get("rules", {}), problems)
    problems += _strangers("rule", rules, RULES)
    off, bounds, advice = [], {}, {}
    for name in rules.keys() & RULES.keys():
        place = f"rules.{name}"
        changed = _table(place, rules[name], problems)
        bounds[name] = _numbers(place, changed, RULES[name].bounds, problems, (ENABLED, ADVICE))
        if changed.get(ENABLED) is False:
            off.append(name)
        elif changed.get(ENABLED, True) is not True:
            problems.append(f"{place}.{ENABLED} must be true or false: {DEFAULTS}.")
        if isinstance(changed.get(ADVICE, ""), str):
            advice[name] = changed.get(ADVICE, "")
        else:
            problems.append(f"{place}.{ADVICE} must be a text: {DEFAULTS}.")
    return RuleSettings(
        file=file,
        problems=sorted(problems),
        off=sorted(off),
        bounds={name: of for name, of in sorted(bounds.items()) if of},
        advice={name: text for name, text in sorted(advice.items()) if text},
        kl=replace(KlRange(), **kl),
    )


def _table(place: str, found: Any, problems: list[str]) -> dict[str, Any]:
    if isinstance(found, dict):
        return found
    problems.append(f"{place} must be a table: {DEFAULTS}.")
    return {}


def _numbers(
    place: str, found: Mapping[str, Any], known: Mapping[str, float], problems: list[str], others: Collection[str] = ()
) -> dict[str, float]:
    """Return the bounds that are numbers, and note what is none of them."""
    problems += _strangers(f"setting of {place}", found, (*others, *known))
    numbers = {}
    for name in known.keys() & found.keys():
        value = found[name]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            numbers[name] = float(value)
        else:
            problems.append(f"{place}.{name} must be a number: the default {known[name]:g} holds.")
    return numbers


def _strangers(what: str, names: Collection[str], known: Collection[str]) -> Iterator[str]:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            yield f"Unknown {what} {name} is ignored" + (f"; did you mean {near[0]}?" if near else ".")
