"""Reading a run while it is written, so that its report only has to read what came last."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from otel_rl.guard import guard
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import JournalNotFound
from otel_rl.runs.locate import open_whole

if TYPE_CHECKING:
    from otel_rl.journal.read import Run
    from otel_rl.report.reading import RunReading

PERIOD_S: Final = 10.0
SHARE: Final = 0.1
"""The most that reading takes of a core."""
NICENESS: Final = 10
END_S: Final = 5.0


class ReadAhead:
    """Reads the run on a thread of its own: shipping and the watch for stalls never wait for it.

    Where nodes share a directory, only the sidecar on the node of rank 0, or of the driver, reads. Cost: 7 us of CPU a
    span.
    """

    def __init__(self, directory: Path, is_mine: Callable[[WriterIdentity], bool]) -> None:
        self._directory = directory
        self._is_mine = is_mine
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="read ahead", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, at the latest after the round that goes on."""
        self._stop.set()
        self._thread.join(END_S)

    def _work(self) -> None:
        with suppress(OSError):  # of this thread alone, as Linux has it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        reading: RunReading | None = None
        pause_s = PERIOD_S
        while not self._stop.wait(pause_s):
            began = monotonic()
            with guard("read the run ahead"):
                reading = self._read(reading)
            pause_s = max(PERIOD_S, (monotonic() - began) / SHARE)

    def _read(self, reading: RunReading | None) -> RunReading | None:
        from otel_rl.report import cache  # numpy: a sidecar of another node does without

        try:
            run = open_whole(self._directory)
        except JournalNotFound:
            return None
        if not self._leads(run):
            return None
        if reading is None or not reading.fits(run):
            reading = cache.load(run)
        reading.attach(run)
        reading.read()
        cache.save(run, reading)
        return reading

    def _leads(self, run: Run) -> bool:
        """Return whether the driver, or else the lowest rank, is a process of this node."""
        first = min((one.identity for one in run.journals if not one.identity.is_sidecar), key=_order, default=None)
        return first is not None and self._is_mine(first)


def _order(writer: WriterIdentity) -> tuple[bool, int]:
    role, _, rest = writer.writer.rpartition("-")[0].rpartition("-")[0].partition("-")
    rank = rest.rpartition("-")[2]
    return role != "driver", int(rank) if rank.isdecimal() else 1 << 31
