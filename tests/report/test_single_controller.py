"""The report of a run with a single controller: a driver holds the steps, and calls everybody else.

`WRITE_SCREENS=1 pytest tests/report/test_single_controller.py` writes the expected screen anew.
"""

from __future__ import annotations

import io
import os
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Report
from otel_rl.report.data.roles import which
from otel_rl.report.findings.rollout_rules import has_turns
from otel_rl.report.read.single_controller.trajectories import TrajectorySpans
from otel_rl.report.reading import read_run
from otel_rl.report.rows.evidence import _groups
from otel_rl.report.rows.gather_time import time_rows
from otel_rl.report.source import Source
from otel_rl.report.terminal import render
from otel_rl.runs.spans import is_container
from tests.driver_runs import ACTORS, AGENT, RESPONSE, REWARD, RUN, SERVERS, DrivenPlan, write_driven
from tests.made_runs import BEGIN_NS
from tests.report.test_screen import COLUMNS, SCREENS

NOW_NS = BEGIN_NS + 62_100_000_000


def test_a_journal_that_is_older_than_its_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that calls `instrument()` has one before it turns out to be a driver; its name says trainer."""
    expected, current = report_of(tmp_path / "driver"), WriterIdentity.current

    def older(role: str, *more: Any) -> WriterIdentity:
        return current("trainer" if role == "driver" else role, *more)

    monkeypatch.setattr(WriterIdentity, "current", older)
    report = report_of(tmp_path / "trainer")
    assert {"trainer"} == {path.name.partition("-")[0] for path in (tmp_path / "trainer").rglob("trainer-0-*.otlp")}
    assert (expected.roles, expected.steps, expected.efficiency) == (report.roles, report.steps, report.efficiency)


def test_a_step_that_failed_is_in_no_mean(tmp_path: Path) -> None:
    """Nor are the calls that its ranks got."""
    ranks = report_of(tmp_path, DrivenPlan(ends="lost")).efficiency.ranks
    assert [pytest.approx(2.87)] * 2 == [row.step_s for row in ranks]


@pytest.mark.parametrize(
    ("sample", "group", "expected"),
    [
        ("g61_0", "g61", "trajectory 0 of group g61"),
        ("7.3", "7", "trajectory 3 of group 7"),
        ("12", "1", "trajectory 12 of group 1"),
        ("0", "0", "trajectory 0 of group 0"),
        ("12", "", "trajectory 12"),
    ],
)
def test_names_of_trajectories(sample: str, group: str, expected: str) -> None:
    """The name of a group is part of those of its samples, or is not."""
    assert expected == which(sample, group)


def report_of(root: Path, plan: DrivenPlan | None = None) -> Report:
    """Make the report of a made run."""
    return replace(build_report(open_run(write_driven(root, plan)), NOW_NS), path=RUN)


def found(report: Report, *names: str) -> list[str]:
    """Return the sentences of some rules."""
    every = (*report.findings.time, *report.findings.health)
    return [one.sentence for one in every if one.rule in names]


def test_the_screen_of_a_healthy_run(tmp_path: Path) -> None:
    """The driver's stages tile the step, ranks explain them; only ranks count in goodput."""
    out = io.StringIO()
    console = Console(file=out, width=COLUMNS)
    render(report_of(tmp_path), console, ("ranks", "requests", "compute", "goodput"))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    file = SCREENS / "driven.txt"
    if os.environ.get("WRITE_SCREENS"):
        file.write_text("\n".join(lines) + "\n", "utf-8")
    assert file.read_text("utf-8").splitlines() == lines


def test_waits_that_a_rank_did_not_record_are_known_all_the_same(tmp_path: Path) -> None:
    """What lies between two calls is a wait for the driver."""
    recorded, plain = (
        report_of(tmp_path / name, DrivenPlan(has_waits=name == "recorded")) for name in ("recorded", "plain")
    )
    assert [
        (recorded.efficiency, recorded.stages, recorded.balance),
        [("rl.idle controller", 60), ("rl.train", 20)],
    ] == [
        (plain.efficiency, plain.stages, plain.balance),
        [(one.stage, one.calls) for one in recorded.roles[1].stages[:2]],
    ]


