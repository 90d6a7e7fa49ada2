"""Tests of metrics: what is queued, and what the fold makes of it."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from rich.console import Console

import otel_rl
from otel_rl import vocabulary
from otel_rl.analysis.buckets import BOUNDS
from otel_rl.flusher import stage_metrics
from otel_rl.journal.read import Run
from otel_rl.metrics import naming
from otel_rl.metrics import record as metrics
from otel_rl.metrics.record import Fold, Labels, Point, as_number, count, gauge, labels_of
from otel_rl.process.state import state
from otel_rl.records import Count, Distribution, Exemplar, MetricPoints, Number
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Loss
from otel_rl.report.terminal import render
from tests.fixtures import MS, WALL_NS, Recording

LABELS = st.sampled_from([(), (("a", "1"),), (("a", "2"), ("b", "x"))])
NUMBERS = st.integers(-(1 << 40), 1 << 40)
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
SECONDS = st.floats(0, 20_000)


def taken(fold: Fold, now_ns: int = 9) -> dict[str, list[Any]]:
    """Take what changed, by name."""
    return {points.name: list(map(plain, points.points)) for points in fold.drain(now_ns)}


def plain(point: Any) -> Any:
    """Give a gauge's point as any other number."""
    return Number(point.time_ns, point.value, point.attributes) if isinstance(point, Point) else point


# --- fold -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), NUMBERS, LABELS, st.booleans()), max_size=60))
def test_counters_are_running_totals(events: list[tuple[str, int, Labels, bool]]) -> None:
    """By name and labels, whenever they are taken; what has not changed is not repeated."""
    fold, totals, known = Fold(5), Counter[tuple[str, Labels]](), {}
    for name, value, labels, take in events:
        fold.count(name, value, labels)
        totals[name, labels] += value
        known[name, labels] = totals[name, labels]
        if take:
            found = {
                (name, tuple(point.attributes.items())): point.value
                for name, points in taken(fold).items()
                for point in points
            }
            assert known == found
            known = {}
    assert {name for name, _ in known} == set(taken(fold))
    assert {} == taken(fold)


@given(st.lists(st.tuples(SECONDS, LABELS), min_size=1, max_size=60), st.booleans())
def test_histograms_agree_with_brute_force(events: list[tuple[float, Labels]], is_exponential: bool) -> None:
    """Counts by bucket (upper bounds belong to it), sum, least and greatest."""
    fold, bounds = Fold(5, is_exponential=is_exponential), BOUNDS if is_exponential else vocabulary.DURATION_BOUNDARIES
    for seconds, labels in events:
        fold.durations("rl.reward.duration", [seconds], labels)
    for point in taken(fold)["rl.reward.duration"]:
        mine = [seconds for seconds, labels in events if dict(labels) == point.attributes]
        edges = [-math.inf, *bounds, math.inf]
        expected = [sum(low < s <= high for s in mine) for low, high in pairwise(edges)]
        assert (expected, min(mine), max(mine)) == (point.counts, point.min, point.max)
        assert math.isclose(math.fsum(mine), point.sum, rel_tol=1e-9, abs_tol=1e-12)


@given(st.lists(st.tuples(st.floats(), LABELS), max_size=40))
def test_every_point_of_a_gauge_is_kept(events: list[tuple[float, Labels]]) -> None:
    """In order, with its own time; those that are not finite are counted besides."""
    fold = Fold(5)
    for time_ns, (value, labels) in enumerate(events):
        fold.point(Point("g", value, time_ns, labels))
    found = taken(fold)
    expected = [Number(time_ns, value, dict(labels)) for time_ns, (value, labels) in enumerate(events)]
    assert repr(expected) == repr(found.get("g", []))
    odd = sum(not math.isfinite(value) for value, _ in events)
    assert [Number(9, odd, {vocabulary.METRIC_NAME: "g"})] * bool(odd) == found.get(vocabulary.NONFINITE, [])
    assert "g" not in taken(fold)


POINTS = st.builds(Point, st.just("g"), st.floats(), st.integers(0, 9))
COUNTS = st.builds(Count, st.just("c"), st.integers(0, 9), LABELS)


@given(st.lists(st.one_of(POINTS, COUNTS, st.none())))
def test_sifting_is_taking_one_by_one(records: list[Point | Count | None]) -> None:
    """What is neither a point nor a count is given back, in order."""
    fold, one_by_one = Fold(5), Fold(5)
    for record in records:
        if isinstance(record, Point):
            one_by_one.point(record)
        elif record is not None:
            one_by_one.count(*record)
    assert [None] * records.count(None) == list(fold.add(records))
    assert repr(one_by_one.drain(9)) == repr(fold.drain(9))


