"""Where the time went: against the truth of random runs, and by hand."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import takewhile
from math import inf
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given, settings

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.time_use import (
    BubbleRow,
    Efficiency,
    RankBubble,
    RankTime,
    SlowCommunication,
    Slowdown,
    StragglerRow,
)
from otel_rl.report.read.average import average
from otel_rl.report.rows.efficiency import efficiency
from tests import made_runs
from tests.fixtures import folded_spans
from tests.made_runs import BEGIN_NS, MS, Plan, write_run
from tests.peers import Did, Met, Peer
from tests.played import KINDS, Call, Game, PlayedStep, Start, Truth, games, play
from tests.tables.made import StageCall
from tests.timelines import many
from tests.watched import DEAD

fewer = settings(max_examples=30)


def found_in(game: Game) -> tuple[Efficiency, set[tuple[str, int]]]:
    """Report on a game; with attempt and number of the steps that averages are made of."""
    found = folded_spans(game.spans)
    averaged = average(found.steps)
    steady = {(record.attempt, record.step.iteration) for record in averaged.steady}
    return efficiency(found, averaged), steady


@pytest.mark.medium
@fewer
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
    setups: Counter[str | None] = Counter()
    for (attempt, _), truths in game.truth.items():
        before = takewhile(lambda truth: truth.number is None, truths)
        setups.update(dict.fromkeys((attempt, None), sum(truth.end - truth.begin for truth in before)))
    assert +setups == +Counter({row.attempt: row.setup_ns for row in found.goodput})
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


@fewer
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


@pytest.mark.medium
@fewer
@given(games())
def test_the_slow_ranks_are_those_of_a_brute_force_search(game: Game) -> None:
    """Slow in half of the steps that have the stage, or at times; 2 % of the step, and what it costs.

    A rank that takes ten times as long for a checkpoint writes it for the others.
    """
    found, steady = found_in(game)
    own: defaultdict[str, list[dict[int, float]]] = defaultdict(list)
    spent: defaultdict[int, Counter[str]] = defaultdict(Counter)
    slow: Counter[tuple[int, str]] = Counter()
    steps: list[int] = []
    lengths: list[int] = []
    for attempt, number in sorted(steady):
        truths = {
            rank.rank: (one, after)
            for (name, rank), all_of in game.truth.items()
            if name == attempt
            for one, after in zip(all_of, [*all_of[1:], None], strict=True)
            if one.number == number
        }
        wall = {rank: (after.begin if after else one.end) - one.begin for rank, (one, after) in truths.items()}
        steps.append(max(wall.values()))
        lengths += wall.values()
        stages = {stage: {rank: one.own[stage] for rank, (one, _) in truths.items()} for stage in _names(truths)}
        waits = {rank: sum(one.wait.values()) for rank, (one, _) in truths.items()}
        rest = {
            rank: wall[rank] - sum(one.own.values()) - waits[rank] - sum(one.transfer.values())
            for rank, (one, _) in truths.items()
        }
        for rank, (one, _) in truths.items():
            transfer = sum(one.transfer.values())
            met = waits[rank] + transfer
            spent[rank].update(steps=1, wait=waits[rank], met=met, idle=rest[rank] + transfer + one.own[v.IDLE])
        least, longest = min(rest.values()), max(waits.values())
        stages[v.OTHER] = {rank: min(rest[rank], least + longest - waits[rank]) for rank in rest}
        for name, times_ns in stages.items():
            stage = "rl.idle data" if name == v.IDLE else name
            times = {rank: time_ns / 1e9 for rank, time_ns in times_ns.items()}
            own[stage].append(times)
            most = max(times, key=lambda rank: times[rank])
            others = median([times[rank] for rank in times if rank != most]) if len(times) > 1 else 0
            if stage == v.CHECKPOINT and times[most] >= 10 * others:
                continue  # it writes for all
            if others > 0 and times[most] >= 1.2 * others and times[most] - others >= 0.02 * steps[-1] / 1e9:
                named = [most, *(rank for rank in times if rank != most and times[rank] > (1 - 0.05) * times[most])]
                named += [rank for rank in times if rank not in named and _is_slow(times, rank, steps[-1])]
                slow.update((rank, stage) for rank in named)
    rows = {(row.rank, row.stage): (row.cost_s, row.slow_steps, row.steps) for row in found.stragglers}
    if not all(row.is_wait_exact for row in found.ranks):
        spent.clear()
    assert _named(slow, own, spent, steps, lengths) == rows


def _named(
    slow: Counter[tuple[int, str]],
    own: dict[str, list[dict[int, float]]],
    spent: dict[int, Counter[str]],
    steps: list[int],
    lengths: list[int],
) -> dict[tuple[int, str], tuple[object, int, int]]:
    """Of the ranks that are slow in some steps those that are so again and again, with what they cost."""
    expected: dict[tuple[int, str], tuple[object, int, int]] = {}
    for (rank, stage), count in slow.items():
        excess = [times[rank] - _rest(times, rank) for times in own[stage]]
        of_stage = sum(number for (_, name), number in slow.items() if name == stage)
        if count >= 0.5 * len(excess):
            is_in_all = len(excess) == len(steps)
            cost = median(excess) * len(excess) / len(steps)
            limit = median(steps) if is_in_all else sum(steps) / len(steps)
        elif count >= 3 and count >= 0.5 * of_stage:
            cost, limit = sum(excess) / len(steps), sum(steps) / len(steps)
        else:
            continue
        has_rest = any(_rest(times, rank) > 0 for times in own[stage])
        is_mean = count < 0.5 * len(excess) or len(excess) < len(steps)
        most = _waited_for(rank, spent)
        shown = (sum(lengths) / len(lengths) if is_mean else median(lengths)) / 1e9
        if has_rest and cost >= 0.02 * limit / 1e9 and (most >= cost or most >= 0.02 * shown):
            expected[rank, stage] = (pytest.approx(min(cost, most)), count, len(excess))
    return expected


def _is_slow(times: dict[int, float], rank: int, step: int) -> bool:
    others = median([times[other] for other in times if other != rank])
    return others > 0 and times[rank] >= 1.2 * others and times[rank] - others >= 0.02 * step / 1e9


def _names(truths: dict[int, tuple[Truth, Truth | None]]) -> set[str]:
    return {stage for one, _ in truths.values() for stage in one.own}


def _waited_for(slow: int, spent: dict[int, Counter[str]]) -> float:
    """The longest that another rank waited in a mean step, s; no limit where they met nowhere, or not all is known."""
    if not spent or not all(parts["met"] for parts in spent.values()):
        return inf
    idle = {rank: parts["idle"] / parts["steps"] for rank, parts in spent.items()}
    others = [rank for rank in spent if rank != slow]
    return max(spent[rank]["wait"] / spent[rank]["steps"] + idle[rank] - min(idle.values()) for rank in others) / 1e9


def _rest(times: dict[int, float], slow: int) -> float:
    """The median of the others; beside a slow rank of those that are not as slow."""
    others = [time for rank, time in times.items() if rank != slow]
    if 0 < 1.2 * median(others) <= times[slow]:
        others = [time for time in others if time <= 0.95 * times[slow]]
    return median(others)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_a_slow_rank_from_the_journal_to_the_document(tmp_path: Path) -> None:
    """20 ms of rewards instead of 10; the other waits. Scores and S leave the backward out, which hides collectives."""
    found = build_report(open_run(write_run(tmp_path, Plan(slow_rank=1))), BEGIN_NS).efficiency
    straggler = StragglerRow(
        role="trainer",
        rank=1,
        stage=v.REWARD,
        own_s=0.02,
        ratio=2.0,
        cost_s=pytest.approx(0.01),
        share=pytest.approx(0.01 / 0.11),
        slow_steps=10,
        steps=10,
        all_steps=10,
        pipeline=None,
    )
    assert [straggler] == found.stragglers
    assert ([], []) == (found.slow_communication, found.slowdowns)
    active_s, step_s = 0.07 + 2 * 0.03 / 10, 0.11 + 2 * 0.03 / 10
    own_s = active_s + 0.001  # with the wait for data, in which a rank may be slow
    expected = [
        RankTime(
            role="trainer",
            rank=rank,
            steps=10,
            step_s=pytest.approx(step_s),
            active_s=pytest.approx(active_s + 0.01 * (rank + 1)),
            wait_s=pytest.approx(0.01 * (1 - rank)),
            transfer_s=pytest.approx(0.001),
            is_wait_exact=True,
            inseparable_s=pytest.approx(0.016),
            idle_s=pytest.approx(0.001),
            other_s=pytest.approx(0.002),
            cpu_share=None,
            train_tokens=240.0,
            response_tokens=160.0,
            relative_score=pytest.approx(1.0 if rank == 0 else (own_s + 0.02 * 0.5) / (own_s + 0.02)),
            individual_score=1.0,
            slowdown=None,
            pipeline=None,
        )
        for rank in (0, 1)
    ]
    assert expected == found.ranks
    skew = [RankBubble(role="trainer", rank=0, time_s=0.01, share=pytest.approx(0.01 / step_s))]
    skew.append(RankBubble(role="trainer", rank=1, time_s=0.0, share=0.0))
    data = [RankBubble(role="trainer", rank=rank, time_s=0.001, share=pytest.approx(0.001 / step_s)) for rank in (0, 1)]
    assert found.bubbles == [
        BubbleRow(kind="data", denominator="step", share=pytest.approx(0.001 / step_s), is_exact=True, ranks=data),
        BubbleRow(kind="skew", denominator="step", share=pytest.approx(0.005 / step_s), is_exact=True, ranks=skew),
    ]


def test_whatever_a_rank_waits_for_is_a_bubble(tmp_path: Path) -> None:
    """For a reason of one's own, or for none: all of `rl.idle` is in one; what lies under no stage is in none."""
    rank = Peer(tmp_path, 0, 1, identity=DEAD)
    reasons = ((10, {v.IDLE_REASON: "queue"}), (5, {v.IDLE_REASON: "a lock"}), (15, {}))
    for number in range(1, 5):
        rank.step(number, [Did(v.REWARD, 70), *(Did(v.IDLE, ms, more=more) for ms, more in reasons)])
        rank.now_ns += 100 * MS
    rank.die()
    found = build_report(open_run(tmp_path), BEGIN_NS).efficiency
    expected = {kind: pytest.approx(3 * ms / (3 * 100 + 2 * 100)) for kind, ms in (("queue", 10), ("other", 20))}
    assert expected == {row.kind: row.share for row in found.bubbles}
    assert pytest.approx(sum(row.share for row in found.bubbles)) == sum(row.idle_s / row.step_s for row in found.ranks)


