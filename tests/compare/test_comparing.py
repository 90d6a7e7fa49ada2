"""What is called worse or better of two runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from otel_rl import vocabulary as v
from otel_rl.compare.compare_blocks import MOST_ROWS, table_of
from otel_rl.compare.comparing import RunRows, compare_runs
from otel_rl.compare.data import Comparison
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_with_course
from otel_rl.report.data.course import Course, MemoryCourse, RankCourse, StepCourse
from otel_rl.report.data.ranks import Rank
from tests.made_runs import BEGIN_NS, Plan, write_run

NOW_NS = BEGIN_NS + 3_600_000_000_000
STAGES = {
    v.SAMPLE: 0.009, v.REWARD: 0.003, f"{v.LOGPROB} old": 0.001, v.FORWARD: 0.003, v.BACKWARD: 0.004, v.OTHER: 0.0005,
}  # fmt: skip
SCATTER = 0.05
REWARD = (v.REWARD_SCORE, {})


def rows(root: Path, plan: Plan) -> RunRows:
    return RunRows(*build_with_course(open_run(write_run(root, plan)), NOW_NS))


@cache
def plain_rows() -> RunRows:
    with TemporaryDirectory() as root:
        return rows(Path(root), Plan(steps=60, run_id="plain"))


def noisy(seed: int, slow: Mapping[str, float] | None = None, steps: int = 60, reward: float = 0.0) -> RunRows:
    """Make the rows of a run whose stages and numbers scatter, partly from step to step and partly wandering."""
    rng = np.random.default_rng(seed)
    drift = 1 + 0.01 * np.convolve(rng.normal(size=steps + 9), np.ones(10) / 10**0.5, "valid")
    stages: dict[str, Any] = {}
    for stage, mean_s in STAGES.items():
        stages[stage] = mean_s * (slow or {}).get(stage, 1.0) * drift * rng.lognormal(0, SCATTER, steps)
    stages[v.EVALUATE] = 0.01 * rng.lognormal(0, SCATTER, steps) * (np.arange(steps) % 10 == 9)
    times = sum(stages.values())
    numbers = {"active": np.stack([times * 0.8, times * 0.81]), "wait": rng.lognormal(-7, 0.3, (2, steps))}
    memory = MemoryCourse(
        role="trainer", rank=0, kind="host rss", steps=range(1, steps + 1),
        bytes=(2**30 + rng.integers(0, 2**24, steps)).tolist(),
    )  # fmt: skip
    course = Course(
        steps=StepCourse(
            steps=range(1, steps + 1),
            time_s=times.tolist(),
            stages=stages,
            is_averaged=[one >= 2 for one in range(steps)],
        ),
        ranks=RankCourse(ranks=[Rank("trainer", 0), Rank("trainer", 1)], peers=[0, 0], numbers=numbers),
        memory=[memory],
    )
    report = plain_rows().report
    curve = np.linspace(0.2, 0.9, steps) + reward + rng.normal(0, 0.05, steps)
    series = [
        replace(one, steps=list(range(1, steps + 1)), values=curve.tolist())
        for one in report.series if one.name == v.REWARD_SCORE
    ]  # fmt: skip
    return RunRows(replace(report, series=series), course)


def named(comparison: Comparison) -> set[str]:
    """Return what is called worse or better."""
    return {one.name for one in comparison.numbers if one.verdict in ("worse", "better")}


def test_twenty_pairs_of_the_same_code() -> None:
    """At most one number of all pairs is called other than it is."""
    found = [named(compare_runs(noisy(seed), noisy(1000 + seed))) for seed in range(20)]
    assert 1 >= sum(map(bool, found)), found


@pytest.mark.parametrize("stage", [v.SAMPLE, v.BACKWARD])
def test_a_stage_that_is_a_tenth_slower(stage: str) -> None:
    """It is named in each of 20 pairs, and no other stage in more than one."""
    found = [named(compare_runs(noisy(seed), noisy(2000 + seed, {stage: 1.1}))) for seed in range(20)]
    assert 20 == sum(f"stage.{stage}" in one for one in found)
    others = {f"stage.{one}" for one in STAGES} - {f"stage.{stage}"}
    assert 1 >= sum(bool(one & others) for one in found)


def test_a_run_against_itself() -> None:
    """Nothing: all differences are zero."""
    comparison = compare_runs(noisy(1), noisy(1))
    assert set() == named(comparison)
    assert {0.0} == {one.difference for one in comparison.numbers}
    assert ([], [], []) == (comparison.notes, comparison.findings, comparison.not_compared)


def test_throughput_is_tokens_over_the_time_of_all_steps() -> None:
    """As the report's rates: steps that generate nothing take time, too; of the steps that both runs have."""
    ranks = RankCourse(numbers={"response_tokens": np.array([[100.0, np.nan] * 30, [140.0, np.nan] * 30])})
    runs = [replace(one, course=replace(one.course, ranks=ranks)) for one in (noisy(1), noisy(2))]
    (found,) = [one for one in compare_runs(*runs).numbers if one.name == "throughput.response"]
    assert pytest.approx([29 * 120 / sum(one.course.steps.time_s[2:]) for one in runs]) == [found.a, found.b]


