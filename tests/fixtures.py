"""A recording with a clock that stands still and ids that count, and its journal read back as plain values."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import otel_rl
from otel_rl import entry
from otel_rl.flusher.thread import Flusher
from otel_rl.journal.read import Run, open_run
from otel_rl.journal.views import SpanView
from otel_rl.probes.memory import UNREAD, probes
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.report.fold.folded_spans import FoldedSpans
from otel_rl.report.fold.run_fold import RunFold, fold

WALL_NS = 1_700_000_000_000_000_000
"""The wall clock when the fake monotonic clock shows 0."""
MS = 1_000_000
RUN = "run"
ATTEMPT = f"{1:016x}"
"""The first id that is drawn."""
PROBED = ("rl.memory.", "process.")
"""Attributes whose values no test can know."""


class Clock:
    """A monotonic clock that moves when it is told to."""

    def __init__(self) -> None:
        self.ns = 1_000 * MS

    def __call__(self) -> int:
        return self.ns

    def tick(self, ms: float) -> None:
        """Let so many milliseconds pass."""
        self.ns += round(ms * MS)


class Tree(NamedTuple):
    """A span and what is below it; times in milliseconds since the clock's begin."""

    name: str
    start: float
    end: float
    below: tuple[Tree, ...] = ()


@dataclass
class Recording:
    """What a test records, and how it reads it back."""

    root: Path
    clock: Clock

    def tick(self, ms: float) -> None:
        """Let so many milliseconds pass."""
        self.clock.tick(ms)

    def start(self, *integrations: str) -> Recording:
        """Begin to record, with a memory probe that reads nothing."""
        state.clock.anchor = WALL_NS  # before anything takes a time from it: a test that came before had a real clock
        state.started_ns, state.first_ns = self.clock.ns, 0
        otel_rl.instrument(integrations)
        probes.read_memory, probes.reading = lambda: UNREAD, UNREAD
        return self

    @property
    def flusher(self) -> Flusher:
        """The flusher of this process."""
        state.ensure_awake()
        assert entry._parts.flusher is not None
        return entry._parts.flusher

    def stop(self) -> Run:
        """End the recording and open its journal."""
        otel_rl.uninstrument()
        return self.run()

    def run(self, name: str = RUN) -> Run:
        """Open the journal as it is now."""
        return open_run(self.root / name)

    def spans(self) -> dict[str, SpanView]:
        """End the recording and give its spans by name; the last of equal names."""
        return {span.name: span for span in self.stop().spans(None)}

    def trees(self) -> list[Tree]:
        """End the recording and give its traces, in the order of their begin."""
        return trees(self.stop())


def described(attributes: Mapping[str, Value]) -> dict[str, Value]:
    """Leave out the attributes whose values no test can know."""
    return {key: value for key, value in attributes.items() if not key.startswith(PROBED)}


def trees(run: Run) -> list[Tree]:
    """Make the trees of a run's spans; a span whose parent is missing is a root of its own, marked by a ``?``."""
    spans = sorted(run.spans(None), key=lambda span: (span.start_ns, -span.end_ns, span.span_id))
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans), "a span id is there twice"

    def tree(span: SpanView) -> Tree:
        below = tuple(tree(other) for other in spans if other.parent_id == span.span_id)
        assert all(other.trace_id == span.trace_id for other in spans if other.parent_id == span.span_id)
        orphan = "?" if span.parent_id and span.parent_id not in ids else ""
        return Tree(orphan + span.name, milliseconds(span.start_ns), milliseconds(span.end_ns), below)

    return [tree(span) for span in spans if span.parent_id not in ids]


def milliseconds(wall_ns: int) -> float:
    """Turn a wall time into milliseconds of the fake clock, which begins at 0."""
    return (wall_ns - WALL_NS) / MS - 1_000


def orphans(run: Run) -> list[str]:
    """Name the spans and open stages whose parent the journal does not know; a step's root may be another rank's."""
    known = {span.span_id for span in run.spans()} | {stage.span_id for stage in run.open_stages()}
    known |= {log.span_id for log in run.logs("rl.stage.open")}
    return [span.name for span in run.spans() if span.parent_id and span.parent_id not in known]


def in_child(work: Callable[[], object]) -> None:
    """Run something in a forked child that ends at once."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def commands() -> dict[str, Any]:
    """Return the commands of `otel-rl` by name, as click knows them."""
    from typer.main import get_command

    from otel_rl.cli import app

    group: Any = get_command(app)
    return {name: group.get_command(None, name) for name in group.list_commands(None)}


def modules_with(name: str) -> list[Any]:
    """Find the loaded modules of otel_rl that imported a name."""
    loaded = [module for path, module in list(sys.modules.items()) if path.split(".")[0] == "otel_rl"]
    return [module for module in loaded if hasattr(module, name)]


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recording:
    """A recording that is not on yet: clock, ids and memory are known, the flusher works only when it is asked."""
    import otel_rl.comm.collectives
    import otel_rl.sdk
    import otel_rl.trace.steps  # noqa: F401  all are loaded late, and must be there to be given the clock and the ids

    clock = Clock()
    numbers = itertools.count(1)
    for module in modules_with("monotonic_ns"):
        monkeypatch.setattr(module, "monotonic_ns", clock)
    for module in modules_with("random_bits"):
        monkeypatch.setattr(module, "random_bits", lambda bits: next(numbers))
    monkeypatch.setattr("otel_rl.clock.measure_anchor", lambda: WALL_NS)
    monkeypatch.setattr("otel_rl.trace.tree.peak_rss", lambda: 1 << 20)
    for module in ("tree", "guest"):
        monkeypatch.setattr(f"otel_rl.trace.{module}.thread_time_ns", lambda: 0)
    monkeypatch.setattr("otel_rl.sdk._others", lambda: False)  # those of earlier tests
    monkeypatch.setattr("otel_rl.flusher.thread.PERIOD_S", 3600.0)
    monkeypatch.setenv("OTEL_RL_RUN_ID", RUN)
    return Recording(tmp_path / "runs", clock)


@pytest.fixture
def recording(stubbed: Recording) -> Iterator[Recording]:
    """A recording that is on, without integrations."""
    yield stubbed.start()


@pytest.fixture
def rank_1(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Rank 1 of two, whose attempt and run are not known yet."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("OTEL_RL_RUN_ID")
    return stubbed.start()


def folded_run(run: Run) -> FoldedSpans:
    """Fold a run as the report does."""
    return fold(run, run.open_stages())


def folded_spans(spans: list[SpanView]) -> FoldedSpans:
    """Fold spans that no journal has."""
    return RunFold().finish(spans)
