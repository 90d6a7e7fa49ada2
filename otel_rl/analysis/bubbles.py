"""Bubbles of one rank in one step: for whom or for what it waits, and in which part of which time.

Every share says what it was divided by: the same bubble is another number against the step and against the ideal time
of a pipeline. What idles inside an engine at the end of a rollout is in ``analysis/requests.py``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from otel_rl.analysis.intervals import Interval
from otel_rl.analysis.partition import partition

Denominator = Literal["step", "ideal"]
"""The rank's step time; the time that the work would take without the bubble."""

REASONS: Final = ("data", "queue", "pipeline", "other")
"""For what a rank waits, as far as it sees that by itself; a moment that waits for several is the first of them."""

RankT = TypeVar("RankT", bound=Hashable)


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
    """Waiting for a neighbour's activations or gradients, or under no stage because what the next one needs is not
    there yet."""
    other_ns: int
    """Waiting for anything else, or nobody said for what."""
    skew_ns: int
    """What slower peers made it wait: an amount by the peers' durations, which may lie inside its stages."""

    @property
    def shares(self) -> dict[str, Share]:
        """Each bubble of the step; nothing of a step without time."""
        if self.step_ns <= 0:
            return {}
        own = zip(REASONS, (self.data_ns, self.queue_ns, self.pipeline_ns, self.other_ns), strict=True)
        return {name: Share(value / self.step_ns, "step") for name, value in (*own, ("skew", self.skew_ns))}


def reason_of(said: str) -> str:
    """Say which of ``REASONS`` a wait counts as, by what its stage says, which may be anything or nothing."""
    return said if said in REASONS else "other"


def bubbles(
    step: Interval,
    *,
    stages: Iterable[Interval],
    waits: Mapping[str, Iterable[Interval]],
    skew_ns: int = 0,
    is_driven: bool = False,
) -> Bubbles:
    """Find the bubbles in one rank's own intervals, all by its own clock.

    A moment counts once, as the first of ``REASONS`` that it waits for, also inside a stage.

    Args:
        step: begin and end, ns.
        stages: everything the rank worked on, collectives included.
        waits: by ``reason_of`` what they are for.
        skew_ns: from ``skew`` or from the waits of its collectives.
        is_driven: a driver calls the stages of this rank (verl, ROLL), so time under none is a pipeline bubble; where
            the rank runs the loop by itself, that time is merely unnamed (`rl.other`).
    """
    begin, end = step
    layers = [waits.get(reason, ()) for reason in REASONS]
    data_ns, queue_ns, pipeline_ns, other_ns, _, rest_ns = partition([*layers, stages], begin, end)
    return Bubbles(max(0, end - begin), data_ns, queue_ns, pipeline_ns + is_driven * rest_ns, other_ns, skew_ns)


def skew(own_ns: Mapping[str, Mapping[RankT, int]]) -> dict[RankT, int]:
    """Add up over the stages how much sooner each rank was done than the slowest peer, ns.

    Where stages follow each other without a meeting of the ranks in between, lateness in one may make up for earliness
    in another, and the true wait is shorter.

    Args:
        own_ns: own time by stage and rank, ns; only ranks that have the stage, and peers only.
    """
    total: dict[RankT, int] = {}
    for own in own_ns.values():
        longest = max(own.values(), default=0)
        for rank, value in own.items():
            total[rank] = total.get(rank, 0) + longest - value
    return total


def schedule_bubble(ranks: int, micro_batches: int, chunks: int = 1) -> tuple[Share, Share]:
    """Give the bubble of a 1F1B pipeline schedule, which theory says even when no rank is slow.

    Args:
        ranks: stages of the pipeline, p.
        micro_batches: of one step, m.
        chunks: model chunks on each rank, v, when interleaved.

    Returns:
        (p - 1) / (v m) of the ideal time, and (p - 1) / (v m + p - 1) of the step: both are in circulation.

    Raises:
        ValueError: a number below 1.
    """
    if min(ranks, micro_batches, chunks) < 1:
        raise ValueError(f"a pipeline has ranks, micro-batches and chunks: {ranks}, {micro_batches}, {chunks}")
    filling, working = ranks - 1, chunks * micro_batches
    return Share(filling / working, "ideal"), Share(filling / (working + filling), "step")
