"""What each rank did: its time, its samples and tokens, and who holds the others up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from otel_rl.report.data.ranks import Rank, StepKey
from otel_rl.report.data.report import WorkRow
from otel_rl.report.data.time_use import Efficiency, GoodputRow
from otel_rl.report.fold.folded_spans import FoldedSpans, StepRecord, sums_of
from otel_rl.report.read.average import Averaged, of_ranks, quantile_of
from otel_rl.report.read.rank_times import CONTROLLER, RankTimes
from otel_rl.report.read.span_attributes import WorkSums
from otel_rl.report.rows.goodput_rows import Goodputs
from otel_rl.tables.calls import Calls, join
from otel_rl.tables.peers import Compared, RankSteps, RankWaits, compare


def efficiency(found: FoldedSpans, averaged: Averaged) -> Efficiency:
    """Fold the steps: goodput takes all of them, everything else the averaged ones."""
    calls = join(found.calls)
    records, compared = compare_ranks(calls, averaged)
    waits = compared.by_rank_step([record.skipped for record in records])
    steady = set(map(id, averaged.steady))
    times = RankTimes(records, compared, waits, np.array([id(record) in steady for record in records], bool))
    called_s = (averaged.times - sums_of(averaged.steady).bubbles[CONTROLLER]) / 1e9
    mean_s = sum(called_s.tolist()) / len(called_s) if len(called_s) else 0.0
    stragglers = times.stragglers(quantile_of(np.sort(called_s), 0.5), mean_s)
    return Efficiency(
        stragglers=stragglers,
        slow_ranks=times.slow_ranks(stragglers),
        slow_communication=times.slow_communication(),
        ranks=times.ranks(),
        slowdowns=times.slowdowns(),
        bubbles=times.bubbles(),
        goodput=_goodput(found, calls, records, waits),
    )


def _goodput(found: FoldedSpans, calls: Calls, records: Sequence[StepRecord], waits: RankWaits) -> list[GoodputRow]:
    """Return the wall time by kind, with the steps that did not end: they are compared with no others."""
    cut = [record for record in of_ranks(found.steps) if record.is_truncated]
    may_wait = {*calls.rank_step[calls.has_others & ~calls.is_idle].tolist()} if cut else set()
    is_exact = np.array([record.number not in may_wait for record in cut], bool)
    none = np.zeros(len(cut), np.int64)
    waits_ns = {kind: np.concatenate([none, one]) for kind, one in waits.by_kind.items()}
    return Goodputs(found, [*cut, *records], waits_ns, np.concatenate([is_exact, ~waits.is_least_kept])).rows()


def compare_ranks(calls: Calls, averaged: Averaged) -> tuple[list[StepRecord], Compared]:
    """Compare the ranks of each role in the finished steps.

    Returns:
        The steps of ranks, and their calls; ``rank_step`` of a call is the place of its step there.
    """
    roles = _roles(averaged)
    records = [record for of_role in roles for record in of_role]
    numbers = np.array([record.number for record in records], np.int64)
    place = np.full(1 + max(numbers.max(initial=-1), calls.rank_step.max(initial=-1)), -1)
    place[numbers] = np.arange(len(records))
    of_row = place[calls.rank_step]
    steps = RankSteps(
        step=np.repeat(np.arange(len(roles)), [len(of_role) for of_role in roles]),
        part=np.array([record.pipeline for record in records], np.int64),
        rank=np.array([record.rank.rank for record in records], np.int64),
    )
    return records, compare(calls.take(of_row >= 0, of_row), steps)


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
