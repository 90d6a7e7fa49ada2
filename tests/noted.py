"""Requests as integrations hand them over, before the flusher takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import otel_rl
from otel_rl.process.state import state
from otel_rl.records import Count, Later
from otel_rl.requests.queue import Request


class Taken(NamedTuple):
    """What waited for the flusher."""

    rows: list[Request]
    parents: list[Any]
    """The span that each row belongs to."""
    counts: list[Count]


def take() -> Taken:
    """Take all records away from the flusher and read the requests among them."""
    taken = Taken([], [], [])
    while state.queue:
        record = state.queue.popleft()
        if isinstance(record, Count):
            taken.counts.append(record)
        elif isinstance(record, Later):
            state.queue.extendleft(reversed(list(record.function(*record.arguments))))
        elif type(record) is tuple:
            read, parent, arguments = record
            rows = list(map(Request._make, read(*arguments)))
            taken.rows.extend(rows)
            taken.parents.extend([parent] * len(rows))
    return taken


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A flusher that works only when it is asked, by the real clock."""
    monkeypatch.setattr("otel_rl.flusher.thread.PERIOD_S", 3600.0)
    yield
    state.queue.clear()
    otel_rl.uninstrument()