def test_what_a_rank_costs_in_few_steps_is_a_part_of_the_mean_step(tmp_path: Path) -> None:
    """An evaluation in two of eight steps: spread over all it is longer than their median, and less than their mean."""
    peers = [Peer(tmp_path, rank, 2, identity=DEAD) for rank in (0, 1)]
    for number in range(1, 11):
        for rank, peer in enumerate(peers):
            evaluation = [Did(v.EVALUATE, 100 + 400 * rank, [Met(401 - 400 * rank, number)])] * (number in (5, 8))
            peer.step(number, [Did(v.REWARD, 20), *evaluation])
    for peer in peers:
        peer.die()
    found = build_report(open_run(tmp_path), BEGIN_NS)
    (row,) = found.efficiency.stragglers
    cost_s, mean_s = 2 * 0.4 / 8, 0.02 + 2 * 0.501 / 8
    assert (v.EVALUATE, 2, 8, pytest.approx(cost_s), pytest.approx(cost_s / mean_s)) == (
        row.stage, row.steps, row.all_steps, row.cost_s, row.share,
    )  # fmt: skip
    assert (
        "Rank 1 is slower in rl.evaluate (own time 500 ms against 100 ms), which costs 100 ms of 145 ms per "
        "step (69 %)." == found.findings.time[0].sentence
    )