def test_the_other_way_round() -> None:
    """What is worse in one direction is better in the other, by the same limits."""
    slow, fast = noisy(1, {v.SAMPLE: 1.3}), noisy(2)
    worse, better = compare_runs(fast, slow), compare_runs(slow, fast)
    (one,), (other,) = ([row for row in of.numbers if row.name == "stage.rl.sample"] for of in (worse, better))
    assert ("worse", "better") == (one.verdict, other.verdict)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))


def test_a_reward_that_is_lower() -> None:
    """It is worse."""
    comparison = compare_runs(noisy(1), noisy(2, reward=-0.3))
    assert "worse" == next(one.verdict for one in comparison.numbers if one.name == "rl.reward.score")


def test_memory_and_troubles(tmp_path: Path) -> None:
    """Peaks are compared as they are, if they differ by more than runs do; and whether there is any trouble."""
    before = noisy(1)
    larger = replace(before.course.memory[0], bytes=[2**31] * 60)
    comparison = compare_runs(before, replace(before, course=replace(before.course, memory=[larger])))
    assert {"memory.host_rss"} == named(comparison)
    bad = rows(tmp_path, Plan(nan_loss_step=3, run_id="bad"))
    found = {one.name: one.verdict for one in compare_runs(plain_rows(), bad).numbers}
    assert "worse" == found["trouble.nonfinite"]


def test_other_rank_counts(tmp_path: Path) -> None:
    """Waits are left out, and why; times and learning are compared with a note."""
    comparison = compare_runs(plain_rows(), rows(tmp_path, Plan(steps=30, ranks=4, run_id="four")))
    assert set() == named(comparison)
    assert {"rank.wait", "rank.transfer", "rank.idle", "rank.imbalance"} == set(comparison.not_compared[0].names)
    assert "waits depend on the number of ranks, 2 and 4" == comparison.not_compared[0].reason
    assert "The first run has 2 ranks, the second 4" in comparison.notes[0]
    assert (True, 28, 3, 30) == (
        comparison.steps.paired,
        comparison.steps.a,
        comparison.steps.first,
        comparison.steps.last,
    )


def test_other_frameworks() -> None:
    """Their steps are not the same thing; what is, is compared."""
    other = replace(plain_rows(), report=replace(plain_rows().report, system="verl", system_version="0.9"))
    comparison = compare_runs(plain_rows(), other)
    assert {"learning", "throughput", "trouble"} == {one.group for one in comparison.numbers}
    assert "trl and verl cut their steps and stages differently" == comparison.not_compared[0].reason
    assert "The framework differs: trl and verl." == comparison.notes[0]


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_too_few_steps(tmp_path: Path, steps: int) -> None:
    """Levels without limits, and no verdict on them."""
    few = rows(tmp_path, Plan(steps=steps or 1, killed_in=None if steps else v.SAMPLE, run_id="few"))
    comparison = compare_runs(plain_rows(), few)
    assert set() == named(comparison)
    assert {None} == {one.low for one in comparison.numbers}
    assert f"The second run has {('no step', '1 step', '6 steps')[(0, 1, 7).index(steps)]}" in " ".join(
        comparison.notes
    )


