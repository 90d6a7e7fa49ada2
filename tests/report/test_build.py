"""Reports of synthetic runs whose every number is known."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import otel_rl
from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.process.state import state
from otel_rl.report.build import build_report
from otel_rl.report.data.details import MemoryParts, OpenStageRow
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import (
    Attempt,
    CommRow,
    DamagedFile,
    Loss,
    MemoryPeak,
    RankComm,
    Report,
    StageRow,
    TrainingRow,
    WorkRow,
)
from otel_rl.report.reading import Progress, RunReading
from otel_rl.report.terminal import render
from otel_rl.trace.memory import tracing
from otel_rl.trace.steps import Loop
from tests.fixtures import Recording
from tests.made_runs import BEGIN_NS, GIB, MIB, MS, SETUP_MS, Attributes, FakeSpan, Plan, write_run
from tests.peers import ALIVE, Did, Peer
from tests.watched import DEAD

NOW_NS = BEGIN_NS + 3_600_000 * MS


def report_of(root: Path, plan: Plan | None = None) -> Report:
    """Write a run and report on it."""
    return build_report(open_run(write_run(root, plan)), NOW_NS)


@pytest.fixture
def healthy(tmp_path: Path) -> Report:
    """Report on twelve steps of two ranks."""
    return report_of(tmp_path)


def row(report: Report, stage: str, inside: str | None = None) -> StageRow:
    """Find a row of the stage table."""
    return next(one for one in report.stages if (one.stage, one.inside) == (stage, inside))


def test_a_report_names_the_run(healthy: Report) -> None:
    """The names come from the resource."""
    names = (healthy.run, healthy.state, healthy.system, healthy.system_version, healthy.algorithm, healthy.model)
    assert names == ("healthy", "finished", "trl", "1.16.0", "GRPO", "tiny-qwen2")
    assert [Rank("trainer", 0), Rank("trainer", 1)] == healthy.ranks


def test_an_attempt_has_its_steps_and_its_set_up(healthy: Report) -> None:
    """Set-up is the span of that name, steps are counted once for all ranks."""
    end_ns = BEGIN_NS + (SETUP_MS + 12 * 100 + 2 * 30 + 200 + 50) * MS
    expected = Attempt(
        id="a" * 32, state="finished", begin_ns=BEGIN_NS, end_ns=end_ns, steps=12, ranks=2, setup_s=SETUP_MS / 1e3
    )
    assert [expected] == healthy.attempts


def test_a_set_up_ends_with_the_first_step_of_its_rank(tmp_path: Path) -> None:
    """A process that starts the ranks, of which it counts as the first, is in its set-up until they have ended."""
    peer = Peer(tmp_path, 0, 1, identity=DEAD)
    begin_ns, trace = peer.now_ns, ids.trace_id(peer.attempt, v.SETUP, 0)
    peer.now_ns += 100 * MS
    for number in range(1, 4):
        peer.step(number, [Did(v.REWARD, 50)])
    names = ((v.SETUP, 1, 0), (f"{v.RANK_SPAN} 0", 2, 1))
    peer.write([FakeSpan(name, trace, own, above, begin_ns, peer.now_ns + 50 * MS) for name, own, above in names])
    report = build_report(open_run(tmp_path), 10**18)
    row = report.efficiency.goodput[-1]
    spent_ns = {part.kind: part.time_ns for part in row.parts}
    assert (0.1, 100 * MS, 150 * MS, 250 * MS) == (
        report.attempts[0].setup_s,
        row.setup_ns,
        spent_ns["productive"],
        row.wall_ns - spent_ns["other"],
    )


def test_a_run_that_was_moved_says_so(tmp_path: Path) -> None:
    """It was neither killed nor interrupted, and goes on elsewhere even while its process lives."""
    peer = Peer(tmp_path / "runs" / "moved", 0, 1)
    peer.step(1, [Did(v.REWARD, 50)])
    peer.open(f"{v.RANK_SPAN} 0", v.REWARD)
    (tmp_path / "runs").rename(tmp_path / "old")
    peer.look()
    report = build_report(open_run(tmp_path / "old" / "moved"), 10**18)
    assert ("moved", [], ["moved"]) == (report.state, report.open_stages, [one.rule for one in report.findings.health])


def test_the_first_steps_stay_out_of_averages(healthy: Report) -> None:
    """Twelve steps leave two out, so the slow first one does not show."""
    steps = healthy.steps
    assert (steps.recorded, steps.averaged, steps.warmup, steps.first, steps.last) == (12, 10, 2, 1, 12)
    assert pytest.approx((0.1, 0.13, 1.06)) == (steps.median_s, steps.p95_s, steps.total_s)


def test_shares_and_other_add_up_to_the_whole(healthy: Report) -> None:
    """Stages that do not overlap and `rl.other` tile the steps."""
    assert pytest.approx(1.0) == sum(one.share for one in healthy.stages if one.inside is None)
    assert healthy.stages[-1].stage == v.OTHER
    assert pytest.approx((0.002, 0.02)) == (healthy.stages[-1].median_s, healthy.stages[-1].total_s)


def test_a_stage_row_counts_calls_of_all_ranks(healthy: Report) -> None:
    """Twenty calls of 41 ms, whose total is that of one rank."""
    found = row(healthy, v.SAMPLE)
    assert found.calls == 20
    assert pytest.approx((0.041, 0.041, 0.41, 0.41 / 1.06)) == (
        found.median_s,
        found.p95_s,
        found.total_s,
        found.share,
    )


def test_the_stages_of_an_evaluation_stay_below_it(healthy: Report) -> None:
    """Sampling for an evaluation is no sampling for training."""
    assert row(healthy, v.SAMPLE, inside=v.EVALUATE).calls == 4
    names = [(one.stage, one.inside) for one in healthy.stages]
    assert names.index((v.EVALUATE, None)) + 1 == names.index((v.SAMPLE, v.EVALUATE))


def test_stages_that_differ_by_an_attribute_are_told_apart(healthy: Report) -> None:
    """Old and reference log-probabilities, and what an idle rank waits for."""
    assert {"rl.logprob old", "rl.logprob ref", "rl.idle data"} <= {one.stage for one in healthy.stages}


def test_evaluation_is_no_training_work(healthy: Report) -> None:
    """Samples and tokens of all twelve steps, none of the evaluations."""
    expected = [
        WorkRow(
            role="trainer",
            rank=rank,
            samples=12 * 16,
            prompt_tokens=12 * 80,
            response_tokens=12 * 160,
            environment_tokens=None,
            padding_tokens=12 * 32,
            train_tokens=12 * 240,
        )
        for rank in (0, 1)
    ]
    assert expected == healthy.work


SAID, UNSAID = {v.TOKENS: 90, v.TOKENS_PADDING: 10}, {v.TOKENS: 90}


@pytest.mark.parametrize(
    ("forwards", "padding", "share", "shown"),
    [
        ([SAID, SAID], 80, 0.1, " 10 % of the trained positions are padding.\n"),
        ([{**SAID, v.TOKENS_PADDING: 0}], 0, 0.0, " 0 % of the trained positions are padding.\n"),
        ([SAID, {}], 40, 0.1, " 10 % of the trained positions are padding.\n"),
        ([SAID, {v.TOKENS_PADDING: 10}], 40, 0.1, " 10 % of the trained positions are padding.\n"),
        ([{v.TOKENS: 0, v.TOKENS_PADDING: 10}], 40, 1.0, " 100 % of the trained positions are padding.\n"),
        ([{v.TOKENS_PADDING: 10}], None, None, "rollout to update.\n"),
        ([SAID, UNSAID], None, None, "rollout to update.\n"),
        ([UNSAID], None, None, "rollout to update.\n"),
        ([{}], None, None, "rollout to update.\n"),
    ],
    ids=[
        "all",
        "zero",
        "one without numbers",
        "one with padding alone",
        "nothing but padding",
        "padding alone",
        "one without padding",
        "none",
        "no numbers",
    ],
)
def test_padding_that_is_not_said_is_not_known(
    tmp_path: Path, forwards: list[Attributes], padding: int | None, share: float | None, shown: str
) -> None:
    """None is no zero, in four steps of two ranks. A forward that says no tokens, as one cut off, counts nowhere."""
    ranks = [Peer(tmp_path, rank, identity=DEAD) for rank in range(2)]
    for number, rank in itertools.product(range(1, 5), ranks):
        rank.step(
            number, [Did(v.SAMPLE, 5, more={v.TOKENS_RESPONSE: 7}), *(Did(v.FORWARD, 5, more=one) for one in forwards)]
        )
    for rank in ranks:
        rank.die()
    report = build_report(open_run(tmp_path), NOW_NS)
    found = [row.padding_tokens for row in report.work], [row.padding_share for row in report.efficiency.goodput]
    assert ([padding] * 2, [share] * 2) == found
    out = io.StringIO()
    render(report, Console(file=out, width=400))
    lines = out.getvalue().splitlines()
    _, rank_0, *_ = lines[next(place for place, line in enumerate(lines) if line.startswith("in all steps")) :]
    tokens = [int(one[v.TOKENS]) for one in forwards if v.TOKENS in one]  # type: ignore[arg-type]
    trained = str(4 * sum(tokens)) if tokens else "-"
    assert ["-" if padding is None else str(padding), trained] == rank_0.split()[-2:]
    assert shown in out.getvalue()


def test_rates_add_the_ranks_up(healthy: Report) -> None:
    """Ten steps of two ranks over the time of one of them."""
    found = {(rate.work, rate.unit, rate.wall): rate.per_second for rate in healthy.rates}
    expected = {
        ("rollout", "samples", "step"): 2 * 160 / 1.06,
        ("rollout", "response tokens", "step"): 2 * 1600 / 1.06,
        ("rollout", "response tokens", "stage"): 2 * 1600 / 0.41,
        ("train", "tokens", "step"): 2 * 2400 / 1.06,
    }
    assert pytest.approx(expected) == found


def test_the_stage_that_last_raised_the_peak_is_named(healthy: Report) -> None:
    """Step 3 raised it for the last time."""
    expected = MemoryPeak(
        role="trainer", rank=1, kind="host rss", bytes=GIB + 24 * MIB, is_exact=True, stage=v.SAMPLE, iteration=3
    )
    assert expected == healthy.memory[1]


def test_a_healthy_run_names_no_rank(healthy: Report) -> None:
    """Equal own times are even; what takes most is told."""
    assert [None] * len(healthy.balance) == [one.straggler for one in healthy.balance]
    (found,) = healthy.findings.time
    assert (
        "Nothing stands out. Sampling takes 39 % of a step, the update (forward, backward, clip, optimizer) 27 %. "
        "Neither rank is slow."
    ) == found.sentence


def test_a_slow_rank_is_named_by_own_time(tmp_path: Path) -> None:
    """The healthy rank's stage is as long, because it waits in a collective inside it."""
    report = report_of(tmp_path, Plan(slow_rank=1))
    found = next(one for one in report.balance if one.stage == v.REWARD)
    assert Rank("trainer", 1) == found.straggler
    assert pytest.approx([one.own_s for one in found.own]) == [0.01, 0.02]
    assert [("trainer", 0), ("trainer", 1)] == [(one.role, one.rank) for one in found.own]
    found = report.findings.time[0]
    assert ("slow_stage", [1], v.REWARD) == (found.rule, found.values["ranks"], found.values["stage"])