def test_ranks_are_compared_in_the_stages_of_their_update(tmp_path: Path) -> None:
    """What a slow one costs is compared with the step without waits for the driver."""
    report = report_of(tmp_path, DrivenPlan(slow_rank=1))
    [slow] = report.efficiency.slow_ranks
    assert (Rank("actor", 1), ["rl.train.forward"], 0.22, 0.1, 0.12) == (
        slow.who, slow.stages, slow.own_s, round(slow.others_s, 9), slow.cost_s,
    )  # fmt: skip
    assert report.findings.time[0].sentence == (
        "Actor 1 is slower in rl.train.forward (own time 220 ms against 100 ms), which costs 120 ms of 730 ms per step "
        "without waits for the driver (16 %)."
    )


def test_a_long_trajectory_is_named_with_what_took_its_time(tmp_path: Path) -> None:
    """Whatever the driver waited after that is the poll's."""
    report = report_of(tmp_path, DrivenPlan(long_in=6))
    assert report.trajectories is not None
    assert [
        {
            "step": 6, "trajectories": 1, "sample": "g61_0", "group": "g61", "held_s": 4.97, "share": 4.97 / 8.87,
            "duration_s": 5.5, "inside": "rl.sample.serve (Server 0)", "inside_s": 5.4,
        }
    ] == [asdict(one) for one in report.trajectories.held]  # fmt: skip
    assert report.findings.time[0].sentence == (
        "Trajectory 0 of group g61 held step 6 for 4.97 s (56 % of it); rl.sample.serve (Server 0) took 5.40 s of it."
    )


def test_trajectories_are_those_of_their_steps_in_whatever_order_a_journal_has_these(tmp_path: Path) -> None:
    """Steps that end shortly after each other are journaled at once, the last first."""
    spans = list(open_run(write_driven(tmp_path)).spans((v.ITERATION,)))
    trajectories = [one for one in spans if one.name == v.TRAJECTORY]
    steps = [one for one in spans if is_container(one.name) and one.resource[v.ROLE] == "driver"]
    in_steps = []
    for ordered in (sorted(steps, key=attrgetter("start_ns")), sorted(steps, key=attrgetter("start_ns"), reverse=True)):
        read = TrajectorySpans()
        for step in ordered:
            read.add_step(step)
        for trajectory in trajectories:
            read.add(trajectory)
        read.place()
        in_steps.append(list(read.steps))
    assert [list(range(1, 11))] * 2 == [sorted(number for _, _, number in keys) for keys in in_steps]


def test_groups_without_a_name_are_counted_by_their_size(tmp_path: Path) -> None:
    """Else many trajectories were one prompt, and one that is filtered most of the prompts."""
    spans = list(open_run(write_driven(tmp_path)).spans((v.ITERATION, v.GROUP_ID)))
    counts = []
    for kept in ({v.GROUP_ID}, set()):
        read = TrajectorySpans()
        for one in spans:
            if one.name == v.TRAJECTORY:
                read.add(one._replace(attributes={key: one.attributes[key] for key in kept}))
        source = SimpleNamespace(found=SimpleNamespace(trajectories=read), settings={"group_size": 2})
        counts.append(_groups(source, 0.0))  # type: ignore[arg-type]
    assert [20, 20] == counts


def test_a_step_that_fails_in_the_driver_is_averaged_on_no_rank(tmp_path: Path) -> None:
    """Its time and its tokens would be in the mean of the ranks, and in no other."""
    report = report_of(tmp_path, DrivenPlan(ends="lost"))
    assert (7, [(rank, 7, 2.87) for rank in (0, 1)]) == (
        report.steps.averaged,
        [(row.rank, row.steps, row.step_s) for row in report.efficiency.ranks],
    )


def test_tokens_of_tools_are_not_trained(tmp_path: Path) -> None:
    """The driver knows only how long responses are; of its ranks it is known what the loss uses."""
    plain, with_tool = (report_of(tmp_path / str(tool), DrivenPlan(tool=tool)) for tool in (0, 3))
    for report, written in ((plain, RESPONSE), (with_tool, RESPONSE - 3)):
        rates = {(one.work, one.unit): one.per_second for one in report.rates if one.wall == "step"}
        assert rates["train", "tokens"] == rates["rollout", "response tokens"]
        assert rates["train", "tokens"] == pytest.approx(rates["rollout", "samples"] * written)


