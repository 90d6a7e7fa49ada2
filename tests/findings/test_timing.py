"""The rules of time, one by one, over plain evidence: the exact sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_rl.findings.judge import apply
from otel_rl.findings.rule import Finding
from otel_rl.findings.time_spent import (
    BesideTurns,
    Late,
    Long,
    PeerWait,
    SampleCall,
    SlowCalls,
    Slower,
    SlowRanks,
    Tail,
    Timing,
    Use,
)
from otel_rl.findings.timing import TIME

CLEAN = Timing(
    step_s=1.0,
    median_s=1.0,
    uses=[Use("sampling", 0.5, 0.1), Use("the update", 0.27, 0.2), Use("rewards", 0.23, 0.03)],
    num_ranks=2,
)
SLOW = SlowRanks(
    who="rank 1",
    rank=1,
    are="is",
    where="rl.reward",
    stage="rl.reward",
    own_s=0.2,
    others_s=0.1,
    cost_s=0.1,
    share=0.1,
)
EVERYWHERE = replace(
    SLOW,
    where="everything",
    stage="rl.sample",
    own_s=0.097,
    others_s=0.058,
    cost_s=0.06,
    share=0.42,
    is_everywhere=True,
)
CALLS = SlowCalls(where="410 ms in rl.train.backward", stage="rl.train.backward", share=0.41, call_s=0.02)
WAIT = PeerWait(share=0.2, longest_s=0.06, step_s=0.1)


def found(timing: Timing) -> list[Finding]:
    """Apply all rules of time."""
    return apply(TIME, "time", timing)


def first(timing: Timing) -> tuple[str, str, str]:
    """What comes first."""
    one = found(timing)[0]
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


@pytest.mark.parametrize(("ranks", "end"), [(0, ""), (1, ""), (2, " Neither rank is slow."), (8, " No rank is slow.")])
def test_ranks_are_cleared_where_they_can_be_compared(ranks: int, end: str) -> None:
    """One rank has no peers."""
    start = "Nothing stands out. Sampling takes 50 % of a step, the update 27 %; 33 % of the step is communication."
    assert start + end == first(replace(CLEAN, num_ranks=ranks))[2]


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
    uses = [Use("rewards", 0.5, communication), Use("the update", 0.21)]
    timing = replace(CLEAN, uses=uses, num_ranks=0)
    assert f"Nothing stands out. {said}" == first(timing)[2]


def test_what_takes_next_to_nothing_is_not_named() -> None:
    """One part may be all there is."""
    timing = replace(CLEAN, uses=[Use("judging", 1.0), Use("logging", 0.001)], num_ranks=0)
    assert "Nothing stands out. Judging takes 100 % of a step." == first(timing)[2]


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (Use("evaluation", 0.5), "Evaluation takes 50 % of the step time."),
        (Use("checkpoints", 0.5), "Checkpoints take 50 % of the step time."),
        (Use("handing over new weights", 0.3), "Handing over new weights takes 30 % of the step time."),
    ],
)
def test_work_besides_training_that_takes_too_much(use: Use, sentence: str) -> None:
    """It need not be the largest part, and a little less is no finding."""
    uses = [use, Use("sampling", 1 - use.share)]
    assert ("besides_training", "warning", sentence) == first(replace(CLEAN, uses=uses))
    assert "largest" == first(replace(CLEAN, uses=[replace(use, share=use.share - 0.01)]))[0]
    assert "largest" == first(replace(CLEAN, uses=[replace(use, communication=0.01)]))[0]


def test_several_things_take() -> None:
    """As grammar has it."""
    sentence = "Nothing stands out. Log-probabilities take 60 % of a step, rewards 40 %."
    timing = replace(CLEAN, uses=[Use("log-probabilities", 0.6), Use("rewards", 0.4)], num_ranks=1)
    assert sentence == first(timing)[2]


def test_a_run_without_stages() -> None:
    """Or whose clock stands still."""
    assert "no_stage" == first(Timing(step_s=1.0))[0]
    assert "no_stage" == first(Timing(step_s=1.0, uses=[Use("judging", 0.0)]))[0]


def test_a_run_without_a_step() -> None:
    """It is a warning unless the run goes on."""
    assert ("no_step", "warning", "The journal is empty.") == first(Timing(no_step="The journal is empty."))
    assert ("no_step_yet", "note", "Wait.") == first(Timing(no_step="Wait.", goes_on=True))


def test_a_rank_that_gets_too_little_of_a_core() -> None:
    """In everything, with what it costs."""
    timing = replace(CLEAN, slow=replace(EVERYWHERE, is_starved=True, core_share=0.51))
    sentence = (
        "Rank 1 is slower in almost everything (own time 97.0 ms against 58.0 "
        "ms), which costs 60.0 ms of 143 ms per step (42 %). "
        "It got 51 % of a core while it worked."
    )
    assert ("starved_rank", "warning", sentence) == first(timing)
    assert [1] == [len(found(timing))], "the fallback is silent"


def test_a_rank_that_is_slower_in_everything() -> None:
    """Its core does not explain it."""
    sentence = (
        "Rank 1 is slower in almost everything (own time 97.0 ms against 58.0 ms), which costs 60.0 ms of "
        "143 ms per step (42 %)."
    )
    assert ("slow_rank", "warning", sentence) == first(replace(CLEAN, slow=EVERYWHERE))


def test_ranks_that_are_slow_in_a_stage() -> None:
    """Several of them, at times, and others elsewhere."""
    slow = replace(
        SLOW, who="ranks 2 and 3", are="are", often=" in 2 of 6 steps", others=" Rank 1 costs as much in rl.sample."
    )
    sentence = (
        "Ranks 2 and 3 are slower in rl.reward in 2 of 6 steps (own time 200 ms against 100 ms), which costs 100 ms "
        "of 1.00 s per step (10 %). Rank 1 costs as much in rl.sample."
    )
    assert ("slow_stage", "warning", sentence) == first(replace(CLEAN, slow=slow))
    assert (1, "rl.reward") == tuple(found(replace(CLEAN, slow=slow))[0].values[name] for name in ("rank", "stage"))


def test_a_cheap_slow_rank_is_no_finding() -> None:
    """Below 5 % of the step."""
    assert "largest" == first(replace(CLEAN, slow=replace(SLOW, share=0.049)))[0]


def test_slow_communication_blames_no_rank() -> None:
    """Only if the calls themselves are long: many short ones are a matter of tiny steps."""
    sentence = (
        "Communication holds the run back: collectives take 410 ms in rl.train.backward per step on every rank (41 %), "
        "20.0 ms each."
    )
    assert ("slow_communication", "warning", sentence) == first(replace(CLEAN, calls=CALLS))
    assert "largest" == first(replace(CLEAN, calls=replace(CALLS, call_s=0.009)))[0]


@pytest.mark.parametrize(
    "more", [{"calls": CALLS}, {"wait": replace(WAIT, share=0.5)}, {"wait": replace(WAIT, rank=1)}]
)
def test_who_waits_for_a_slow_rank_is_not_told_twice(more: dict[str, object]) -> None:
    """They are in a collective meanwhile."""
    assert ["slow_stage"] == [one.rule for one in found(replace(CLEAN, slow=SLOW, **more))]


def test_ranks_that_wait_for_the_same_again_and_again() -> None:
    """For no stage that all have."""
    wait = replace(WAIT, rank=0, who="rank 0", reason=", which spends 60.0 ms more than they do in write samples")
    sentence = (
        "The other ranks wait 60.0 ms per step (60 %) for rank 0, which spends 60.0 ms more than they do in write "
        "samples."
    )
    assert ("awaited_rank", "warning", sentence) == first(replace(CLEAN, wait=wait))
    least = first(replace(CLEAN, wait=replace(wait, reason="", is_exact=False)))[2]
    assert "The other ranks wait at least 60.0 ms per step (60 %) for rank 0." == least
    assert "largest" == first(replace(CLEAN, wait=replace(wait, longest_s=0.019)))[0]


def test_ranks_that_wait_for_each_other_in_turn() -> None:
    """From 30 % of the step time on."""
    wait = replace(WAIT, share=0.4, is_spread=True)
    sentence = "The ranks wait 40 % of the step time for the slowest of them, now one rank, now another."
    assert ("uneven_ranks", "warning", sentence) == first(replace(CLEAN, wait=wait))
    assert (
        "The ranks wait at least 40 % of the step time for the slowest of them."
        == (first(replace(CLEAN, wait=replace(wait, is_spread=False, is_exact=False)))[2])
    )
    assert "largest" == first(replace(CLEAN, wait=replace(wait, share=0.29)))[0]


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
            "Waiting holds the run back: 43.0 ms of 215 ms per step are spent waiting in rl.idle (20 %).",
        ),
    ],
)
def test_waiting(idle: dict[str, float], rule: str, sentence: str) -> None:
    """It says for what."""
    assert (rule, "warning", sentence) == first(replace(CLEAN, step_s=0.215, idle=idle))


def test_a_poll_hides_nothing_that_can_be_changed() -> None:
    """It is said last, however long it is: a data loader, rewards and tools come first."""
    late, rewards = Late(0.9, 0.5, ": verl asks"), BesideTurns("rl.reward", 0.6, 1.2, 0.15)
    timing = replace(CLEAN, step_s=1.8, idle={"queue": 0.65, "data": 0.2}, late=late, beside_turns=rewards)
    assert [("slow_data", 0.2), ("beside_turns", 0.15), ("late_samples", 0.5)] == [
        (one.rule, one.values["share"]) for one in found(timing)
    ]
    assert found(timing)[1].sentence == (
        "rl.reward takes 600 ms of a trajectory of 1.20 s, for which the step waits (15 % of it)."
    )
    for little in (replace(rewards, time_s=0.35), replace(rewards, share=0.09)):
        assert ["late_samples"] == [one.rule for one in found(replace(CLEAN, late=late, beside_turns=little))]


def test_little_waiting_is_no_finding() -> None:
    """Below a fifth of the step."""
    assert "largest" == first(replace(CLEAN, idle={"data": 0.1, "queue": 0.09}))[0]


def test_what_lies_around_generating() -> None:
    """A slow tokenizer is not a slow engine."""
    sampling = SampleCall(0.112, 0.87, {"rl.sample.generate": 30 / 112, "rl.sample.tokenize": 80 / 112})
    sentence = "rl.sample takes 112 ms, of which generating 30.0 ms and tokenizing 80.0 ms (62 % of the step)."
    assert ("around_generation", "warning", sentence) == first(replace(CLEAN, sampling=sampling))


@pytest.mark.parametrize(
    "sampling",
    [
        SampleCall(0.1, 0.9, {"rl.sample.generate": 0.7, "rl.sample.tokenize": 0.29}),
        SampleCall(0.1, 0.3, {"rl.sample.generate": 0.4, "rl.sample.decode": 0.6}),
        SampleCall(0.1, 0.9, {"rl.sample.decode": 0.9}),
        SampleCall(0.1, 0.9, {"rl.sample.generate": 0.9}),
    ],
    ids=["generating takes more", "a small part of the step", "nobody knows", "nothing else"],
)
def test_what_is_not_around_generating(sampling: SampleCall) -> None:
    """Or not much of it."""
    assert "largest" == first(replace(CLEAN, sampling=sampling))[0]


def test_steps_that_take_longer_since_then() -> None:
    """From 1.5 times on."""
    slower = Slower(31, 0.041, 0.082, "rl.sample")
    sentence = "Steps take 2.0 times as long since step 31 (41.0 ms to 82.0 ms), above all rl.sample."
    assert ("slower_since", "warning", sentence) == first(replace(CLEAN, slower=slower))
    assert "largest" == first(replace(CLEAN, slower=replace(slower, after_s=0.061)))[0]


def test_the_tail() -> None:
    """The fewest for which it holds."""
    tails = [Tail(0.1, 0.8, 0.5), Tail(0.05, 0.4, 0.2), Tail(0.01, 0.4, 0.09)]
    sentence = "The slowest 5 % of the responses alone take 40 % of the rollout, 20 % of the step."
    assert ("slow_tail", "warning", sentence) == first(replace(CLEAN, tails=tails))


@pytest.mark.parametrize(("share", "step_share"), [(0.4, 0.09), (0.02, 0.2), (0.4, 0.0)])
def test_what_is_no_tail(share: float, step_share: float) -> None:
    """A small part of the step, one that the requests have by their number, or one of an unknown step time."""
    assert "largest" == first(replace(CLEAN, tails=[Tail(0.01, share, step_share)]))[0]


def test_time_under_no_stage() -> None:
    """Of a step of 9 ms it is said only among what takes most."""
    assert ("unknown_time", "warning", "30 % of the step time lies under no stage.") == first(replace(CLEAN, other=0.3))
    tiny = Timing(step_s=0.009, median_s=0.009, other=0.7, uses=[Use("time under no stage", 0.7), Use("judging", 0.3)])
    assert "Nothing stands out. Time under no stage takes 70 % of a step, judging 30 %." == first(tiny)[2]


def test_the_step_that_is_left_aside_comes_second() -> None:
    """Whatever else there is."""
    long = Long(57, 10.2, 102.0, "rl.checkpoint")
    expected = "Step 57 is left aside: it took 10.2 s, 102 times the median, above all in rl.checkpoint."
    for timing, rules in ((CLEAN, ["largest", "long_step"]), (replace(CLEAN, slow=SLOW), ["slow_stage", "long_step"])):
        both = found(replace(timing, long=long))
        assert (rules, expected) == ([one.rule for one in both], both[1].sentence)


def test_what_takes_most_of_the_step_comes_first() -> None:
    """Of several warnings."""
    timing = replace(CLEAN, slow=SLOW, idle={"data": 0.4}, other=0.3)
    assert ["slow_data", "unknown_time", "slow_stage"] == [one.rule for one in found(timing)]


def test_all_that_warns_gives_advice() -> None:
    """One sentence each."""
    assert [] == [
        rule.name for rule in TIME if rule.severity == "warning" and rule.name != "no_step" and not rule.advice
    ]
    assert {1, 0} == {rule.advice.count(". ") + rule.advice.endswith(".") for rule in TIME}
