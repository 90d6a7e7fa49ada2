"""The process that reads the runs of a directory for their list, the newest first, and sends the list to the server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic, process_time, time_ns
from typing import Final
from urllib.parse import quote

from otel_rl import vocabulary as v
from otel_rl.guard import guard
from otel_rl.journal.read import JournalNotFound
from otel_rl.report import cache
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Report
from otel_rl.report.page.blocks import marked, safe
from otel_rl.report.page.document import PageParts
from otel_rl.report.section import Line
from otel_rl.report.sections.header import STATES
from otel_rl.runs.format import brief, count, plural, seconds
from otel_rl.runs.locate import HOW_TO_RECORD, open_whole, recency, recorded_below
from otel_rl.stalls.bounds import StallBounds
from otel_rl.stalls.chain import Situation
from otel_rl.stalls.finder import newest_attempt
from otel_rl.stalls.members import find_here
from otel_rl.view.run_reader import SHARE, Send, repeat, sender
from otel_rl.view.snapshot import Snapshot

MOST_RUNS: Final = 200
"""Runs that are listed: the newest."""
SENT_S: Final = 0.5
HEADS: Final = (
    ("run", "name"), ("state", "fact"), ("framework", "fact"), ("steps", "number"), ("reward", "number"),
    ("step time", "number"), ("alarms and warnings", "fact"),
)  # fmt: skip
HEAD: Final = '<header id="head"><h1>Runs</h1></header>'
UNREAD: Final = Line("not read yet", "note")


@dataclass(frozen=True)
class RunLine:
    """A run in the list."""

    state: Line = UNREAD
    framework: str = ""
    steps: str = ""
    reward: str = ""
    step_time: str = ""
    alarms: tuple[str, ...] = ()
    warnings: int = 0


@dataclass
class _Known:
    """What was read of a run."""

    line: RunLine = RunLine()
    size: int = -1
    is_alive: bool = False
    due_s: float = 0.0


class ListReader:
    """Reads runs again when they have grown; each in a copy of this process, so that nothing of them stays."""

    def __init__(self, root: Path, send: Send, clock: Callable[[], float] = monotonic) -> None:
        self._root, self._send, self._clock = root, send, clock
        self._known: dict[Path, _Known] = {}
        self._sent_s = 0.0

    def look(self) -> float:
        """Send the list, and again as more of it is known; return the CPU time that it took, without that of copies."""
        before_s = process_time()
        runs = sorted(recorded_below(self._root), key=recency, reverse=True)
        self._known = {path: self._known.get(path) or _Known() for path in runs[:MOST_RUNS]}
        left = len(runs) - len(self._known)
        self._tell(left)
        for path, known in self._known.items():
            if self._clock() >= known.due_s and self._refresh(path, known) and self._clock() - self._sent_s > SENT_S:
                self._tell(left)
        self._tell(left)
        return process_time() - before_s

    def _refresh(self, path: Path, known: _Known) -> bool:
        """Read a run if it has grown or ended; return whether that was so."""
        try:
            run = open_whole(path)
        except JournalNotFound as error:
            known.line = RunLine(state=Line(str(error), "warning"))
            return False
        size = sum(segment.size for journal in run.journals for segment in journal.segments)
        state = size, run.alive()
        if state == (known.size, known.is_alive):
            return False
        known.size, known.is_alive = state
        began_s = self._clock()
        snapshot = Snapshot(partial(line_of, path))
        snapshot.wait()
        known.line = snapshot.result or RunLine(state=Line("cannot be read: standard error says why", "warning"))
        known.due_s = self._clock() + (self._clock() - began_s) / SHARE * known.is_alive
        return True

    def _tell(self, left: int) -> None:
        rows = []
        for path, known in self._known.items():
            stalled = _stalls(path) if known.is_alive else ()
            rows.append((self._key(path), replace(known.line, alarms=(*stalled, *known.line.alarms))))
        self._send("page", PageParts("runs", {"head": HEAD, "runs": list_html(self._root, rows, left)}, {}))
        self._sent_s = self._clock()

    def _key(self, path: Path) -> str:
        return str(path.relative_to(self._root))


def line_of(path: Path) -> RunLine:
    """Read a run, and say what is most important of it."""
    run = open_whole(path)
    reading = cache.load(run)
    reading.read()
    cache.save(run, reading)
    return line_of_report(build_report(run, time_ns(), reading))


def line_of_report(report: Report) -> RunLine:
    findings = (*report.findings.health, *report.findings.learn, *report.findings.time)
    reward = next((one.last for one in report.series if one.name in (v.REWARD_SCORE, v.FUNCTION_SCORE)), None)
    return RunLine(
        state=Line("nothing recorded", "warning") if report.is_empty else STATES[report.state],
        framework=f"{report.system} {report.system_version}".strip(),
        steps=count(report.steps.recorded or report.unseen_steps),
        reward="" if reward is None else brief(reward),
        step_time=seconds(report.steps.median_s) if report.steps.averaged else "",
        alarms=tuple(one.sentence for one in findings if one.severity == "alarm"),
        warnings=sum(one.severity == "warning" for one in findings),
    )


def _stalls(path: Path) -> tuple[str, ...]:
    with guard("look for stalls"):
        found = Situation(newest_attempt(find_here(path)), StallBounds.for_readers()).stalls()
        return (f"{plural(len(found), 'stall')} now",) if found else ()
    return ()


def list_html(root: Path, rows: Iterable[tuple[str, RunLine]], left: int) -> str:
    """Return the list as a part of a page."""
    heads = "".join(f'<th class="{kind}" scope="col">{head}</th>' for head, kind in HEADS)
    body = "".join(_row(key, line) for key, line in rows)
    table = f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    empty = f"<p>Nothing is recorded here yet: {safe(HOW_TO_RECORD)}. A run is listed as soon as it begins.</p>"
    more = f'<p class="note">{plural(left, "older run")} not listed.</p>' if left else ""
    return f'<section id="runs"><p class="note">{safe(str(root))}</p>{table if body else empty}{more}</section>'


def _row(key: str, line: RunLine) -> str:
    said = [marked(one, "alarm") for one in line.alarms]
    said += [marked(plural(line.warnings, "warning"), "warning")] if line.warnings else []
    cells = (
        f'<a href="/run/{quote(key, safe="")}">{safe(key)}</a>',
        marked(line.state.text, line.state.severity),
        *map(safe, (line.framework, line.steps, line.reward, line.step_time)),
        "<br>".join(said),
    )
    row = "".join(
        f'<td class="{kind}" data-head="{head}">{cell}</td>' for cell, (head, kind) in zip(cells, HEADS, strict=True)
    )
    return f"<tr>{row}</tr>"


def main(arguments: list[str]) -> None:
    """Follow the runs of a directory."""
    repeat(ListReader(Path(arguments[0]), sender(sys.stdout.buffer)).look)


if __name__ == "__main__":
    main(sys.argv[1:])
