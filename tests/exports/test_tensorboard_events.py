"""TensorBoard's files, read with TensorBoard's own reader: against the journal of the same run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path
from struct import pack, unpack

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.summary_pb2 import HistogramProto

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.exports.tensorboard_events import _fill, write_events
from otel_rl.journal.read import PointView, Run, open_run
from otel_rl.query.engine import RunTables
from tests.fixtures import Recording
from tests.report.test_stored_reports import RUNS

pytestmark = pytest.mark.medium

ALL = dict.fromkeys(("scalars", "histograms", "tensors", "compressedHistograms"), 0)
"""TensorBoard keeps a sample of what it reads, unless this says 0."""


def read(directory: Path) -> dict[str, EventAccumulator]:
    """Read each directory that has events."""
    found = {}
    for folder in sorted({file.parent for file in directory.rglob("*tfevents*")}):
        found[str(folder.relative_to(directory))] = events = EventAccumulator(str(folder), size_guidance=ALL)
        events.Reload()
    return found


@pytest.fixture(scope="module", params=["healthy", "nan_loss_and_losses", "trl_demo", "verl_sync", "restarted"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    path: Path = RUNS[request.param](tmp_path_factory.mktemp("run"))
    directory = tmp_path_factory.mktemp("events")
    write_events(open_run(path), directory)
    return open_run(path), directory


def single(value: float) -> float:
    """Return a value as TensorBoard has it, in 32 bits; every NaN is the same."""
    return float(unpack("f", pack("f", value))[0]) if math.isfinite(value) else hash(str(value))


def test_each_gauge_and_counter_is_a_scalar(written: tuple[Run, Path]) -> None:
    """With the value of the journal, NaN too, at its time; no point is lost."""
    run, directory = written
    expected = Counter((p.time_ns / 1e9, single(p.value)) for p in run.points() if p.kind != "histogram")
    found: Counter[tuple[float, float]] = Counter()
    for events in read(directory).values():
        for tag in events.Tags()["scalars"]:
            found.update((one.wall_time, single(one.value)) for one in events.Scalars(tag))
    assert expected == found


def streams(run: Run) -> list[list[PointView]]:
    """Return the points of each histogram of a process, also across a change of its resource."""
    found: defaultdict[tuple[object, ...], list[PointView]] = defaultdict(list)
    for point in run.points():
        if point.kind == "histogram":
            found[point.journal, point.name, frozenset(point.attributes.items())].append(point)
    return list(found.values())


def test_each_histogram_is_one(written: tuple[Run, Path]) -> None:
    """Each point has what came since the one before, so they add up to the last cumulative one."""
    run, directory = written
    last = [points[-1] for points in streams(run)]
    found = [
        one.histogram_value
        for events in read(directory).values()
        for tag in events.Tags()["histograms"]
        for one in events.Histograms(tag)
    ]
    assert sum(len({point.count for point in points}) for points in streams(run)) == len(found)
    assert sum(point.count for point in last) == sum(one.num for one in found) == sum(sum(one.bucket) for one in found)
    assert math.fsum(point.sum for point in last) == pytest.approx(math.fsum(one.sum for one in found))
    assert all(one.min <= limit for one in found for limit in one.bucket_limit)
    assert all(one.bucket_limit[-1] == one.max for one in found if one.num)


def test_each_process_is_a_run_of_tensorboard(written: tuple[Run, Path]) -> None:
    """A process without points has none."""
    run, directory = written
    writers = {point.journal.identity.writer for point in run.points()}
    assert len(writers) == len(read(directory))


def test_scalars_have_the_steps_of_the_report(tmp_path: Path) -> None:
    """As the curves of a query have them."""
    path = RUNS["trl_demo"](tmp_path)
    write_events(open_run(path), tmp_path / "events")
    events = read(tmp_path / "events")["trainer-0"]
    rows = RunTables(open_run(path)).query(
        f"SELECT step, value FROM curves WHERE metric = '{v.REWARD_SCORE}' AND step IS NOT NULL ORDER BY step"
    )
    expected = [(step, single(value)) for step, value in rows.fetchall()]
    assert len(expected) > 10
    assert expected == [(one.step, single(one.value)) for one in events.Scalars(f"rl.reward/{v.REWARD_SCORE}")]


def test_labels_and_names(recording: Recording, tmp_path: Path) -> None:
    """A group is what a name has before its last part; a number of the user's has the name of its metric."""
    with otel_rl.step(3):
        otel_rl.record(v.REWARD_SCORE, 0.5)
        otel_rl.record("mine/heat", 0.25)
        recording.tick(10)
    write_events(recording.stop(), tmp_path / "events")
    events = read(tmp_path / "events")["trainer-0"]
    assert {f"rl.reward/{v.REWARD_SCORE}", "user.mine/heat"} <= set(events.Tags()["scalars"])
    assert [(3, 0.25)] == [(one.step, one.value) for one in events.Scalars("user.mine/heat")]


def point(bounds: tuple[float, ...], counts: tuple[int, ...], total: float) -> PointView:
    """Make a point of a histogram with values from 1 to 8."""
    view = PointView("x", "histogram", "s", 0, 0, {}, {}, None)  # type: ignore[arg-type]
    view.boundaries, view.counts, view.count, view.sum, view.min, view.max = (
        bounds,
        counts,
        sum(counts),
        total,
        1.0,
        8.0,
    )
    return view


def test_a_histogram_that_joined_its_buckets() -> None:
    """An exponential one halves its buckets while it grows; what came since is still what came since."""
    histo = HistogramProto()
    before = point((1.0, 2.0, 4.0, 8.0), (1, 2, 3, 4, 0), 50.0)
    _fill(histo, point((2.0, 8.0), (4, 9, 0), 58.0), before)
    assert ([1, 2], [2.0, 8.0], 3, 8.0) == (list(histo.bucket), list(histo.bucket_limit), histo.num, histo.sum)
