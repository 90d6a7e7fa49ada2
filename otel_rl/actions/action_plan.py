"""The actions of one training loop: what is due after a step, and what was done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.actions.agree import Agreement
from otel_rl.actions.decide import BestSteps, Held, as_finite
from otel_rl.guard import say
from otel_rl.process.on_finding import LiveFinding
from otel_rl.process.state import state
from otel_rl.records import Count, Log, Value
from otel_rl.runs.action_settings import CHECKPOINT, STOP, Action
from otel_rl.trace.memory import tracing

BEGIN: Final = "begin"
DONE, REHEARSED, FAILED, NO_VALUE = "done", "rehearsed", "failed", "no_value"
INFO, WARN = 9, 13


class Due(NamedTuple):
    """An action that is to be done after this step."""

    action: Action
    value: float | None = None
    """The value of the metric that made the action due; None for a rule."""
    best: BestSteps | None = None


@dataclass
class _Watched:
    """An action on a metric, or on a rule."""

    action: Action
    key: str
    """What the trainer calls the metric in its log."""
    state: BestSteps | Held
    values: int = 0
    """How many there were."""
    is_over: bool = False


class ActionPlan:
    """Decides after each step; on each rank the same.

    Args:
        actions: on a metric or a rule; a call is the sidecar's.
        keys: by name in the vocabulary, what the trainer calls a number in its log.
        agreement: of the ranks.
    """

    def __init__(self, actions: Iterable[Action], keys: Mapping[str, str], agreement: Agreement) -> None:
        self._watched = [
            _Watched(one, keys.get(one.metric, one.metric), BestSteps(one) if one.do == CHECKPOINT else Held(one))
            for one in actions
        ]
        self._agreement = agreement
        self._rules: set[str] = set()
        """The rules that hold now, as the sidecar tells them."""
        self._has_rules = any(one.action.rule for one in self._watched)
        self._is_begun = self._is_noted = False
        self._last = 0
        """The step after which this looked last; a trainer may come twice."""

    def hear(self, finding: LiveFinding) -> None:
        """Take what the sidecar says of a rule; on any thread."""
        change = self._rules.discard if finding.state == "over" else self._rules.add
        change(finding.rule)

    def remember(self, before: Iterable[Mapping[str, Any]]) -> None:
        """Take the best values from the log of a training that is resumed; its conditions begin anew."""
        for entry in before:
            for one in self._watched:
                value, step = as_finite(entry.get(one.key)), int(entry.get("step", 0))
                if isinstance(one.state, BestSteps) and value is not None and step >= self._agreement.begins:
                    one.state.look(value, step)

    def after_step(self, step: int, logged: Iterable[Mapping[str, Any]]) -> list[Due]:
        """Return what is due now.

        Args:
            step: that has ended.
            logged: what the trainer has logged since the last call.
        """
        noted, self._last = self._notes(step), step
        if not self._is_begun:
            return []
        due = [one for entry in logged for one in self._by_value(entry, step)]
        due += [Due(one.action) for one in self._watched if one.action.name in noted]
        stopped = {one.action.name for one in due if one.action.do == STOP}
        for watched in self._watched:
            watched.is_over |= watched.action.name in stopped
        return due

    def left(self) -> list[Action]:
        """Return the actions whose metric never came."""
        return [one.action for one in self._watched if one.action.metric and not one.values and self._is_begun]

    def never_begun(self) -> list[Action]:
        """Return all actions if rank 0 has waited for the other ranks in vain."""
        return [one.action for one in self._watched if self._agreement.leads and not self._is_begun and self._last]

    def _notes(self, step: int) -> list[str]:
        if not self._is_noted and self._agreement.leads and self._agreement.is_complete():
            self._is_noted = True
            self._agreement.note(BEGIN, step)
        if self._is_begun and not self._has_rules:
            return []
        noted = self._agreement.due(step)
        self._is_begun |= BEGIN in noted
        if self._is_begun and self._agreement.leads and step != self._last:
            for one in self._watched:
                if one.action.rule and not one.is_over and isinstance(one.state, Held):
                    one.is_over = one.state.count(is_held=one.action.rule in self._rules)
                    if one.is_over:
                        self._agreement.note(one.action.name, step)
            noted += self._agreement.due(step)
        return noted

    def _by_value(self, entry: Mapping[str, Any], step: int) -> list[Due]:
        due = []
        for one in self._watched:
            if one.is_over or one.key not in entry or not one.action.metric:
                continue
            one.values += 1
            value = as_finite(entry[one.key])
            if value is None:
                record(one.action, NO_VALUE, step, f"{one.action.metric} is {entry[one.key]}: it decides nothing.")
            elif one.state.look(value, step):
                due.append(Due(one.action, value, one.state if isinstance(one.state, BestSteps) else None))
        return due


def record(action: Action, outcome: str, step: int, sentence: str, value: float | None = None) -> None:
    """Record what an action did: counter and log record."""
    labels = (v.ACTION_NAME, action.name), (v.ACTION_KIND, action.do), (v.ACTION_OUTCOME, outcome)
    attributes: dict[str, Value] = {**dict(labels), v.ACTION_STEP: step}
    if action.metric:
        attributes[v.ACTION_METRIC] = action.metric
    if value is not None:
        attributes[v.ACTION_VALUE] = value
    container = tracing.container
    place = (0, 0) if container is None else (container.trace_id, container.span_id)
    severity = INFO if outcome in (DONE, REHEARSED) else WARN
    state.add(Count(v.ACTIONS, 1, labels))
    state.add(Log(v.ACTION_TAKEN, state.now(), attributes, sentence, severity, *place))
    if state.identity.rank == 0 and outcome != NO_VALUE:
        say("otel_rl: action %s, step %d: %s", action.name, step, sentence)