@pytest.mark.parametrize("stage", [v.IDLE, v.SAMPLE])
def test_slow_rewards_are_named_before_the_poll(tmp_path: Path, stage: str) -> None:
    """The driver waits for trajectories, in whatever stage, and these for their rewards."""
    report = report_of(tmp_path, DrivenPlan(slow_reward=600, waits_in=stage))
    assert ["beside_turns", "late_samples"] == [
        one.rule for one in report.findings.time if one.rule in ("beside_turns", "late_samples")
    ]
    assert [
        "rl.reward takes 650 ms of a trajectory of 1.11 s, for which the step waits (23 % of it)."
    ] == found(report, "beside_turns")  # fmt: skip


@pytest.mark.parametrize(("turns", "has"), [(1, False), (3, True)])
def test_of_several_turns_the_last_request_is_not_the_longest(tmp_path: Path, turns: int, has: bool) -> None:
    """So the tail of the requests says nothing of lengths."""
    run = open_run(write_driven(tmp_path, DrivenPlan(turns=turns)))
    assert has is has_turns(time_rows(Source(run, BEGIN_NS, read_run(run))))


def test_a_stage_that_grows_is_named(tmp_path: Path) -> None:
    """Nine of ten pairs of steps are in order."""
    assert ["rl.sync takes longer from step to step: 320 ms at first, 680 ms in the end, in 8 steps."] == found(
        report_of(tmp_path, DrivenPlan(sync_grows=60)), "growing_stage"
    )


def test_processes_of_a_role_are_compared_as_ranks_are(tmp_path: Path) -> None:
    """One whose loop is blocked is named before the habit of its driver; servers with equal work are not."""
    report = report_of(tmp_path, DrivenPlan(slow_loop=True))
    first, *_ = report.findings.time
    assert (
        "slow_process",
        "Agent loop 1 takes 1.33 s for rl.sample.trajectory, agent loop 0 520 ms: up to 810 ms of a step (28 %).",
    ) == (first.rule, first.sentence)
    assert [] == found(report_of(tmp_path / "even"), "slow_process")


def test_clocks_of_two_hosts_are_not_compared(tmp_path: Path) -> None:
    """Each rank has the times that it has on one host; nothing is said of what only the driver's clock could tell."""
    here = report_of(tmp_path / "here")
    there = report_of(tmp_path / "there", DrivenPlan(elsewhere=(AGENT, REWARD, *SERVERS, ACTORS[1])))
    assert here.trajectories is not None
    assert there.trajectories == replace(here.trajectories, generating_s=None, late_s=None)
    assert (here.rates[:2], here.stages) == (there.rates[:2], there.stages)
    ranks = [[(one.who, one.active_s, one.step_s) for one in report.efficiency.ranks] for report in (here, there)]
    assert ranks[0] == ranks[1]
    assert ["Nothing stands out. Generating takes 69 % of a step, the update 17 %. Neither rank is slow."] == (
        found(there, "late_samples", "idle", "largest")
    )


@pytest.mark.parametrize(
    ("plan", "state", "health"),
    [
        (DrivenPlan(), "finished", []),
        (DrivenPlan(ends="open"), "finished", []),
        (DrivenPlan(ends="open", is_alive=True), "finished", []),
        (DrivenPlan(ends="killed", is_alive=True), "alive", []),
        (
            DrivenPlan(ends="killed"),
            "killed",
            ["Driver 0, like 1 more, was killed, last seen in step 10: it ended without an exception."],
        ),
        (
            DrivenPlan(ends="lost"),
            "failed",
            [
                "Actor 1 was killed, last seen in rl.logprob old, step 10: it ended without an exception; "
                "then 2 more failed (ActorDiedError and RuntimeError)."
            ],
        ),
        (
            DrivenPlan(ends="set-up"),
            "failed",
            ["Server 0 failed with TypeError inside rl.sync, in set-up; then 2 more failed (RayTaskError(TypeError))."],
        ),
        (
            DrivenPlan(fails_in=6),
            "finished",
            ["Reward worker 0 failed with ValueError inside rl.reward, step 6 (1 failure in all)."],
        ),
    ],
    ids=["ended", "ray_ended_all", "in_teardown", "goes_on", "killed", "rank_dies", "set_up_fails", "reward_fails"],
)
def test_the_driver_says_how_a_run_ended(tmp_path: Path, plan: DrivenPlan, state: str, health: list[str]) -> None:
    """A server in a call that nobody waits for is no rank that was killed."""
    report = report_of(tmp_path, plan)
    warned = [one.sentence for one in report.findings.health if one.severity != "note"]
    assert (state, health, bool(report.open_stages)) == (report.state, warned, state != "finished")