def test_collectives_are_counted_by_rank_and_stage(tmp_path: Path) -> None:
    """One gather a step in the rewards, in which the fast rank waits 10 ms, and one collective under no stage."""

    def row(stage: str, *times_s: float) -> CommRow:
        ranks = [RankComm(role="trainer", rank=rank, count=1.0, time_s=time_s) for rank, time_s in enumerate(times_s)]
        return CommRow(stage=stage, ranks=ranks)

    assert [row(v.REWARD, 0.01, 0.0), row(v.COMM, 0.001, 0.001)] == report_of(tmp_path, Plan(slow_rank=1)).comm


def test_a_stage_of_one_rank_alone_names_nobody(tmp_path: Path) -> None:
    """Rank 0 writes checkpoints by design; the barrier of the others is no own time."""
    found = next(one for one in report_of(tmp_path, Plan(checkpoint=True)).balance if one.stage == v.CHECKPOINT)
    assert (True, None, None) == (found.is_comparable, found.straggler, found.ratio)


def test_launch_times_name_nobody(tmp_path: Path) -> None:
    """What a launch takes says nothing about the work."""
    found = next(one for one in report_of(tmp_path, Plan(host_clock=True)).balance if one.stage == v.FORWARD)
    assert (False, None) == (found.is_comparable, found.straggler)


