"""Log records of open stages: a reader of a live, hung or killed run knows from them where each rank is."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic
from otel_rl.comm.collectives import Collective
from otel_rl.guard import guard
from otel_rl.process.state import state
from otel_rl.records import Log
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage

FIRST_S = 1.0
REPEAT_S = 60.0
"""The least and the greatest time until a stage that is still open is named again."""
REPEAT_RATIO = 0.25
"""In between it is named again after this part of the time for which it is open. So a reader of a killed run knows at
least four fifths of that time, from 22 records in the first eight minutes."""


class OpenStages:
    """Makes the log records of open stages; used by the flusher only."""

    def __init__(self) -> None:
        self._named: dict[Stage | Collective, tuple[float, Log]] = {}
        """Open stages that the journal names: when it did last, and its record, without an id of an unknown trace."""

    def __contains__(self, stage: object) -> bool:
        return stage in self._named

    def keep(self, there: Collection[Any]) -> list[Log]:
        """Forget the stages that have ended, but not those in ``there``, which wait for their device.

        A stage whose trace was unknown gets a record of its end: its span may never come. So does a wait that ended
        when it began, which is what its listing shows when the wait is over.
        """
        ended = [
            (stage, self._named.pop(stage)[1]) for stage in list(self._named) if stage.ended and stage not in there
        ]
        return [
            replace(log, event_name=vocabulary.ENDED, time_ns=state.now(), attributes={vocabulary.STAGE: log.body})
            for stage, log in ended
            if not log.trace_id or stage.ended == stage.began
        ]

    def logs(self, opened: Iterable[Any], records: list[Any]) -> list[Log]:
        """Name the open stages, but not those that have just ended and are among the records."""
        logs = []
        for stage in opened:
            with guard("name an open stage"):
                log = None if stage.ended and stage in records else self._log(stage)
                if log is not None:
                    logs.append(log)
        return logs

    def _log(self, stage: Stage | Collective) -> Log | None:
        """Name an open stage: once, again when its trace becomes known, and again after a while.

        A killed process lived when it last did. The size cap removes old segments, so one record would not do.
        """
        of = stage if isinstance(stage, Stage) else stage.stage
        if of is None or of.trace is None or not of.trace.sampled:
            return None
        named = self._named.get(stage)
        if named and bool(named[1].trace_id) == of.trace.known and monotonic() - named[0] < _pause_s(named[1]):
            return None
        is_known = of.trace.known  # first: the trace id is then final
        # The span's id comes first: a launch that is forgotten from now on leaves a record.
        span = stage if isinstance(stage, Stage) else stage.as_span()
        if isinstance(stage, Collective) and not stage.ended and stage not in tracing.open:
            return None  # it is forgotten already
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
        self._named[stage] = (monotonic(), log)
        return log


def _pause_s(log: Log) -> float:
    """Return after what time the stage of a log record is named again."""
    open_s = (log.time_ns - int(str(log.attributes[vocabulary.START_TIME]))) / 1e9
    return min(REPEAT_S, max(FIRST_S, REPEAT_RATIO * open_s))
