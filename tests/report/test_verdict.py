"""The rules of the verdict, one by one and in their order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_rl import vocabulary as v
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import LongStep, StageRow, StepTimes
from otel_rl.report.data.time_use import BubbleRow, Efficiency, RankTime, SlowCommunication, StragglerRow
from otel_rl.report.verdict import Awaited, verdict

STEPS = StepTimes(recorded=12, averaged=10, warmup=2, first=1, last=12, loops=1, median_s=1.0, p95_s=1.2, total_s=10.0)


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
        is_device_clock=False,
    )


def slow(name: str, rank: int, ratio: float, cost_s: float) -> StragglerRow:
    """Make a slow rank; a step takes a second."""
    return StragglerRow(
        role="trainer",
        rank=rank,
        stage=name,
        own_s=ratio * cost_s,
        ratio=ratio,
        cost_s=cost_s,
        share=cost_s,
        slow_steps=9,
        steps=10,
        all_steps=10,
        pipeline=None,
    )


def ranks(count: int, role: str = "trainer") -> list[RankTime]:
    """Make ranks of which nothing is known."""
    return [
        RankTime(
            role=role,
            rank=rank,
            steps=10,
            step_s=1.0,
            active_s=1.0,
            wait_s=0.0,
            transfer_s=0.0,
            is_wait_exact=True,
            inseparable_s=0.0,
            idle_s=0.0,
            other_s=0.0,
            train_tokens=0.0,
            response_tokens=0.0,
            relative_score=None,
            individual_score=None,
            slowdown=None,
            pipeline=None,
        )
        for rank in range(count)
    ]


NOBODY = Efficiency(stragglers=[], slow_communication=[], ranks=ranks(3), slowdowns=[], bubbles=[], goodput=[])


def stragglers(*rows: StragglerRow) -> Efficiency:
    """Let the ranks be slow."""
    return replace(NOBODY, stragglers=list(rows))


def skewed(share: float) -> Efficiency:
    """Let ranks wait for slower ones that are nobody in particular."""
    return replace(NOBODY, bubbles=[BubbleRow(kind="skew", denominator="step", share=share, is_exact=True, ranks=[])])


TOP = [stage(v.SAMPLE, 0.6), stage(v.FORWARD, 0.1), stage(v.BACKWARD, 0.25), stage(v.OTHER, 0.05)]


def test_a_straggler_goes_first() -> None:
    """It costs every other rank its time."""
    found = verdict(STEPS, TOP, stragglers(slow(v.REWARD, 2, 3.0, 0.2)))
    expected = (
        "Rank 2 holds the run back: rl.reward takes 3.0 times as long there as on the median of the other ranks, which "
        "costs 200 ms per step, 20 % of the median step."
    )
    assert ("straggler", expected, Rank("trainer", 2), 3.0) == (found.kind, found.sentence, found.rank, found.ratio)


def test_two_ranks_have_but_one_other() -> None:
    """And of several roles a rank is called by its own."""
    both = replace(stragglers(slow(v.REWARD, 1, 2.0, 0.1)), ranks=[*ranks(2), *ranks(1, "rollout")])
    expected = "Trainer 1 holds the run back: rl.reward takes 2.0 times as long there as on the other rank, "
    assert verdict(STEPS, TOP, both).sentence.startswith(expected)


def test_a_rank_may_be_slow_at_times() -> None:
    """Then it costs a part of the mean step."""
    found = verdict(STEPS, TOP, stragglers(replace(slow(v.REWARD, 2, 60.0, 0.4), slow_steps=2, steps=6)))
    expected = (
        "Rank 2 holds the run back in 2 of 6 steps: rl.reward takes 60.0 times as long there as on the median of the "
        "other ranks, which costs 400 ms per step, 40 % of the mean step."
    )
    assert expected == found.sentence


def test_a_rank_may_be_slow_under_no_stage() -> None:
    """Which has a name in the tables only."""
    found = verdict(STEPS, TOP, stragglers(slow(v.OTHER, 2, 3.0, 0.2), slow(v.REWARD, 1, 3.0, 0.2)))
    begin = "Rank 2 holds the run back: what runs under no stage (rl.other) takes 3.0 times as long there as on "
    assert found.sentence.startswith(begin)
    found = verdict(STEPS, TOP, stragglers(slow(v.REWARD, 1, 3.0, 0.2), slow(v.OTHER, 2, 3.0, 0.2)))
    assert found.sentence.endswith("; as much is lost by rank 2 under no stage.")


def test_ranks_that_are_as_slow_are_all_named() -> None:
    """Never the first one alone; many of them are counted; one that costs less is not among them."""
    rows = [slow(v.REWARD, rank, 2.0, 0.2 - rank / 1000) for rank in (2, 3, 5, 6, 7, 8, 50)]
    sentences = [verdict(STEPS, TOP, stragglers(*rows[:count])).sentence for count in (2, 7)]
    expected = ["Ranks 2 and 3 hold the run back: rl.reward ", "Ranks 2, 3, 5 and 3 more hold the run back: rl.reward "]
    assert expected == [sentence[: len(start)] for sentence, start in zip(sentences, expected, strict=True)]


def test_stages_in_which_as_much_is_lost_are_all_named() -> None:
    """Less than 5 % between them."""
    rows = [slow(v.REWARD, 1, 3.0, 0.2), slow(v.SAMPLE, 2, 1.5, 0.195), slow("x", 1, 2.0, 0.1)]
    assert verdict(STEPS, TOP, stragglers(*rows)).sentence.endswith(
        "200 ms per step, 20 % of the median step; as much is lost by rank 2 in rl.sample."
    )


def test_a_cheap_straggler_is_not_the_verdict() -> None:
    """Below 5 % of the step other things hold the run back."""
    assert verdict(STEPS, TOP, stragglers(slow(v.REWARD, 2, 5.0, 0.04))).kind == "stage"


def test_slow_communication_blames_no_rank() -> None:
    """It takes long on the rank that waits least."""
    rows = [
        SlowCommunication(role="trainer", stage=stage, transfer_s=share, share=share, pipeline=None)
        for stage, share in ((v.BACKWARD, 0.41), (v.COMM, 0.3))
    ]
    found = verdict(STEPS, TOP, replace(NOBODY, slow_communication=rows))
    expected = (
        "Communication holds the run back: collectives take 410 ms inside rl.train.backward and 300 ms under no stage "
        "per step, 71 % of the median step, on every rank alike, so no rank is to blame."
    )
    assert ("slow communication", expected, None, v.BACKWARD) == (found.kind, found.sentence, found.rank, found.stage)


def test_a_straggler_goes_before_slow_communication() -> None:
    """Who waits for it is in the collective, too."""
    rows = [SlowCommunication(role="trainer", stage=v.BACKWARD, transfer_s=0.4, share=0.4, pipeline=None)]
    both = replace(stragglers(slow(v.REWARD, 2, 3.0, 0.2)), slow_communication=rows)
    assert "straggler" == verdict(STEPS, TOP, both).kind


def test_ranks_that_wait_for_each_other_in_turn() -> None:
    """Time in collectives that is mostly waiting, and nobody is slow again and again."""
    rows = [stage(v.SAMPLE, 0.6), stage(v.BACKWARD, 0.4, comm=0.9)]
    expected = (
        "Collectives hold the run back: the ranks spend 36 % of the step time in them: 36 % inside rl.train.backward"
    )
    larger = " More goes into generating rollouts: 60 % without them."
    waiting = f"{expected}; 20 % is waiting for the slowest, now one rank, now another.{larger}"
    waits = Awaited(is_spread=True)
    assert [waiting, f"{expected}.{larger}"] == [
        verdict(STEPS, rows, skewed(share), waits=waits).sentence for share in (0.2, 0.1)
    ]


def test_where_more_may_be_waiting_the_sentence_says_so() -> None:
    """Also of a run in which as much as is known is little."""
    rows = [stage(v.SAMPLE, 0.6), stage(v.BACKWARD, 0.4, comm=0.9)]
    start = (
        "Collectives hold the run back: the ranks spend 36 % of the step time in them: 36 % inside rl.train.backward"
    )
    untold = (
        "not every collective is recorded on every rank of its group: of many in a stage only the 32 longest, of a "
        "process that died not the last ones, of a rank whose journal is not here none"
    )
    expected = [
        f"{start}; at least 20 % is waiting for the slowest.",
        f"{start}; at least 10 % is waiting, and how much more is not known: {untold}.",
        f"{start}; how much is waiting is not known: {untold}.",
    ]
    expected = [f"{sentence} More goes into generating rollouts: 60 % without them." for sentence in expected]
    unknown = [replace(NOBODY.ranks[0], is_wait_exact=False), *NOBODY.ranks[1:]]
    found = [verdict(STEPS, rows, replace(skewed(share), ranks=unknown)) for share in (0.2, 0.1, 0.0001)]
    assert [("comm", sentence, None) for sentence in expected] == [(one.kind, one.sentence, one.rank) for one in found]


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        (Awaited(), " for the slowest."),
        (Awaited([Rank("trainer", 2)]), ", mostly for rank 2."),
        (
            Awaited([Rank("trainer", 2)], "write samples", 0.1),
            ", mostly for rank 2, which spends 100 ms per step more than the others inside write samples.",
        ),
        (
            Awaited([Rank("trainer", 1), Rank("trainer", 0)], v.OTHER, 0.1),
            ", mostly for ranks 1 and 0, which spend 100 ms per step more than the others under no stage.",
        ),
    ],
)
def test_ranks_that_wait_for_the_same_again_and_again(waits: Awaited, expected: str) -> None:
    """No stage says that it is slow, its waits do."""
    found = verdict(STEPS, [stage(v.BACKWARD, 0.6, comm=0.6)], skewed(0.3), waits=waits)
    start = "Collectives hold the run back: the ranks spend 36 % of the step time in them: 36 % inside "
    assert (f"{start}rl.train.backward; 30 % is waiting{expected}", next(iter(waits.ranks), None)) == (
        found.sentence,
        found.rank,
    )


def test_collectives_under_no_stage_are_listed() -> None:
    """As large as others, under a name that is no stage of the reader's."""
    rows = [stage(v.COMM, 0.3, comm=1.0), stage(v.BACKWARD, 0.4, comm=0.5), stage(v.SAMPLE, 0.3)]
    assert (
        "Collectives hold the run back: the ranks spend 50 % of the step time in them: 30 % under no stage, 20 % "
        "inside rl.train.backward." == verdict(STEPS, rows, NOBODY).sentence
    )


