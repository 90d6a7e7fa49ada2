"""Where the time went: every step of all ranks together, once."""

from __future__ import annotations

from collections import defaultdict

from otel_rl.analysis.waits import call_waits
from otel_rl.report.data.efficiency import Efficiency
from otel_rl.report.read.average import Averaged
from otel_rl.report.read.collect import Collected, StepKey, StepRecord
from otel_rl.report.read.rank_times import RankTimes
from otel_rl.report.sections.goodput import Goodputs
from otel_rl.runs.calls import matched_peers


def efficiency(found: Collected, averaged: Averaged) -> Efficiency:
    """Fold the steps: goodput takes all of them, everything else those that averages are made of.

    Peers are the ranks of one role and, where it is known, one pipeline stage.
    """
    steady = set(map(id, averaged.steady))
    times, goodputs = RankTimes(), Goodputs(found)
    for record in found.steps:
        if record.is_truncated:
            goodputs.add(record, None)
    for records in _roles(averaged):
        pipeline = {record.rank.rank: record.pipeline for record in records}
        parted = matched_peers({record.rank.rank: record.calls for record in records}, pipeline)
        waited = call_waits(*parted.values())
        for record in records:
            goodputs.add(record, waited)
        for stage, calls in parted.items():
            peers = [record for record in records if record.pipeline == stage]
            if all(id(record) in steady for record in peers):
                times.add(peers, calls, waited)
    return Efficiency(
        stragglers=times.stragglers(averaged.median_ns / 1e9, averaged.mean_ns / 1e9),
        slow_communication=times.slow_communication(),
        ranks=times.ranks(),
        slowdowns=times.slowdowns(),
        bubbles=times.bubbles(),
        goodput=goodputs.rows(),
    )


def _roles(averaged: Averaged) -> list[list[StepRecord]]:
    """Part the steps by number and role."""
    groups: defaultdict[tuple[StepKey, str], list[StepRecord]] = defaultdict(list)
    for record in averaged.finished:
        groups[record.key, record.rank.role].append(record)
    return list(groups.values())
