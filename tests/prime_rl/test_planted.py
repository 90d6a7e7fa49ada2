"""Faults that are planted in programs of prime-rl's shape: the report names each of them, and what it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.files import Journal
from otel_rl.journal.read import Run
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Report
from otel_rl.report.sections.role_tables import processes
from tests.fixtures import ATTEMPT, WALL_NS, Recording
from tests.prime_rl import world
from tests.prime_rl.training import ship, train

STEPS = 12
ORCHESTRATOR = Rank("orchestrator", 0)
CALLED = (v.SAMPLE_GROUP, v.TRAJECTORY, v.SAMPLE, v.LOG)


class Job:
    """Trainer and orchestrator of one run, one after the other, by the same clock."""

    def __init__(self, shaped: Recording, monkeypatch: pytest.MonkeyPatch, ranks: int = 1) -> None:
        self.shaped, self.monkeypatch, self.begin_ns, self.ranks = shaped, monkeypatch, shaped.clock.ns, ranks
        monkeypatch.setenv("OTEL_RL_ATTEMPT_ID", ATTEMPT)

    def train(self, rank: int, model: Callable[[object], None] | None = None) -> None:
        """Run a rank of the trainer."""
        self.run(lambda: train(steps=STEPS, model=model), RANK=str(rank), WORLD_SIZE=str(self.ranks))

    def run(self, program: Callable[[], None], **environment: str) -> None:
        """Run a process of the job."""
        self.shaped.clock.ns = self.begin_ns
        with self.monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            self.shaped.start("prime_rl")
            try:
                program()
            finally:
                self.shaped.stop()

    def orchestrate(self, program: Coroutine[Any, Any, None]) -> Report:
        """Run the orchestrator; return the report of the job."""
        self.run(lambda: asyncio.run(program))
        return self.report()

    def report(self) -> Report:
        """Return the report of the job, whose processes have ended."""
        self.monkeypatch.setattr(Journal, "alive", lambda journal: False)
        return build_report(self.shaped.run(), WALL_NS + self.shaped.clock.ns)


def rules(findings: list[Finding]) -> dict[str, tuple[Rank | None, int | None, str | None]]:
    """Return what each finding is about: a rank, a step, a stage."""
    return {one.rule: (one.rank, one.step, one.stage) for one in findings}


def spans_of(run: Run, error: str) -> list[tuple[str, int]]:
    """Return the spans that failed with an exception, and their status."""
    return [(one.name, one.status_code) for one in run.spans(None) if one.attributes.get(v.ERROR_TYPE) == error]


def test_a_slow_rank(shaped: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 takes five times as long for its forwards; the orchestrator is no rank."""
    job = Job(shaped, monkeypatch, ranks=2)
    job.train(0)
    job.train(1, lambda ids: shaped.tick(8))
    report = job.orchestrate(ship(STEPS))
    assert {"slow_stage": (Rank("trainer", 1), None, v.FORWARD)} == rules(report.findings.time)
    assert {"healthy": (None, None, None)} == rules(report.findings.health)
    assert [Rank("trainer", 0), Rank("trainer", 1)] == report.ranks
    assert "2 trainers (ranks), 1 orchestrator" == processes(report)
    assert (2, 0, STEPS) == (report.attempts[0].ranks, report.missing_ranks, report.steps.recorded)
    calls = {one.stage: one.calls for one in report.roles[1].stages}
    assert {v.SAMPLE_GROUP: 24, v.TRAJECTORY: 48, v.SAMPLE: 12, v.LOG: 12} == {key: calls[key] for key in CALLED}
    assert report.trajectories is not None
    assert (48, 240, None) == (
        report.trajectories.trajectories, report.trajectories.response_tokens, report.trajectories.late_s,
    )  # fmt: skip


def test_a_reward_that_raises(shaped: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all episodes of a step: prime-rl returns these. One more is raised where the server is gone, and goes on."""
    job, gone = Job(shaped, monkeypatch), ConnectionError("theirs")
    job.train(0)
    seen: list[object] = []
    errors = {5: "RewardError", 7: gone}
    report = job.orchestrate(ship(STEPS, error=lambda step: errors.get(step, ""), failed=seen))
    assert [gone] * 4 == seen
    stage = v.TRAJECTORY
    assert [(ORCHESTRATOR, 5, stage, "RewardError"), (ORCHESTRATOR, 7, stage, "ConnectionError")] == [
        (one.rank, one.step, one.stage, one.error) for one in report.failures
    ]
    assert {"call_failed": (ORCHESTRATOR, 7, stage)} == rules(report.findings.health)
    run = shaped.run()
    assert [[(stage, 2)] * 4] * 2 == [spans_of(run, error) for error in ("RewardError", "ConnectionError")]


def test_a_stage_of_the_trainer_that_raises(shaped: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception reaches the program, which exits with 1; its step and its stage have failed."""
    theirs = ZeroDivisionError("theirs")
    calls = iter(range(100))

    def model(ids: object) -> None:
        """Raise in the fifth step."""
        if next(calls) == 8:
            raise theirs

    job = Job(shaped, monkeypatch)
    with pytest.raises(SystemExit) as raised:
        job.train(0, model)
    assert (1, theirs) == (raised.value.code, raised.value.__context__)
    report = job.orchestrate(ship(STEPS))
    trainer, error = Rank("trainer", 0), "ZeroDivisionError"
    assert [(trainer, 5, v.FORWARD, error)] == [(one.rank, one.step, one.stage, one.error) for one in report.failures]
    failed = spans_of(shaped.run(), error)
    assert [(v.LOOP, 2), (f"{v.RANK_SPAN} 0", 2), (v.FORWARD, 2)] == failed
    assert {"failed": (trainer, 5, v.FORWARD)} == rules(report.findings.health)


def test_a_set_up_that_raises(shaped: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed, with its stage."""
    theirs = MemoryError("theirs")
    monkeypatch.setattr(world, "CLOCK", [lambda ms: (_ for _ in ()).throw(theirs)])
    with pytest.raises(SystemExit):
        Job(shaped, monkeypatch).train(0)
    failed = spans_of(shaped.run(), "MemoryError")
    assert [(v.SETUP, 2), (f"{v.RANK_SPAN} 0", 2), (v.SETUP_MODEL, 2)] == failed


def test_an_orchestrator_that_raises(shaped: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception is in no stage; the program exits with 1."""
    theirs = LookupError("theirs")

    async def fail(dispatcher: Any, step: int) -> None:
        if step == 6:
            raise theirs

    job = Job(shaped, monkeypatch)
    job.train(0)
    with pytest.raises(SystemExit) as raised:
        job.orchestrate(ship(STEPS, plan=fail))
    assert (1, theirs) == (raised.value.code, raised.value.__context__)
    failures = job.report().failures
    assert [(ORCHESTRATOR, 6, v.SAMPLE, "LookupError")] == [
        (one.rank, one.step, one.stage, one.error) for one in failures
    ]


def test_groups_that_are_dropped(shaped: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them: those that are too old, and those for which the engines have no room."""

    async def drop(dispatcher: Any, step: int) -> None:
        await asyncio.sleep(0)
        await dispatcher.drop_group(f"{step}-1", reason="overload" if step % 2 else "stale")

    job = Job(shaped, monkeypatch)
    job.train(0)
    report = job.orchestrate(ship(STEPS, plan=drop))
    (found,) = [one for one in report.findings.learn if one.rule == "groups_dropped"]
    assert {"share": 0.5, "of": 24, "reasons": ["6 stale", "6 surplus"]} == found.values
    assert [] == report.failures