def test_times_of_the_device_take_the_place_of_launches(tmp_path: Path) -> None:
    """Where every call has one: ranks can be compared by them."""
    report = report_of(tmp_path, Plan(host_clock=True, device_ms=30.0))
    forward, backward = row(report, v.FORWARD), row(report, v.BACKWARD)
    assert pytest.approx((0.03, 0.3, 0.06)) == (forward.median_s, forward.total_s, backward.median_s)
    assert (True, False) == (forward.is_device_clock, forward.is_host_clock)
    assert next(one for one in report.balance if one.stage == v.FORWARD).is_comparable


def test_the_memory_of_a_device_has_parts(tmp_path: Path) -> None:
    """Of the step at whose end most was reserved; what is read more seldom at its highest; unknown is null."""
    found = report_of(tmp_path, Plan(device_memory=True)).memory_parts
    expected = MemoryParts(
        role="trainer",
        rank=1,
        allocated_bytes=5 * GIB,
        reserved_bytes=10 * GIB,
        active_bytes=None,
        requested_bytes=5 * GIB // 2,
        inactive_split_bytes=None,
        fragmentation=None,
        slack=0.5,
        rounding=0.5,
        non_torch_bytes=13 * MIB,
        activation_bytes=None,
        kv_cache_bytes=19 * MIB,
        kv_cache_size_bytes=2 * GIB,
        comm_estimate_bytes=None,
    )
    assert (2, expected) == (len(found), found[1])


