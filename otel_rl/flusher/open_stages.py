"""What the journal says of stages that are open, so that a reader of a live, hung or killed run knows who was where."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from time import monotonic
from typing import Any

from otel_rl import vocabulary
from otel_rl.comm.collectives import Collective
from otel_rl.guard import guard
from otel_rl.process.state import state
from otel_rl.records import Log
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage

FIRST_S = 1.0
REPEAT_S = 60.0
"""How often the journal says again that a stage is open, at first and at last."""
REPEAT_RATIO = 0.25
"""In between after this part of the time for which it is open, so that a reader of a killed run knows at least four
fifths of that: 22 records in the first eight minutes."""


class OpenStages:
    """Makes the log records of open stages; used by the flusher only."""

    def __init__(self) -> None:
        self._said: dict[Any, tuple[float, Log]] = {}
        """Open stages that the journal names as open: since when, and how; without a trace where it was unknown."""

    def __contains__(self, stage: object) -> bool:
        return stage in self._said

    def keep(self, there: Collection[Any]) -> list[Log]:
        """Forget what has ended, unless it is there still: it was open a moment ago, or it waits for its device.

        That a span takes its place need not be said, but where the span waits for its attempt.
        """
        over = [self._said.pop(stage)[1] for stage in list(self._said) if stage.ended and stage not in there]
        return [
            replace(log, event_name=vocabulary.ENDED, time_ns=state.now(), attributes={vocabulary.STAGE: log.body})
            for log in over
            if not log.trace_id
        ]

    def logs(self, opened: Iterable[Any], records: list[Any]) -> list[Log]:
        """Say of the open stages that they are; one that ended during the look may be among the records already."""
        logs = []
        for stage in opened:
            with guard("name an open stage"):
                log = None if stage.ended and stage in records else self._log(stage)
                if log is not None:
                    logs.append(log)
        return logs

    def _log(self, stage: Stage | Collective) -> Log | None:
        """Say that a stage is open: once, again when its trace has become known, and again after a while.

        A killed process was alive when it last said so. The repetition outlives the size cap, which removes old
        segments.
        """
        of = stage if isinstance(stage, Stage) else stage.stage
        if of is None or of.trace is None or not of.trace.sampled:
            return None
        said = self._said.get(stage)
        if said is not None and bool(said[1].trace_id) == of.trace.known and monotonic() - said[0] < _pause_s(said[1]):
            return None
        is_known = of.trace.known  # first: what is read behind it is what it was made known with
        # First the span's id: a launch that is forgotten from now on leaves a record.
        span = stage if isinstance(stage, Stage) else stage.as_span()
        if isinstance(stage, Collective) and not stage.ended and stage not in tracing.open:
            return None  # it was forgotten before
        attributes = {
            **(span.attributes or {}),
            vocabulary.STAGE: span.name,
            vocabulary.START_TIME: span.start_ns,
            vocabulary.PARENT_ID: f"{span.parent_id:016x}" if span.parent_id else "",
        }
        log = Log(
            vocabulary.OPEN,
            state.now(),
            attributes,
            span.name,
            9,
            of.trace.trace_id if is_known else 0,
            span.span_id,
        )
        self._said[stage] = (monotonic(), log)
        return log


def _pause_s(said: Log) -> float:
    """Tell after how long to say again what a log record says."""
    open_s = (said.time_ns - int(str(said.attributes[vocabulary.START_TIME]))) / 1e9
    return min(REPEAT_S, max(FIRST_S, REPEAT_RATIO * open_s))
