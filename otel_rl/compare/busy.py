"""Tells a run that got less of its machine from one whose code became slower."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from otel_rl.compare.data import ComparedNumber, ComparedRun, Group

TIMES: Final[tuple[Group, ...]] = ("step", "stage", "rank", "throughput", "request")
"""What takes longer on a busy machine."""
LESS: Final = 0.9
"""The threads of a run that got less of the processor had less than this part of the other run's share."""
ALIKE: Final = 0.5
"""CPU times of a step that differ by no more may be those of the same work: it takes more of it in shared caches."""
ALL_SLOWER: Final = 0.05
"""On a busy machine most stages take longer by more than this share."""
LEAST_SHARE: Final = 0.02
"""Stages below this share of the step are not asked: their times tell little."""
FEWEST: Final = 3


def busy_run(a: ComparedRun, b: ComparedRun, numbers: Sequence[ComparedNumber]) -> str:
    """Return which run took longer in most of its stages, and got less of the processor; empty if neither did."""
    if not (a.cpu_s and b.cpu_s and a.cpu_share and b.cpu_share) or abs(b.cpu_s / a.cpu_s - 1) > ALIKE:
        return ""
    step = max((one.a or 0.0 for one in numbers if one.name == "step_time"), default=0.0)
    stages = [one for one in numbers if one.group == "stage" and one.a and one.b and one.a >= LEAST_SHARE * step]
    if len(stages) < FEWEST:
        return ""
    change = median((one.b or 0.0) / (one.a or 1.0) for one in stages)
    if b.cpu_share < LESS * a.cpu_share and change > 1 + ALL_SLOWER:
        return "b"
    return "a" if a.cpu_share < LESS * b.cpu_share and 1 / change > 1 + ALL_SLOWER else ""