def test_hidden_collectives_name_nobody(healthy: Report) -> None:
    """Own time of a DDP backward is an upper bound."""
    found = next(one for one in healthy.balance if one.stage == v.BACKWARD)
    assert (found.is_comparable, found.straggler, found.ratio) == (False, None, None)


def test_a_killed_run_says_where_it_died(tmp_path: Path) -> None:
    """Open stages end at the last record; the unfinished step is no step."""
    report = report_of(tmp_path, Plan(killed_in=v.BACKWARD))
    begin_ns = BEGIN_NS + (SETUP_MS + 11 * 100 + 2 * 30 + 200) * MS
    expected = [
        OpenStageRow(
            attempt="a" * 32,
            role="trainer",
            rank=rank,
            stage=v.BACKWARD,
            inside=[],
            since_ns=begin_ns,
            open_s=1.5,
            longest_s=0.016,
            calls_known=True,
            is_alive=False,
            is_certain=False,
            is_hanging=False,
            iteration=12,
            collective=None,
        )
        for rank in (0, 1)
    ]
    assert expected == report.open_stages
    assert (report.state, report.steps.recorded) == ("killed", 11)


@pytest.mark.parametrize(("opened", "state"), [("tokenize", "finished"), (f"{v.RANK_SPAN} 1", "killed")])
def test_a_worker_that_died_is_no_rank_that_did(tmp_path: Path, healthy: Report, opened: str, state: str) -> None:
    """Workers of a data loader are ended in whatever they do; a rank is inside a container until its end."""
    rank = Peer(tmp_path / "healthy", 1, attempt="a" * 32, clock_ms=SETUP_MS, identity=DEAD)
    rank.open(opened)
    report = build_report(open_run(tmp_path / "healthy"), NOW_NS)
    assert ("finished", state) == (healthy.state, report.state)
    assert [opened] == [one.stage for one in report.open_stages]


def test_a_worker_that_outlives_its_rank_does_not_let_the_run_go_on(tmp_path: Path) -> None:
    """Nobody trains any more; another rank that lives still does, or will say that it does not."""
    rank, worker = (Peer(tmp_path / "killed", number, identity=found) for number, found in enumerate((DEAD, ALIVE)))
    states = []
    for who, opened in ((worker, "judge"), (rank, f"{v.RANK_SPAN} 0"), (worker, f"{v.RANK_SPAN} 1")):
        who.open(opened)
        states.append(build_report(open_run(tmp_path / "killed"), NOW_NS).state)
    assert ["alive", "killed", "alive"] == states