@pytest.mark.parametrize(
    ("plan", "rule", "sentence"),
    [
        (
            DrivenPlan(steps=24, grows=(REWARD, 20)),
            "memory_grows",
            "Memory of reward worker 0 grows by 20.0 MiB per step (1.04 GiB to 1.35 GiB in 19 steps), "
            "100 % inside rl.reward.",
        ),
        (
            DrivenPlan(steps=14, grows=(REWARD, 150)),
            "memory_grows",
            "Memory of reward worker 0 grows by 150 MiB per step (2.05 GiB to 2.93 GiB in 9 steps), "
            "100 % inside rl.reward.",
        ),
        (
            DrivenPlan(steps=10, grows=(SERVERS[1], 20)),
            "healthy",
            "No error, no hang, nothing lost. Memory 900 MiB a rank; Server 1 +80.0 MiB since step 6.",
        ),
        (
            DrivenPlan(steps=6, grows=(ACTORS[1], 20)),
            "healthy",
            "No error, no hang, nothing lost. Memory 970 MiB a rank.",
        ),
    ],
    ids=["reward_worker", "by_half_soon", "server", "too_few_steps"],
)
def test_memory_is_watched_in_every_process(tmp_path: Path, plan: DrivenPlan, rule: str, sentence: str) -> None:
    """As in ranks; what grows by half is told early, and of one step no change."""
    assert [(rule, sentence)] == [(one.rule, one.sentence) for one in report_of(tmp_path, plan).findings.health]


def test_a_process_that_hangs_is_named_before_those_that_wait_for_it(tmp_path: Path) -> None:
    """Neither the driver nor the agent loop, whose stages have been open for longer."""
    report = build_report(
        open_run(write_driven(tmp_path, DrivenPlan(ends="killed", is_alive=True, hangs=True))), BEGIN_NS + 90 * 10**9
    )
    hanging = [(one.role, one.stage) for one in report.open_stages if one.is_hanging]
    assert [("driver", "rl.idle queue"), ("reward", v.REWARD)] == hanging
    assert report.findings.health[0].sentence == (
        "Reward worker 0 may hang, like 1 more: in rl.reward for 31.8 s; the longest call that ended took 50.0 ms."
    )


def test_only_ranks_that_hold_devices_count_in_goodput(tmp_path: Path) -> None:
    """Each starts for 15 s, trains for 6.5 s, takes weights for 0.8 s and waits; 4.3 s of that its server generates."""
    [*_, everything] = report_of(tmp_path).efficiency.goodput
    kinds = {part.kind: part.time_ns / 1e9 for part in everything.parts}
    assert (2, {"productive": 21.6, "overhead": 31.599, "idle": 58.18, "wasted": 0.0, "other": 0.0}) == (
        everything.ranks, kinds,
    )  # fmt: skip


def test_a_role_has_its_stages(tmp_path: Path) -> None:
    """The driver first, then ranks, then the others; stages of the driver are those of the step."""
    roles = report_of(tmp_path).roles
    stages = [[row.stage for row in one.stages if not row.stage.startswith(v.IDLE)][:2] for one in roles]
    assert [
        ("driver", 1, True, False, []),
        ("actor", 2, False, True, [v.TRAIN, v.MINI_BATCH]),
        ("agent_loop", 1, False, False, [v.TRAJECTORY, v.SAMPLE_TURN]),
        ("reward", 1, False, False, [v.REWARD]),
        ("Server", 2, False, False, [v.SAMPLE_SERVE]),
    ] == [
        (one.role, one.processes, one.is_driver, one.is_rank, of_role)
        for one, of_role in zip(roles, stages, strict=True)
    ]