def test_steps_with_other_numbers(tmp_path: Path) -> None:
    """A run that was resumed: its times are compared, its curves are not."""
    later = rows(tmp_path, Plan(steps=30, first_step=101, run_id="later"))
    comparison = compare_runs(plain_rows(), later)
    assert (False, 58, 28) == (comparison.steps.paired, comparison.steps.a, comparison.steps.b)
    (left,) = comparison.not_compared
    assert ("the runs have no step in common", True) == (left.reason, "rl.reward.score" in left.names)


def test_stages_that_only_one_run_has(tmp_path: Path) -> None:
    """They are named as such."""
    comparison = compare_runs(plain_rows(), rows(tmp_path, Plan(steps=60, checkpoint=True, run_id="checkpoint")))
    assert [("only the second run has it", ["stage.rl.checkpoint"])] == [
        (one.reason, one.names) for one in comparison.not_compared
    ]


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    """It is compared as far as it is."""
    comparison = compare_runs(plain_rows(), rows(tmp_path, Plan(steps=20, is_alive=True, run_id="alive")))
    assert ("alive", 18) == (comparison.b.state, comparison.steps.b)
    assert "The second run goes on: it is compared as far as it is." == comparison.notes[0]


def test_a_busy_machine() -> None:
    """All stages take longer for the same CPU time: no time is judged. One slow stage is another case."""

    def with_cpu(rows: RunRows, cpu_share: float, step_s: float) -> RunRows:
        ranks = [replace(one, cpu_share=cpu_share, step_s=step_s) for one in rows.report.efficiency.ranks]
        return replace(rows, report=replace(rows.report, efficiency=replace(rows.report.efficiency, ranks=ranks)))

    usual = with_cpu(noisy(1), 0.5, 0.020)
    comparison = compare_runs(usual, with_cpu(noisy(2, dict.fromkeys(STAGES, 1.4)), 0.357, 0.028))
    assert ("b", set()) == (comparison.busy, named(comparison))
    assert comparison.notes[0].startswith("The machine of the second run was busy otherwise")
    assert "a" == compare_runs(with_cpu(noisy(2, dict.fromkeys(STAGES, 1.4)), 0.357, 0.028), usual).busy
    slow = compare_runs(usual, with_cpu(noisy(2, {v.SAMPLE: 2.0}), 0.345, 0.029))
    assert ("", True) == (slow.busy, "stage.rl.sample" in named(slow))
    more_work = compare_runs(usual, with_cpu(noisy(2, dict.fromkeys(STAGES, 1.4)), 0.5, 0.028))
    assert ("", True) == (more_work.busy, "step_time" in named(more_work))


def test_numbers_near_the_largest() -> None:
    """They have no limits, and no number of the comparison is infinite."""
    huge = noisy(1, {v.SAMPLE: 1e308})
    for one in compare_runs(huge, noisy(2, {v.SAMPLE: 1e307})).numbers:
        said = [one.a, one.b, one.difference, one.low, one.high, one.relative]
        assert all(number is None or math.isfinite(number) for number in said)


def test_of_many_numbers_a_table_has_those_that_changed() -> None:
    """In their order; it says how many it leaves out."""
    numbers = compare_runs(plain_rows(), plain_rows()).numbers
    reward = next(one for one in numbers if one.name == v.REWARD_SCORE)
    many = [replace(reward, name=f"user.{place}", worse="", relative=place / 1e6) for place in range(MOST_ROWS + 50)]
    changed = replace(reward, verdict="worse", relative=0.0)
    table = table_of("learning", [many[-1], *many[:-1], changed])
    assert [("", "51 more are in --json")] == table.legend
    assert [many[-1].name, *(one.name for one in many[51:-1]), v.REWARD_SCORE] == [row.cells[0] for row in table.rows]
