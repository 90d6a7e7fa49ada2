"""What a run is: its trainings, and what it handled per second."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from otel_rl import vocabulary as v
from otel_rl.report.data.report import Rate, TrainingRow
from otel_rl.report.fold.folded_spans import FoldedSpans
from otel_rl.report.read.average import Averaged, work_of_all
from otel_rl.report.read.single_controller.held_steps import sampled_in
from otel_rl.report.read.span_attributes import WorkSums

if TYPE_CHECKING:
    from otel_rl.report.source import Source


def trainings(found: FoldedSpans, averaged: Averaged) -> list[TrainingRow]:
    """Separate what the loops of the last attempt train; loops in a row that train the same are one training."""
    last = next(reversed(found.attempts), "")
    loops: dict[str, tuple[str, str]] = {}
    for record in found.steps:
        if record.attempt == last:
            loops.setdefault(record.step.loop, (record.algorithm, record.model))
    finished = {record.key for record in averaged.finished}
    steps = Counter(loop for attempt, loop, _ in finished if attempt == last)
    rows = [(trained, list(names)) for trained, names in groupby(loops, key=loops.__getitem__)]
    return [
        TrainingRow(algorithm=algorithm, model=model, loops=names, steps=sum(steps[name] for name in names))
        for (algorithm, model), names in rows
    ]


def _work(source: Source) -> WorkSums | None:
    """Return what all processes handled in the averaged steps.

    What was trained a driver says, or its ranks, if only they know what of it the policy generated.
    """
    total = work_of_all(source.averaged.steady)
    if source.found.guests and total is not None:
        ranks = work_of_all(source.of_ranks.steady) or WorkSums()
        trained = max(total, ranks, key=lambda work: (work.has_generated > 0, work.has_trained > 0))
        total = sampled_in(source.found, source.averaged.steady)._replace(train_tokens=trained.train_tokens)
    return total


def rates(source: Source) -> list[Rate]:
    """Return what was handled per second, in the averaged steps and in the stages that generate."""
    averaged, total = source.averaged, _work(source)
    if total is None:
        return []
    step_s = averaged.wall_s()
    found = source.trajectories
    sample_s = (found.generating_s or 0.0) * len(averaged.steady) if found is not None else 0.0
    sample_s = sample_s or sum(row.total_s for row in source.stages if row.inside is None and row.stage == v.SAMPLE)
    rows: list[tuple[Rate, float]] = [
        (Rate(work="rollout", unit="samples", wall="step", per_second=total.samples), step_s),
        (Rate(work="rollout", unit="response tokens", wall="step", per_second=total.response_tokens), step_s),
        (Rate(work="rollout", unit="response tokens", wall="stage", per_second=total.response_tokens), sample_s),
        (Rate(work="train", unit="tokens", wall="step", per_second=total.train_tokens), step_s),
    ]
    return [replace(rate, per_second=rate.per_second / wall) for rate, wall in rows if wall and rate.per_second]
