"""Curves of any size and sign, NaN and infinity among them, in every form of a report."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.journal.read import PointView, Run, open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Report
from otel_rl.report.findings.curves import Learning, Numbers
from otel_rl.report.findings.judge import apply
from otel_rl.report.findings.learning import LEARN
from otel_rl.report.reading import read_run
from otel_rl.report.rows.series import NAMES, SeriesPoints
from otel_rl.report.schema import to_json
from otel_rl.report.screen import PARTS
from otel_rl.report.terminal import document, render
from otel_rl.report.to_markdown import to_markdown
from tests.fixtures import WALL_NS, Recording
from tests.made_runs import BEGIN_NS, MS, SETUP_MS, Plan, write_run

STEPS = 60
EXTREME = [0.0, -0.0, 5e-324, -5e-324, 1.7976931348623157e308, -1.7976931348623157e308, math.nan, math.inf, -math.inf]
SOME = st.floats() | st.sampled_from(EXTREME)
SCALES = st.integers(-6, 9) | st.sampled_from([-324, -300, 300, 308])
"""Powers of ten: those that people see more often than others."""


def ramp(first: float, last: float, scale: int, broken: Mapping[int, float]) -> list[float]:
    """Go from one number to another in even steps, but for some."""
    line = [(first + (last - first) * place / (STEPS - 1)) * float(f"1e{scale}") for place in range(STEPS)]
    return [broken.get(place, value) for place, value in enumerate(line)]


BROKEN = st.just({}) | st.dictionaries(st.integers(0, STEPS - 1), SOME, max_size=4)
RAMPS = st.builds(ramp, st.floats(-10, 10), st.floats(-10, 10), SCALES, BROKEN)
CURVES = RAMPS | st.lists(SOME, min_size=1, max_size=STEPS)
RUNS = st.dictionaries(st.just(v.REWARD_SCORE) | st.sampled_from([*NAMES, "user.mine"]), CURVES, min_size=1, max_size=6)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of one rank, of which a test replaces the numbers."""
    return open_run(write_run(tmp_path_factory.mktemp("run"), Plan(steps=STEPS, ranks=1, eval_every=0)))


def report_of(run: Run, curves: Mapping[str, Sequence[float]]) -> Report:
    """Report on a run as if it had recorded these numbers."""
    reading = read_run(run)
    points = reading.points
    resource, points.numbers = points.resource, SeriesPoints()
    for name, values in curves.items():
        for place, value in enumerate(values):
            time_ns = BEGIN_NS + SETUP_MS * MS + (300 + place * 100) * MS
            points.numbers.add(PointView(name, "gauge", "", time_ns, 0, {}, resource, run.journals[0], value))
    return build_report(run, BEGIN_NS, reading)


def in_every_form(made: Report) -> list[str]:
    """Write a report as a command does: for a terminal, live, as Markdown and as JSON."""
    texts = []
    for width in (80, 20):
        screen = io.StringIO()
        console = Console(file=screen, width=width)
        render(made, console, PARTS)
        console.print(document(made, width))
        texts.append(screen.getvalue())
    return [*texts, to_markdown(made), to_json(made)]


@pytest.mark.medium
@settings(max_examples=20)
@given(curves=RUNS)
def test_no_number_costs_a_report_any_part(run: Run, curves: dict[str, list[float]]) -> None:
    """Nothing fails, not even what is guarded; JSON has no number that it cannot say."""
    made = report_of(run, curves)
    *texts, document = in_every_form(made)
    assert made.unmade == []
    assert all("could not be made" not in text for text in texts)
    json.loads(document, parse_constant=pytest.fail)


@given(curves=RUNS)
@settings(max_examples=300)
def test_no_number_costs_a_rule(curves: dict[str, list[float]]) -> None:
    """Every rule of learning judges whatever was recorded; its sentence has no number that is none."""
    series = [Numbers(name, {}, list(range(1, len(values) + 1)), values) for name, values in curves.items()]
    for found in apply(LEARN, "learn", Learning(series=series)):
        assert all(math.isfinite(value) for value in found.values.values() if isinstance(value, float))


def test_a_reward_in_thousands_is_reported(recording: Recording) -> None:
    """By a loop of one's own, whose reward rises to 100,000 and more."""
    for number in range(1, 61):
        with otel_rl.step(number):
            recording.tick(5)
            otel_rl.record(v.REWARD_SCORE, 2000.0 * number)
    made = build_report(recording.stop(), WALL_NS)
    assert ["Reward 4,000 to 109,000, first above 98,500 in step 50."] == [one.sentence for one in made.findings.learn]
