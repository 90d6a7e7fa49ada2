"""``on_finding``: a function of the program is told what the rules find in its run while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from otel_rl import vocabulary
from otel_rl.guard import logger
from otel_rl.process.mailbox import Inbox, Message, listen
from otel_rl.process.state import state
from otel_rl.records import Count

FINDING: Final = "finding"
"""The kind of these messages."""
F = TypeVar("F", bound=Callable[["LiveFinding"], object])


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFinding:
    """What a rule, or a stall, says of a run that goes on: once when it begins, and once when it is over."""

    rule: str
    """The rule, of docs/findings.md; `stalled` for a stall."""
    kind: str
    """`time`, `learn` or `health`."""
    severity: str
    """`alarm`: act now; `warning`: look at it."""
    state: str
    """`begun` or `over`."""
    sentence: str
    advice: str = ""
    """What to look at or to do next; empty if there is nothing, and when it is over."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """The values of the sentence; of a stall its attributes and `stacks`."""
    run: str = ""
    attempt: str = ""
    step: int | None = None
    """The last step, as the framework counts; None outside of steps."""
    id: str = ""
    """The same at its begin and at its end."""
    time_ns: int = 0
    """When it was found, or found to be over, ns since 1970."""
    trace_id: str = ""
    span_id: str = ""
    link: str = ""
    """Where people look: the trace of the step by ``OTEL_RL_TRACES_URL``, or else the directory of the run."""

    def to_json(self) -> Message:
        """Return it as the hook and the messages have it."""
        return asdict(self)

    @classmethod
    def from_json(cls, message: Message) -> LiveFinding:
        """Read a message; fields of a later version are left out.

        Raises:
            TypeError: a field is missing, or has another type.
        """
        known = {one.name for one in fields(cls)}
        if not (isinstance(message.get("time_ns"), int) and isinstance(message.get("evidence"), dict)):
            raise TypeError("this is no finding")
        return cls(**{name: value for name, value in message.items() if name in known})


def on_finding(function: F) -> F:
    """Call a function with each finding of this run, a `LiveFinding`; usable as a decorator.

    It is called in this process, on a thread of ours and never on one of the program's: once within a second after the
    run's sidecar has told that an alarm, a warning or a stall has begun, and once when that is over. Findings of this
    attempt that were told before come at once. In a run of several ranks each rank that calls ``on_finding`` gets all.
    It may be called before ``instrument()``. An error of the function is logged once, and counted in
    ``rl.finding.calls`` as ``raised``.
    """

    def tell(message: Message) -> None:
        finding = LiveFinding.from_json(message)
        try:
            function(finding)
        except Exception as error:  # noqa: BLE001  the program's, not ours
            state.add(Count(vocabulary.FINDING_CALLS, 1, ((vocabulary.OUTCOME, "raised"),)))
            if function not in raised:
                raised.append(function)
                logger.warning(
                    "otel_rl: %r raised for a finding; further errors of it are counted", function, exc_info=error
                )

    raised: list[F] = []
    listen(FINDING, tell)
    return function


def told(directory: Path, inbox: Inbox | None = None) -> list[LiveFinding]:
    """Return what sidecars have told of a run, in order; with an inbox of an earlier call what they told since."""
    found = []
    for kind, content in (inbox or Inbox()).all(directory):
        if kind == FINDING:
            with suppress(TypeError):  # another version's
                found.append(LiveFinding.from_json(content))
    return sorted(found, key=lambda one: one.time_ns)


def active(findings: Iterable[LiveFinding]) -> dict[str, LiveFinding]:
    """Return those that have begun and are not over, by id."""
    going: dict[str, LiveFinding] = {}
    for one in findings:
        going.pop(one.id, None)
        if one.state == "begun":
            going[one.id] = one
    return going
