"""The numbers of the requests that are spans, by kind: where these are all requests, quantiles are exact."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.journal.read import PointView, SpanView
from otel_rl.runs.spans import text

DURATION: Final = ""
"""No attribute: a span's own times."""
COLUMNS: Final = {
    v.REQUEST_DURATION: DURATION,
    v.TTFT: v.REQUEST_TTFT,
    v.QUEUE_TIME: v.REQUEST_QUEUE,
    v.PREFILL_TIME: v.REQUEST_PREFILL,
    v.TPOT: v.REQUEST_TPOT,
    v.PROMPT_LENGTH: v.INPUT_TOKENS,
    v.OUTPUT_LENGTH: v.OUTPUT_TOKENS,
    v.CACHED_LENGTH: v.CACHED_TOKENS,
}
"""The attribute of a span by the histogram that counts the same number of all requests."""
KIND: Final = (v.PROVIDER, v.REQUEST_MODEL, v.SUBMISSION, v.MODE)
KEYS: Final = (*KIND, *filter(None, COLUMNS.values()))
NUMERIC: Final = (int, float)


class RequestKind(NamedTuple):
    """What requests have in common."""

    engine: str
    model: str
    submission: str
    mode: str


def kind_of(point: PointView) -> RequestKind:
    return RequestKind(*(text(point.attributes, key) for key in KIND))


class RequestSpans:
    """Eight bytes of each number of each request. Cost: 2 us a request, and as much again to decode its numbers."""

    def __init__(self) -> None:
        self.count = 0
        self._columns: dict[tuple[object, ...], dict[str, array[float]]] = {}
        """By kind, as values of attributes: arrays by the keys of ``COLUMNS``."""

    def add(self, span: SpanView) -> None:
        self.count += 1
        get = span.attributes.get
        kind = get(v.PROVIDER), get(v.REQUEST_MODEL), get(v.SUBMISSION), get(v.MODE)
        columns = self._columns.get(kind)
        if columns is None:
            columns = self._columns[kind] = {key: array("d") for key in COLUMNS.values()}
        columns[DURATION].append((span.end_ns - span.start_ns) / 1e9)
        for key, column in columns.items():
            value = get(key)
            if isinstance(value, NUMERIC):
                column.append(value)

    def ordered(self, kinds: Iterable[RequestKind], name: str) -> list[float]:
        """Return one number, by the histogram of all requests, of those of some kinds; in ascending order."""
        wanted = set(kinds)
        return sorted(
            value
            for kind, columns in self._columns.items()
            if RequestKind(*("" if one is None else str(one) for one in kind)) in wanted
            for value in columns[COLUMNS[name]]
        )
