"""What each rank did: its time, its samples and tokens, and who holds the others up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from otel_rl.analysis.summary import summarize
from otel_rl.report.data.ranks import Rank, StepKey
from otel_rl.report.data.report import WorkRow
from otel_rl.report.data.time_use import Efficiency
from otel_rl.report.fold.folded_spans import FoldedSpans, StepRecord
from otel_rl.report.read.average import Averaged, of_ranks
from otel_rl.report.read.rank_times import CONTROLLER, RankTimes
from otel_rl.report.read.span_attributes import WorkSums
from otel_rl.report.rows.goodput_rows import Goodputs
from otel_rl.tables.calls import Calls, join
from otel_rl.tables.peers import NO_PART, Compared, RankSteps, RankWaits, compare, parts


def efficiency(found: FoldedSpans, averaged: Averaged) -> Efficiency:
    """Fold the steps: goodput takes all of them, everything else the averaged ones."""
    steady = set(map(id, averaged.steady))
    times, goodputs = RankTimes(), Goodputs(found)
    calls = join(found.calls)
    met = set(calls.rank_step[calls.has_others & ~calls.is_idle].tolist())
    for record in of_ranks(found.steps):
        if record.is_truncated:
            goodputs.add_cut(record, may_wait=record.number in met)
    rows, compared = compare_ranks(calls, averaged)
    waits = compared.by_rank_step([record.skipped for _, record in rows])
    of_part: defaultdict[tuple[int, int], list[tuple[StepRecord, RankWaits]]] = defaultdict(list)
    for (step, record), waited in zip(rows, waits, strict=True):
        goodputs.add(record, waited)
        of_part[step, record.pipeline].append((record, waited))
    known = parts(compared)
    for key, peers in of_part.items():
        if all(id(record) in steady for record, _ in peers):
            waited_by = {record.rank.rank: waited for record, waited in peers}
            times.add([record for record, _ in peers], waited_by, known.get(key, NO_PART))
    called_s = [(record.step.time_ns - record.bubbles[CONTROLLER]) / 1e9 for record in averaged.steady]
    stragglers = times.stragglers(summarize(called_s).median, sum(called_s) / len(called_s) if called_s else 0.0)
    return Efficiency(
        stragglers=stragglers,
        slow_ranks=times.slow_ranks(stragglers),
        slow_communication=times.slow_communication(),
        ranks=times.ranks(),
        slowdowns=times.slowdowns(),
        bubbles=times.bubbles(),
        goodput=goodputs.rows(),
    )


def compare_ranks(calls: Calls, averaged: Averaged) -> tuple[list[tuple[int, StepRecord]], Compared]:
    """Compare the ranks of each role in the finished steps.

    Returns:
        The steps of ranks, each with the number of the step that it is compared in, and their calls; ``rank_step`` of
        a call is the place of its step there.
    """
    rows = [(step, record) for step, records in enumerate(_roles(averaged)) for record in records]
    numbers = np.array([record.number for _, record in rows], np.int64)
    place = np.full(1 + max(numbers.max(initial=-1), calls.rank_step.max(initial=-1)), -1)
    place[numbers] = np.arange(len(rows))
    of_row = place[calls.rank_step]
    columns = ((step, record.pipeline, record.rank.rank) for step, record in rows)
    steps = RankSteps(*np.array(list(columns), np.int64).reshape(-1, 3).T)
    return rows, compare(calls.take(of_row >= 0, of_row), steps)


def _roles(averaged: Averaged) -> list[list[StepRecord]]:
    groups: defaultdict[tuple[StepKey, str], list[StepRecord]] = defaultdict(list)
    for record in averaged.finished:
        groups[record.key, record.rank.role].append(record)
    return list(groups.values())


def work_rows(averaged: Averaged, sampled: Mapping[Rank, WorkSums]) -> list[WorkRow]:
    sums: dict[Rank, WorkSums] = dict(sampled)
    for record in averaged.finished:
        sums[record.rank] = sums.get(record.rank, WorkSums()).plus(record.work)
    return [
        WorkRow(
            role=rank.role,
            rank=rank.rank,
            samples=work.samples if work.has_samples else None,
            prompt_tokens=work.prompt_tokens if work.has_prompts else None,
            response_tokens=work.response_tokens if work.has_responses else None,
            environment_tokens=work.environment_tokens if work.has_environment else None,
            padding_tokens=work.padding,
            train_tokens=work.train_tokens if work.has_trained else None,
        )
        for rank, work in sorted(sums.items())
    ]
