"""Histograms, counters, points and attributes of requests and rollouts, by the column they come from."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.buckets import BOUNDS

NS: Final = 1e-9
ROUNDING: Final = 1e-6

Histogram = tuple[str, str, tuple[int, ...], float]
"""Metric, column, boundaries in units of the column, and how much one unit is."""
HISTOGRAMS: Final[tuple[Histogram, ...]] = tuple(
    (name, column, tuple(round(bound / unit) for bound in v.METRICS[name].boundaries), unit)
    for unit, names in (
        (
            NS,
            {
                v.TTFT: "ttft",
                v.TPOT: "tpot",
                v.REQUEST_DURATION: "duration",
                v.QUEUE_TIME: "queue",
                v.PREFILL_TIME: "prefill",
            },
        ),
        (1, {v.PROMPT_LENGTH: "input", v.OUTPUT_LENGTH: "output", v.CACHED_LENGTH: "cached"}),
    )
    for name, column in names.items()
)
EXPONENTIAL: Final = tuple(tuple(int(bound / unit + ROUNDING) for bound in BOUNDS) for _, _, _, unit in HISTOGRAMS)
"""Bounds of each histogram's exponential buckets in units of its column, rounded down: it has whole numbers."""
OUTCOMES: Final = {
    "aborted": (v.ABORTED, v.REQUESTS_ABORTED),
    "timed_out": (v.TIMED_OUT, v.REQUESTS_TIMED_OUT),
    "clipped": (v.CLIPPED, v.REQUESTS_CLIPPED),
    "error": ("", v.REQUESTS_FAILED),
}
"""Counter and the rollout's attribute; errors are counted by their class."""
SHARES: Final = {v.TAIL_1: "0.01", v.TAIL_5: "0.05", v.TAIL_10: "0.1"}