def test_a_worker_that_outlives_the_tear_down_does_not_let_the_run_go_on(tmp_path: Path, healthy: Report) -> None:
    """Whether it lives is not known for a minute where nobody can look it up."""
    elsewhere = replace(ALIVE, boot_id="another")
    worker = Peer(tmp_path / "healthy", 1, attempt="a" * 32, clock_ms=SETUP_MS, identity=elsewhere)
    worker.open("judge")
    report = build_report(open_run(tmp_path / "healthy"), NOW_NS)
    assert [True] == [one.is_alive for one in report.open_stages]
    assert ("finished", healthy.end_ns) == (report.state, report.end_ns)


def test_who_is_killed_behind_a_step_that_raised_is_killed(tmp_path: Path) -> None:
    """Though its container has ended: there is no tear-down."""
    rank = Peer(tmp_path / "killed", 0, attempt="a" * 32, clock_ms=SETUP_MS, identity=DEAD)
    rank.step(1, [])
    assert "unknown" == build_report(open_run(tmp_path / "killed"), NOW_NS).state
    rank.open(v.CHECKPOINT)
    assert "killed" == build_report(open_run(tmp_path / "killed"), NOW_NS).state


@pytest.mark.parametrize("ahead_s", [1_800, 600, 60])
def test_a_clock_that_was_ahead_lets_nobody_live_longer(tmp_path: Path, healthy: Report, ahead_s: int) -> None:
    """An attempt that lives lasts until now, however late another one ended by its own clock."""
    alive = Peer(tmp_path / "healthy", 0, attempt="b" * 32, clock_ms=-3_600_000)
    alive.step(1, [])
    now_ns = healthy.end_ns - ahead_s * 1000 * MS
    ends = {one.id: one.end_ns for one in build_report(open_run(tmp_path / "healthy"), now_ns).attempts}
    assert {"a" * 32: healthy.end_ns, "b" * 32: now_ns} == ends


def test_a_living_run_says_how_long_a_stage_is_open(tmp_path: Path) -> None:
    """Open stages of living processes last until now."""
    report = report_of(tmp_path, Plan(killed_in=v.SAMPLE, is_alive=True))
    assert report.state == "alive"
    assert [(NOW_NS - one.since_ns) / 1e9 for one in report.open_stages] == [one.open_s for one in report.open_stages]
    assert [(True, True)] * 2 == [(one.is_alive, one.is_hanging) for one in report.open_stages]
    assert ((NOW_NS - BEGIN_NS) / 1e9, NOW_NS, [NOW_NS]) == (
        report.duration_s, report.end_ns, [one.end_ns for one in report.attempts],
    )  # fmt: skip


def test_of_the_attempts_of_a_run_the_living_one_lasts_until_now(tmp_path: Path) -> None:
    """Those before it, and a run whose processes are gone, end with their last record."""
    died_ns = BEGIN_NS + (SETUP_MS + 11 * 100 + 2 * 30 + 200 + 1_500) * MS
    killed = report_of(tmp_path, Plan(killed_in=v.SAMPLE))
    assert (died_ns, [died_ns]) == (killed.end_ns, [one.end_ns for one in killed.attempts])
    resumed = Plan(attempt="b" * 32, first_step=6, shift_ms=60_000, killed_in=v.SAMPLE, is_alive=True)
    found = report_of(tmp_path, resumed)
    assert (NOW_NS, [died_ns, NOW_NS]) == (found.end_ns, [one.end_ns for one in found.attempts])


def test_a_run_without_a_finished_step_is_still_reported(tmp_path: Path) -> None:
    """Nothing can be said of steps, but of what is open."""
    report = report_of(tmp_path, Plan(steps=1, killed_in=v.SAMPLE))
    assert ("no_step", 0, [], []) == (
        report.findings.time[0].rule, report.steps.recorded, report.stages, report.rates,
    )  # fmt: skip
    assert len(report.open_stages) == 2


