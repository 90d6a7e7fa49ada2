"""Ranks of two pipeline stages: report and sidecar compare those of one stage, and count what they share once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Report
from tests.peers import BEGIN_NS, Did, Met, Peer
from tests.watched import DEAD, FakeClock, Watched, clock, compared

__all__ = ["clock"]

STEPS, WARMUP = 10, 2
RUN = {v.SCOPE_KEY: "run"}
PLACES: dict[str, list[dict[str, int]]] = {
    "unsaid": [{}, {}, {}, {}],
    "pipeline": [{v.RANK_DP: rank % 2, v.RANK_PP: rank // 2} for rank in range(4)],
    "tensor": [{v.RANK_DP: rank // 2, v.RANK_TP: rank % 2} for rank in range(4)],
    "data": [{v.RANK_DP: rank} for rank in range(4)],
}


def step(rank: int, number: int) -> list[Did]:
    """The second stage computes for longer, and rank 3 for longer than rank 2; then all meet."""
    own_ms = (20, 20, 60, 90)[rank]
    of_stage = Met((5, 5, 35, 5)[rank], number, group=f"dp {rank // 2}", size=2)
    of_all = Met((72, 72, 2, 2)[rank], number, size=4)
    tokens = {v.TOKENS: (400, 400, 0, 0)[rank]}
    sample = {v.SAMPLE_BATCH_SIZE: 8, v.TOKENS_RESPONSE: 100}
    return [
        Did(v.SAMPLE, 10, more=sample),
        Did(v.FORWARD, own_ms, [of_stage], tokens),
        Did(v.OPTIMIZER, 5, [of_all]),
    ]


def played(directory: Path, places: list[dict[str, int]], clock: FakeClock) -> tuple[Report, Watched]:
    """Journal ten steps of all ranks, and give what report and sidecar make of them."""
    ranks = [Peer(directory, rank, 4, identity=DEAD, place=place) for rank, place in enumerate(places)]
    for number in range(1, STEPS + 1):
        for rank in ranks:
            rank.step(number, step(rank.rank, number))
    for rank in ranks:
        rank.die()
    return build_report(open_run(directory), BEGIN_NS), compared(directory, clock)


def s(ms: float) -> Any:
    """Milliseconds as seconds, nearly."""
    return pytest.approx(ms / 1e3)


def test_ranks_are_compared_inside_their_stage(tmp_path: Path, clock: FakeClock) -> None:
    """Rank 3 costs 30 ms against rank 2. Nobody is slow for being of the longer stage; waits reach over stages."""
    report, watched = played(tmp_path, PLACES["pipeline"], clock)
    found = report.efficiency
    assert [(3, v.FORWARD, 1, s(90), pytest.approx(1.5), s(30), STEPS - WARMUP)] == [
        (row.rank, row.stage, row.pipeline, row.own_s, row.ratio, row.cost_s, row.slow_steps)
        for row in found.stragglers
    ]
    assert [] == found.slow_communication
    assert [(0, s(70), s(7)), (0, s(70), s(7)), (1, s(30), s(7)), (1, s(0), s(7))] == [
        (row.pipeline, row.wait_s, row.transfer_s) for row in found.ranks
    ]
    scores = [pytest.approx(score) for score in (1, 1, 1, (10 + 5 + 90 * 60 / 90) / 105)]
    assert scores == [row.relative_score for row in found.ranks]
    assert [0, 1] == [row.pipeline for row in found.slowdowns]
    compared_ranks = [
        ([one.rank for one in row.own], row.straggler) for row in report.balance if row.stage == v.FORWARD
    ]
    assert [([0, 1], None), ([2, 3], Rank("trainer", 3))] == compared_ranks
    assert (
        "Rank 3 of pipeline stage 1 is slower in rl.train.forward (own time 90.0 ms against 60.0 ms), which costs "
        "30.0 ms of 112 ms per step (27 %)."
    ) == report.findings.time[0].sentence

    assert [(rank, RUN, round(STEPS * ms / 1e3, 9)) for rank, ms in enumerate((70, 70, 30, 0))] == sorted(
        watched.numbers(v.SKEW_WAIT)[-4:]
    )
    assert [(3, {v.STAGE: v.FORWARD, **RUN}, 0.03)] * STEPS == watched.numbers(v.STRAGGLER_COST)
    assert {(0, 2), (1, 2), (2, 3)} == {(span.resource[v.RANK], span.attributes[v.SKEW_RANK]) for span in watched.spans}


def test_without_a_stage_all_ranks_of_a_role_are_peers(tmp_path: Path, clock: FakeClock) -> None:
    """Whoever computes for long is slow then, against all others; the sidecar names the slowest of a step."""
    report, watched = played(tmp_path, PLACES["unsaid"], clock)
    assert [(3, v.FORWARD, None, s(70)), (2, v.FORWARD, None, s(40))] == [
        (row.rank, row.stage, row.pipeline, row.cost_s) for row in report.efficiency.stragglers
    ]
    assert [(3, {v.STAGE: v.FORWARD, **RUN}, 0.07)] * STEPS == watched.numbers(v.STRAGGLER_COST)
    assert [s(70), s(70), s(30), s(0)] == [row.wait_s for row in report.efficiency.ranks]


def without(layout: str, rank: int) -> list[dict[str, int]]:
    """A layout in which one rank's resource was final before anybody knew its place."""
    return [{} if number == rank else place for number, place in enumerate(PLACES[layout])]


