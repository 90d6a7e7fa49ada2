"""From spans to what is said of the time of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Report, StageRow
from otel_rl.report.data.time_rows import TimeRows
from otel_rl.report.findings.uses import Use, uses
from otel_rl.report.rows.gather_time import stage_shares
from tests.peers import BEGIN_NS, Did, Met, Peer
from tests.watched import DEAD

WARMUP = 2
Step = Callable[[int, int], Sequence[Did]]


def reported(directory: Path, world: int, steps: int, did: Step, cpu_s: Sequence[float] = ()) -> Report:
    """Journal the steps of all ranks; each has the same CPU time in all of them."""
    ranks = [Peer(directory, rank, world, identity=DEAD) for rank in range(world)]
    for number in range(1, steps + WARMUP + 1):
        for rank in ranks:
            rank.step(number, did(rank.rank, number), cpu_s=cpu_s[rank.rank] if cpu_s else None)
    for rank in ranks:
        rank.die()
    return build_report(open_run(directory), BEGIN_NS)


def said(report: Report) -> list[str]:
    """The sentences on time."""
    return [one.sentence for one in report.findings.time]


def two_stages(own_ms: Sequence[int], transfer_ms: int) -> Step:
    """Generate, then train; at the end of both the ranks meet."""

    def did(rank: int, number: int) -> list[Did]:
        met_ms = transfer_ms + max(own_ms) - own_ms[rank]
        names = enumerate((v.SAMPLE, v.FORWARD))
        return [Did(name, own_ms[rank], [Met(met_ms, 2 * number + place, size=len(own_ms))]) for place, name in names]

    return did


def test_the_cost_of_a_starved_rank_is_the_difference_to_a_clean_run(tmp_path: Path) -> None:
    """It takes twice as long in everything, inside collectives, too: 140 ms a step instead of 70."""
    clean = reported(tmp_path / "clean", 2, 10, two_stages((25, 25), 10), (0.04, 0.04))
    slow = reported(tmp_path / "slow", 2, 10, two_stages((25, 50), 20), (0.04, 0.04))
    (row,) = slow.efficiency.slow_ranks
    mean_s = [report.steps.total_s / report.steps.averaged for report in (clean, slow)]
    assert pytest.approx(mean_s[1] - mean_s[0]) == row.cost_s
    assert (pytest.approx(0.4), pytest.approx(0.8), pytest.approx(0.02)) == (
        row.core_share, row.others_core_share, row.comm_s,
    )  # fmt: skip
    assert [pytest.approx(0.04 / 0.14)] * 2 == [one.cpu_share for one in slow.efficiency.ranks]
    assert [
        "Rank 1 is slower in almost everything (own time 100 ms against 50.0 ms), which costs 70.0 ms of "
        "140 ms per step (50 %). "
        "It got 40 % of a core while it worked."
    ] == said(slow)
    assert [
        "Nothing stands out. Sampling takes 50 % of a step, the update 50 %; 29 % of the step is communication. "
        "Neither rank is slow."
    ] == said(clean)


@pytest.mark.parametrize("cpu_s", [(), (0.04, 0.08)], ids=["not known", "enough"])
def test_collectives_are_not_charged_to_a_rank_that_has_its_core(tmp_path: Path, cpu_s: Sequence[float]) -> None:
    """It may have more work, or the network may be slow."""
    expected = (
        "Rank 1 is slower in almost everything (own time 100 ms against 50.0 ms), which costs 50.0 ms of "
        "140 ms per step (36 %)."
    )
    assert [expected] == said(reported(tmp_path, 2, 10, two_stages((25, 50), 20), cpu_s))


def test_two_slow_ranks_of_four_are_both_named(tmp_path: Path) -> None:
    """The slowest first."""
    report = reported(tmp_path, 4, 10, two_stages((25, 25, 49, 50), 10))
    expected = (
        "Ranks 3 and 2 are slower in almost everything (own time 100 ms "
        "against 50.0 ms), which costs 50.0 ms of 120 ms per step (42 %)."
    )
    assert [expected] == said(report)


def test_two_ranks_that_sleep_in_the_same_stage_are_both_named(tmp_path: Path) -> None:
    """In turn one of them is the slowest."""

    def did(rank: int, number: int) -> list[Did]:
        later = 40 + 10 * (number % 2)
        own_ms = 60 + (0, later, 0, 90 - later)[rank]
        sample = Did(v.SAMPLE, own_ms, [Met(1 + 110 - own_ms, number, size=4)])
        return [sample, *(Did(name, 20) for name in (v.FORWARD, v.BACKWARD, v.LOGPROB))]

    expected = (
        "Ranks 1 and 3 are slower in rl.sample (own time 105 ms against 60.0 ms), which costs 45.0 ms of "
        "171 ms per step (26 %)."
    )
    assert expected == said(reported(tmp_path, 4, 10, did))[0]


def test_a_rank_that_is_slow_in_two_of_its_stages(tmp_path: Path) -> None:
    """Their costs add up."""

    def did(rank: int, number: int) -> list[Did]:
        def at(place: int, name: str, own_ms: int, slow_ms: int) -> Did:
            mine = slow_ms if rank == 1 else own_ms
            return Did(name, mine, [Met(1 + max(own_ms, slow_ms) - mine, 4 * number + place)])

        names = (v.REWARD, 10, 30), (v.LOGPROB, 10, 20), (v.SAMPLE, 60, 60), (v.FORWARD, 40, 40)
        return [at(place, *one) for place, one in enumerate(names)]

    report = reported(tmp_path, 2, 10, did)
    assert [
        "Rank 1 is slower in rl.reward and rl.logprob (own time 50.0 ms against 20.0 ms), which costs 30.0 "
        "ms of 154 ms per step "
        "(19 %)."
    ] == said(report)


def test_steps_that_take_longer_from_one_on(tmp_path: Path) -> None:
    """A rollout serves two steps, so one takes longer than the other all the time."""

    def did(rank: int, number: int) -> list[Did]:
        sample = [Did(v.SAMPLE, 30 if number < 31 else 110)] * (number % 2)
        return [*sample, Did(v.FORWARD, 20 + number % 3)]

    expected = "Steps take 2.1 times as long since step 31 (36.0 ms to 76.0 ms), above all in rl.sample."
    assert expected == said(reported(tmp_path, 1, 58, did))[0]


def test_a_tokenizer_that_takes_longer_than_the_engine(tmp_path: Path) -> None:
    """It lies inside of rl.sample."""
    inside = [Did(f"{v.SAMPLE}.tokenize", 80), Did(f"{v.SAMPLE}.generate", 30)]
    report = reported(tmp_path, 1, 10, lambda *_: [Did(v.SAMPLE, 2, inside=inside), Did(v.FORWARD, 17)])
    assert ["rl.sample takes 112 ms, of which generating 30.0 ms and tokenizing 80.0 ms (62 % of the step)."] == said(
        report
    )


def stage(name: str, share: float, *, comm: float = 0.0) -> StageRow:
    """Make a row with a share of the step time."""
    return StageRow(
        stage=name,
        inside=None,
        calls=10,
        share=share,
        median_s=share,
        p95_s=share,
        total_s=10 * share,
        comm_share=comm,
        is_comm_hidden=False,
        is_host_clock=False,
        is_device_clock=False,
    )


def test_what_the_step_goes_into_has_plain_names() -> None:
    """Stages of one thing are one, with the collectives in them; a stage of your own has its name."""
    rows = [
        stage(v.SAMPLE, 0.4, comm=0.25),
        stage(v.FORWARD, 0.1),
        stage(v.BACKWARD, 0.2),
        stage(f"{v.LOGPROB} old", 0.12),
        stage(f"{v.IDLE} data", 0.08),
        stage("judging", 0.06),
        stage("", 0.04),
    ]
    assert [
        Use("sampling", pytest.approx(0.4), pytest.approx(0.1)),
        Use("the update (forward, backward)", pytest.approx(0.3)),
        Use("log-probabilities", 0.12),
        Use("waiting for data", 0.08),
        Use("judging", 0.06),
        Use("a stage without a name", 0.04),
    ] == sorted(uses(TimeRows(shares=stage_shares(rows))), key=lambda use: -round(use.share, 3))


@pytest.mark.parametrize(
    ("outer", "inner", "said"),
    [
        (v.LOG, v.EVALUATE, ("evaluation", "logging")),
        (v.LOG, v.CHECKPOINT, ("checkpoints", "logging")),
        (v.LOG, f"{v.IDLE} queue", ("waiting", "logging")),
        (v.REWARD, v.SAMPLE, ("sampling", "rewards")),
        (v.REWARD, f"{v.SAMPLE}.generate", ("sampling", "rewards")),
        ("my phase", v.SYNC, ("handing over new weights", "my phase")),
        ("my phase", v.REWARD, ("rewards", "my phase")),
        (v.SAMPLE, v.SYNC, ("handing over new weights", "sampling")),
        (v.SAMPLE, f"{v.SAMPLE}.generate", ("sampling",)),
        (v.REWARD, f"{v.REWARD} judge", ("rewards",)),
        (v.EVALUATE, v.SAMPLE, ("evaluation",)),
        (f"{v.LOGPROB} old", v.FORWARD, ("log-probabilities",)),
        (v.LOG, "mine", ("logging",)),
    ],
)
def test_a_stage_of_another_kind_counts_for_itself(outer: str, inner: str, said: tuple[str, ...]) -> None:
    """Of a log that lasts 50 % of a step and evaluates for 45 %, 5 % are logging."""
    shares = (0.45, pytest.approx(0.05)) if len(said) > 1 else (0.5,)
    rows = [stage(outer, 0.5), replace(stage(inner, 0.45), inside=outer)]
    assert [Use(name, share) for name, share in zip(said, shares, strict=True)] == uses(
        TimeRows(shares=stage_shares(rows))
    )
