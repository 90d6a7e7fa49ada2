"""Figures as values: their numbers are those of the report, and what their titles say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.records import MetricPoints, Number
from otel_rl.report.build import build_with_course
from otel_rl.report.data.course import Course, RankCourse, StepCourse
from otel_rl.report.data.report import Report
from otel_rl.report.findings.unmade import Making
from otel_rl.report.page.figure import Bars, Curves, Figure, Heat, Stack, bins, course_in_words, means, smoothed
from otel_rl.report.page.panels import PageContent, make_page
from otel_rl.report.page.time_figures import MORE, MOST_BARS, MOST_STAGES, excess, rank_figures, step_figures
from otel_rl.report.section import Line
from tests import made_runs
from tests.made_runs import BEGIN_NS, MIB, Plan, write_run
from tests.report.test_stored_reports import recorded

NOW_NS = BEGIN_NS + 3_600_000_000_000


def page_of(path: Path) -> tuple[Report, Course, PageContent]:
    report, course = build_with_course(open_run(path), NOW_NS)
    making = Making()
    page = make_page(report, course, making)
    assert making.unmade == report.unmade == []
    return report, course, page


def figures(page: PageContent) -> dict[str, Figure]:
    return {one.name: one for panel in page.panels for one in panel.figures}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Course, PageContent]:
    return page_of(recorded(tmp_path_factory.mktemp("runs"), "trl_demo"))


def test_learning_curves_are_the_series_of_the_report(trained: tuple[Report, Course, PageContent]) -> None:
    """Each value at its step, by reward function too."""
    report, _, page = trained
    content = figures(page)["reward"].content
    assert isinstance(content, Curves)
    series = {tuple(one.qualifiers.values()): one for one in report.series if one.name.endswith(".score")}
    assert [one.label for one in content.curves] == ["reward", "judge", "parity"]
    for curve, key in zip(content.curves, [(), ("judge",), ("parity",)], strict=True):
        assert curve.x == series[key].steps
        assert curve.y == series[key].values


def test_stacked_stages_add_up_to_the_steps(trained: tuple[Report, Course, PageContent]) -> None:
    """A bar for each step, the small stages together."""
    _, course, page = trained
    content = figures(page)["stages"].content
    assert isinstance(content, Stack)
    assert len(content.parts) == MOST_STAGES + 1 and MORE in content.parts
    total = np.sum(list(content.parts.values()), axis=0)
    assert total == pytest.approx(np.sum(list(course.steps.stages.values()), axis=0))
    assert content.left[0] == course.steps.steps[0] - 0.5
    assert content.right[-1] == course.steps.steps[-1] + 0.5


def test_many_steps_are_a_few_bars_of_means(trained: tuple[Report, Course, PageContent]) -> None:
    """A hundred thousand steps are never drawn one over the other, and keep their sum."""
    report, _, _ = trained
    count = 100_000
    times = np.random.default_rng(1).random(count).tolist()
    course = Course(steps=StepCourse(steps=range(count), time_s=times, stages={"rl.sample": times}))
    (figure,) = step_figures(report, course)
    assert isinstance(figure.content, Stack)
    assert len(figure.content.left) == MOST_BARS
    width = np.subtract(figure.content.right, figure.content.left)
    assert np.dot(width, figure.content.parts["rl.sample"]) == pytest.approx(sum(times), rel=1e-6)
    assert "mean of 334 steps" in figure.caption


def test_heatmaps_are_what_ranks_did(trained: tuple[Report, Course, PageContent]) -> None:
    """A row for each rank, and the rank of the largest mean in the title."""
    _, course, page = trained
    figure = figures(page)["rank-wait"]
    assert isinstance(figure.content, Heat)
    assert list(figure.content.rows) == ["rank 0", "rank 1"]
    np.testing.assert_array_equal(figure.content.values, course.ranks.numbers["wait"])
    most = course.ranks.numbers["wait"].mean(axis=1).argmax()
    assert figure.title.startswith(f"Rank {most} waits for slower ranks most: ")


def test_a_rank_works_longer_than_the_median_of_its_peers() -> None:
    """Never of ranks of another role or pipeline stage; what is not known stays so."""
    active = np.array([[2.0, 1, 5], [1, 1, 1], [1, 3, np.nan], [40, 40, 40], [41, np.nan, 42]])
    course = RankCourse(peers=[0, 0, 0, 1, 1], numbers={"active": active})
    expected = [[1, -1, 4], [-0.5, -1, -4], [-0.5, 2, np.nan], [-1, np.nan, -2], [1, np.nan, 2]]
    np.testing.assert_array_equal(excess(course), expected)


def test_goodput_is_that_of_the_report(trained: tuple[Report, Course, PageContent]) -> None:
    report, _, page = trained
    content = figures(page)["goodput"].content
    assert isinstance(content, Bars)
    shares = {part.kind: part.share for part in report.efficiency.goodput[-1].parts if part.time_ns}
    assert {kind: shares_of[-1] for kind, shares_of in content.parts.items()} == shares
    assert sum(shares.values()) == pytest.approx(1)


def test_a_slow_rank_is_shown_where_it_is_slow(tmp_path: Path) -> None:
    """The finding leads to the ranks, and marks rank and stage."""
    _, _, page = page_of(write_run(tmp_path, Plan(ranks=8, slow_rank=5, steps=20)))
    ((finding, where), *_) = page.evidence
    assert finding.severity == "warning"
    assert (where.panel, where.figure, where.stage) == ("ranks", "rank-excess", "rl.reward")
    assert where.rank is not None and where.rank.rank == 5
    assert where.link == "panel=ranks&figure=rank-excess&rank=5&role=trainer&stage=rl.reward"
    assert next(one for one in page.panels if one.name == "ranks").title == finding.sentence


def test_a_rank_that_is_slow_for_some_time_is_told_with_these_steps(tmp_path: Path) -> None:
    """Of one that is slow all the time nothing is said of steps."""
    report, course, page = page_of(write_run(tmp_path, Plan(ranks=4, slow_rank=2, steps=20)))
    assert figures(page)["rank-excess"].title == "Rank 2 works 10.0 ms a step longer than its peers"
    active = course.ranks.numbers["active"].copy()
    active[2] = active[1]
    for rank in range(4):
        active[rank, rank] -= 0.01
    for steps, by_s, said in (
        (slice(0), 0.0, "No rank works longer than its peers in a mean step"),
        (slice(11, 15), 0.5, "Rank 2 works 99.5 ms a step longer than its peers, above all in steps 12 to 15"),
        (slice(11, 12), 2.0, "Rank 2 works 99.5 ms a step longer than its peers, above all in step 12"),
    ):
        slow = active.copy()
        slow[2, steps] += by_s
        ranks = replace(course.ranks, numbers={**course.ranks.numbers, "active": slow})
        assert rank_figures(report, replace(course, ranks=ranks))[0].title == said


def test_the_panel_of_telemetry_counts_what_is_on_disk(tmp_path: Path) -> None:
    """With what was lost or cut."""
    run = open_run(write_run(tmp_path, Plan(dropped=5, changed=2)))
    _, course, page = page_of(run.path)
    known = {name: sum(journal.records[name] for journal in run.journals) for name in ("traces", "metrics", "logs")}
    assert course.recorded.records == known
    assert course.recorded.bytes == sum(file.stat().st_size for file in run.path.glob("*.otlp"))
    (panel,) = [one for one in page.panels if one.name == "telemetry"]
    assert panel.folds is not None and panel.folds.title == f"{sum(known.values()):,} records, 10 lost records"
    assert Line("4 parts of records were cut, replaced or left out.", "warning") in panel.folds.blocks


def test_a_step_that_a_finding_names_is_marked(tmp_path: Path) -> None:
    """In the figure of what was not finite there, which has a gap."""
    _, _, page = page_of(write_run(tmp_path, Plan(nan_loss_step=3)))
    loss = figures(page)["loss"]
    assert [(one.step, one.severity) for one in loss.marks] == [(3, "warning")]
    assert "NaN" in loss.marks[0].text and "NaN or infinite" in loss.caption
    assert isinstance(loss.content, Curves)
    assert math.isnan(loss.content.curves[0].y[2])
    assert all(not one.marks for name, one in figures(page).items() if name != "loss")


@pytest.mark.parametrize("ranks", [2, 9])
def test_the_activation_peak_of_each_step_is_that_of_its_metric(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rank, of many ranks the lowest, the median and the highest; their highest is in the report, too."""
    points = made_runs._points

    def with_peak(plan: Plan, rank: int, number: int, time_ns: int, step_s: float) -> list[MetricPoints]:
        peak = Number(time_ns, (number + 10 * rank) * MIB, {})
        found = points(plan, rank, number, time_ns, step_s)
        return [*found, MetricPoints(v.ACTIVATION, "gauge", "By", "", [peak], BEGIN_NS)]

    monkeypatch.setattr(made_runs, "_points", with_peak)
    _, _, page = page_of(write_run(tmp_path, Plan(ranks=ranks, steps=6)))
    figure = figures(page)["memory-activation-peak"]
    assert isinstance(figure.content, Curves)
    shown = {one.label: [value / MIB for value in one.y] for one in figure.content.curves}
    of_rank = {rank: [number + 10 * rank for number in range(1, 7)] for rank in range(ranks)}
    few = {f"rank {rank}": of_rank[rank] for rank in range(ranks)}
    assert shown == (few if ranks == 2 else {"lowest": of_rank[0], "median": of_rank[4], "highest": of_rank[8]})
    assert figure.title == f"Activation peak is at most {10 * ranks - 4}.0 MiB; rank 0 grows by 5.00 MiB"
    assert figure.name in {one.name for panel in page.panels if panel.name == "memory" for one in panel.figures}