def test_waits_inside_other_stages_are_waiting() -> None:
    """A data loader inside the update holds the run back as one beside it does."""
    data = BubbleRow(kind="data", denominator="step", share=0.6, is_exact=True, ranks=[])
    found = verdict(STEPS, [stage(v.TRAIN, 0.8, comm=0.5)], replace(NOBODY, bubbles=[data]))
    assert ("idle", "Waiting holds the run back: 60 % of the step time is rl.idle.") == (found.kind, found.sentence)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([stage(v.SAMPLE, 0.5, comm=0.4), stage(v.COMM, 0.1, comm=1.0), stage(v.OTHER, 0.3)], "comm"),
        ([stage(v.SAMPLE, 0.5), stage(v.OTHER, 0.2)], "other"),
        ([stage(v.SAMPLE, 0.81), stage(v.OTHER, 0.19)], "stage"),
        ([stage(v.OTHER, 0.1)], "nothing"),
    ],
)
def test_the_rules_have_an_order(rows: list[StageRow], kind: str) -> None:
    """Waiting, then collectives, then unknown time, then the largest stage."""
    assert kind == verdict(STEPS, rows, NOBODY).kind
    data = BubbleRow(kind="data", denominator="step", share=0.2, is_exact=True, ranks=[])
    assert "idle" == verdict(STEPS, rows, replace(NOBODY, bubbles=[data])).kind


