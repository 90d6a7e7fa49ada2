"""Which spans of a step's trace are shipped: all below a rank's share of what trace stores take, then fewer and fewer.

Tempo refuses a trace above 5 MB, Jaeger's critical path fails above 3,000 siblings. So a rank ships at most
``TRACE_BYTES`` / world size of a trace, and ``SIBLINGS`` below a span. Nine tenths of that are its share: everything
until half of it is used, then a part that halves and halves, chosen by a hash of the span's id, and the longest so far.
Errors, aborts and what was cut off go until all of it is used. The ancestors of what is shipped always go, so room is
kept for those that are still to come. The journal keeps everything.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappush, heapreplace
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from otel_rl import vocabulary
from otel_rl.journal.frame import Frame
from otel_rl.journal.otlp.wire import block
from otel_rl.sidecar.ship.split import Record, build, records

TRACE_BYTES: Final = 4_500_000
SHARE_BYTES: Final = TRACE_BYTES * 9 // 10
SIBLINGS: Final = 3_000
"""Not divided by the ranks: what many of them hang below one span is bounded by their bytes."""
SHARE_SIBLINGS: Final = SIBLINGS * 9 // 10
PARENT_BYTES: Final = 1_000
"""For a parent that is still to come: a span of 26 attributes has 844. What is above it mostly has other children."""
KEPT_TRACES: Final = 1024
"""Traces that are remembered, those that were touched last; a later span of another one begins it anew."""
KEPT_SPANS: Final = 10_000
"""Spans that were left out and are remembered, because a child of theirs may be shipped: two slices of the flusher,
which writes parents first."""
ALWAYS: Final = (vocabulary.LOOP, vocabulary.SETUP, vocabulary.TEARDOWN, vocabulary.RANK_SPAN)
"""Spans that hold a trace together, by the first word of their name."""
OUTLIERS: Final = (vocabulary.TRUNCATED, vocabulary.REQUEST_ABORTED, vocabulary.REQUEST_TIMED_OUT)
"""Attributes of spans that people look for, beside those with an error status."""
ERROR: Final = 2
MAX_DEPTH: Final = 16
FOR_LONGEST: Final = 0.1
"""Part of the share that chance does not use up."""
LONGEST: Final = 20
"""Spans of a trace that are shipped for their length, as long as there is room."""


class _LeftOut(NamedTuple):
    """A span that was not shipped, small: a kept message would keep its whole request."""

    parent_id: bytes
    resource: bytes
    scope: bytes
    span: bytes

    def request(self) -> bytes:
        """Make a request of it alone."""
        return block(1, self.resource + block(2, self.scope + block(2, self.span)))


class Chosen(NamedTuple):
    """What of a frame is sent."""

    payload: bytes
    """The request, the very bytes where all is sent."""
    records: int
    """In it."""
    left_out: int = 0
    """Of the frame."""
    fetched: int = 0
    """Of the request: left out of former frames, and sent now because a child is."""


@dataclass
class _Trace:
    """What of one trace this node has shipped."""

    sizes: Counter[str] = field(default_factory=Counter)
    """Bytes by writer."""
    children: Counter[bytes] = field(default_factory=Counter)
    """By parent; every parent that is here has to be shipped."""
    widest: int = 0
    """The most children of any."""
    promised: dict[bytes, str] = field(default_factory=dict)
    """Parents that were not seen since a child of theirs was shipped, with its writer. One that came before it counts,
    too: it is not remembered."""
    owed: Counter[str] = field(default_factory=Counter)
    """How many those are, by writer."""
    longest: list[int] = field(default_factory=list)
    """A heap of the longest durations, ns."""

    def is_long(self, duration: int) -> bool:
        """Whether a span is one of the longest so far; then it is one of those that the next must exceed."""
        if len(self.longest) < LONGEST:
            heappush(self.longest, duration)
            return True
        return duration > self.longest[0] and heapreplace(self.longest, duration) < duration

    def fits(self, writer: str, parent_id: bytes, size: int, limit: float) -> bool:
        """Whether a span can be shipped, and all parents after it, without going beyond what trace stores take."""
        promise = self._is_new(parent_id)
        size += self.sizes[writer] + PARENT_BYTES * (self.owed[writer] + promise)
        siblings = max(self.widest, self.children[parent_id] + 1) + len(self.promised) + promise
        return size <= limit and siblings <= SIBLINGS

    def add(self, writer: str, span_id: bytes, parent_id: bytes, size: int) -> None:
        """Count a span that is shipped."""
        if span_id in self.promised:
            self.owed[self.promised.pop(span_id)] -= 1
        if self._is_new(parent_id):
            self.promised[parent_id] = writer
            self.owed[writer] += 1
        self.sizes[writer] += size
        self.children[parent_id] += 1
        self.widest = max(self.widest, self.children[parent_id])

    def copy(self) -> _Trace:
        """Make another one to go on with."""
        return _Trace(
            Counter(self.sizes),
            Counter(self.children),
            self.widest,
            dict(self.promised),
            Counter(self.owed),
            [*self.longest],
        )

    def _is_new(self, parent_id: bytes) -> bool:
        return bool(parent_id) and parent_id not in self.children


_Key = tuple[bytes, bytes]
"""Trace id and span id."""


class Share:
    """Knows what of each trace was shipped; one thread at a time."""

    def __init__(self, share_bytes: int = SHARE_BYTES, most_bytes: int = TRACE_BYTES) -> None:
        """Begin without any trace.

        Args:
            share_bytes: of a trace, for all ranks together, what chance and length may use.
            most_bytes: what errors and aborts may use, at least ``share_bytes``.
        """
        self.share_bytes = share_bytes
        self.most_bytes = max(share_bytes, most_bytes)
        self.traces: OrderedDict[bytes, _Trace] = OrderedDict()
        self.left_out: OrderedDict[_Key, _LeftOut] = OrderedDict()

    def draft(self) -> Draft:
        """Begin to choose; what is chosen counts once it is committed."""
        return Draft(self)


class Draft:
    """A choice for one batch. A batch that is not accepted is chosen again, from where this choice began."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._traces: dict[bytes, _Trace] = {}
        self._left_out: dict[_Key, _LeftOut] = {}
        self._fetched: set[_Key] = set()

    def commit(self) -> None:
        """Let the choice count; another time does nothing."""
        share = self._share
        for trace_id, trace in self._traces.items():
            share.traces[trace_id] = trace
            share.traces.move_to_end(trace_id)
        while len(share.traces) > KEPT_TRACES:
            share.traces.popitem(last=False)
        for key in self._fetched:
            share.left_out.pop(key, None)
        share.left_out.update(self._left_out)
        while len(share.left_out) > KEPT_SPANS:
            share.left_out.popitem(last=False)
        self._traces, self._left_out, self._fetched = {}, {}, set()

    def select(self, writer: str, frame: Frame, closed: Collection[bytes] = ()) -> Chosen:
        """Choose what to send of a frame of spans; those whose ids are in ``closed`` are not. Cost: 6 us a span."""
        try:
            everything = records("traces", frame.payload)
        except DecodeError:
            return Chosen(frame.payload, frame.count)  # the other side will say what it thinks of it
        found = [record for record in everything if record[2].span_id not in closed] if closed else everything
        kept: set[int] = set()
        left_out: dict[_Key, int] = {}
        resources = {id(record[0]): record[0] for record in found}
        worlds = {key: _world_size(resource) for key, resource in resources.items()}
        for index in range(len(found) - 1, -1, -1):  # the flusher writes parents first; children decide for them
            resource, _, span = found[index]
            if self._keeps(writer, span, worlds[id(resource)]):
                kept.add(index)
            else:
                left_out[span.trace_id, span.span_id] = index
        fetched = self._fetch_parents(writer, found, kept, left_out) if left_out or self._has_left_out else []
        if len(kept) == len(everything) and not fetched:
            return Chosen(frame.payload, frame.count)
        self._remember(found, left_out)
        own = build("traces", [found[index] for index in sorted(kept)]) if kept else b""
        sent = len(kept) + len(fetched)
        return Chosen(own + b"".join(fetched), sent, len(everything) - len(kept), len(fetched))

    @property
    def _has_left_out(self) -> bool:
        return bool(self._left_out or self._share.left_out)

    def _keeps(self, writer: str, span: Any, world: int) -> bool:
        trace = self._trace(span.trace_id)
        size, span_id, parent_id = span.ByteSize(), span.span_id, span.parent_span_id
        share = max(self._share.share_bytes / world, 1.0)
        used = max((trace.sizes[writer] + size) / share, trace.children[parent_id] / SHARE_SIBLINGS)
        is_long = trace.is_long(span.end_time_unix_nano - span.start_time_unix_nano)
        if not (span_id in trace.children or _must_ship(span)):
            is_chosen = _drawn(span_id, used) or (used < 1 and is_long) or _is_outlier(span)
            if not is_chosen or not trace.fits(writer, parent_id, size, self._share.most_bytes / world):
                return False
        trace.add(writer, span_id, parent_id, size)
        return True

    def _fetch_parents(
        self, writer: str, found: Sequence[Record], kept: set[int], left_out: dict[_Key, int]
    ) -> list[bytes]:
        """Ship the ancestors of what is shipped, too, where they came before it; those of former frames are given."""
        fetched = []
        for index in sorted(kept):
            span = found[index][2]
            trace_id, parent_id = span.trace_id, span.parent_span_id
            while True:
                key = trace_id, parent_id
                if key in left_out:
                    place = left_out.pop(key)
                    kept.add(place)
                    size, parent_id = found[place][2].ByteSize(), found[place][2].parent_span_id
                elif (before := self._take(key)) is not None:
                    fetched.append(before.request())
                    size, parent_id = len(before.span), before.parent_id
                else:
                    break
                self._trace(trace_id).add(writer, key[1], parent_id, size)
        return fetched

    def _take(self, key: _Key) -> _LeftOut | None:
        """Take a span that was left out before."""
        if key in self._left_out:
            return self._left_out.pop(key)
        if key in self._share.left_out and key not in self._fetched:
            self._fetched.add(key)
            return self._share.left_out[key]
        return None

    def _remember(self, found: Sequence[Record], left_out: dict[_Key, int]) -> None:
        heads: dict[int, bytes] = {}
        for key, index in left_out.items():
            resource, scope, span = found[index]
            for outer, inner in ((resource, resource.resource), (scope, scope.scope)):
                if id(outer) not in heads:
                    heads[id(outer)] = block(1, inner.SerializeToString()) + _schema(outer.schema_url)
            self._left_out[key] = _LeftOut(
                span.parent_span_id, heads[id(resource)], heads[id(scope)], span.SerializeToString()
            )

    def _trace(self, trace_id: bytes) -> _Trace:
        trace = self._traces.get(trace_id)
        if trace is None:
            known = self._share.traces.get(trace_id)
            trace = known.copy() if known else _Trace()
            self._traces[trace_id] = trace
        return trace


def _schema(url: str) -> bytes:
    return block(3, url.encode()) if url else b""


def _world_size(resource: Any) -> int:
    for item in resource.resource.attributes:
        if item.key == vocabulary.WORLD_SIZE:
            return max(int(item.value.int_value), 1)
    return 1


def _must_ship(span: Any) -> bool:
    return span.name.partition(" ")[0] in ALWAYS


def _is_outlier(span: Any) -> bool:
    return span.status.code == ERROR or any(item.key in OUTLIERS for item in span.attributes)


def _drawn(span_id: bytes, used: float) -> bool:
    """Keep all below half of the share, half of what comes until 70 %, a quarter until 80 % and so on, up to 90 %."""
    if used >= 1 - FOR_LONGEST:
        return False
    used = max(used, (used - FOR_LONGEST) / (1 - 2 * FOR_LONGEST))
    level = 0
    while used >= 1 - 0.5 ** (level + 1) and level < MAX_DEPTH:
        level += 1
    return level == 0 or blake2b(span_id, digest_size=4).digest() < (0xFFFFFFFF >> level).to_bytes(4, "big")