def test_sifting_keeps_what_came_before_a_failure() -> None:
    """It is taken as it comes, also from what fails in the end."""
    fold = Fold(5)

    def made() -> Iterator[Point]:
        yield Point("g", 1, 2)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(fold.add(made()))
    assert 1 == fold.num_points


@given(st.lists(st.integers(0, 5), max_size=30))
def test_a_total_that_is_counted_elsewhere_is_taken_when_it_changes(values: list[int]) -> None:
    """And only then."""
    fold, last = Fold(5), None
    for value in values:
        fold.total("t", value)
        assert ({"t": [Number(9, value, {})]} if value != last else {}) == taken(fold)
        last = value


def test_a_metric_takes_so_many_series_and_counts_the_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first ones go on; other metrics have their own limit; one line says so."""
    monkeypatch.setattr(metrics, "MAX_SERIES", 3)
    fold = Fold(5)
    for i in range(5):
        for _ in range(2):
            fold.count("c", 1, (("i", i),))
            fold.durations("h", [1.0], (("i", i),))
            fold.point(Point("g", 1, 1, (("i", i),)))
    found = taken(fold)
    assert (12, 3, 3, 6) == (fold.overflow, len(found["c"]), len(found["h"]), len(found["g"]))
    assert {2} == {point.value for point in found["c"]}
    assert ["otel_rl: c has 3 sets of attributes already; others are left out"] == caplog.messages


def test_points_that_come_together_have_the_same_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a trainer's step, for one."""
    monkeypatch.setattr(metrics, "MAX_SERIES", 3)
    fold = Fold(5)
    others = list(fold.add([Point("g", float(i), i, (("i", i % 5),)) for i in range(10)]))
    assert ([], 4, 6) == (others, fold.overflow, fold.num_points)