def test_stages_of_one_thing_are_taken_together() -> None:
    """The update is forward, backward, clipping and optimizer."""
    rows = [stage(v.SAMPLE, 0.4), stage(v.FORWARD, 0.2), stage(v.BACKWARD, 0.3)]
    assert (
        verdict(STEPS, rows, NOBODY).sentence
        == "Most time goes into the policy update: 50 % of the mean step, 500 ms of 1.00 s (mostly rl.train.backward)."
    )


def test_launch_times_do_not_split_the_update() -> None:
    """On an accelerator nobody knows yet which part of the update is long."""
    rows = [stage(v.SAMPLE, 0.4), stage(v.FORWARD, 0.1, host=True), stage(v.BACKWARD, 0.4, host=True)]
    assert (
        verdict(STEPS, rows, NOBODY).sentence
        == "Most time goes into the policy update: 50 % of the mean step, 500 ms of 1.00 s."
    )


def test_stages_that_take_as_much_are_all_named() -> None:
    """Less than 5 % between them, the larger one first."""
    rows = [stage(v.REWARD, 0.3), stage(v.SAMPLE, 0.31), stage(v.LOG, 0.29)]
    assert (
        "Most time goes into generating rollouts and computing rewards: 31 % of the mean step each, 310 ms of 1.00 s."
        == verdict(STEPS, rows, NOBODY).sentence
    )


