"""What is said of the time of a run, by made-up rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.report.data.details import RequestTail
from otel_rl.report.data.finding import Finding
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import LongStep, StageRow
from otel_rl.report.data.roles import RoleRow, RoleStage, Trajectories
from otel_rl.report.data.time_rows import NOTHING, Awaited, NoStep, SlowerSteps, StageShare, TimeRows
from otel_rl.report.data.time_use import BubbleRow, RankTime, SlowCommunication, SlowRankRow, StragglerRow
from otel_rl.report.findings.judge import apply
from otel_rl.report.findings.timing import TIME


def rank_time(rank: int, **changes: Any) -> RankTime:
    """Return what a rank did, which waits 60 ms of a step of 100 ms."""
    row = RankTime(
        role="trainer",
        rank=rank,
        steps=10,
        step_s=0.1,
        active_s=0.03,
        wait_s=0.06,
        transfer_s=0.01,
        is_wait_exact=True,
        inseparable_s=0.0,
        idle_s=0.0,
        other_s=0.0,
        cpu_share=None,
        train_tokens=None,
        response_tokens=None,
        relative_score=1.0,
        individual_score=None,
        slowdown=None,
        pipeline=None,
    )
    return replace(row, **changes)


def stage(name: str, share: float, inside: str | None = None, median_s: float = 0.1) -> StageRow:
    """Return a row of the table of stages."""
    return StageRow(
        stage=name,
        inside=inside,
        calls=10,
        share=share,
        median_s=median_s,
        p95_s=median_s,
        total_s=1.0,
        comm_share=0.0,
        is_comm_hidden=False,
        is_host_clock=False,
        is_device_clock=False,
    )


def ranks(number: int, **changes: Any) -> dict[str, Any]:
    """Return the rows of ranks that can be compared."""
    return {"efficiency": replace(NOTHING, ranks=[rank_time(rank) for rank in range(number)], **changes)}


CLEAN = TimeRows(
    step_s=1.0,
    median_s=1.0,
    shares=[StageShare(v.SAMPLE, 0.5, 0.1), StageShare(v.TRAIN, 0.27, 0.2), StageShare(v.REWARD, 0.23, 0.03)],
    **ranks(2),
)
SLOW = SlowRankRow(
    role="trainer",
    rank=1,
    stages=[v.REWARD],
    is_everywhere=False,
    own_s=0.2,
    others_s=0.1,
    cost_s=0.1,
    comm_s=0.0,
    share=0.1,
    core_share=None,
    others_core_share=None,
    pipeline=None,
)
STRAGGLER = StragglerRow(
    role="trainer",
    rank=1,
    stage=v.REWARD,
    own_s=0.2,
    ratio=2.0,
    cost_s=0.1,
    share=0.1,
    slow_steps=6,
    steps=6,
    all_steps=6,
    pipeline=None,
)
EVERYWHERE = replace(
    SLOW, stages=[v.SAMPLE, v.REWARD], own_s=0.097, others_s=0.058, cost_s=0.06, share=0.42, is_everywhere=True
)
TRAJECTORIES = Trajectories(
    trajectories=10,
    evaluated=0,
    prompt_tokens=0,
    response_tokens=0,
    median_s=1.2,
    p95_s=1.2,
    longest_s=1.2,
    longest_sample="",
    longest_group="",
    generating_s=None,
    late_s=None,
    held=[],
)
CALLS = SlowCommunication(role="trainer", stage=v.BACKWARD, transfer_s=0.41, share=0.41, count=20.5, pipeline=None)


def slow(*rows: SlowRankRow, straggler: StragglerRow = STRAGGLER) -> TimeRows:
    """Return a clean run but for slow ranks."""
    return replace(CLEAN, **ranks(2, slow_ranks=list(rows or [SLOW]), stragglers=[straggler]))


def idling(shares: Mapping[str, float]) -> list[BubbleRow]:
    """Return waits of ranks by their kind."""
    return [
        BubbleRow(kind=kind, denominator="step", share=share, is_exact=True, ranks=[])  # type: ignore[arg-type]
        for kind, share in shares.items()
    ]


def waiting(awaited: Awaited, share: float = 0.2, **changes: Any) -> TimeRows:
    """Return a run whose ranks wait for each other."""
    times = [rank_time(rank, **changes) for rank in range(2)]
    return replace(CLEAN, awaited=awaited, efficiency=replace(NOTHING, ranks=times, bubbles=idling({"skew": share})))


def found(rows: TimeRows) -> list[Finding]:
    """Apply all rules of time."""
    return apply(TIME, "time", rows)


def first(rows: TimeRows) -> tuple[str, str, str]:
    """What comes first."""
    one = found(rows)[0]
    return one.rule, one.severity, one.sentence


def test_nothing_stands_out_of_a_clean_run() -> None:
    """The two largest parts, and no advice."""
    (one,) = found(CLEAN)
    sentence = (
        "Nothing stands out. Sampling takes 50 % of a step, the update 27 %; 33 % of the step is communication. "
        "Neither rank is slow."
    )
    assert ("largest", "note", sentence, "") == (one.rule, one.severity, one.sentence, one.advice)
    assert (0.5, 0.27) == (one.values["share"], one.values["second_share"])


@pytest.mark.parametrize(("number", "end"), [(0, ""), (1, ""), (2, " Neither rank is slow."), (8, " No rank is slow.")])
def test_ranks_are_cleared_where_they_can_be_compared(number: int, end: str) -> None:
    """One rank has no peers."""
    start = "Nothing stands out. Sampling takes 50 % of a step, the update 27 %; 33 % of the step is communication."
    assert start + end == first(replace(CLEAN, **ranks(number)))[2]


@pytest.mark.parametrize(
    ("communication", "said"),
    [
        (0.2, "Rewards take 50 % of a step, the update 21 %; 20 % of the step is communication."),
        (0.1, "Rewards take 50 % of a step, the update 21 %; 10 % of the step is communication."),
        (0.09, "Rewards take 50 % of a step, the update 21 %."),
    ],
)
def test_the_largest_parts_are_sentences(communication: float, said: str) -> None:
    """They are those of the table, with the collectives inside them; these are said besides, if they are many."""
    shares = [StageShare(v.REWARD, 0.5, communication), StageShare(v.TRAIN, 0.21)]
    assert f"Nothing stands out. {said}" == first(TimeRows(shares=shares))[2]


def test_what_takes_next_to_nothing_is_not_named() -> None:
    """One part may be all there is."""
    rows = TimeRows(shares=[StageShare("judging", 1.0), StageShare(v.LOG, 0.001)])
    assert "Nothing stands out. Judging takes 100 % of a step." == first(rows)[2]


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (StageShare(v.EVALUATE, 0.5), "Evaluation takes 50 % of the step time."),
        (StageShare(v.CHECKPOINT, 0.5), "Checkpoints take 50 % of the step time."),
        (StageShare(v.SYNC, 0.3), "Handing over new weights takes 30 % of the step time."),
    ],
)
def test_work_besides_training_that_takes_too_much(use: StageShare, sentence: str) -> None:
    """It need not be the largest part, and a little less is no finding."""
    shares = [use, StageShare(v.SAMPLE, 1 - use.share)]
    assert ("besides_training", "warning", sentence) == first(replace(CLEAN, shares=shares))
    assert "largest" == first(replace(CLEAN, shares=[replace(use, share=use.share - 0.01)]))[0]
    assert "largest" == first(replace(CLEAN, shares=[replace(use, communication=0.01)]))[0]


def test_several_things_take() -> None:
    """As grammar has it."""
    sentence = "Nothing stands out. Log-probabilities take 60 % of a step, rewards 40 %."
    assert sentence == first(TimeRows(shares=[StageShare(v.LOGPROB, 0.6), StageShare(v.REWARD, 0.4)]))[2]


def test_a_run_without_stages() -> None:
    """Or whose clock stands still."""
    assert "no_stage" == first(TimeRows(step_s=1.0))[0]
    assert "no_stage" == first(TimeRows(step_s=1.0, shares=[StageShare("judging", 0.0)]))[0]


def test_a_run_without_a_step() -> None:
    """It is a warning unless the run goes on."""
    rows = TimeRows(no_step=NoStep(reason="all_failed", goes_on=False))
    assert ("no_step", "warning", "No step was finished: an exception ended each of them.") == first(rows)
    rows = TimeRows(no_step=NoStep(reason="sets_up", goes_on=True, system="trl"))
    assert ("no_step_yet", "note", "No step has begun yet: trl sets up.") == first(rows)


def test_a_rank_that_gets_too_little_of_a_core() -> None:
    """In everything, with what it costs."""
    rows = slow(replace(EVERYWHERE, core_share=0.51, others_core_share=0.99))
    sentence = (
        "Rank 1 is slower in almost everything (own time 97.0 ms against 58.0 "
        "ms), which costs 60.0 ms of 143 ms per step (42 %). "
        "It got 51 % of a core while it worked."
    )
    assert ("starved_rank", "warning", sentence) == first(rows)
    assert [1] == [len(found(rows))], "the fallback is silent"


def test_a_rank_that_is_slower_in_everything() -> None:
    """Its core does not explain it."""
    sentence = (
        "Rank 1 is slower in almost everything (own time 97.0 ms against 58.0 ms), which costs 60.0 ms of "
        "143 ms per step (42 %)."
    )
    assert ("slow_rank", "warning", sentence) == first(slow(EVERYWHERE))


def test_ranks_that_are_slow_in_a_stage() -> None:
    """Several of them, at times, and others elsewhere."""
    alike = [replace(SLOW, rank=2), replace(SLOW, rank=3, cost_s=0.06)]
    others = [replace(SLOW, rank=rank, stages=[v.SAMPLE], cost_s=0.099) for rank in (1, 4)]
    rows = slow(*alike, *others[:1], straggler=replace(STRAGGLER, rank=2, slow_steps=2))
    sentence = (
        "Ranks 2 and 3 are slower in rl.reward in 2 of 6 steps (own time 200 ms against 100 ms), which costs 100 ms "
        "of 1.00 s per step (10 %). Rank 1 costs as much in rl.sample."
    )
    assert ("slow_stage", "warning", sentence) == first(rows)
    assert ([2, 3], "rl.reward") == tuple(found(rows)[0].values[name] for name in ("ranks", "stage"))
    both = slow(*alike, *others, straggler=replace(STRAGGLER, rank=2, slow_steps=2))
    assert first(both)[2].endswith(" Ranks 1 and 4 cost as much in rl.sample.")


def test_a_cheap_slow_rank_is_no_finding() -> None:
    """Below 5 % of the step."""
    assert "largest" == first(slow(replace(SLOW, share=0.049)))[0]


def test_slow_communication_blames_no_rank() -> None:
    """Only if the calls themselves are long: many short ones are a matter of tiny steps."""
    sentence = (
        "Communication holds the run back: collectives take 410 ms in rl.train.backward per step on every rank (41 %), "
        "20.0 ms each."
    )
    assert ("slow_communication", "warning", sentence) == first(replace(CLEAN, **ranks(2, slow_communication=[CALLS])))
    short = replace(CALLS, count=45.6)
    assert "largest" == first(replace(CLEAN, **ranks(2, slow_communication=[short])))[0]
    more = replace(CALLS, stage=v.COMM, transfer_s=0.09, share=0.09)
    start = "Communication holds the run back: collectives take 500 ms in rl.train.backward and under no stage per step"
    assert first(replace(CLEAN, **ranks(2, slow_communication=[CALLS, more])))[2].startswith(start)


@pytest.mark.parametrize("awaited", [Awaited(), Awaited([Rank("trainer", 1)])])
def test_who_waits_for_a_slow_rank_is_not_told_twice(awaited: Awaited) -> None:
    """They are in a collective meanwhile."""
    rows = slow()
    times = replace(rows.efficiency, slow_communication=[CALLS], bubbles=idling({"skew": 0.5}))
    assert ["slow_stage"] == [one.rule for one in found(replace(rows, efficiency=times, awaited=awaited))]


def test_ranks_that_wait_for_the_same_again_and_again() -> None:
    """For no stage that all have."""
    awaited = Awaited([Rank("trainer", 0)], "write samples", 0.06)
    sentence = (
        "The other ranks wait 60.0 ms per step (60 %) for rank 0, which spends 60.0 ms more than they do in write "
        "samples."
    )
    assert ("awaited_rank", "warning", sentence) == first(waiting(awaited))
    least = first(waiting(replace(awaited, stage=None), is_wait_exact=False))[2]
    assert "The other ranks wait at least 60.0 ms per step (60 %) for rank 0." == least
    assert "largest" == first(waiting(awaited, wait_s=0.019))[0]


def test_ranks_that_wait_for_each_other_in_turn() -> None:
    """From 30 % of the step time on."""
    sentence = "The ranks wait 40 % of the step time for the slowest of them, now one rank, now another."
    assert ("uneven_ranks", "warning", sentence) == first(waiting(Awaited(is_spread=True), 0.4))
    least = first(waiting(Awaited(), 0.4, is_wait_exact=False))[2]
    assert "The ranks wait at least 40 % of the step time for the slowest of them." == least
    assert "largest" == first(waiting(Awaited(is_spread=True), 0.29))[0]


@pytest.mark.parametrize(
    ("idle", "rule", "sentence"),
    [
        (
            {"data": 0.749, "queue": 0.1},
            "slow_data",
            "The data loader holds the run back: 161 ms of 215 ms per step wait for the next batch (75 %).",
        ),
        (
            {"queue": 0.2, "other": 0.1},
            "idle",
            "Waiting holds the run back: 64.5 ms of 215 ms per step are spent waiting for a queue (30 %).",
        ),
        (
            {"queue": 0.19, "data": 0.31},
            "slow_data",
            "The data loader holds the run back: 66.7 ms of 215 ms per step wait for the next batch (31 %).",
        ),
        (
            {"queue": 0.2, "data": 0.15},
            "idle",
            "Waiting holds the run back: 75.2 ms of 215 ms per step are spent waiting for a queue (35 %).",
        ),
        (
            {"other": 0.2},
            "idle",
            "Waiting holds the run back: 43.0 ms of 215 ms per step are spent waiting (20 %).",
        ),
    ],
)
def test_waiting(idle: dict[str, float], rule: str, sentence: str) -> None:
    """It says for what."""
    assert (rule, "warning", sentence) == first(replace(CLEAN, step_s=0.215, **ranks(2, bubbles=idling(idle))))


def test_a_poll_hides_nothing_that_can_be_changed() -> None:
    """It is said last, however long it is: a data loader, rewards and tools come first."""

    def led(late_s: float, reward_s: float, generating_s: float = 0.54) -> TimeRows:
        done = RoleStage(stage=v.TRAJECTORY, calls=10, median_s=1.2, p95_s=1.2, longest_s=1.2, total_s=12.0)
        called = [done, replace(done, stage=v.REWARD, total_s=10 * reward_s)]
        role = RoleRow(role="agent_loop", processes=1, is_driver=False, is_rank=False, stages=called)
        known = replace(TRAJECTORIES, generating_s=generating_s, late_s=late_s)
        stages = [stage(f"{v.IDLE} queue", 0.8), stage(f"{v.IDLE} data", 0.2)]
        return replace(CLEAN, step_s=1.8, stages=stages, roles=[role], trajectories=known, all_step_s=1.8)

    late = led(0.9, 0.6)
    assert [("slow_data", 0.2), ("beside_turns", pytest.approx(0.15)), ("late_samples", 0.5)] == [
        (one.rule, one.values["share"]) for one in found(late)
    ]
    assert found(late)[1].sentence == (
        "rl.reward takes 600 ms of a trajectory of 1.20 s, for which the step waits (15 % of it)."
    )
    for little in (led(0.9, 0.35), led(0.9, 0.6, generating_s=0.3)):
        assert ["slow_data", "late_samples"] == [one.rule for one in found(little)]


def test_little_waiting_is_no_finding() -> None:
    """Below a fifth of the step."""
    assert "largest" == first(replace(CLEAN, **ranks(2, bubbles=idling({"data": 0.1, "queue": 0.09}))))[0]


def sampling(share: float, inside: Mapping[str, float], call_s: float = 0.1) -> list[StageRow]:
    """Return the rows of `rl.sample` and of what is inside it; the last is inside an evaluation."""
    below = [stage(name, part * share, v.SAMPLE) for name, part in inside.items()]
    other = [stage(v.EVALUATE, 0.0), stage(f"{v.SAMPLE}.decode", 0.9, v.SAMPLE)]
    return [stage(v.SAMPLE, share, median_s=call_s), *below, *other]


def test_what_lies_around_generating() -> None:
    """A slow tokenizer is not a slow engine."""
    stages = sampling(0.87, {"rl.sample.generate": 30 / 112, "rl.sample.tokenize": 80 / 112}, 0.112)
    sentence = "rl.sample takes 112 ms, of which generating 30.0 ms and tokenizing 80.0 ms (62 % of the step)."
    assert ("around_generation", "warning", sentence) == first(replace(CLEAN, stages=stages))


@pytest.mark.parametrize(
    "stages",
    [
        sampling(0.9, {"rl.sample.generate": 0.7, "rl.sample.tokenize": 0.29}),
        sampling(0.3, {"rl.sample.generate": 0.4, "rl.sample.decode": 0.6}),
        sampling(0.9, {"rl.sample.decode": 0.9}),
        sampling(0.9, {"rl.sample.generate": 0.9}),
    ],
    ids=["generating takes more", "a small part of the step", "nobody knows", "nothing else"],
)
def test_what_is_not_around_generating(stages: list[StageRow]) -> None:
    """Or not much of it."""
    assert "largest" == first(replace(CLEAN, stages=stages))[0]


def test_steps_that_take_longer_since_then() -> None:
    """From 1.5 times on."""
    slower = SlowerSteps(31, 0.041, 0.082, "rl.sample")
    sentence = "Steps take 2.0 times as long since step 31 (41.0 ms to 82.0 ms), above all in rl.sample."
    assert ("slower_since", "warning", sentence) == first(replace(CLEAN, slower=slower))
    assert "largest" == first(replace(CLEAN, slower=replace(slower, after_s=0.061)))[0]


def test_the_tail() -> None:
    """The fewest for which it holds."""
    tails = [
        RequestTail(slowest=0.1, share=0.8, step_share=0.5),
        RequestTail(slowest=0.05, share=0.4, step_share=0.2),
        RequestTail(slowest=0.01, share=0.4, step_share=0.09),
    ]
    sentence = "The slowest 5 % of the responses alone take 40 % of the rollout, 20 % of the step."
    assert ("slow_tail", "warning", sentence) == first(replace(CLEAN, tails=tails))


@pytest.mark.parametrize(("share", "step_share"), [(0.4, 0.09), (0.02, 0.2), (0.4, None)])
def test_what_is_no_tail(share: float, step_share: float | None) -> None:
    """A small part of the step, one that the requests have by their number, or one of an unknown step time."""
    assert "largest" == first(replace(CLEAN, tails=[RequestTail(slowest=0.01, share=share, step_share=step_share)]))[0]


def test_time_under_no_stage() -> None:
    """Of a step of 9 ms it is said only among what takes most."""
    rows = replace(CLEAN, stages=[stage(v.OTHER, 0.3)])
    assert ("unknown_time", "warning", "30 % of the step time lies under no stage.") == first(rows)
    shares = [StageShare(v.OTHER, 0.7), StageShare("judging", 0.3)]
    tiny = TimeRows(step_s=0.009, median_s=0.009, stages=[stage(v.OTHER, 0.7)], shares=shares)
    assert "Nothing stands out. Time under no stage takes 70 % of a step, judging 30 %." == first(tiny)[2]


def test_the_step_that_is_left_aside_comes_second() -> None:
    """Whatever else there is."""
    long = LongStep(step=57, time_s=10.2, ratio=102.0, stage="rl.checkpoint")
    expected = "Step 57 is left aside: it took 10.2 s, 102 times the median, above all in rl.checkpoint."
    for rows, rules in ((CLEAN, ["largest", "long_step"]), (slow(), ["slow_stage", "long_step"])):
        both = found(replace(rows, long_step=long))
        assert (rules, expected) == ([one.rule for one in both], both[1].sentence)
    outside = found(replace(CLEAN, long_step=replace(long, stage=v.OTHER)))[1].sentence
    assert expected.replace("in rl.checkpoint", "under no stage") == outside


def test_what_takes_most_of_the_step_comes_first() -> None:
    """Of several warnings."""
    rows = slow()
    times = replace(rows.efficiency, bubbles=idling({"data": 0.4}))
    rows = replace(rows, efficiency=times, stages=[stage(v.OTHER, 0.3)])
    assert ["slow_data", "unknown_time", "slow_stage"] == [one.rule for one in found(rows)]


def test_all_that_warns_gives_advice() -> None:
    """One sentence each."""
    assert [] == [
        rule.name for rule in TIME if rule.severity == "warning" and rule.name != "no_step" and not rule.advice
    ]
    assert {1, 0} == {rule.advice.count(". ") + rule.advice.endswith(".") for rule in TIME}