@pytest.mark.parametrize(("is_met", "expected"), [(False, {}), (True, {0: 0.03, 1: 0.03, 2: 0.03})])
def test_who_is_slow_where_the_others_catch_up_costs_nothing(
    tmp_path: Path, is_met: bool, expected: dict[int, float]
) -> None:
    """Rank 0 samples for longer, the others reward for longer: nobody waits, unless they meet in between."""
    peers = [Peer(tmp_path, rank, 3, identity=DEAD) for rank in range(3)]
    for number in range(1, 7):
        for rank, peer in enumerate(peers):
            sample, reward = (50, 5) if rank == 0 else (20, 35)
            first = [Met(51 - sample, 2 * number, size=3)] if is_met else []
            second = [Met(36 - reward if is_met else 1, 2 * number + 1, size=3)]
            peer.step(number, [Did(v.SAMPLE, sample, first), Did(v.REWARD, reward, second)])
    for peer in peers:
        peer.die()
    found = build_report(open_run(tmp_path), BEGIN_NS).efficiency
    assert {rank: pytest.approx(cost_s) for rank, cost_s in expected.items()} == {
        row.rank: row.cost_s for row in found.stragglers
    }


def test_what_is_written_in_the_background_is_no_time_of_its_rank(tmp_path: Path) -> None:
    """Nor is what the ranks wait there for each other: of an asynchronous checkpoint only the staging counts."""
    peers = [Peer(tmp_path, rank, 2, identity=DEAD) for rank in (0, 1)]
    for number in range(1, 5):
        for rank, peer in enumerate(peers):
            own, met = (0, [Met(81, number)]) if rank == 0 else (80, [Met(1, number)])
            staging = Did(v.CHECKPOINT_STAGING, 10)
            peer.step(number, [Did(v.CHECKPOINT, own, met, {v.CHECKPOINT_ASYNC: True}, inside=[staging])])
    for peer in peers:
        peer.die()
    found = build_report(open_run(tmp_path), BEGIN_NS)
    parts = [(row.active_s, row.wait_s, row.transfer_s, row.idle_s, row.other_s) for row in found.efficiency.ranks]
    assert [(0.01, 0.0, 0.0, 0.0, 0.081)] * 2 == [pytest.approx(one) for one in parts]
    assert ([], []) == (found.efficiency.stragglers, found.efficiency.bubbles)
    assert {"overhead": 80 * MS, "other": 648 * MS} == {
        part.kind: part.time_ns for part in found.efficiency.goodput[-1].parts if part.time_ns
    }
    assert {v.CHECKPOINT_STAGING, v.OTHER} == {row.stage for row in found.stages}


