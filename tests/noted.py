"""Requests as integrations hand them over, before the flusher takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import pytest

import otel_rl
from otel_rl.process.state import state
from otel_rl.records import Count, Deferred, FinishedRequests
from otel_rl.requests.queue import Request


class Taken(NamedTuple):
    """What waited for the flusher."""

    rows: list[Request]
    parents: list[Any]
    """The span that each row belongs to."""
    counts: list[Count]


def parts(finished: Iterable[Any]) -> Iterator[tuple[Callable[..., Iterable[Any]], Any, list[Any]]]:
    """Give reader, parent and arguments of each."""
    pieces = iter(finished)
    for read in pieces:
        parent, number = next(pieces), next(pieces)
        yield read, parent, list(islice(pieces, number))


def take() -> Taken:
    """Take all records away from the flusher and read the requests among them."""
    taken = Taken([], [], [])
    while state.queue:
        record = state.queue.popleft()
        if isinstance(record, Count):
            taken.counts.append(record)
        elif isinstance(record, Deferred):
            state.queue.extendleft(reversed(list(record.function(*record.arguments))))
        elif isinstance(record, FinishedRequests):
            for read, parent, arguments in parts(record):
                rows = list(map(Request._make, read(*arguments)))
                taken.rows.extend(rows)
                taken.parents.extend([parent] * len(rows))
            record.clear()  # as the flusher does: it may be queued twice
    return taken


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A flusher that works only when it is asked, by the real clock."""
    monkeypatch.setattr("otel_rl.flusher.thread.PERIOD_S", 3600.0)
    yield
    state.queue.clear()
    otel_rl.uninstrument()
