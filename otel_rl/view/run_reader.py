"""The process that reads a run which somebody looks at, and sends the parts of its page to the server.

It reads what came since every second. The report is made in a forked copy, as often as its share of a core allows:
the copy may finish the reading, and the next report goes on from the one before.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, process_time, sleep, time_ns
from typing import Any, BinaryIO, Final

from otel_rl.config import traces_url
from otel_rl.guard import guard
from otel_rl.journal.read import JournalNotFound, Run
from otel_rl.report import cache
from otel_rl.report.build import build_with_course
from otel_rl.report.data.course import StepCourse
from otel_rl.report.data.report import Report
from otel_rl.report.findings.unmade import Making
from otel_rl.report.page.document import PageParts, parts_of
from otel_rl.report.page.figure import Figure
from otel_rl.report.page.panels import figures_of_steps, make_page
from otel_rl.report.reading import Progress, RunReading
from otel_rl.runs.locate import open_whole
from otel_rl.view.newest_steps import NewestSteps, ReadMark
from otel_rl.view.snapshot import Snapshot

PERIOD_S: Final = 1.0
SHARE: Final = 0.043
"""The most of a core that this process and its copies take, on average since the first page."""
LOOK_SHARE: Final = 0.028
"""The part of it for what is read and added every second or two; reports have the remainder."""
AGED_S: Final = 30.0
"""A run in which nothing happens has a new page after this time, as it gets older."""
LONGEST_S: Final = 8.0
"""The longest time from one look to the next."""
LEAST_S: Final = 0.1
"""The shortest pause, where a look had to wait for a core."""
NICENESS: Final = 10
NEVER: Final = (-1, False)
Send = Callable[[str, Any], None]


class RunFollower:
    """Reads a run again and again."""

    def __init__(self, path: Path, send: Send) -> None:
        self._path, self._send = path, send
        self._reading: RunReading | None = None
        self._newest = NewestSteps()
        self._mark: ReadMark
        self._snapshot: Snapshot | None = None
        self._since: ReadMark
        """How much was read when it was made."""
        self._drawn = NEVER
        """Bytes of the run, and whether it was alive, when the last page was begun."""
        self._began_s = 0.0
        self._report_s = 0.0
        """The CPU time of the last report."""
        self._paid: tuple[float, float] | None = None
        """The time, and the CPU time that was used, when the first page was sent; None before."""

    def look(self) -> float:
        """Read what came since, and send what is made of it; return the CPU time that it took, without a report's."""
        before_s = process_time()
        try:
            run = open_whole(self._path)
        except JournalNotFound as error:
            self._reading = None
            self._send("said", str(error))
            return process_time() - before_s
        self._read(run)
        self._draw(run)
        assert self._reading is not None
        with guard("add the newest steps"):
            if parts := self._newest.add(self._reading, self._mark):
                self._send("figures", parts)
        self._send("said", "")
        return process_time() - before_s

    def _read(self, run: Run) -> None:
        is_first = self._reading is None or not self._reading.fits(run)
        if is_first:
            if self._snapshot is not None:
                self._snapshot.wait()
            self._snapshot, self._drawn = None, NEVER
            self._reading, self._newest = cache.load(run), NewestSteps()
        assert self._reading is not None
        self._reading.attach(run)
        progress, is_read = Progress(), threading.Event()
        if is_first:
            watch = threading.Thread(target=self._tell, args=(progress, is_read), daemon=True)
            watch.start()
        self._reading.read(progress)
        is_read.set()
        if is_first:
            watch.join()
        self._mark = self._newest.mark(self._reading)

    def _tell(self, progress: Progress, is_read: threading.Event) -> None:
        while not is_read.wait(0.3):
            self._send("progress", progress.share)
        self._send("progress", 1.0)

    def _draw(self, run: Run) -> None:
        assert self._reading is not None
        if self._snapshot is not None:
            self._take()
            return
        now, state = monotonic(), (self._reading.read_bytes(), run.alive())
        is_old = state[1] and now - self._began_s > AGED_S
        if (state == self._drawn and not is_old) or (state[1] and not self._is_due(now)):
            return
        reading = self._reading
        self._drawn, self._began_s = state, now
        self._since = self._mark
        self._snapshot = Snapshot(partial(_page_of, run, reading))
        if not state[1] or self._paid is None:
            self._snapshot.wait()
            self._take()

    def _take(self) -> None:
        """Send the page of a report that is made."""
        assert self._snapshot is not None
        if not self._snapshot.is_done:
            return
        self._report_s = self._snapshot.cpu_s
        made, self._snapshot = self._snapshot.result, None
        if made is not None:
            parts, report, steps, shown = made
            self._send("page", parts)
            self._newest.take(report, steps, shown, self._since)
        self._paid = self._paid or (monotonic(), cpu_s())

    def _is_due(self, now: float) -> bool:
        """Return whether a report fits into the share of a core that may be used, or the page lacks something new."""
        if self._paid is None or self._newest.has_outgrown:
            return True
        began_s, used_s = self._paid
        return cpu_s() - used_s + self._report_s <= SHARE * (now - began_s)


def _page_of(run: Run, reading: RunReading) -> tuple[PageParts, Report, StepCourse, list[Figure]]:
    """Make the page of what is read, and what is added to; this ends the reading."""
    making = Making()
    report, course = build_with_course(run, time_ns(), reading)
    page = make_page(report, course, making)
    return parts_of(report, page, making, traces_url()), report, course.steps, figures_of_steps(page)


def cpu_s() -> float:
    """Return the CPU time of this process and of its copies that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def sender(sink: BinaryIO) -> Send:
    """Return what sends a message to the server."""
    lock = threading.Lock()

    def send(kind: str, value: Any) -> None:
        data = pickle.dumps((kind, value), pickle.HIGHEST_PROTOCOL)
        with lock:
            sink.write(len(data).to_bytes(8, "little") + data)
            sink.flush()

    return send


def repeat(look: Callable[[], float]) -> None:
    """Look again and again, until the server is gone; less often if that takes more of a core than it may."""
    with suppress(OSError):
        os.nice(NICENESS)
    with suppress(BrokenPipeError, KeyboardInterrupt):
        look()  # may take long
        sleep(PERIOD_S)
        while True:
            began_s = monotonic()
            period_s = min(max(PERIOD_S, look() / LOOK_SHARE), LONGEST_S)
            sleep(max(LEAST_S, began_s + period_s - monotonic()))


def main(arguments: list[str]) -> None:
    """Follow a run."""
    send = sender(sys.stdout.buffer)
    repeat(RunFollower(Path(arguments[0]), send).look)


if __name__ == "__main__":
    main(sys.argv[1:])
