"""Bubbles of one rank in one step: for whom or for what it waits, and in which part of which time.

Every share says what it was divided by. Waits for slower peers, which a rank cannot see, are in
``analysis/waits.py``, and what idles inside an engine at the end of a rollout in ``analysis/requests.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from otel_rl.analysis.intervals import Interval
from otel_rl.analysis.partition import partition

Denominator = Literal["step"]
"""The rank's step time."""

REASONS: Final = ("data", "queue", "pipeline", "other")
"""For what a rank waits, as far as it sees that by itself; a moment that waits for several is the first of them."""


@dataclass(frozen=True, slots=True)
class Share:
    """A bubble as a ratio, and what it was divided by."""

    value: float
    denominator: Denominator


@dataclass(frozen=True, slots=True)
class Bubbles:
    """The bubbles of one rank in one step, ns."""

    step_ns: int
    """The denominator."""
    data_ns: int
    """Waiting for the data loader."""
    queue_ns: int
    """Waiting for samples, for a slot, for another role's answer."""
    pipeline_ns: int
    """Waiting for a neighbour's activations or gradients."""
    other_ns: int
    """Waiting for anything else, or nobody said for what."""

    @property
    def shares(self) -> dict[str, Share]:
        """Each bubble of the step; nothing of a step without time."""
        if self.step_ns <= 0:
            return {}
        own = zip(REASONS, (self.data_ns, self.queue_ns, self.pipeline_ns, self.other_ns), strict=True)
        return {name: Share(value / self.step_ns, "step") for name, value in own}


def reason_of(said: str) -> str:
    """Say which of ``REASONS`` a wait counts as, by what its stage says, which may be anything or nothing."""
    return said if said in REASONS else "other"


def bubbles(step: Interval, waits: Mapping[str, Iterable[Interval]]) -> Bubbles:
    """Find the bubbles in one rank's own intervals, all by its own clock.

    A moment counts once, as the first of ``REASONS`` that it waits for, also inside a stage.

    Args:
        step: begin and end, ns.
        waits: by ``reason_of`` what they are for.
    """
    begin, end = step
    data_ns, queue_ns, pipeline_ns, other_ns, _ = partition([waits.get(reason, ()) for reason in REASONS], begin, end)
    return Bubbles(max(0, end - begin), data_ns, queue_ns, pipeline_ns, other_ns)
