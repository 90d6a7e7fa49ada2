"""Stages that overlap in tasks, threads and greenlets: a moment of a rank counts once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.report.build import build_report
from tests.fixtures import WALL_NS, Recording
from tests.made_runs import MS


def begin(name: str, **attributes: str) -> Callable[[], None]:
    """Begin a stage in a task of its own; return what ends it."""
    task = copy_context()
    stage = otel_rl.stage(name, **attributes)
    task.run(stage.__enter__)
    return lambda: task.run(stage.__exit__, None, None, None)


def record(recording: Recording) -> Run:
    """Record steps of 100 ms: four overlapping samples, a wait beside them, then an update beside an upload."""
    for number in range(1, 9):
        with otel_rl.step(number):
            ends = [begin("sample") for _ in range(4)]
            recording.tick(10)
            ends.append(begin("idle", **{"idle.reason": "queue"}))
            for end in ends:  # after 20, 30, 40, 50 and 60 ms
                recording.tick(10)
                end()
            upload = begin("upload")
            recording.tick(5)
            with otel_rl.stage("train"):
                recording.tick(25)
            upload()
            recording.tick(10)
    return recording.stop()


def test_the_report_has_the_activities_of_the_metric(recording: Recording) -> None:
    """Idle comes before active, and together they are the step."""
    run = record(recording)
    points = {str(point.attributes[v.ACTIVITY]): point.value for point in run.points(v.ACTIVITY_TIME)}
    (rank,) = build_report(run, WALL_NS).efficiency.ranks
    assert {"idle": 0.05, "active": 0.04, "other": 0.01} == {key: pytest.approx(one) for key, one in points.items()}
    assert (0.1, 0.05, 0.04, 0.01) == pytest.approx((rank.step_s, rank.idle_s, rank.active_s, rank.other_s))


def test_no_time_of_a_stage_is_longer_than_its_step(recording: Recording) -> None:
    """Share, total and own time are unions; the medians are of single calls."""
    made = build_report(record(recording), WALL_NS)
    shares = {row.stage: row.share for row in made.stages}
    assert {
        v.SAMPLE: 0.5, f"{v.IDLE} queue": 0.5, v.TRAIN: 0.25, "upload": 0.3, v.OTHER: 0.1,
    } == pytest.approx(shares)  # fmt: skip
    own_s = {row.stage: row.own[0].own_s for row in made.balance}
    assert {v.SAMPLE: 0.05, v.TRAIN: 0.025, "upload": 0.03} == pytest.approx(
        {stage: value for stage, value in own_s.items() if not stage.startswith(v.IDLE)}
    )
    assert 35 * MS / 1e9 == pytest.approx(next(row.median_s for row in made.stages if row.stage == v.SAMPLE))


def test_steps_that_overlap_last_to_their_own_end(recording: Recording) -> None:
    """Four tasks make steps of 40 ms, one begins every 10 ms: times are those of a step, rates those of the wall."""

    async def train(first: int) -> None:
        for _ in range(first):  # the first one begins at once
            await asyncio.sleep(0)
        for number in range(first, 33, 4):
            with otel_rl.step(number), otel_rl.stage("sample", batch_size=3):
                for _ in range(4):
                    await asyncio.sleep(0)

    async def ticking() -> None:
        while len(asyncio.all_tasks()) > 2:
            await asyncio.sleep(0)
            recording.tick(10)

    async def program() -> None:
        await asyncio.gather(ticking(), *(train(first) for first in range(1, 5)))

    asyncio.run(program())
    made = build_report(recording.stop(), WALL_NS)
    (rank,) = made.efficiency.ranks
    assert (0.04, 0.04, 0.0) == pytest.approx((made.steps.median_s, rank.active_s, rank.other_s))
    assert pytest.approx(1.0) == made.stages[0].share
    assert [("samples", 90 / 0.33)] == [
        (one.unit, pytest.approx(one.per_second)) for one in made.rates if one.wall == "step"
    ]
