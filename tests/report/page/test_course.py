"""How a run went from step to step, against the numbers of the report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_with_course
from otel_rl.report.data.course import Course, Lane
from otel_rl.report.data.report import Report
from otel_rl.report.rows.course_rows import MOST_STEPS, chosen_steps
from tests.driver_runs import DrivenPlan, write_driven
from tests.made_runs import BEGIN_NS, Plan, write_run
from tests.report.test_stored_reports import recorded, restarted

NOW_NS = BEGIN_NS + 3_600_000_000_000


def made(path: Path) -> tuple[Report, Course]:
    return build_with_course(open_run(path), NOW_NS)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Course]:
    """Make those of a real training of two ranks."""
    return made(recorded(tmp_path_factory.mktemp("runs"), "trl_demo"))


def averaged(report: Report, values: object) -> np.ndarray:
    """Leave out the first steps, as averages do."""
    return np.asarray(values)[..., report.steps.warmup :]


def test_times_of_steps_and_stages_add_up_to_those_of_the_report(trained: tuple[Report, Course]) -> None:
    """Of the averaged steps: all together, and each stage that holds none of another kind."""
    report, course = trained
    steps = course.steps
    assert len(steps.steps) == report.steps.recorded
    assert averaged(report, steps.time_s).sum() == pytest.approx(report.steps.total_s)
    totals = {row.stage: row.total_s for row in report.stages if row.inside is None}
    for stage in (v.SAMPLE, v.FORWARD, v.BACKWARD, v.REWARD, v.EVALUATE, f"{v.LOGPROB} ref", v.OTHER):
        assert averaged(report, steps.stages[stage]).sum() == pytest.approx(totals[stage]), stage
    assert set(totals) == set(steps.stages)


def test_what_ranks_do_is_on_average_what_the_report_says(trained: tuple[Report, Course]) -> None:
    """Seconds and tokens of each rank in a mean step."""
    report, course = trained
    for place, row in enumerate(report.efficiency.ranks):
        assert row.who == course.ranks.ranks[place]
        for name in ("active", "wait", "transfer", "idle", "other"):
            mean = averaged(report, course.ranks.numbers[name])[place].mean()
            assert mean == pytest.approx(getattr(row, f"{name}_s")), name
        assert averaged(report, course.ranks.numbers["train_tokens"])[place].mean() == pytest.approx(row.train_tokens)


def test_requests_are_counted_by_step(trained: tuple[Report, Course]) -> None:
    """As the report counts those of the training, whose requests are all spans here."""
    report, course = trained
    (row,) = [one for one in report.requests.rows if not one.is_evaluation and not report.requests.omitted]
    duration = next(one for one in course.requests if not one.name)
    assert sum(duration.counts) == row.count
    assert row.duration_s is not None
    assert max(duration.longest) == pytest.approx(row.duration_s.longest)
    tokens = next(one for one in course.requests if one.name == v.OUTPUT_TOKENS)
    assert row.response_tokens is not None
    assert max(tokens.longest) == row.response_tokens.longest


def test_memory_has_each_step_and_stays_below_the_peak(trained: tuple[Report, Course]) -> None:
    report, course = trained
    peaks = {(one.who, one.kind): one.bytes for one in report.memory}
    assert len(course.memory) == len(peaks)
    for one in course.memory:
        assert list(one.steps) == list(course.steps.steps)
        assert 0.9 * peaks[one.who, one.kind] < max(one.bytes) <= 1.01 * peaks[one.who, one.kind]


def test_a_timeline_has_all_spans_of_its_step(trained: tuple[Report, Course]) -> None:
    """Of both ranks, nested as they are, within the step; the container is the lane."""
    _, course = trained
    assert len(course.spans) <= MOST_STEPS
    for step in course.spans:
        assert [lane.rank for lane in step.lanes] == [0, 1]
        for lane in step.lanes:
            assert lane.left_out == 0
            assert v.FORWARD in lane.labels and v.BACKWARD in lane.labels
            assert not any(label.startswith(v.CONTAINER) for label in lane.labels)
            assert min(lane.begin_ns) >= 0 and max(lane.end_ns) <= step.time_ns
            rows = list(zip(lane.level, lane.begin_ns, lane.end_ns, strict=True))
            for level in set(lane.level):  # none lies over another
                of = sorted(row[1:] for row in rows if row[0] == level)
                assert all(before[1] <= after[0] for before, after in pairwise(of))
            waits = {label for label, is_wait in zip(lane.labels, lane.is_wait, strict=True) if is_wait}
            assert waits <= {v.COMM, f"{v.IDLE} data", "request queue"} and v.COMM in waits


def test_a_repeated_step_counts_as_it_was_made_last(tmp_path: Path) -> None:
    """Of an attempt that was killed the steps count that the next one did not make again."""
    report, course = made(restarted(tmp_path))
    assert list(course.steps.steps) == list(range(1, 18))
    first, second = (one.id for one in report.attempts)
    assert list(course.steps.attempts) == [first] * 5 + [second] * 12


def test_steps_of_a_driver_have_lanes_of_all_processes(tmp_path: Path) -> None:
    """In the order in which work goes; ranks are compared, not the driver."""
    report, course = made(write_driven(tmp_path, DrivenPlan(slow_rank=1)))
    assert averaged(report, course.steps.time_s).sum() == pytest.approx(report.steps.total_s)
    lanes = [(lane.role, lane.rank) for lane in course.spans[0].lanes]
    assert lanes == [
        ("driver", 0), ("actor", 0), ("actor", 1), ("agent_loop", 0), ("Server", 0), ("Server", 1), ("reward", 0),
    ]  # fmt: skip
    assert [one.role for one in course.ranks.ranks] == ["actor", "actor"]
    for place, row in enumerate(report.efficiency.ranks):
        assert averaged(report, course.ranks.numbers["active"])[place].mean() == pytest.approx(row.active_s)


def test_the_steps_that_findings_name_are_kept(tmp_path: Path) -> None:
    """With the slowest ones, a median one and the last."""
    report, course = made(write_run(tmp_path, Plan(steps=40, nan_loss_step=23)))
    chosen = chosen_steps(course.steps, report)
    assert 23 in [one.step for one in report.findings.learn]
    assert chosen[23] == "named by a finding"
    assert 1 in chosen and 40 in chosen
    assert len(chosen) <= MOST_STEPS
    assert [one.step for one in course.spans] == sorted(chosen)


@pytest.mark.parametrize("name", ["roll_async", "roll_agentic", "verl_sync"])
def test_recorded_drivers_have_a_course(name: str, tmp_path: Path) -> None:
    """Runs of four steps, none of which is past the warm-up of memory."""
    report, course = made(recorded(tmp_path, name))
    assert report.unmade == []
    assert course.steps.steps and course.spans and course.memory and course.ranks.ranks


def arrows(course: Course) -> dict[int, set[tuple[str, str, str]]]:
    """Return of each step the label of each arrow, and those of the boxes that it leaves and meets."""

    def box(lanes: Sequence[Lane], at: tuple[int, int] | None) -> str:
        return "" if at is None else f"{lanes[at[0]].role} {lanes[at[0]].rank} {lanes[at[0]].labels[at[1]]}"

    return {
        one.step: {(arrow.label, box(one.lanes, arrow.begin), box(one.lanes, arrow.end)) for arrow in one.arrows}
        for one in course.spans
    }


def test_arrows_lead_to_the_step_that_trains_on_a_rollout(tmp_path: Path) -> None:
    """Of two updates with one rollout the second is in another step: there it comes from the left, here it leaves."""
    _, course = made(recorded(tmp_path, "trl_demo"))
    found = arrows(course)
    assert found[1] == {("step 2 trains on it", f"trainer {rank} {v.SAMPLE}", "") for rank in (0, 1)}
    assert found[6] == {("trains on what step 5 sampled", "", f"trainer {rank} {v.FORWARD}") for rank in (0, 1)}


def test_arrows_lead_from_groups_to_who_takes_them(tmp_path: Path) -> None:
    """Of trajectories that outlive their step."""
    _, course = made(recorded(tmp_path, "roll_async"))
    found = arrows(course)
    group, taken = "scheduler 0 rl.sample.group", "scheduler 0 rl.sample"
    assert ("group math_rule-5 is trained on here", group, taken) in found[2]
    assert ("trains on what an earlier step sampled", "", taken) in found[2]
    assert ("step 3 trains on it", group, "") in found[2]
    assert all(begin or end for of in found.values() for _, begin, end in of)


def test_gauges_of_rollouts_belong_to_their_step(tmp_path: Path) -> None:
    """Outcomes, buffers and calls in flight; not those of evaluations."""
    run = open_run(recorded(tmp_path, "roll_async"))
    _, course = build_with_course(run, NOW_NS)
    found = {(one.name, one.label): one for one in course.gauges}
    assert {label for name, label in found if name == v.IN_FLIGHT} == {"0", "1"}
    points = [one for one in run.points(v.GROUPS) if one.attributes[v.GROUP_STATE] == "finished"]
    points = [one for one in points if one.attributes.get(v.MODE) != "eval"]
    finished = found[v.GROUPS, "finished"]
    assert min(one.value for one in points) <= min(finished.values)
    assert max(finished.values) <= max(one.value for one in points)
    assert set(finished.steps) <= set(course.steps.steps)


def test_outcomes_of_requests_are_by_rollout(tmp_path: Path) -> None:
    """As the recorder counted them: the mean of both ranks."""
    run = open_run(recorded(tmp_path, "trl_demo"))
    _, course = build_with_course(run, NOW_NS)
    (cut,) = [one for one in course.gauges if (one.name, one.label) == (v.REQUEST_RATIO, "clipped")]
    points = [one for one in run.points(v.REQUEST_RATIO) if one.attributes[v.OUTCOME_KIND] == "clipped"]
    known = [one.value for one in points if one.attributes.get(v.MODE) != "eval"]
    assert len(known) == 2 * len(cut.steps)
    assert np.mean(cut.values) == pytest.approx(np.mean(known))
