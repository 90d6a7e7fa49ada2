"""Ranks of two pipeline stages: report and sidecar compare those of one stage, and count what they share once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.model import Rank, Report
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
        "Rank 3 holds the run back: rl.train.forward takes 1.5 times as long there as on the other rank of pipeline "
        "stage 1, which costs 30.0 ms per step, 27 % of the median step."
    ) == report.verdict.sentence

    assert [(rank, RUN, round(STEPS * ms / 1e3, 9)) for rank, ms in enumerate((70, 70, 30, 0))] == sorted(
        watched.numbers(v.SKEW_WAIT)[-4:]
    )
    assert [(3, {v.STAGE: v.FORWARD, **RUN}, 0.03)] * STEPS == watched.numbers(v.STRAGGLER_COST)
    assert {(0, 2), (1, 2), (2, 3)} == {(span.resource[v.RANK], span.attributes[v.SKEW_RANK]) for span in watched.spans}


def test_without_a_stage_all_ranks_of_a_role_are_peers(tmp_path: Path, clock: FakeClock) -> None:
    """Whoever computes for long is slow then: report and sidecar name the same rank, against all others."""
    report, watched = played(tmp_path, PLACES["unsaid"], clock)
    assert [(3, v.FORWARD, None, s(70))] == [
        (row.rank, row.stage, row.pipeline, row.cost_s) for row in report.efficiency.stragglers
    ]
    assert [(3, {v.STAGE: v.FORWARD, **RUN}, 0.07)] * STEPS == watched.numbers(v.STRAGGLER_COST)
    assert [s(70), s(70), s(30), s(0)] == [row.wait_s for row in report.efficiency.ranks]


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