def test_a_resumed_run_has_two_attempts(tmp_path: Path) -> None:
    """Steps that were made again count for their attempt, and the series follow the newest one."""
    write_run(tmp_path, Plan(killed_in=v.SAMPLE))
    report = report_of(tmp_path, Plan(attempt="b" * 32, first_step=6, shift_ms=60_000, steps=10))
    assert [(one.id, one.state, one.steps) for one in report.attempts] == [
        ("a" * 32, "killed", 11),
        ("b" * 32, "finished", 10),
    ]
    reward = next(one for one in report.series if one.name == v.REWARD_SCORE)
    assert list(range(1, 16)) == reward.steps
    assert pytest.approx(0.2) == reward.values[5]


def test_trainings_of_one_process_are_told_apart(recording: Recording) -> None:
    """Loops of one algorithm and model in a row are one training: the head names each, with its steps."""
    state.identify(system="trl", algorithm="GRPO", model_name="tiny")
    rloo = {v.ALGORITHM: "RLOO"}
    for said in ({}, rloo, rloo, {**rloo, v.MODEL_NAME: "small"}, {}):
        loop = tracing.loop = Loop()
        loop.said.update(said)
        for number in (1, 2):
            loop.begin(number)
            recording.tick(10)
        loop.end()
    report = build_report(recording.stop(), NOW_NS)
    assert [
        TrainingRow(algorithm="GRPO", model="tiny", loops=["train"], steps=2),
        TrainingRow(algorithm="RLOO", model="tiny", loops=["train.2", "train.3"], steps=4),
        TrainingRow(algorithm="RLOO", model="small", loops=["train.4"], steps=2),
        TrainingRow(algorithm="GRPO", model="tiny", loops=["train.5"], steps=2),
    ] == report.trainings
    out = io.StringIO()
    render(report, Console(file=out, width=120))
    lines = out.getvalue().splitlines()
    assert "trl · GRPO and RLOO · tiny and small · 1 rank · 10 steps (1-2) in 5 loops, median 10.0 ms" == lines[1]
    names = "GRPO of tiny for 2", "RLOO of tiny for 4", "RLOO of small for 2", "GRPO of tiny for 2"
    assert f"4 trainings: {' steps, then '.join(names)} steps" in " ".join(map(str.strip, lines))


@pytest.mark.parametrize(("begin_ms", "setup_ms"), [(100, 500), (-3_000, 10_000)], ids=["helper", "launcher"])
def test_a_process_beside_the_training_is_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, healthy: Report, begin_ms: int, setup_ms: int
) -> None:
    """It makes no step while another attempt does: that one has the state of the run, and the wall time."""
    monkeypatch.setattr("tests.made_runs.SETUP_MS", setup_ms)
    report = report_of(tmp_path, Plan(attempt="b" * 32, steps=0, ranks=1, shift_ms=begin_ms))
    assert (healthy.state, healthy.attempts, healthy.efficiency.goodput) == (
        report.state,
        report.attempts,
        report.efficiency.goodput,
    )
    assert report.begin_ns == min(healthy.begin_ns, BEGIN_NS + begin_ms * MS)


@pytest.mark.parametrize("late_ms", [0, 10])
def test_a_launcher_that_still_lives_is_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, healthy: Report, late_ms: int
) -> None:
    """Nothing of it has ended yet; the report began before the last of the training's spans were there to be read."""
    monkeypatch.setattr("otel_rl.report.source.monotonic_ns", itertools.count(0, 10 * MS).__next__)
    launcher = Peer(tmp_path / "healthy", 0, attempt="b" * 32, clock_ms=-3_000)
    launcher.open(v.SETUP, f"{v.RANK_SPAN} 0")
    report = build_report(open_run(tmp_path / "healthy"), healthy.end_ns - late_ms * MS)
    assert (healthy.state, healthy.attempts, healthy.efficiency.goodput) == (
        report.state,
        report.attempts,
        report.efficiency.goodput,
    )


