"""Settings of the rules: `otel_rl.toml` beside the run's folder, or the file that ``OTEL_RL_RULES`` names.

A file that cannot be read, a name that nothing has and a value of the wrong kind are problems. They change nothing, and
the report and `otel-rl doctor` say them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from otel_rl.report.data.rule_settings import KlRange, RuleSettings
from otel_rl.report.findings.health import HEALTH
from otel_rl.report.findings.learning import LEARN
from otel_rl.report.findings.rule import Rule
from otel_rl.report.findings.timing import TIME
from otel_rl.runs.action_settings import CALL, Action, action_settings
from otel_rl.runs.settings_file import DEFAULTS, is_number, parsed, settings_path, strangers, table, why_unread

TABLES: Final[tuple[Sequence[Rule[Any]], ...]] = TIME, LEARN, HEALTH
RULES: Final = {rule.name: rule for table in TABLES for rule in table}
ENABLED, ADVICE = "enabled", "advice"


def rule_settings(root: Path, environ: Mapping[str, str] = os.environ) -> RuleSettings:
    """Return what a user changed for the runs in a folder."""
    path = settings_path(root, environ)
    if path is None:
        return RuleSettings()
    try:
        return _settings(str(path), parsed(path))
    except (OSError, ValueError, RecursionError) as error:
        return RuleSettings(file=str(path), problems=[f"It cannot be read ({why_unread(error)}): {DEFAULTS}."])


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


def _settings(file: str, found: dict[str, Any]) -> RuleSettings:
    problems = [*strangers("table", found, ("rules", "kl", "actions"))]
    actions = action_settings(found, RULES, problems)
    kl = _numbers("kl", table("kl", found.get("kl", {}), problems), asdict(KlRange()), problems)
    rules = table("rules", found.get("rules", {}), problems)
    problems += strangers("rule", rules, RULES)
    off, bounds, advice = [], {}, {}
    for name in rules.keys() & RULES.keys():
        place = f"rules.{name}"
        changed = table(place, rules[name], problems)
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
        actions=[str(action) for action in actions],
    )


def _numbers(
    place: str, found: Mapping[str, Any], known: Mapping[str, float], problems: list[str], others: Collection[str] = ()
) -> dict[str, float]:
    """Return the bounds that are numbers, and note what is none of them."""
    problems += strangers(f"setting of {place}", found, (*others, *known))
    numbers = {}
    for name in known.keys() & found.keys():
        value = found[name]
        if is_number(value):
            numbers[name] = float(value)
        else:
            problems.append(f"{place}.{name} must be a number: the default {known[name]:g} holds.")
    return numbers


def chosen_calls(root: Path) -> list[Action]:
    """Return the actions of a file by which rules call; what is wrong with it ``rule_settings`` says."""
    with suppress(OSError, ValueError, RecursionError):
        path = settings_path(root)
        return [one for one in action_settings(parsed(path), RULES, []) if one.do == CALL] if path is not None else []
    return []
