"""What the spans of one trace of a process say of its memory, in order of time, and which stages were open then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.analysis.stages import Path
from otel_rl.journal.read import SpanView
from otel_rl.report.data.report import MemoryKind
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import integer, is_container, label, text


class MemoryKeys(NamedTuple):
    """Attributes of one kind of memory."""

    kind: MemoryKind
    peak: str
    exact: str
    ends: tuple[str, str]


KINDS: Final = (
    MemoryKeys("host rss", v.RSS_PEAK, v.RSS_PEAK_EXACT, (v.RSS_START, v.RSS_END)),
    MemoryKeys("device allocated", v.ALLOCATED_PEAK, v.ALLOCATED_PEAK_EXACT, (v.ALLOCATED_START, v.ALLOCATED_END)),
    MemoryKeys("device reserved", v.RESERVED_PEAK, v.RESERVED_PEAK_EXACT, (v.RESERVED_START, v.RESERVED_END)),
)
KEYS: Final = tuple(key for _, peak, exact, ends in KINDS for key in (peak, exact, *ends))
ANY: Final = frozenset(KEYS)


class Edge(NamedTuple):
    """The start or the end of a span; at one moment what is inside ends first, and what is around starts first."""

    time_ns: int
    is_start: bool
    minus_other_ns: int
    """The other end of the span, the latest first."""
    span: SpanView

    @property
    def is_end(self) -> bool:
        return not self.is_start


class TraceMemory:
    """The spans of one trace of a process that have readings of memory.

    Two readings in a row tell by how much memory rose between them. The innermost stage that was open then is the one
    that ends with the second, or the one around the one that starts with it.
    """

    def __init__(self, spans: Sequence[SpanView], phase: str, iteration: int | None) -> None:
        self.iteration = iteration
        self._whole = phase if iteration is None else v.OTHER
        self._by_id = {span.span_id: span for span in spans}
        self.spans = [span for span in spans if not ANY.isdisjoint(span.attributes)]
        edges = [Edge(span.end_ns, False, -span.start_ns, span) for span in self.spans if span.parent_id]
        edges += [Edge(span.start_ns, True, -span.end_ns, span) for span in self.spans if span.parent_id]
        self.edges = sorted(edges, key=itemgetter(0, 1, 2))
        self.rank = rank_of(spans[0].resource)
        self.attempt = text(spans[0].resource, v.ATTEMPT_ID)

    @property
    def has_container(self) -> bool:
        return any(is_container(span.name) for span in self._by_id.values())

    def kinds(self) -> Iterator[MemoryKeys]:
        """Return the kinds of memory that were read."""
        for keys in KINDS:
            if any(key in span.attributes for span in self.spans for key in (keys.ends[1], keys.peak)):
                yield keys

    def is_whole(self, span: SpanView) -> bool:
        """Return whether a span is the container of a step."""
        return self.iteration is not None and is_container(span.name)

    def open_before(self, edge: Edge) -> SpanView | None:
        """Return the innermost span that was open before an edge."""
        return edge.span if edge.is_end else self._by_id.get(edge.span.parent_id)

    def label(self, span: SpanView | None) -> str:
        """Name a stage; what is under none is `rl.other` in a step, else set-up or tear-down."""
        return self._whole if span is None or _is_frame(span) else label(span.name, span.attributes)

    def path(self, span: SpanView | None) -> Path:
        """Return the labels of the stages around a span and of itself; nothing for the container."""
        found: list[str] = []
        while span is not None and not _is_frame(span) and len(found) < len(self._by_id):  # it may be a circle
            found.append(label(span.name, span.attributes))
            span = self._by_id.get(span.parent_id)
        return tuple(reversed(found))

    def rises(self, keys: MemoryKeys) -> Iterator[tuple[int, SpanView | None]]:
        """Return the changes from one reading to the next up to the end of the container, and what was open then.

        In a process without a container it is the call that began last.
        """
        level = 0
        opened: dict[bytes, SpanView] = {}
        for edge in self.edges:
            size = integer(edge.span.attributes, keys.ends[edge.is_end])
            if size:
                if level and size != level:
                    yield size - level, self.open_before(edge) or next(reversed(opened.values()), None)
                level = size
            if edge.is_start:
                opened[edge.span.span_id] = edge.span
            else:
                opened.pop(edge.span.span_id, None)
            if edge.is_end and is_container(edge.span.name):
                return


def _is_frame(span: SpanView) -> bool:
    """Return whether a span is a root or a container, and so no stage."""
    return not span.parent_id or is_container(span.name)
