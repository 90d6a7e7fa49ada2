"""Memory peaks: how high each rank went, and in which stage it was seen there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import SpanView
from otel_rl.report.data.report import MemoryKind, MemoryPeak, Rank
from otel_rl.report.read.span_attributes import integer, is_container, iteration_of, label, rank_of

KINDS: Final[tuple[tuple[MemoryKind, str, str, tuple[str, str]], ...]] = (
    ("host rss", v.RSS_PEAK, v.RSS_PEAK_EXACT, (v.RSS_START, v.RSS_END)),
    ("device allocated", v.ALLOCATED_PEAK, v.ALLOCATED_PEAK_EXACT, (v.ALLOCATED_START, v.ALLOCATED_END)),
    ("device reserved", v.RESERVED_PEAK, v.RESERVED_PEAK_EXACT, (v.RESERVED_START, v.RESERVED_END)),
)
"""Kind of memory, key of its peak, key that says whether the peak is exact, keys of the readings at both ends."""
KEYS: Final = tuple(key for _, peak, exact, ends in KINDS for key in (peak, exact, *ends))
ANY: Final = frozenset(KEYS)
SLACK_SHARE: Final = 0.01
"""The kernel counts pages late: a reading of the host may lie this much above an exact peak."""
RAISE_SHARE: Final = 0.001
"""A stage raised the memory when it went this much above the stage before it; a few pages are noise."""


@dataclass(frozen=True, slots=True)
class _Seen:
    bytes: int
    is_exact: bool
    stage: str
    iteration: int | None


class MemoryPeaks:
    """Collects the highest values over the spans of a run."""

    def __init__(self) -> None:
        self._peaks: dict[tuple[Rank, MemoryKind], _Seen] = {}
        self._stages: dict[tuple[Rank, MemoryKind], _Seen] = {}

    def add(self, span: SpanView, phase: str, iteration: int | None) -> None:
        """Take the memory of a span in.

        Args:
            span: spans come in order of their ends, so the innermost stage comes first.
            phase: what a container is called that is no step: set-up or tear-down.
            iteration: number of the step that the span is in.
        """
        if ANY.isdisjoint(span.attributes):
            return
        for kind, peak, exact, ends in KINDS:
            own = integer(span.attributes, peak)
            size = max(own, *(integer(span.attributes, key) for key in ends))
            if not size:
                continue
            key = (rank_of(span.resource), kind)
            found = _Seen(size, own >= size and span.attributes.get(exact) is True, _name(span, phase), iteration)
            if _is_higher(found, self._peaks.get(key), slack_share=SLACK_SHARE if peak == v.RSS_PEAK else 0):
                self._peaks[key] = found
            before = self._stages.get(key)
            if _is_stage(span, iteration) and (before is None or size > before.bytes * (1 + RAISE_SHARE)):
                self._stages[key] = found

    def rows(self) -> list[MemoryPeak]:
        """List the peaks by rank; each names the stage that last raised it, or the span of the peak without stages."""
        return [
            MemoryPeak(
                role=rank.role,
                rank=rank.rank,
                kind=kind,
                bytes=peak.bytes,
                is_exact=peak.is_exact,
                stage=self._stages.get((rank, kind), peak).stage,
                iteration=self._stages.get((rank, kind), peak).iteration,
            )
            for (rank, kind), peak in sorted(self._peaks.items())
        ]


def _name(span: SpanView, phase: str) -> str:
    is_phase = is_container(span.name) and iteration_of(span.attributes) is None
    return phase if is_phase else label(span.name, span.attributes)


def _is_stage(span: SpanView, iteration: int | None) -> bool:
    """Whether a span says more than that a step or the run as a whole went so high."""
    return bool(span.parent_id) and not (is_container(span.name) and iteration is not None)


def _is_higher(found: _Seen, seen: _Seen | None, *, slack_share: float) -> bool:
    """Compare peaks; an exact one gives way to a reading only beyond the slack."""
    if seen is None:
        return True
    if found.is_exact == seen.is_exact:
        return found.bytes > seen.bytes
    slack = 1 + slack_share
    return found.bytes * slack >= seen.bytes if found.is_exact else found.bytes > seen.bytes * slack
