"""Memory peaks: how high each rank went, and in which stage it was seen there."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import SpanView
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import MemoryKind, MemoryPeak
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import integer, is_container, iteration_of, label

KINDS: Final[tuple[tuple[MemoryKind, str, str, tuple[str, str]], ...]] = (
    ("host rss", v.RSS_PEAK, v.RSS_PEAK_EXACT, (v.RSS_START, v.RSS_END)),
    ("device allocated", v.ALLOCATED_PEAK, v.ALLOCATED_PEAK_EXACT, (v.ALLOCATED_START, v.ALLOCATED_END)),
    ("device reserved", v.RESERVED_PEAK, v.RESERVED_PEAK_EXACT, (v.RESERVED_START, v.RESERVED_END)),
)
KEYS: Final = tuple(key for _, peak, exact, ends in KINDS for key in (peak, exact, *ends))
ANY: Final = frozenset(KEYS)
SLACK_SHARE: Final = 0.01
"""The kernel counts pages late: a reading of the host may lie this much above an exact peak."""
RAISE_SHARE: Final = 0.001
"""A stage raised the memory when it went this much above the stage before it; a few pages are noise."""


class MemoryPeaks:
    """The highest values over the spans of a run."""

    def __init__(self) -> None:
        self._peaks: dict[tuple[Rank, MemoryKind], MemoryPeak] = {}
        self._stages: dict[tuple[Rank, MemoryKind], MemoryPeak] = {}

    def add(self, span: SpanView, phase: str, iteration: int | None) -> None:
        """Add the memory of a span, in order of ends; `phase` names a container that is no step."""
        if ANY.isdisjoint(span.attributes):
            return
        is_phase = is_container(span.name) and iteration_of(span.attributes) is None
        rank, name = rank_of(span.resource), phase if is_phase else label(span.name, span.attributes)
        is_stage = span.parent_id and not (is_container(span.name) and iteration is not None)
        for kind, peak, exact, ends in KINDS:
            own = integer(span.attributes, peak)
            size = max(own, *(integer(span.attributes, key) for key in ends))
            if not size:
                continue
            found = MemoryPeak(
                role=rank.role,
                rank=rank.rank,
                kind=kind,
                bytes=size,
                is_exact=own >= size and span.attributes.get(exact) is True,
                stage=name,
                iteration=iteration,
            )
            if _is_higher(found, self._peaks.get((rank, kind))):
                self._peaks[rank, kind] = found
            before = self._stages.get((rank, kind))
            if is_stage and (before is None or size > before.bytes * (1 + RAISE_SHARE)):
                self._stages[rank, kind] = found

    def rows(self) -> list[MemoryPeak]:
        """List the peaks by rank; each names the stage that last raised it, or the span of the peak without stages."""
        stages = {key: self._stages.get(key, peak) for key, peak in self._peaks.items()}
        return [
            replace(peak, stage=stages[key].stage, iteration=stages[key].iteration)
            for key, peak in sorted(self._peaks.items())
        ]


def _is_higher(found: MemoryPeak, seen: MemoryPeak | None) -> bool:
    """Compare peaks; an exact one gives way to a reading only beyond the slack."""
    if seen is None or found.is_exact == seen.is_exact:
        return seen is None or found.bytes > seen.bytes
    slack = 1 + (SLACK_SHARE if found.kind == "host rss" else 0)
    return found.bytes * slack >= seen.bytes if found.is_exact else found.bytes > seen.bytes * slack