@pytest.mark.parametrize("reason", ["data", "queue"])
def test_waits_inside_other_stages_are_idle_once(tmp_path: Path, reason: str) -> None:
    """Also what is waited in a collective there: in no wait for slower ranks, in no slow communication."""
    peers = [Peer(tmp_path, rank, 2, identity=DEAD) for rank in (0, 1)]
    for number in range(1, 5):
        for rank, peer in enumerate(peers):
            more = {v.IDLE_REASON: reason}
            met = (Met(40 + 20 * rank, number),)
            peer.step(number, [Did(v.TRAIN, 40 - 20 * rank, inside=[Did(v.IDLE, 10, met, more)])])
    for peer in peers:
        peer.die()
    found = build_report(open_run(tmp_path), BEGIN_NS)
    parts = [(row.active_s, row.wait_s, row.transfer_s, row.idle_s) for row in found.efficiency.ranks]
    assert [(0.04, 0.0, 0.0, 0.05), (0.02, 0.0, 0.0, 0.07)] == [pytest.approx(one) for one in parts]
    assert {reason: pytest.approx(12 / 18)} == {row.kind: row.share for row in found.efficiency.bubbles}
    assert [] == found.efficiency.slow_communication
    assert 4 * 120 * MS == next(part.time_ns for part in found.efficiency.goodput[-1].parts if part.kind == "idle")


@pytest.mark.parametrize(
    ("reason", "expected", "own_s"), [("data", [(1, v.TRAIN)], [0.05, 0.1]), ("queue", [], [0.04, 0.04])]
)
def test_who_waits_in_a_queue_inside_a_stage_is_not_slow(
    tmp_path: Path, reason: str, expected: list[tuple[int, str]], own_s: list[float]
) -> None:
    """Somebody else has not put anything in; of data it is the rank's own loader that is slow."""
    peers = [Peer(tmp_path, rank, 2, identity=DEAD) for rank in (0, 1)]
    for number in range(1, 7):
        for rank, peer in enumerate(peers):
            waits = [Did(v.IDLE, 10 + 50 * rank, more={v.IDLE_REASON: reason})]
            peer.step(number, [Did(v.TRAIN, 40, [Met(51 - 50 * rank, number)], inside=waits)])
    for peer in peers:
        peer.die()
    found = build_report(open_run(tmp_path), BEGIN_NS)
    assert expected == [(row.rank, row.stage) for row in found.efficiency.stragglers]
    assert own_s == [pytest.approx(one.own_s) for one in found.balance[0].own]
    assert [own_s[0] / one_s for one_s in own_s] == [
        pytest.approx(row.relative_score) for row in found.efficiency.ranks
    ]


