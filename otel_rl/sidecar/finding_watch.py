"""What the rules find while a run goes on: when each finding begins, and when it is over."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from otel_rl import ids
from otel_rl.process.on_finding import LiveFinding
from otel_rl.sidecar.finding_teller import OF_STALLS, FindingTeller

if TYPE_CHECKING:
    from otel_rl.report.data.finding import Finding, Findings
    from otel_rl.report.data.ranks import StepKey

TIMES: Final = 2
"""A finding begins if its rule holds so many times in a row, and is over if it does not hold as often."""
TOLD: Final = ("alarm", "warning")
KINDS: Final = ("time", "learn", "health")


@dataclass(slots=True)
class _Known:
    """A rule that has found something."""

    kind: str
    told: LiveFinding | None = None
    """What was told, until it is over."""
    turns: int = 0
    """How often in a row it was other than what was told."""


class FindingWatch:
    """Compares what the rules find with what they found before."""

    def __init__(self, teller: FindingTeller) -> None:
        """Begin with what earlier sidecars of the run told."""
        self._teller = teller
        self._known = {one.rule: _Known(one.kind, one) for one in teller.adopt(lambda one: one.rule not in OF_STALLS)}

    @property
    def is_turning(self) -> bool:
        """Return whether a rule has begun to hold, or ended, and has to be seen so once more."""
        return any(known.turns for known in self._known.values())

    def judge(
        self, findings: Findings, step: StepKey | None, attempt: str = "", kinds: Collection[str] = KINDS
    ) -> None:
        """Take over what the rules find now.

        Args:
            findings: of all rules.
            step: the last one, if there is any.
            attempt: the one that goes on, whose processes hear of it.
            kinds: of the rules that were asked; what the others found before goes on.
        """
        place = _place(step) | ({"attempt": attempt} if attempt else {})
        all_ = *findings.health, *findings.learn, *findings.time
        found = {one.rule: one for one in all_ if one.severity in TOLD and one.rule not in OF_STALLS}
        for rule in {**self._known, **found}:
            finding = found.get(rule)
            known = self._known.setdefault(rule, _Known(finding.kind if finding else ""))
            if known.kind not in kinds:
                continue
            known.turns = known.turns + 1 if (finding is None) != (known.told is None) else 0
            if known.turns < TIMES:
                continue
            if known.told is not None:
                self._end(known.told, place)
            self._known[rule] = _Known(known.kind, None if finding is None else self._begin(finding, place))

    def _begin(self, finding: Finding, place: dict[str, Any]) -> LiveFinding:
        now_ns = time.time_ns()
        begun = LiveFinding(
            rule=finding.rule,
            kind=finding.kind,
            severity=finding.severity,
            state="begun",
            sentence=finding.sentence,
            advice=finding.advice,
            evidence=dict(finding.values),
            id=f"{finding.rule}-{now_ns:x}",
            time_ns=now_ns,
            **place,
        )
        self._teller.tell(begun)
        return begun

    def _end(self, begun: LiveFinding, place: dict[str, Any]) -> None:
        sentence = f"Over: {begun.sentence}"
        over = replace(begun, state="over", sentence=sentence, advice="", evidence={}, time_ns=0, **place)
        self._teller.tell(over)


def _place(step: StepKey | None) -> dict[str, Any]:
    """Return where the last step lies: the finding's records are in its trace."""
    if step is None:
        return {}
    attempt, _, number = step
    trace, root = ids.trace_id(*step), ids.root_id(*step)
    return {"attempt": attempt, "step": number, "trace_id": f"{trace:032x}", "span_id": f"{root:016x}"}
