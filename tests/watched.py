"""A sidecar's comparison of ranks that journal by hand, look by look, on a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.columns.decode import decode_points, decode_spans
from otel_rl.journal.files import Journal
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import OtlpRequest
from otel_rl.journal.read import open_run
from otel_rl.journal.views import PointView, SpanView
from otel_rl.runs.spans import is_container
from otel_rl.sidecar.compare import compare, rank_step
from otel_rl.sidecar.compare.compare import RankComparer
from otel_rl.sidecar.ship_node import Node
from otel_rl.tables.span_table import Texts, table_of_views
from tests.peers import ALIVE, MS, Did, Met

SIDECAR = replace(ALIVE, writer="sidecar-0-1-a")
DEAD = replace(ALIVE, start_time=1)


class FakeClock:
    """A monotonic clock that the test sets."""

    seconds = 0.0
    tick = 0.0
    """What each look at it takes."""

    def __call__(self) -> float:
        self.seconds += self.tick
        return self.seconds


class Watched:
    """A sidecar's comparison of a directory, look by look."""

    def __init__(self, directory: Path, clock: FakeClock, identity: WriterIdentity = SIDECAR) -> None:
        self.clock = clock
        self.said: list[str] = []
        self.node = Node(directory, (), lambda writer: writer.boot_id == ALIVE.boot_id, print)
        self.deriver = RankComparer(directory, identity, self.said.append)
        self.journal = Journal(identity, [])
        self.requests: list[OtlpRequest] = []

    def look(self, seconds: float = 0.0) -> list[OtlpRequest]:
        """Look, so many seconds later."""
        self.clock.seconds += seconds
        self.node._scan_at = 0.0
        self.node.update()
        made = self.deriver.work(self.node)
        self.requests += made
        return made

    def settle(self) -> list[OtlpRequest]:
        """Look twice, so far apart that whatever is there has settled."""
        return [*self.look(), *self.look(rank_step.LAST_SPANS_S)]

    @property
    def spans(self) -> list[SpanView]:
        """What was derived."""
        payloads = [request.payload for request in self.requests if request.signal == "traces"]
        return list(decode_spans(payloads).views(self.journal))

    @property
    def points(self) -> list[PointView]:
        """The same of metrics."""
        payloads = [request.payload for request in self.requests if request.signal == "metrics"]
        return list(decode_points(payloads).views(self.journal))

    def numbers(self, name: str) -> list[Any]:
        """Rank, attributes and value of the points of one metric."""
        return [
            (point.resource[v.RANK], dict(point.attributes), round(point.value, 9))
            for point in self.points
            if point.name == name
        ]

    @property
    def counts(self) -> dict[str, int]:
        """What became of the steps."""
        return {str(dict(sample.labels)[v.OUTCOME]): int(sample.value) for sample in self.deriver.samples()}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The time that the comparison sees."""
    clock = FakeClock()
    monkeypatch.setattr(compare, "monotonic", clock)
    return clock


def uneven(rank: int, first: int = 1) -> list[Did]:
    """A step: rank 1 is 20 ms slower in its rewards, rank 0 waits for it, then 2 ms the other way round."""
    slow, fast = (30, 10) if rank == 1 else (10, 30)
    return [
        Did(v.REWARD, slow, [Met(fast - 5, first)]),
        Did(v.FORWARD, 8, [Met(1, first + 1), Met(1.5 if rank == 0 else 3.5, first + 2)]),
    ]


def waited(watched: Watched) -> list[tuple[int, int, float]]:
    """Rank, sequence and wait (ms) of the spans that were derived."""
    return [
        (span.resource[v.RANK], span.attributes.get(v.COMM_SEQUENCE, 0), (span.end_ns - span.start_ns) / MS)  # type: ignore[misc]
        for span in watched.spans
    ]


def journaled(directory: Path) -> list[SpanView]:
    """The spans of a run, in the order in which they were written."""
    return list(open_run(directory).spans(None))


def collect(found: rank_step.StepCollector, spans: Iterable[SpanView], now: float = 0.0) -> None:
    """Add spans one after the other, as if each was read by itself."""
    for span in spans:
        table = table_of_views([span], Texts(), rank_step.KEYS)
        if not is_container(span.name):
            table.columns["view"][0] = None
        found.add(table, [span.journal.identity.writer], [0], now)


def compared(directory: Path, clock: FakeClock) -> Watched:
    """Look until everything that is there was compared."""
    watched = Watched(directory, clock)
    watched.settle()
    return watched