def test_names_without_end_have_a_bound_a_count_and_one_line(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that came before go on; all that one process names counts, whichever framework does."""
    monkeypatch.setattr(naming, "MOST_NAMES", 3)
    assert "trl.entropy" == naming.series_of("entropy", vocabulary.TRL)[0]
    for step in range(2):
        for prompt in range(4):
            otel_rl.record(f"reward.{step}.{prompt}", 1.0)
        otel_rl.record("reward.0.0", 2.0)
    run = recording.stop()
    points = [(point.name, point.value) for point in run.points() if point.name.startswith(vocabulary.USER)]
    assert [
        ("user.reward.0.0", 1.0),
        ("user.reward.0.0", 2.0),
        ("user.reward.0.0", 2.0),
        ("user.reward.0.1", 1.0),
    ] == sorted(points)
    (dropped,) = run.last_points(vocabulary.SELF_DROPPED)
    reason = {vocabulary.REASON: "too_many_names", vocabulary.SIGNAL: "metrics"}
    assert (6, reason) == (dropped.value, dropped.attributes)
    (line,) = caplog.messages
    assert line.startswith("otel_rl: the number 'reward.0.2' and others are not recorded: this process has 3 names")


@pytest.mark.parametrize("kind", ["histogram", "exponential"])
def test_the_vocabulary_says_unit_meaning_and_boundaries(kind: str) -> None:
    """Names that it does not have get what their kind needs."""
    fold = Fold(5, is_exponential=kind == "exponential")
    fold.count(vocabulary.TRAIN_TOKENS, 5)
    fold.durations("rl.reward.duration", [1.0])
    fold.durations("own", [1.0])
    fold.point(Point("my.metric", 1, 2))
    rows = {points.name: points for points in fold.drain(9)}
    assert [("counter", "{token}", 5), (kind, "s", 5), (kind, "s", 5), ("gauge", "", 0)] == [
        (rows[name].kind, rows[name].unit, rows[name].start_ns)
        for name in (vocabulary.TRAIN_TOKENS, "rl.reward.duration", "own", "my.metric")
    ]
    assert rows["rl.reward.duration"].description.startswith("duration of rl.reward: ")
    assert {"histogram": vocabulary.DURATION_BOUNDARIES, "exponential": BOUNDS}[kind] == rows["own"].boundaries


@given(st.lists(st.tuples(st.sampled_from(["count", "duration", "point", "exemplar", "look"]), NUMBERS, LABELS)))
def test_peek_leaves_everything_waiting(events: list[tuple[str, int, Labels]]) -> None:
    """It returns what take does."""
    fold, untouched = Fold(5), Fold(5)
    for kind, number, labels in events:
        for one in (fold, untouched):
            change(one, kind, number, labels)
        if kind == "look":
            fold.peek(9)
    whole = fold.peek(9)
    assert untouched.is_pending == fold.is_pending
    assert untouched.drain(9) == whole == fold.drain(9)
    assert [] == fold.peek(9)


def change(fold: Fold, kind: str, number: int, labels: Labels) -> None:
    """Do one thing to a fold."""
    if kind == "count":
        fold.count("c", number, labels)
    elif kind == "duration":
        fold.durations("h", [abs(number)], labels)
    elif kind == "point":
        fold.point(Point("g", number, 7, labels))
    elif kind == "exemplar":
        fold.exemplar("h", labels, Exemplar(1, abs(number), 2, 3))


def last(metrics: list[MetricPoints]) -> tuple[list[Any], dict[Any, Any]]:
    """Every point of the gauges, and the last value of each other series."""
    gauges = [point for metric in metrics if metric.kind == "gauge" for point in metric.points]
    others = [(metric.name, point) for metric in metrics if metric.kind != "gauge" for point in metric.points]
    return gauges, {
        (name, tuple(point.attributes.items())): point.value if isinstance(point, Number) else point.counts
        for name, point in others
        if not isinstance(point, Point)
    }


def test_what_was_taken_does_not_change_later() -> None:
    """The points of a histogram are copies."""
    fold = Fold(5)
    fold.durations("h", [1.0])
    (first,) = taken(fold)["h"]
    fold.durations("h", [1.0])
    assert (1, 2) == (sum(first.counts), sum(taken(fold)["h"][0].counts))
    assert isinstance(first, Distribution)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, ()),
        ({"a": "x", "b": 1, "c": 2}, (("a", "x"), ("b", 1))),
        ({"b": None, "a": ["x"]}, ()),
        ({"a": False, "b": {"x": 1}}, (("a", False),)),
    ],
)
def test_labels_are_plain(attributes: dict[str, Any], expected: Labels) -> None:
    """A list of the user's is no label, since nothing could be counted by it."""
    assert expected == labels_of(attributes, ("a", "b"))


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (True, 1),
        (-2.5, -2.5),
        (np.float32(0.5), 0.5),
        (np.int8(3), 3),
        (np.bool_(True), 1),
        (np.array([4.0]), 4.0),
        (np.array([1, 2]), None),
        (np.array("x"), None),
        (np.complex64(1j), None),
        (1 << 1000, 1 << 1000),
        (10**400, None),
        (-(10**400), None),
        ("1", None),
        (None, None),
        (Fraction(1, 2), None),
        ([1], None),
    ],
)
def test_what_counts_as_a_number(value: Any, expected: float | None) -> None:
    """Python's, numpy's, and arrays of one; nothing that no metric could hold."""
    found = as_number(value)
    assert (type(expected), expected) == (type(found), found)


def test_tensors_on_the_host_are_numbers() -> None:
    """Those of another device are not read, whatever they would say."""
    torch = pytest.importorskip("torch")
    assert (1.5, 2, 1, 0.5) == (
        as_number(torch.tensor(1.5)),
        as_number(torch.tensor([2])),
        as_number(torch.tensor(True)),
        as_number(torch.tensor(0.5, requires_grad=True)),
    )
    assert (None, None) == (as_number(torch.empty((), device="meta")), as_number(torch.zeros(2)))


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", 1.5), (SimpleNamespace(platform="cpu"), 1.5), (SimpleNamespace(platform="gpu"), None), ("cuda:0", None)],
)
def test_arrays_of_other_libraries_are_read_on_the_host_alone(device: Any, expected: float | None) -> None:
    """To read one of a device would wait for it."""
    assert expected == as_number(SimpleNamespace(device=device, item=lambda: 1.5))


# --- recording --------------------------------------------------------------------------------------------------------


