"""A window of time split into parts that add up to it exactly, however the intervals of the parts overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from otel_rl.analysis.intervals import Interval, clip, merge


def partition(layers: Sequence[Iterable[Interval]], begin: int, end: int) -> tuple[int, ...]:
    """Give each moment of a window to the first layer that has it.

    Args:
        layers: intervals, ns; what an earlier layer has, a later one does not get.
        begin: of the window.
        end: of the window; before its begin the window is empty.

    Returns:
        Time of each layer, then the time of none; they add up to the window to the ns.
    """
    parts: list[int] = []
    reached: list[Interval] = []
    total = before = 0
    for layer in layers:
        inside = clip(layer, begin, end)
        if inside:
            reached = merge(reached + inside)
            total = sum([high - low for low, high in reached])
        parts.append(total - before)
        before = total
    return (*parts, max(0, end - begin) - total)
