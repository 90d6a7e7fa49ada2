"""Reading a run while it is written: to judge it, and so that its report only has to read what came last."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, thread_time, time_ns
from typing import TYPE_CHECKING, Final

from otel_rl.guard import guard
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import JournalNotFound
from otel_rl.runs.locate import open_whole

if TYPE_CHECKING:
    from otel_rl.journal.read import Run
    from otel_rl.report.data.ranks import StepKey
    from otel_rl.report.reading import RunReading
    from otel_rl.sidecar.finding_teller import FindingTeller
    from otel_rl.sidecar.finding_watch import FindingWatch

PERIOD_S: Final = 10.0
SHARE: Final = 0.07
"""The most that reading, and judging by LEARN and HEALTH, takes of a core."""
TIME_SHARE: Final = 0.03
"""The most that judging by TIME takes, which needs far longer in a run of many ranks, and tells no alarms."""
JUDGE_S: Final = 30.0
"""How long at least between two judgements of the run."""
NICENESS: Final = 10
END_S: Final = 5.0


class ReadAhead:
    """Reads the run on a thread of its own, and judges it: shipping and the watch for stalls never wait for that.

    Where nodes share a directory, only the sidecar on the node of rank 0, or of the driver, reads. Cost: 7 us of CPU a
    span; a judgement as much as a report of which nothing is to be read.
    """

    def __init__(self, directory: Path, is_mine: Callable[[WriterIdentity], bool], teller: FindingTeller) -> None:
        self._directory = directory
        self._is_mine = is_mine
        self._teller = teller
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="read ahead", daemon=True)
        self._reading: RunReading | None = None
        self._findings: FindingWatch | None = None
        self._judged_at = -JUDGE_S
        self._judged_bytes = 0
        self._step: StepKey | None = None
        """The last step when the run was judged."""
        self._timed_step: StepKey | None = None
        self._timed_at = self._time_s = 0.0
        """When it was judged by TIME, and what CPU time that took."""
        self._apart_s = 0.0
        """CPU time of this look for TIME."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, at the latest after the round that goes on."""
        self._stop.set()
        self._thread.join(END_S)

    def _work(self) -> None:
        with suppress(OSError):  # of this thread alone, as Linux has it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        pause_s = PERIOD_S
        while not self._stop.wait(pause_s):
            began, self._apart_s = thread_time(), 0.0  # not the clock: on a busy machine this thread waits for a core
            with guard("read the run ahead"):
                self._look()
            pause_s = max(PERIOD_S, (thread_time() - began - self._apart_s) / SHARE)

    def _look(self) -> None:
        from otel_rl.report import cache  # numpy: a sidecar of another node does without

        try:
            run = open_whole(self._directory)
        except JournalNotFound:
            return
        if not self._leads(run):
            return
        if self._reading is None or not self._reading.fits(run):
            self._reading = cache.load(run)
        else:
            self._reading.attach(run)
        self._reading.read()
        cache.save(run, self._reading)
        self._judge(run, self._reading)

    def _judge(self, run: Run, reading: RunReading) -> None:
        """Judge the run as its report does, if something is new; soon again where a rule has begun to hold or ended."""
        pause_s = PERIOD_S if self._findings is not None and self._findings.is_turning else JUDGE_S
        if monotonic() - self._judged_at < pause_s or reading.read_bytes() == self._judged_bytes or not run.alive():
            return
        from otel_rl.report import cache
        from otel_rl.report.rows.evidence import findings
        from otel_rl.report.rows.rule_file import chosen_calls, rule_settings
        from otel_rl.report.source import Source
        from otel_rl.sidecar.finding_watch import FindingWatch

        if self._findings is None:
            self._findings = FindingWatch(self._teller)
            self._teller.calls.chosen = chosen_calls(run.path.parent)
        source = Source(run, time_ns(), cache.copied(reading, run))
        steps, attempts = source.found.steps, source.attempts
        step, attempt = steps[-1].key if steps else None, attempts[-1].id if attempts else ""
        kinds = self._kinds(step)
        began = thread_time()
        found = findings(source, rule_settings(run.path.parent), with_time="time" in kinds)
        if "time" in kinds:
            self._time_s = self._apart_s = thread_time() - began
            self._timed_step, self._timed_at = step, monotonic()
        self._findings.judge(found, step, attempt, kinds)
        self._step = step
        self._judged_at, self._judged_bytes = monotonic(), reading.read_bytes()

    def _kinds(self, step: StepKey | None) -> list[str]:
        """Return the rules to judge by: TIME and LEARN would find the same again without a new step."""
        is_time = monotonic() - self._timed_at >= self._time_s / TIME_SHARE
        kinds = ["time"] if is_time and (step is None or step != self._timed_step) else []
        return [*kinds, "learn", "health"] if step is None or step != self._step else [*kinds, "health"]

    def _leads(self, run: Run) -> bool:
        """Return whether the driver, or else the lowest rank, is a process of this node."""
        first = min((one.identity for one in run.journals if not one.identity.is_sidecar), key=_order, default=None)
        return first is not None and self._is_mine(first)


def _order(writer: WriterIdentity) -> tuple[bool, int]:
    role, _, rest = writer.writer.rpartition("-")[0].rpartition("-")[0].partition("-")
    rank = rest.rpartition("-")[2]
    return role != "driver", int(rank) if rank.isdecimal() else 1 << 31