def test_recorded_numbers_are_points_of_their_time(recording: Recording) -> None:
    """Negative, NaN and infinite ones too; one point a call."""
    expected = []
    with otel_rl.step(1):
        for value in (0.5, -3, math.nan, math.inf, -math.inf, np.float32(2), 1 << 70):
            recording.tick(10)
            otel_rl.record("my.metric", value)
            expected.append((WALL_NS + recording.clock.ns, float(value)))
    run = recording.stop()
    found = [(point.time_ns, float(point.value)) for point in run.points("user.my.metric")]
    assert repr(sorted(expected)) == repr(sorted(found))
    (odd,) = run.last_points(vocabulary.NONFINITE)
    assert (3, {vocabulary.METRIC_NAME: "user.my.metric"}) == (odd.value, odd.attributes)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (vocabulary.SAMPLES, "is measured by otel_rl itself"),
        (vocabulary.STEP_TIME, "is measured by otel_rl itself"),
        ("rl.reward.duration", "is measured by otel_rl itself"),
        ("rl.step.time.seconds", "begins as names of otel_rl and OpenTelemetry do"),
        ("process.mine", "begins as names of otel_rl and OpenTelemetry do"),
    ],
)
def test_a_number_cannot_take_a_name_of_ours(
    recording: Recording, caplog: pytest.LogCaptureFixture, name: str, why: str
) -> None:
    """Each such name is said once, with what to do, and each value counted; those of a loop of one's own are taken."""
    with otel_rl.step(1):
        for _ in range(3):
            otel_rl.record(name, 7.5)
        for mine in vocabulary.SETTABLE:
            otel_rl.record(mine, 1.5)
    assert {("metrics", "name_taken"): 3} == state.dropped
    (line,) = caplog.messages
    assert f"otel_rl.record({name!r}, ...) is not recorded: the name {why}. Record it under another name" in line
    run = recording.stop()
    assert [] == [point for point in run.points() if point.value == 7.5]
    assert sorted(vocabulary.SETTABLE) == sorted(point.name for point in run.points() if point.value == 1.5)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("rl.reward.scor", "such as 'my.reward.scor'; did you mean 'rl.reward.score'?"),
        ("rl.judge.time", "such as 'my.judge.time'"),
    ],
)
def test_a_misspelled_name_of_ours(recording: Recording, caplog: pytest.LogCaptureFixture, name: str, end: str) -> None:
    """The line has the name that a loop may set, if one is near."""
    with otel_rl.step(1):
        otel_rl.record(name, 7.5)
    recording.stop()
    (line,) = caplog.messages
    assert line.endswith(end), line