def test_what_lies_between_the_stages_of_a_tiny_step_is_no_verdict() -> None:
    """A step of 9 ms is said to have it, one of 10 ms is told to name it."""
    rows = [stage("judging", 0.3), stage(v.OTHER, 0.7)]
    tiny = replace(STEPS, median_s=0.009, total_s=0.1)
    assert (
        "Most time goes into judging: 30 % of the mean step, 3.00 ms of 10.0 ms; 70 % lies under no stage."
        == verdict(tiny, rows, NOBODY).sentence
    )
    assert "other" == verdict(replace(tiny, median_s=0.01), rows, NOBODY).kind


def test_the_step_that_is_left_aside_is_named() -> None:
    """Whatever the rule that holds."""
    long_step = LongStep(step=57, time_s=10.2, ratio=102.0, stage=v.CHECKPOINT)
    found = verdict(STEPS, TOP, NOBODY, long_step)
    assert found.sentence.endswith(
        ". Step 57 is left aside: it took 10.2 s, 102 times the median, above all in rl.checkpoint."
    )
    assert long_step == found.long_step


def test_nested_stages_are_not_counted_twice() -> None:
    """A stage inside another one is part of it."""
    rows = [stage(v.REWARD, 0.6), stage("rl.reward slow", 0.6, inside=v.REWARD), stage(v.SAMPLE, 0.4)]
    assert pytest.approx(0.6) == verdict(STEPS, rows, NOBODY).share


def test_a_users_own_stage_stands_for_itself() -> None:
    """What is in no group is named as it is."""
    assert (
        verdict(STEPS, [stage("judging", 0.7)], NOBODY).sentence
        == "Most time goes into judging: 70 % of the mean step, 700 ms of 1.00 s."
    )


@pytest.mark.parametrize("name", ["", " \t"])
def test_a_stage_without_a_name_is_a_stage(name: str) -> None:
    """A blank name has no first word to judge by."""
    found = verdict(STEPS, [stage(name, 0.9)], NOBODY)
    assert ("stage", name) == (found.kind, found.stage)