def test_panels_without_data_are_left_out(tmp_path: Path) -> None:
    """One rank is compared with none, it has a table only; without metrics nothing is said of learning."""
    _, _, page = page_of(write_run(tmp_path, Plan(ranks=1, metrics=False)))
    assert [one.name for one in page.panels] == ["steps", "ranks", "memory", "goodput", "telemetry"]
    assert [one.name for one in figures(page).values()] == ["stages", "timeline", "goodput"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "X has no finite value"),
        ([None, math.nan], "X has no finite value"),
        ([2.0], "X is 2 in the only step"),
        ([2.0] * 5, "X is 2 in every step"),
        ([1.0, 2.0, 3.0, 4.0], "X rises from 1 to 4"),
        ([4.0, None, 2.0, 1.0], "X falls from 4 to 1"),
        ([1.0, 5.0, 3.0, 1.5], "X stays between 1 and 5"),
        ([1.0, 2.0, 3.0, None], "X rises from 1 to 3, and is not finite at the end"),
    ],
)
def test_titles_say_how_a_number_goes(values: list[float | None], said: str) -> None:
    assert course_in_words("X", values, "") == said


def test_means_of_stretches_leave_gaps_out() -> None:
    """Each value belongs to one stretch; a stretch without numbers is a gap."""
    of = bins(range(10), 4)
    assert [one.stop - one.start for one in of] == [2, 3, 2, 3]
    values = [math.nan, math.nan, 1, 2, math.nan, 5, 7, 1, 1, 4]
    assert means(values, of)[1:] == [1.5, 6, 2]
    assert math.isnan(means(values, of)[0])
    assert means([values, values], of)[1][1:] == [1.5, 6, 2]


def test_smooth_curves_keep_a_constant_and_the_gaps() -> None:
    values = [3.0] * 30
    values[7] = math.nan
    smooth = smoothed(values)
    assert math.isnan(smooth[7])
    assert [one for one in smooth if math.isfinite(one)] == pytest.approx([3.0] * 29)
    assert smoothed([1.0] * 10) == []
