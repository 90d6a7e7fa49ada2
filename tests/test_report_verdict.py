"""The rules of the verdict, one by one and in their order."""

from __future__ import annotations

import pytest

from otel_rl import vocabulary as v
from otel_rl.report.model import BalanceRow, Rank, RankSeconds, StageRow, StepTimes
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


def balance(name: str, own_s: list[float], excess_s: float) -> BalanceRow:
    """Make a row whose last rank is slow."""
    slow = len(own_s) - 1
    return BalanceRow(
        stage=name,
        own=[RankSeconds("trainer", rank, value) for rank, value in enumerate(own_s)],
        is_comparable=True,
        straggler=Rank("trainer", slow),
        ratio=own_s[-1] / own_s[0],
        excess_s=excess_s,
    )


TOP = [stage(v.SAMPLE, 0.6), stage(v.FORWARD, 0.1), stage(v.BACKWARD, 0.25), stage(v.OTHER, 0.05)]


def test_a_straggler_goes_first() -> None:
    """It costs every other rank its time."""
    found = verdict(STEPS, TOP, [balance(v.REWARD, [0.1, 0.1, 0.3], 0.2)])
    expected = (
        "Rank 2 holds the run back: rl.reward takes 3.0 times as long there as on the median of the other ranks, "
        "200 ms or 20 % of every step."
    )
    assert ("straggler", expected, Rank("trainer", 2)) == (found.kind, found.sentence, found.rank)


def test_the_costliest_straggler_is_named() -> None:
    """The largest excess counts, not the largest ratio."""
    rows = [balance(v.REWARD, [0.01, 0.08], 0.07), balance(v.SAMPLE, [0.4, 0.6], 0.2)]
    assert verdict(STEPS, TOP, rows).stage == v.SAMPLE


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
        ([], "nothing"),
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
        == "Most time goes into the policy update: 50 % of a step, 500 ms of 1.00 s (mostly rl.train.backward)."
    )


def test_launch_times_do_not_split_the_update() -> None:
    """On an accelerator nobody knows yet which part of the update is long."""
    rows = [stage(v.SAMPLE, 0.4), stage(v.FORWARD, 0.1, host=True), stage(v.BACKWARD, 0.4, host=True)]
    assert (
        verdict(STEPS, rows, []).sentence == "Most time goes into the policy update: 50 % of a step, 500 ms of 1.00 s."
    )


def test_nested_stages_are_not_counted_twice() -> None:
    """A stage inside another one is part of it."""
    rows = [stage(v.REWARD, 0.6), stage("rl.reward slow", 0.6, inside=v.REWARD), stage(v.SAMPLE, 0.4)]
    assert pytest.approx(0.6) == verdict(STEPS, rows, []).share


def test_a_users_own_stage_stands_for_itself() -> None:
    """What is in no group is named as it is."""
    assert (
        verdict(STEPS, [stage("judging", 0.7)], []).sentence
        == "Most time goes into judging: 70 % of a step, 700 ms of 1.00 s."
    )


@pytest.mark.parametrize("name", ["", " \t"])
def test_a_stage_without_a_name_is_a_stage(name: str) -> None:
    """A blank name has no first word to judge by."""
    found = verdict(STEPS, [stage(name, 0.9)], [])
    assert ("stage", name) == (found.kind, found.stage)