def test_ranks_of_two_roles_are_no_peers(tmp_path: Path) -> None:
    """One is twice as slow as the other: nobody to compare it with, and nobody waits for it."""
    plan = Plan(ranks=1, run_id="both")
    write_run(tmp_path, plan)
    resource = made_runs.resource

    def other(plan: Plan, rank: int) -> made_runs.Attributes:
        return {**resource(plan, rank), v.ROLE: "rollout"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made_runs, "resource", other)
        path = write_run(tmp_path, replace(plan, slow_rank=0))
    found = build_report(open_run(path), BEGIN_NS).efficiency
    assert [] == found.stragglers
    assert [("rollout", 0.0, None), ("trainer", 0.0, None)] == [
        (row.role, row.wait_s, row.relative_score) for row in found.ranks
    ]


def test_slow_communication_from_spans_to_the_row() -> None:
    """40 of 100 ns in collectives on every rank: a stage, and no rank."""
    call = Call(v.BACKWARD, (60, 60), 40)
    start = Start(0, 10, tuple(PlayedStep((call,), (0, 0), (0, 0), False) for _ in range(8)))
    found, _ = found_in(play([start], (10**18, 10**18)))
    expected = [
        SlowCommunication(role="trainer", stage=v.BACKWARD, transfer_s=4e-8, share=0.4, count=1.0, pipeline=None)
    ]
    assert ([], expected) == (found.stragglers, found.slow_communication)
    balanced = Slowdown(
        role="trainer",
        steps=6,
        actual_s=pytest.approx(1e-7),
        ideal_s=pytest.approx(1e-7),
        slowdown=pytest.approx(1.0),
        pipeline=None,
    )
    assert [balanced] == found.slowdowns


def test_what_one_slow_rank_costs_the_job() -> None:
    """Own times 20, 20 and 80, then 20 of transfer: 100 against 40 + 20, and all of it is rank 2's."""
    call = Call(v.BACKWARD, (20, 20, 80), 20)
    start = Start(0, 10, tuple(PlayedStep((call,), (0, 0, 0), (0, 0, 0), False) for _ in range(8)))
    found, _ = found_in(play([start], (10**18, 0, 5)))
    assert [pytest.approx(100 / 60)] == [row.slowdown for row in found.slowdowns]
    assert [(1.0, 1.0), (1.0, 1.0), (100 / 60, 0.25)] == [
        (pytest.approx(row.slowdown), pytest.approx(row.relative_score)) for row in found.ranks
    ]
    assert [(2, v.BACKWARD, 6, 6)] == [(row.rank, row.stage, row.slow_steps, row.steps) for row in found.stragglers]


def test_a_rank_that_becomes_slower_scores_below_its_best() -> None:
    """Ten parts of five steps; in the last one it takes twice as long."""
    steps = [
        PlayedStep((Call(v.REWARD, (80 if number >= 47 else 40,), None),), (0,), (0,), False) for number in range(52)
    ]
    found, _ = found_in(play([Start(0, 10, tuple(steps))], (0,)))
    assert [0.5] == [row.individual_score for row in found.ranks]


def test_a_stage_that_hides_collectives_in_one_step_names_nobody() -> None:
    """An own time that is an upper bound says nothing, and the table marks the stage."""
    calls = [StageCall(step, rank, "x", 10 + 90 * rank) for step in range(9) for rank in (0, 1)]
    assert [1] == [one.rank for one in many(calls).stragglers()]
    assert [] == many([*calls, StageCall(9, 0, "x", 10, hidden_ns=None), StageCall(9, 1, "x", 100)]).stragglers()
