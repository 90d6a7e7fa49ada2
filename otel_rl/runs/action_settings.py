"""The actions that a user chose: the tables ``[actions.NAME]`` of `otel_rl.toml`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.runs.settings_file import is_number, nearest, table

CHECKPOINT, STOP, CALL = "checkpoint", "stop", "call"
KINDS: Final = (CHECKPOINT, STOP, CALL)
LEFT_OUT: Final = "the action is left out"
BEST: Final = ("metric", "direction")
ALLOWED: Final = {
    CHECKPOINT: ("metric", "direction", "keep", "every"),
    STOP: ("metric", "direction", "above", "below", "rule", "times"),
    CALL: ("rule",),
}
"""What each kind may have beside ``do`` and ``dry_run``."""
OF_RANK: Final = frozenset(("step_time", v.STEP_TIME, v.TRAIN_TIME, v.STEP_CPU_TIME))
"""Metrics that each rank has for itself: ranks would decide differently."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What is done, and when."""

    name: str
    do: str
    """``checkpoint``, ``stop`` or ``call``."""
    metric: str = ""
    """By its name here or by that in the trainer's log."""
    direction: str = ""
    """``max`` or ``min``: what is better."""
    keep: int = 1
    """So many of the best checkpoints are kept."""
    every: int = 1
    """At least so many steps are between two checkpoints."""
    above: float | None = None
    below: float | None = None
    rule: str = ""
    """A rule of docs/findings.md."""
    times: int = 1
    """It must hold so often in a row."""
    dry_run: bool = False

    def __str__(self) -> str:
        """Return what it does, in a sentence."""
        rehearsed = " (dry run)" if self.dry_run else ""
        if self.do == CHECKPOINT:
            every = f", at least {self.every} steps apart" if self.every > 1 else ""
            return f"{self.name}: saves the {self.keep} best by {self.direction} {self.metric}{every}{rehearsed}"
        if self.do == CALL:
            return f"{self.name}: calls if {self.rule} begins{rehearsed}"
        return f"{self.name}: stops if {self.condition}{rehearsed}"

    @property
    def condition(self) -> str:
        """Return when a stop is due, as the end of a sentence."""
        in_a_row = f" {self.times} times in a row" if self.times > 1 else ""
        if self.rule:
            return f"{self.rule} holds" + (f" for {self.times} steps" if self.times > 1 else "")
        if self.direction:
            return f"{self.metric} is not better ({self.direction}){in_a_row}"
        bounds = [
            f"{word} {limit:g}" for word, limit in (("above", self.above), ("below", self.below)) if limit is not None
        ]
        return f"{self.metric} is {' or '.join(bounds)}{in_a_row}"


def action_settings(found: dict[str, Any], rules: Mapping[str, Any], problems: list[str]) -> list[Action]:
    """Return the actions of a file. One with a mistake is left out as a whole: no stop by half a condition.

    Args:
        found: what the file has.
        rules: all of them, by name.
        problems: gets what is wrong.
    """
    actions = []
    for name, given in table("actions", found.get("actions", {}), problems, "there are none").items():
        place, before = f"actions.{name}", len(problems)
        settings = table(place, given, problems, LEFT_OUT)
        wrong = list(_wrong(name, settings, rules)) if len(problems) == before else []
        problems += [f"{place}{problem}: {LEFT_OUT}." for problem in wrong]
        if len(problems) == before:
            actions.append(Action(name=name, **settings))
    return actions


def packed(actions: Collection[Action]) -> str:
    """Write actions for another rank; empty if there are none."""
    return json.dumps([asdict(action) for action in actions], separators=(",", ":")) if actions else ""


def unpacked(text: str) -> list[Action]:
    """Read what ``packed`` wrote."""
    return [Action(**one) for one in json.loads(text)] if text else []


def _wrong(name: str, settings: dict[str, Any], rules: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with an action, as the ends of sentences that begin with its place."""
    if not NAME.fullmatch(name):
        return [" must be named by letters, digits, _ and -"]
    if settings.get("do") not in KINDS:
        return [f'.do must be "{KINDS[0]}", "{KINDS[1]}" or "{KINDS[2]}"']
    allowed = ("do", "dry_run", *ALLOWED[settings["do"]])
    wrong = [_stranger(key, settings["do"], allowed) for key in settings if key not in allowed]
    wrong += [
        f".{key} must be {what}"
        for key, (is_right, what) in VALUES.items()
        if key in allowed and key in settings and not is_right(settings[key])
    ]
    return wrong or _incomplete(settings) or _misnamed(settings, rules)


def _stranger(key: str, kind: str, allowed: Collection[str]) -> str:
    if any(key in keys for keys in ALLOWED.values()):
        return f'.{key} has no effect with do = "{kind}"'
    return f".{key} is unknown{nearest(key, allowed).rstrip('?')}"


def _incomplete(settings: dict[str, Any]) -> list[str]:
    needed = {CHECKPOINT: BEST, CALL: ("rule",), STOP: ()}[settings["do"]]
    missing = [f" needs {key}" for key in needed if key not in settings]
    if settings["do"] == STOP:
        is_bound, is_best = "above" in settings or "below" in settings, "direction" in settings
        if ("metric" in settings) == ("rule" in settings):
            missing.append(" needs either a metric or a rule")
        elif ("metric" in settings) != (is_bound or is_best) or (is_bound and is_best):
            missing.append(" needs a metric with above, below or direction")
    return missing


def _misnamed(settings: dict[str, Any], rules: Mapping[str, Any]) -> list[str]:
    rule, metric = settings.get("rule"), settings.get("metric", "")
    if rule is not None and rule not in rules:
        return [f".rule {rule} is unknown{nearest(rule, rules).rstrip('?')}"]
    if rule is not None and rules[rule].severity == "note":
        return [f".rule {rule} is a note, which never begins"]
    if metric.startswith(v.NAMESPACES) and metric not in v.METRICS:
        return [f".metric {metric} is unknown{nearest(metric, v.METRICS).rstrip('?')}"]
    return [f".metric {metric} differs between ranks, which must decide alike"] if metric in OF_RANK else []


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable() and len(value) <= 200


VALUES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "metric": (_is_name, "the name of a metric"),
    "direction": (lambda value: value in ("max", "min"), '"max" or "min"'),
    "keep": (_is_count, "a whole number above 0"),
    "every": (_is_count, "a whole number above 0"),
    "times": (_is_count, "a whole number above 0"),
    "above": (is_number, "a number"),
    "below": (is_number, "a number"),
    "rule": (_is_name, "the name of a rule"),
    "dry_run": (lambda value: isinstance(value, bool), "true or false"),
}
