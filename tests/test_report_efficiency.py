"""Where the time went: against the truth of random runs, and by hand."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median

import pytest
from hypothesis import HealthCheck, given, settings

from otel_rl import vocabulary as v
from otel_rl.report.average import average
from otel_rl.report.collect import collect
from otel_rl.report.efficiency import efficiency
from otel_rl.report.efficiency_model import Efficiency
from tests.played import KINDS, Game, Truth, games

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=30)


def found_in(game: Game) -> tuple[Efficiency, set[tuple[str, int]]]:
    """Report on a game; with attempt and number of the steps that averages are made of."""
    found = collect(game.spans)
    averaged = average(found.steps)
    steady = {(record.attempt, record.step.iteration) for record in averaged.steady}
    return efficiency(found, averaged), steady


@unhurried
@given(games())
def test_goodput_is_what_a_walk_through_the_run_says(game: Game) -> None:
    """Of every attempt and of all: the parts are true and add up to the wall time to the nanosecond."""
    found, _ = found_in(game)
    attempts = list(dict.fromkeys(attempt for attempt, _ in game.truth))
    firsts = {
        attempt: min((one.number for one in game.truth[attempt, rank] if one.number is not None), default=None)
        for attempt, rank in game.truth
    }
    expected: dict[str | None, Counter[str]] = {}
    for (attempt, _), truths in game.truth.items():
        later = [firsts[name] for name in attempts[attempts.index(attempt) + 1 :]]
        resumed = min((first for first in later if first is not None), default=None)
        parts = expected.setdefault(attempt, Counter())
        for truth in truths:
            parts.update(_kinds(truth, truth.number is not None and resumed is not None and truth.number >= resumed))
        parts["other"] += truths[-1].end - truths[0].begin - sum(truth.end - truth.begin for truth in truths)
    everything: Counter[str] = Counter()
    for parts in expected.values():
        everything.update(parts)
    wanted = {**expected, None: everything} if sum(everything.values()) else {}
    assert {attempt: +parts for attempt, parts in wanted.items()} == {
        row.attempt: +Counter({part.kind: part.time_ns for part in row.parts}) for row in found.goodput
    }
    assert [row.wall_ns for row in found.goodput] == [sum(part.time_ns for part in row.parts) for row in found.goodput]


def _kinds(truth: Truth, is_redone: bool) -> Counter[str]:
    whole = truth.end - truth.begin
    if truth.number is None:
        return Counter(overhead=whole)
    if is_redone:
        return Counter(wasted=whole)
    kinds: Counter[str] = Counter(wasted=truth.wasted)
    for stage in truth.own:
        if truth.wasted and stage in (v.FORWARD, v.BACKWARD, v.OPTIMIZER):
            continue
        kinds[KINDS[stage]] += truth.own[stage] + truth.transfer[stage]
        kinds["idle"] += truth.wait[stage]
    kinds["other"] += whole - sum(kinds.values())
    return kinds


@unhurried
@given(games())
def test_what_a_rank_did_is_what_it_did(game: Game) -> None:
    """Mean per averaged step; whatever the clocks of the ranks say, the parts add up to the step."""
    found, steady = found_in(game)
    sums: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for (attempt, rank), truths in game.truth.items():
        for truth, following in zip(truths, [*truths[1:], None], strict=True):
            if (attempt, truth.number) in steady:
                step = (following.begin if following else truth.end) - truth.begin
                idle = truth.own[v.IDLE]
                active, wait = sum(truth.own.values()) - idle, sum(truth.wait.values())
                transfer = sum(truth.transfer.values())
                sums[rank.rank].update(
                    steps=1, step=step, active=active, wait=wait, transfer=transfer, idle=idle,
                    other=step - active - wait - transfer - idle,
                )  # fmt: skip
    expected = {
        rank: {name: pytest.approx(value / parts["steps"] / 1e9) for name, value in parts.items() if name != "steps"}
        for rank, parts in sums.items()
    }
    assert expected == {
        row.rank: {
            "step": row.step_s,
            "active": row.active_s,
            "wait": row.wait_s,
            "transfer": row.transfer_s,
            "idle": row.idle_s,
            "other": row.other_s,
        }
        for row in found.ranks
    }
    bubbles = {
        kind: {rank: pytest.approx(parts[name] / parts["step"]) for rank, parts in sums.items() if parts["step"]}
        for kind, name in (("data", "idle"), ("skew", "wait"))
        if any(parts[name] for parts in sums.values())
    }
    assert bubbles == {
        row.kind: {one.rank: one.share for one in row.ranks if sums[one.rank]["step"]} for row in found.bubbles
    }


@unhurried
@given(games())
def test_the_slow_ranks_are_those_of_a_brute_force_search(game: Game) -> None:
    """Slow in half of the steps that have the stage, 2 % of the step, and what it costs."""
    found, steady = found_in(game)
    own: defaultdict[str, list[dict[int, float]]] = defaultdict(list)
    slow: Counter[tuple[int, str]] = Counter()
    steps: list[int] = []
    for attempt, number in sorted(steady):
        truths = {
            rank.rank: (one, after)
            for (name, rank), all_of in game.truth.items()
            if name == attempt
            for one, after in zip(all_of, [*all_of[1:], None], strict=True)
            if one.number == number
        }
        steps.append(max((after.begin if after else one.end) - one.begin for one, after in truths.values()))
        for stage in {stage for one, _ in truths.values() for stage in one.own}:
            times = {rank: one.own[stage] / 1e9 for rank, (one, _) in truths.items()}
            own["rl.idle data" if stage == v.IDLE else stage].append(times)
            most = max(times, key=lambda rank: times[rank])
            others = median([times[rank] for rank in times if rank != most]) if len(times) > 1 else 0
            if others > 0 and times[most] >= 1.2 * others and times[most] - others >= 0.02 * steps[-1] / 1e9:
                named = [most, *(rank for rank in times if rank != most and times[rank] > (1 - 0.05) * times[most])]
                slow.update((rank, "rl.idle data" if stage == v.IDLE else stage) for rank in named)
    expected = {}
    for (rank, stage), count in slow.items():
        excess = [times[rank] - median([times[one] for one in times if one != rank]) for times in own[stage]]
        cost = median(excess) * len(excess) / len(steps)
        if count >= 0.5 * len(excess) and cost >= 0.02 * median(steps) / 1e9:
            expected[rank, stage] = (pytest.approx(cost), count, len(excess))
    rows = {(row.rank, row.stage): (row.cost_s, row.slow_steps, row.steps) for row in found.stragglers}
    assert expected == rows