@pytest.mark.parametrize("unsaid", [0, 3])
def test_a_stage_that_one_rank_does_not_say_parts_nobody(tmp_path: Path, clock: FakeClock, unsaid: int) -> None:
    """Alone it would have no peer to be slow against: report and sidecar hold all ranks against all others then."""
    report, watched = played(tmp_path, without("pipeline", unsaid), clock)
    found = report.efficiency
    assert [(3, v.FORWARD, None, s(70)), (2, v.FORWARD, None, s(40))] == [
        (row.rank, row.stage, row.pipeline, row.cost_s) for row in found.stragglers
    ]
    assert [None] * 4 == [row.pipeline for row in found.ranks]
    assert [[0, 1, 2, 3]] == [[one.rank for one in row.own] for row in report.balance if row.stage == v.FORWARD]
    assert [(3, {v.STAGE: v.FORWARD, **RUN}, 0.07)] * STEPS == watched.numbers(v.STRAGGLER_COST)


def test_a_stage_stays_unsaid_without_the_rank_that_did_not_say_it(tmp_path: Path, clock: FakeClock) -> None:
    """It dies half-way: the others have the same peers before and after, in report and sidecar."""
    ranks = [Peer(tmp_path, rank, 4, identity=DEAD, place=place) for rank, place in enumerate(without("pipeline", 0))]
    for number in range(1, STEPS + 1):
        for rank in ranks if number <= STEPS // 2 else ranks[1:]:
            rank.step(number, step(rank.rank, number))
    for rank in ranks:
        rank.die()
    report, watched = build_report(open_run(tmp_path), BEGIN_NS), compared(tmp_path, clock)
    expected = [0.07] * (STEPS // 2) + [0.05] * (STEPS // 2)
    assert [(3, {v.STAGE: v.FORWARD, **RUN}, cost) for cost in expected] == watched.numbers(v.STRAGGLER_COST)
    assert [None] * 4 == [row.pipeline for row in report.efficiency.ranks]


@pytest.mark.parametrize(
    "places",
    [
        without("tensor", 0),
        without("pipeline", 3),
        [{key: place for key, place in of.items() if key != v.RANK_DP} for of in PLACES["tensor"]],
        [{v.RANK_DP: 0, v.RANK_TP: 0}, {v.RANK_DP: 0}, {v.RANK_DP: 1}, {v.RANK_DP: 1}],
    ],
)
def test_ranks_that_do_not_say_with_whom_they_share_make_no_sum(
    tmp_path: Path, clock: FakeClock, places: list[dict[str, int]]
) -> None:
    """One of them, or all: a rate that counts samples twice is none. What each rank handled stays."""
    report, _ = played(tmp_path, places, clock)
    assert [] == report.rates
    assert [(80, 4000), (80, 4000), (80, 0), (80, 0)] == [(row.samples, row.train_tokens) for row in report.work]


def test_a_rank_without_a_place_has_samples_of_its_own_beside_others_that_have(
    tmp_path: Path, clock: FakeClock
) -> None:
    """Of a layout that is data-parallel alone nobody shares."""
    report, _ = played(tmp_path, without("data", 3), clock)
    (rate,) = (rate for rate in report.rates if rate.unit == "samples")
    assert pytest.approx(32) == rate.per_second * report.steps.total_s / report.steps.averaged


@pytest.mark.parametrize(
    ("layout", "samples", "trained"),
    [("unsaid", 32, 800), ("data", 32, 800), ("tensor", 16, 400), ("pipeline", 16, 800)],
)
def test_a_sample_that_ranks_share_counts_once(
    tmp_path: Path, clock: FakeClock, layout: str, samples: int, trained: int
) -> None:
    """Of each data-parallel group one rank; of a pipeline one that sees the batch. A rank's own row keeps its own."""
    report, _ = played(tmp_path, PLACES[layout], clock)
    per_step = {
        (rate.work, rate.unit): rate.per_second * report.steps.total_s / report.steps.averaged
        for rate in report.rates
        if rate.wall == "step"
    }
    assert {
        ("rollout", "samples"): pytest.approx(samples),
        ("rollout", "response tokens"): pytest.approx(100 * samples / 8),
        ("train", "tokens"): pytest.approx(trained),
    } == per_step
    assert [(80, 4000), (80, 4000), (80, 0), (80, 0)] == [(row.samples, row.train_tokens) for row in report.work]
