"""The rules of the verdict, one by one and in their order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_rl import vocabulary as v
from otel_rl.report.model import BalanceRow, LongStep, Rank, RankSeconds, StageRow, StepTimes
from otel_rl.report.verdict import verdict

STEPS = StepTimes(recorded=12, averaged=10, warmup=2, first=1, last=12, median_s=1.0, p95_s=1.2, total_s=10.0)


def stage(name: str, share: float, *, comm: float = 0.0, host: bool = False, inside: str | None = None) -> StageRow:
    """Make a row with a share of the step time."""
    return StageRow(
        stage=name,
        inside=inside,
        calls=10,
        share=share,
        median_s=share,
        p95_s=share,
        total_s=10 * share,
        comm_share=comm,
        is_comm_hidden=False,
        is_host_clock=host,
    )


def balance(name: str, own_s: list[float], excess_s: float, tied: int = 0) -> BalanceRow:
    """Make a row whose last rank is slow, and so many before it."""
    slow = len(own_s) - 1
    return BalanceRow(
        stage=name,
        own=[RankSeconds("trainer", rank, value) for rank, value in enumerate(own_s)],
        is_comparable=True,
        straggler=Rank("trainer", slow),
        tied=[Rank("trainer", slow - number) for number in range(1, tied + 1)],
        ratio=own_s[-1] / own_s[0],
        excess_s=excess_s,
    )


TOP = [stage(v.SAMPLE, 0.6), stage(v.FORWARD, 0.1), stage(v.BACKWARD, 0.25), stage(v.OTHER, 0.05)]


def test_a_straggler_goes_first() -> None:
    """It costs every other rank its time."""
    found = verdict(STEPS, TOP, [balance(v.REWARD, [0.1, 0.1, 0.3], 0.2)])
    expected = (
        "Rank 2 holds the run back: rl.reward takes 3.0 times as long there as on the median of the other ranks, "
        "200 ms or 20 % of the median step."
    )
    assert ("straggler", expected, Rank("trainer", 2)) == (found.kind, found.sentence, found.rank)


def test_the_costliest_straggler_is_named() -> None:
    """The largest excess counts, not the largest ratio."""
    rows = [balance(v.REWARD, [0.01, 0.08], 0.07), balance(v.SAMPLE, [0.4, 0.6], 0.2)]
    assert verdict(STEPS, TOP, rows).stage == v.SAMPLE


def test_ranks_that_are_as_slow_are_all_named() -> None:
    """Never the first one alone; many of them are counted."""
    sentences = [verdict(STEPS, TOP, [balance(v.REWARD, [0.1] * 9, 0.2, tied)]).sentence for tied in (1, 5)]
    expected = ["Ranks 8 and 7 hold the run back: rl.reward ", "Ranks 8, 7, 6 and 3 more hold the run back: rl.reward "]
    assert expected == [sentence[: len(start)] for sentence, start in zip(sentences, expected, strict=True)]


def test_stages_in_which_as_much_is_lost_are_all_named() -> None:
    """Less than 5 % between them."""
    rows = [balance(v.REWARD, [0.1, 0.3], 0.2), balance(v.SAMPLE, [0.4, 0.595], 0.195), balance("x", [0.1, 0.2], 0.1)]
    assert verdict(STEPS, TOP, rows).sentence.endswith(
        "200 ms or 20 % of the median step; as much is lost by rank 1 in rl.sample."
    )


def test_steps_without_time_have_no_straggler() -> None:
    """A clock may stand still."""
    assert "stage" == verdict(replace(STEPS, median_s=0.0), TOP, [balance(v.REWARD, [0.1, 0.3], 0.2)]).kind


def test_a_cheap_straggler_is_not_the_verdict() -> None:
    """Below 5 % of the step other things hold the run back."""
    assert verdict(STEPS, TOP, [balance(v.REWARD, [0.01, 0.05], 0.04)]).kind == "stage"


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([stage(v.SAMPLE, 0.5), stage("rl.idle data", 0.2), stage(v.OTHER, 0.3)], "idle"),
        ([stage(v.SAMPLE, 0.5, comm=0.4), stage(v.COMM, 0.1, comm=1.0), stage(v.OTHER, 0.3)], "comm"),
        ([stage(v.SAMPLE, 0.5), stage(v.OTHER, 0.2)], "other"),
        ([stage(v.SAMPLE, 0.81), stage(v.OTHER, 0.19)], "stage"),
        ([stage(v.OTHER, 0.1)], "nothing"),
    ],
)
def test_the_rules_have_an_order(rows: list[StageRow], kind: str) -> None:
    """Waiting, then collectives, then unknown time, then the largest stage."""
    assert kind == verdict(STEPS, rows, []).kind


def test_stages_of_one_thing_are_taken_together() -> None:
    """The update is forward, backward, clipping and optimizer."""
    rows = [stage(v.SAMPLE, 0.4), stage(v.FORWARD, 0.2), stage(v.BACKWARD, 0.3)]
    assert (
        verdict(STEPS, rows, []).sentence
        == "Most time goes into the policy update: 50 % of the mean step, 500 ms of 1.00 s (mostly rl.train.backward)."
    )


def test_launch_times_do_not_split_the_update() -> None:
    """On an accelerator nobody knows yet which part of the update is long."""
    rows = [stage(v.SAMPLE, 0.4), stage(v.FORWARD, 0.1, host=True), stage(v.BACKWARD, 0.4, host=True)]
    assert (
        verdict(STEPS, rows, []).sentence
        == "Most time goes into the policy update: 50 % of the mean step, 500 ms of 1.00 s."
    )


def test_stages_that_take_as_much_are_all_named() -> None:
    """Less than 5 % between them, the larger one first."""
    rows = [stage(v.REWARD, 0.3), stage(v.SAMPLE, 0.31), stage(v.LOG, 0.29)]
    assert (
        "Most time goes into generating rollouts and computing rewards: 31 % of the mean step each, 310 ms of 1.00 s."
        == verdict(STEPS, rows, []).sentence
    )


def test_what_lies_between_the_stages_of_a_tiny_step_is_no_verdict() -> None:
    """A step of 9 ms is said to have it, one of 10 ms is told to name it."""
    rows = [stage("judging", 0.3), stage(v.OTHER, 0.7)]
    tiny = replace(STEPS, median_s=0.009, total_s=0.1)
    assert (
        "Most time goes into judging: 30 % of the mean step, 3.00 ms of 10.0 ms; 70 % lies under no stage."
        == verdict(tiny, rows, []).sentence
    )
    assert "other" == verdict(replace(tiny, median_s=0.01), rows, []).kind


def test_the_step_that_is_left_aside_is_named() -> None:
    """Whatever the rule that holds."""
    long_step = LongStep(step=57, time_s=10.2, ratio=102.0, stage=v.CHECKPOINT)
    found = verdict(STEPS, TOP, [], long_step)
    assert found.sentence.endswith(
        ". Step 57 is left aside: it took 10.2 s, 102 times the median, above all in rl.checkpoint."
    )
    assert long_step == found.long_step


def test_nested_stages_are_not_counted_twice() -> None:
    """A stage inside another one is part of it."""
    rows = [stage(v.REWARD, 0.6), stage("rl.reward slow", 0.6, inside=v.REWARD), stage(v.SAMPLE, 0.4)]
    assert pytest.approx(0.6) == verdict(STEPS, rows, []).share


def test_a_users_own_stage_stands_for_itself() -> None:
    """What is in no group is named as it is."""
    assert (
        verdict(STEPS, [stage("judging", 0.7)], []).sentence
        == "Most time goes into judging: 70 % of the mean step, 700 ms of 1.00 s."
    )


@pytest.mark.parametrize("name", ["", " \t"])
def test_a_stage_without_a_name_is_a_stage(name: str) -> None:
    """A blank name has no first word to judge by."""
    found = verdict(STEPS, [stage(name, 0.9)], [])
    assert ("stage", name) == (found.kind, found.stage)