def test_names_that_prometheus_writes_alike_stay_apart(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """What Prometheus does not write as it is has its name beside; clashes are counted by name, and told once."""
    names = ("loss/policy", "up", "loss.policy", "loss_policy", "UP")
    with otel_rl.step(1):
        for _ in range(2):
            for value, name in enumerate(names):
                otel_rl.record(name, float(value))
    (line,) = caplog.messages
    assert "Prometheus writes 'loss/policy' and 'loss.policy' alike" in line
    run = recording.stop()
    odd = {"loss/policy", "loss.policy"}
    assert {
        (f"user.{name}", name if name in odd else None): [float(value)] * 2 for value, name in enumerate(names)
    } == {
        (name, label): [p.value for p in run.points(name) if p.attributes.get(vocabulary.METRIC_NAME) == label]
        for name, label in {(p.name, p.attributes.get(vocabulary.METRIC_NAME)) for p in run.points()}
        if name.startswith(vocabulary.USER)
    }
    report = build_report(run, WALL_NS)
    assert sorted(f"user.{name}" for name in names) == sorted(series.name for series in report.numbers)
    assert [Loss(what="changed", signal="", reason="name_clash", count=2)] == report.losses
    out = io.StringIO()
    render(report, Console(file=out, width=80))
    assert "2 numbers distinguished by rl.metric.name alone (name_clash)" in out.getvalue()


@pytest.mark.parametrize("value", ["x", None, [1, 2], object(), 10**400, np.zeros(3)])
def test_what_is_no_number_is_said_once_and_counted(
    recording: Recording, caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    """The program goes on."""
    with otel_rl.step(1):
        otel_rl.record("my.metric", value)
        otel_rl.record("my.metric", value)
        otel_rl.record("", 1)
        otel_rl.record("other", 1)
    assert {("metrics", "not_a_number"): 3} == state.dropped
    assert 1 == caplog.text.count("takes a name and a number")
    run = recording.stop()
    assert ([], [1]) == (list(run.points("user.my.metric")), [point.value for point in run.points("user.other")])


@pytest.mark.guarded
def test_hostile_names_do_not_raise(recording: Recording) -> None:
    """A name is made of whatever it is, or the number is not recorded."""

    class Odd:
        def __str__(self) -> str:
            raise RuntimeError

        __bool__ = __str__

    with otel_rl.step(1):
        for name in ("\ud800", "x" * 100_000, 5, Odd(), np.zeros(3)):
            otel_rl.record(name, 1.0)  # type: ignore[arg-type]
        otel_rl.record("fine", 1.0)
    found = {point.name for point in recording.stop().points()}
    assert {"user.\\ud800", "user.5", "user.fine"} <= found
    assert [255] == [len(name) for name in found if name.startswith("user.xxx")]


def test_record_without_instrument_is_nothing() -> None:
    """Nothing is queued."""
    otel_rl.record("x", 1)
    assert 0 == len(state.queue)


def test_counters_and_gauges_of_integrations_are_journaled(recording: Recording) -> None:
    """With labels; counters as one running total per label set, from the start of the process's counting."""
    with otel_rl.step(1):
        for _ in range(3):
            count(vocabulary.TRAIN_TOKENS, 5, (vocabulary.TOKEN_KIND, "prompt"))
        gauge(vocabulary.LOSS, -0.5, (vocabulary.LOSS_TYPE, "total"), time_ns=WALL_NS)
        otel_rl.flush()
        count(vocabulary.TRAIN_TOKENS, 5, (vocabulary.TOKEN_KIND, "prompt"))
    run = recording.stop()
    totals = [(point.value, point.attributes) for point in run.points(vocabulary.TRAIN_TOKENS)]
    assert [(15, {vocabulary.TOKEN_KIND: "prompt"}), (20, {vocabulary.TOKEN_KIND: "prompt"})] == totals
    assert {WALL_NS + 1_000 * MS} == {point.start_ns for point in run.points(vocabulary.TRAIN_TOKENS)}
    (loss,) = run.points(vocabulary.LOSS)
    assert (-0.5, WALL_NS, {vocabulary.LOSS_TYPE: "total"}) == (loss.value, loss.time_ns, loss.attributes)


def test_a_stage_is_the_exemplar_of_its_histogram(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest since the last one, which are half a minute apart; what is not sampled has none."""
    clock = iter((100.0, 100.0, 110.0, 131.0, 131.0))
    monkeypatch.setattr(stage_metrics, "monotonic", lambda: next(clock, 140.0))
    told, ids = [], []
    for number, times in enumerate(((5, 30, 10), (70, 20), (40, 60))):  # the second is told with the third
        with otel_rl.step(number):
            for ms in times:
                with otel_rl.stage("reward") as span:
                    recording.tick(ms)
                ids.append((ms, span.span_id))
        assert otel_rl.flush()
        told.append(exemplars(recording.run()))
    by_time = dict(ids)
    assert [[30], [30], [30, 70]] == [[round(value * 1e3) for value, _ in some] for some in told]
    assert [by_time[30], by_time[70]] == [span_id for _, span_id in told[-1]]


def exemplars(run: Run) -> list[tuple[float, int]]:
    """The exemplars of the rewards: values and ids of spans."""
    return [
        (exemplar.as_double, int.from_bytes(exemplar.span_id, "big"))
        for _, frame in run.frames("metrics")
        for group in ExportMetricsServiceRequest.FromString(frame.payload).resource_metrics
        for scope in group.scope_metrics
        for metric in scope.metrics
        for point in metric.exponential_histogram.data_points
        for exemplar in point.exemplars
        if metric.name == "rl.reward.duration"
    ]


def test_every_stage_is_in_the_histogram_of_its_name(recording: Recording) -> None:
    """Stages of the vocabulary have one each, a user's are told by a label, steps are counted by their containers."""
    with otel_rl.step(1):
        for name in ("reward", "own", "rl.reward accuracy"):
            with otel_rl.stage(name, **{"mode": "train"}):
                recording.tick(10)
    run = recording.stop()
    histograms = {
        (point.name, tuple(point.attributes.items())): (point.count, round(point.sum, 9))
        for point in run.last_points()
        if point.kind == "histogram"
    }
    assert {
        ("rl.reward.duration", ((vocabulary.MODE, "train"),)): (2, 0.02),
        ("rl.stage.duration", ((vocabulary.STAGE, "own"), (vocabulary.MODE, "train"))): (1, 0.01),
        ("rl.loop.duration", ()): (1, 0.03),
        ("rl.setup.duration", ()): (1, 0.0),
        ("rl.teardown.duration", ()): (1, 0.0),
    } == histograms
