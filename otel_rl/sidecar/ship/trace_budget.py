"""Which spans of a trace a rank sends: a fixed rule, since trace stores refuse what is larger.

Tempo refuses a trace above 5 MB, Jaeger's critical path fails above 3,000 siblings. A rank has a budget of
``TRACE_BYTES`` / world size for each trace, and ``SIBLINGS`` below one span. Steps, set-up, the ranks' containers and
the ancestors of sent spans always go. Until half of the budget is used, everything goes. Then ever fewer spans go until
eight tenths, chosen by a hash of their id, and the longest until nine. The rest is for errors, aborts and truncated
spans.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heappush, heapreplace
from typing import Any, Final, NamedTuple
from zlib import crc32

from google.protobuf.message import DecodeError

from otel_rl import vocabulary
from otel_rl.sidecar.ship.split import Record, build, records

TRACE_BYTES: Final = 4_500_000
SIBLINGS: Final = 3_000
WHOLE: Final = 0.5
SAMPLED: Final = 0.8
LONG: Final = 0.9
PARENT_BYTES: Final = 1_000
"""Room for a parent that is still to come; a span of 26 attributes has 844."""
LONGEST: Final = 20
KEPT_TRACES: Final = 1024
KEPT_SPANS: Final = 10_000
"""Spans that were left out and are kept, since a child of theirs may be sent."""
ALWAYS: Final = (vocabulary.LOOP, vocabulary.SETUP, vocabulary.TEARDOWN, vocabulary.RANK_SPAN)
OUTLIERS: Final = (vocabulary.TRUNCATED, vocabulary.REQUEST_ABORTED, vocabulary.REQUEST_TIMED_OUT)
ERROR: Final = 2


class Chosen(NamedTuple):
    """What of a request is sent."""

    payload: bytes
    records: int
    left_out: int = 0
    fetched: int = 0
    """Those of the records that an earlier choice, or this one, had left out before a child of theirs was sent."""


@dataclass
class _Trace:
    """What this node has sent of one trace."""

    used: Counter[str] = field(default_factory=Counter)
    """Bytes by writer."""
    children: Counter[bytes] = field(default_factory=Counter)
    """How many children of each parent are sent; each of these parents has to be sent."""
    awaited: dict[bytes, str] = field(default_factory=dict)
    """Parents of sent spans that have not come yet, with the writer that has room for them."""
    longest: list[int] = field(default_factory=list)

    def add(self, writer: str, span_id: bytes, parent_id: bytes, size: int) -> None:
        self.used[writer] += size
        if span_id in self.awaited:
            self.used[self.awaited.pop(span_id)] -= PARENT_BYTES
        if parent_id and parent_id not in self.children:
            self.awaited[parent_id] = writer
            self.used[writer] += PARENT_BYTES
        self.children[parent_id] += 1

    def is_long(self, duration_ns: int) -> bool:
        if len(self.longest) < LONGEST:
            heappush(self.longest, duration_ns)
            return True
        return duration_ns > self.longest[0] and heapreplace(self.longest, duration_ns) < duration_ns


class TraceBudget:
    """Chooses what of each trace is sent, and remembers how much that was; one thread at a time."""

    def __init__(self, trace_bytes: int = TRACE_BYTES) -> None:
        self.trace_bytes = trace_bytes
        self.traces: OrderedDict[bytes, _Trace] = OrderedDict()
        self.left_out: OrderedDict[tuple[bytes, bytes], tuple[bytes, bytes]] = OrderedDict()
        """Spans that were left out, by trace and id: the parent's id, and a request of the span alone."""

    def choose(self, writer: str, payload: bytes, count: int, closed: Collection[bytes] = ()) -> Chosen:
        """Choose what to send of a request of spans; those whose ids are in ``closed`` are left out.

        Cost: 6 us a span, 30 us one that is left out.
        """
        try:
            found = records("traces", payload)
        except DecodeError:
            return Chosen(payload, count)  # the server will refuse it
        budgets = {id(resource): self.trace_bytes / _world_size(resource) for resource, _, _ in found}
        kept: list[Record] = []
        fetched: list[bytes] = []
        for record in reversed(found):  # children decide for their parents, which are written first
            span = record[2]
            trace, size = self._trace(span.trace_id), span.ByteSize()
            if span.span_id in closed:
                continue
            if self._keeps(trace, span, trace.used[writer] + size, budgets[id(record[0])]):
                kept.append(record)
                trace.add(writer, span.span_id, span.parent_span_id, size)
                fetched += self._fetch(trace, writer, span.trace_id, span.parent_span_id)
            else:
                self.left_out[span.trace_id, span.span_id] = span.parent_span_id, build("traces", [record])
        while len(self.left_out) > KEPT_SPANS:
            self.left_out.popitem(last=False)
        if len(kept) < len(found):
            payload = build("traces", kept[::-1])
        return Chosen(payload + b"".join(fetched), len(kept) + len(fetched), len(found) - len(kept), len(fetched))

    @staticmethod
    def _keeps(trace: _Trace, span: Any, used: int, budget: float) -> bool:
        if span.span_id in trace.children or span.name.partition(" ")[0] in ALWAYS:
            return True
        parent_id = span.parent_span_id
        used += PARENT_BYTES * (parent_id not in trace.children)
        share = max(used / max(budget, 1), (trace.children[parent_id] + 1) / SIBLINGS)
        is_long = trace.is_long(span.end_time_unix_nano - span.start_time_unix_nano)
        is_drawn = crc32(span.span_id) / 2**32 < (SAMPLED - share) / (SAMPLED - WHOLE)
        return is_drawn or (is_long and share <= LONG) or (share <= 1 and _is_outlier(span))

    def _fetch(self, trace: _Trace, writer: str, trace_id: bytes, span_id: bytes) -> Iterator[bytes]:
        """Return the ancestors of a sent span that were left out, each as a request of its own."""
        while before := self.left_out.pop((trace_id, span_id), None):
            parent_id, payload = before
            trace.add(writer, span_id, parent_id, len(payload))
            yield payload
            span_id = parent_id

    def _trace(self, trace_id: bytes) -> _Trace:
        trace = self.traces.setdefault(trace_id, _Trace())
        self.traces.move_to_end(trace_id)
        if len(self.traces) > KEPT_TRACES:
            self.traces.popitem(last=False)
        return trace


def _world_size(resource: Any) -> int:
    sizes: list[int] = [
        item.value.int_value for item in resource.resource.attributes if item.key == vocabulary.WORLD_SIZE
    ]
    return max([1, *sizes])


def _is_outlier(span: Any) -> bool:
    return span.status.code == ERROR or any(item.key in OUTLIERS for item in span.attributes)