def test_an_attempt_that_died_before_its_first_step_is_one(tmp_path: Path, healthy: Report) -> None:
    """A restart comes behind the attempt of before: the run did not finish."""
    behind_ms = (healthy.end_ns - BEGIN_NS) // MS + 1
    report = report_of(tmp_path, Plan(attempt="b" * 32, steps=0, shift_ms=behind_ms))
    assert [("a" * 32, 12), ("b" * 32, 0)] == [(one.id, one.steps) for one in report.attempts]
    assert len(report.efficiency.goodput) == 3


def test_what_processes_dropped_is_added_up(tmp_path: Path) -> None:
    """Every rank gave up 7 spans."""
    assert [Loss(what="dropped", signal="traces", reason="journal_full", count=14)] == report_of(
        tmp_path, Plan(dropped=7)
    ).losses


def test_what_processes_changed_is_added_up(tmp_path: Path) -> None:
    """Every rank cut 3 texts."""
    assert [Loss(what="changed", signal="", reason="text_cut", count=6)] == report_of(tmp_path, Plan(changed=3)).losses


def test_a_torn_tail_is_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    """Damage costs what it hits and nothing else."""
    path = write_run(tmp_path)
    torn = next(path.glob("trainer-1-*.metrics.*"))
    torn.write_bytes(torn.read_bytes()[:-10])
    report = build_report(open_run(path), NOW_NS)
    assert report.steps.recorded == 12
    assert [(torn.name.split(".")[0], 1)] == [(one.writer, one.places) for one in report.damage]
    assert all(isinstance(one, DamagedFile) and one.bytes > 0 for one in report.damage)


def test_steps_that_are_not_sampled_are_counted_and_said(recording: Recording) -> None:
    """Set-up and tear-down are always: how the run began and ended is known. What such steps did is in no goodput."""
    state.config = replace(state.config, sampler="traceidratio", sampler_ratio=0.4)
    for number in range(12):
        with otel_rl.step(number), otel_rl.stage("reward"):
            recording.tick(10)
    run = recording.stop()
    assert {v.SETUP, v.TEARDOWN} <= {span.name for span in run.spans()}
    report = build_report(run, BEGIN_NS)
    assert 0 < report.steps.recorded < 12
    assert (12 - report.steps.recorded, []) == (report.unseen_steps, report.efficiency.goodput)
    console = Console(width=80, record=True, file=io.StringIO())
    render(report, console)
    assert f"{report.unseen_steps} steps left numbers and no spans: not sampled" in console.export_text()


def test_a_run_without_a_sampled_step_says_what_its_numbers_know(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head says that there are no spans, and not that there is nothing."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    stubbed.start()
    for number in range(4):
        with otel_rl.step(number):
            stubbed.tick(10)
            otel_rl.record("rl.reward.score", 0.5)
    console = Console(width=80, record=True, file=io.StringIO())
    render(build_report(stubbed.stop(), BEGIN_NS), console)
    title, facts = console.export_text().splitlines()[:2]
    assert ("no spans recorded", "4 steps without spans") == (title.partition("run ")[2].strip(), facts)


@pytest.mark.parametrize("part", ["read_spans", "read_numbers"])
def test_steps_that_come_while_a_report_reads_have_spans(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Of a run that goes on: a step journals its spans and then its numbers, whatever was read before."""

    def steps(*numbers: int) -> None:
        for number in numbers:
            with otel_rl.step(number), otel_rl.stage("reward"):
                recording.tick(10)
        assert recording.flusher.flush(5)

    def late(*asked: Any) -> Any:
        steps(8)
        return read(*asked)

    read = getattr(RunReading, part)
    steps(*range(8))
    monkeypatch.setattr(RunReading, part, late)
    report = build_report(recording.run(), BEGIN_NS)
    assert (0, True) == (report.unseen_steps, bool(report.efficiency.goodput))


def test_it_can_be_seen_how_far_the_reading_is(tmp_path: Path) -> None:
    """All spans of all processes count, also those that no section needs."""
    run = open_run(write_run(tmp_path, Plan()))
    progress, reading = Progress(), RunReading()
    reading.attach(run)
    reading.read(progress)
    assert (sum(file.stat().st_size for file in run.path.iterdir()), 1.0) == (progress.bytes, progress.share)
