"""Tests of where a rank's time went: goodput, activity and bubbles of its steps, as stages end."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

import otel_rl
from otel_rl import guard
from otel_rl import vocabulary as v
from otel_rl.comm.collectives import Collective
from otel_rl.flusher import step_time
from otel_rl.flusher.step_time import StepTime
from otel_rl.journal.read import Run
from otel_rl.metrics.record import Fold
from otel_rl.process.state import Trace, state
from otel_rl.records import PendingAttributes, Point
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage
from tests.fixtures import MS, WALL_NS, Recording

SET_UP_MS = 7.0
"""Between the start of the recording and the first step in the tests that record."""


def timed(recording: Recording, name: str, ms: float, **attributes: Any) -> None:
    """Record a stage that takes so long."""
    with otel_rl.stage(name) as stage:
        stage.set_attributes({getattr(v, key): value for key, value in attributes.items()})
        recording.tick(ms)


def collect(recording: Recording, ms: float) -> None:
    """Record a collective that takes so long."""
    collective = Collective("all_reduce", 0)
    recording.tick(ms)
    collective.close()


def milliseconds(seconds: float) -> float:
    """Turn seconds into milliseconds, without what binary fractions leave over."""
    return round(seconds * 1_000, 6)


def kinds(run: Run) -> dict[str, float]:
    """Read the time by kind, ms."""
    return {
        str(point.attributes[v.GOODPUT_KIND]): milliseconds(point.value) for point in run.last_points(v.GOODPUT_TIME)
    }


def activities(run: Run) -> list[tuple[float, str, float]]:
    """Read each step's end, activity and time, ms."""
    return [
        ((point.time_ns - WALL_NS) / MS - 1_000, str(point.attributes[v.ACTIVITY]), milliseconds(point.value))
        for point in run.points(v.ACTIVITY_TIME)
    ]


def ratios(run: Run) -> list[tuple[str, str, float]]:
    """Read each bubble with its reason and denominator."""
    return [
        (str(point.attributes[v.IDLE_REASON]), str(point.attributes[v.BUBBLE_DENOMINATOR]), point.value)
        for point in run.points(v.BUBBLE_RATIO)
    ]


# --- as a user sees it ------------------------------------------------------------------------------------------------


def test_a_step_by_hand(recording: Recording) -> None:
    """Set-up is overhead; an evaluation's rollout, too; a collective is comm and of its stage's kind."""
    recording.tick(SET_UP_MS)
    with otel_rl.step(1):
        timed(recording, "idle", 10, IDLE_REASON="data")
        timed(recording, "sample", 40)
        with otel_rl.stage("train"):
            with otel_rl.stage("train.forward"):
                recording.tick(5)
                collect(recording, 3)
            timed(recording, "train.backward", 12, COMM_HIDDEN=True)
            timed(recording, "idle", 2, IDLE_REASON="pipeline")
            recording.tick(1)
        with otel_rl.stage("evaluate"):
            timed(recording, "sample", 6)
        with otel_rl.stage("my own"):
            recording.tick(4)
            timed(recording, "checkpoint", 5)
        collect(recording, 1)
        recording.tick(11)
    run = recording.stop()
    assert {
        "idle": 12,
        "overhead": SET_UP_MS + 6 + 5,
        "productive": 40 + 5 + 3 + 12 + 1,
        "other": 4 + 1 + 11,
    } == kinds(run)
    assert [
        (107.0, "idle", 12),
        (107.0, "comm", 4),
        (107.0, "inseparable", 12),
        (107.0, "active", 40 + 5 + 1 + 6 + 4 + 5),
        (107.0, "other", 11),
    ] == activities(run)
    assert [("data", "step", 0.1), ("pipeline", "step", 0.02)] == ratios(run)


def test_what_has_occurred_once_has_a_point_in_every_later_step(recording: Recording) -> None:
    """A gauge that is not written again would stand for the steps that follow."""
    for number, names in enumerate((["reward"], ["reward", "idle"], ["reward"])):
        with otel_rl.step(number):
            for name in names:
                timed(recording, name, 5, **({"IDLE_REASON": "queue"} if name == "idle" else {}))
    run = recording.stop()
    assert [
        (5.0, "active", 5),
        (15.0, "idle", 5),
        (15.0, "active", 5),
        (20.0, "idle", 0),
        (20.0, "active", 5),
    ] == activities(run)
    assert [("queue", "step", 0.5), ("queue", "step", 0.0)] == ratios(run)


def test_whatever_a_rank_waits_for_is_a_bubble(recording: Recording) -> None:
    """Reasons of one's own are one label, and it is none of those of the time under no stage, which came first."""
    for number, reasons in enumerate(([], [{}, {"IDLE_REASON": "a lock"}, {"IDLE_REASON": "data"}], [])):
        with otel_rl.step(number):
            for reason in reasons:
                timed(recording, "idle", 2, **reason)
            recording.tick(4)
    assert [("data", "step", 0.2), ("other", "step", 0.4), ("data", "step", 0.0), ("other", "step", 0.0)] == ratios(
        recording.stop()
    )


def test_the_kinds_add_up_to_the_time_since_the_process_began(recording: Recording) -> None:
    """Set-up, two loops, the time between them and tear-down: no moment twice, none left out."""
    recording.tick(SET_UP_MS)
    began = state.started_ns
    for _ in range(2):  # the second one begins anew: ``train.2``
        for number in (1, 2):
            with otel_rl.step(number):
                timed(recording, "sample", 3)
                recording.tick(1)
            timed(recording, "log", 2)
    tracing.loop.end()
    recording.tick(5)
    ended = recording.clock.ns
    found = kinds(recording.stop())
    assert {"overhead": SET_UP_MS + 4 * 2 + 5, "productive": 12, "other": 4} == found
    assert (ended - began) / MS == sum(found.values())


def test_unsampled_steps_count(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no spans, and the same numbers."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    recording = stubbed.start()
    with otel_rl.step(1):
        timed(recording, "sample", 3)
        timed(recording, "idle", 1, IDLE_REASON="data")
    run = recording.stop()
    assert ([], {"productive": 3, "idle": 1}) == (list(run.spans()), kinds(run))
    assert ([(4.0, "idle", 1), (4.0, "active", 3)], [("data", "step", 0.25)]) == (activities(run), ratios(run))


def test_a_stage_that_waits_for_its_device_counts_in_time(recording: Recording) -> None:
    """Its numbers come after the step has ended, its time does not; and it counts once."""
    with otel_rl.step(1):
        with otel_rl.stage("train.forward") as stage:
            recording.tick(3)
            stage.attributes = late = PendingAttributes()
        recording.flusher._cycles()
        recording.tick(1)
    with otel_rl.step(2):
        recording.flusher._cycles()
        late.is_complete = True
        recording.tick(2)
    run = recording.stop()
    assert {"productive": 3, "other": 3} == kinds(run)
    assert [(4.0, "active", 3), (4.0, "other", 1), (6.0, "active", 0), (6.0, "other", 2)] == activities(run)


def test_what_ends_after_its_step_counts_in_none(recording: Recording) -> None:
    """On a thread of its own: of the step it began in it is too late, and the next one did not wait for it."""
    began, goes_on = threading.Event(), threading.Event()

    def judge() -> None:
        with otel_rl.stage("reward"):
            began.set()
            goes_on.wait(60)

    thread = threading.Thread(target=judge)
    with otel_rl.step(1):
        thread.start()
        began.wait(60)
        recording.tick(2)
    with otel_rl.step(2):
        recording.tick(3)
        goes_on.set()
        thread.join()
        recording.tick(4)
    run = recording.stop()
    assert ([5.0], {"other": 9}) == (
        [(span.end_ns - span.start_ns) / MS for span in run.spans() if span.name == v.REWARD],
        kinds(run),
    )
    assert [(2.0, "other", 2), (9.0, "other", 7)] == activities(run)


def test_an_asynchronous_checkpoint_holds_nobody_up(recording: Recording) -> None:
    """Its staging does; the collectives of the thread that writes it do not."""
    with otel_rl.step(1):
        checkpoint = Stage(v.CHECKPOINT, {v.CHECKPOINT_ASYNC: True}, coarse=True).__enter__()
        timed(recording, "checkpoint.staging", 2)
        thread = threading.Thread(target=collect, args=(recording, 4))
        thread.start()
        thread.join()
        recording.tick(1)
        checkpoint.__exit__(None, None, None)
    run = recording.stop()
    assert {"overhead": 2, "other": 5} == kinds(run)
    assert [(7.0, "active", 2), (7.0, "other", 5)] == activities(run)


def test_what_is_inside_a_span_of_somebody_else_counts(recording: Recording) -> None:
    """A stage is below the nearest stage, whatever spans lie between."""
    foreign = trace.SpanContext(0xABC, 7, is_remote=True, trace_flags=trace.TraceFlags(1))
    with otel_rl.step(1):
        with trace.get_tracer("theirs").start_as_current_span("theirs"):
            timed(recording, "reward", 4)
        with trace.use_span(trace.NonRecordingSpan(foreign)):
            timed(recording, "sample", 2)
    assert {"productive": 6} == kinds(recording.stop())


def test_other_threads_count_once(recording: Recording) -> None:
    """A moment with stages on two threads is one moment; collectives of a bare thread are the rank's."""

    def work() -> None:
        timed(recording, "sample", 3)
        collect(recording, 1)

    with otel_rl.step(1), otel_rl.stage("train"):
        recording.tick(1)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        recording.tick(1)
    run = recording.stop()
    assert ({"productive": 6}, [(6.0, "comm", 1), (6.0, "active", 5)]) == (kinds(run), activities(run))


def test_a_step_that_fails_counts(recording: Recording) -> None:
    """It took its time."""
    with pytest.raises(ValueError, match="as the test wants"), otel_rl.step(1):
        timed(recording, "sample", 3)
        raise ValueError("as the test wants")
    assert {"productive": 3} == kinds(recording.stop())


def test_time_behind_a_step_that_failed_is_other(recording: Recording) -> None:
    """Until the program goes on: the kinds add up to the time all the same."""
    recording.tick(SET_UP_MS)
    with suppress(LookupError), otel_rl.step(1):
        timed(recording, "reward", 10)
        raise LookupError
    recording.tick(30)
    with otel_rl.step(2):
        timed(recording, "reward", 5)
    assert {"overhead": SET_UP_MS, "productive": 15.0, "other": 30.0} == kinds(recording.stop())


def test_a_forked_child_counts_nothing_of_its_parents_step(recording: Recording) -> None:
    """The step goes on in the parent; one that the child begins is work of that."""
    with otel_rl.step(1) as container:
        child = os.fork()
        if not child:  # a forked child of a test must not come back
            fold = Fold(0)
            times = StepTime(fold)
            with otel_rl.stage("reward") as stage:
                pass
            hand(times, stage)
            with otel_rl.step(7) as same:
                times._place(same.trace)  # type: ignore[union-attr]
            is_work = stage.trace is same.trace is container.trace  # type: ignore[union-attr]
            os._exit(0 if is_work and not times._steps else 1)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folded() -> Iterator[tuple[StepTime, Fold]]:
    """A fold of its own."""
    fold = Fold(0)
    yield StepTime(fold), fold
    guard.errors.clear()


def hand(times: StepTime, *records: Any) -> None:
    """Hand over what has ended."""
    times.add(iter(records))


def made(name: str, began: int, ended: int, of: Trace, attributes: Any = None) -> Stage:
    """Make a stage that is over."""
    stage = Stage(name, attributes, coarse=name.startswith("rl."))
    stage.trace, stage.parent_id, stage.began, stage.ended = of, 1, began, ended
    return stage


def found_in(fold: Fold) -> dict[tuple[str, str], float]:
    """Take the numbers by metric and kind, activity or reason."""
    return {
        (points.name, str(next(iter(point.attributes.values())))): point.value  # type: ignore[union-attr]
        for points in fold.drain(0)
        for point in points.points
    }


def test_steps_that_do_not_end_are_given_up(folded: tuple[StepTime, Fold]) -> None:
    """The oldest first, counted; what ended is not counted as given up, and takes in no more."""
    times, fold = folded
    traces = [Trace(number, 0, step=f"train {number}") for number in range(step_time.MOST_STEPS + 2)]
    hand(times, made("rl.rank 0", 0, 9, traces[0], {v.ITERATION: 0}))
    hand(times, made("rl.reward", 0, 9, traces[0]))
    assert {v.GOODPUT_TIME, v.ACTIVITY_TIME} == {name for name, _ in found_in(fold)}
    for one in traces[1:]:
        hand(times, made("rl.reward", 0, 9, one))
    assert (traces[2:], {"count the time of a step that does not end": 1}) == (list(times._steps), dict(guard.errors))
    for number in range(3 * step_time.MOST_STEPS):
        hand(times, made("rl.reward", 0, 9, Trace(number, 0)))
    assert step_time.MOST_STEPS == len(times._foreign)


def test_a_step_without_end_does_not_grow(folded: tuple[StepTime, Fold], monkeypatch: pytest.MonkeyPatch) -> None:
    """The older half of too many stages is given up, counted, and its time is other."""
    monkeypatch.setattr(step_time, "MOST_STAGES", 10)
    times, fold = folded
    step = Trace(1, 0, step="train 1")
    for number in range(11):
        hand(times, made("rl.idle", number, number + 1, step))
    hand(times, made("rl.rank 0", 0, 11, step, {v.ITERATION: 1}))
    found = found_in(fold)
    assert (6e-9, 5e-9) == (found[v.GOODPUT_TIME, "idle"], found[v.GOODPUT_TIME, "other"])
    assert {"count the time of all stages of a step": 5} == dict(guard.errors)


def test_stages_inside_stages_are_not_kept(folded: tuple[StepTime, Fold]) -> None:
    """Forward and backward of a thousand micro-batches need no room once their update has ended."""
    times, _ = folded
    step = Trace(1, 0, step="train 1")
    for number in range(1_000):
        hand(times, made("rl.train.forward", number, number + 1, step))
    hand(times, made("rl.train", 0, 1_000, step))
    kept = times._steps[step]
    assert kept is not None
    assert [(step_time.KINDS.index(step_time.Kind.PRODUCTIVE), step_time.ACTIVE, 0, 1_000, "")] == kept.stages


def test_a_users_stage_may_be_called_as_a_container(recording: Recording) -> None:
    """It does not end the step."""
    with otel_rl.step(1):
        timed(recording, "rl.rank 0", 2)
        timed(recording, "reward", 3)
    assert {"productive": 3, "other": 2} == kinds(recording.stop())


def test_an_error_takes_no_span_along(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages are journaled all the same, and what comes behind the one that fails counts."""
    real = StepTime._stage

    def fail(self: StepTime, stage: Stage, *arguments: Any) -> None:
        if stage.name == v.OPTIMIZER:
            raise ValueError("as the test wants")
        real(self, stage, *arguments)

    monkeypatch.setattr(StepTime, "_stage", fail)
    with otel_rl.step(1):
        timed(recording, v.OPTIMIZER, 0)
        timed(recording, "reward", 3)
    run = recording.stop()
    assert {"rl.loop", "rl.rank 0", v.OPTIMIZER, v.REWARD} <= {span.name for span in run.spans()}
    assert ({"productive": 3}, 1) == (kinds(run), guard.errors.pop("count the time of a stage"))


def test_what_always_fails_ends(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error before the first record is taken is tried again as often as there are records, and no more."""

    def fail(self: StepTime, records: Iterator[Any]) -> None:
        raise ValueError("as the test wants")

    monkeypatch.setattr(StepTime, "add", fail)
    with otel_rl.step(1):
        timed(recording, "reward", 3)
    assert {"rl.loop", "rl.rank 0", v.REWARD} <= set(recording.spans())
    assert guard.errors.pop("count the time of a stage") > 0


# --- against a walk over all ticks ------------------------------------------------------------------------------------

NAMES = (
    v.IDLE, v.SAMPLE, v.REWARD, f"{v.REWARD} accuracy", v.TRAIN, v.FORWARD, v.BACKWARD, v.EVALUATE, v.CHECKPOINT,
    v.SYNC, "mine",
)  # fmt: skip
TICKS = 60
REASONS = ("data", "queue", "pipeline")

times_of = st.tuples(st.integers(0, TICKS), st.integers(0, TICKS))
Drawn = tuple[str, int, int, str, bool]
"""Name, begin, end, reason, and whether it hides collectives; ``comm`` is a collective."""
SAID = (*REASONS, "elsewhere", "")
one = st.tuples(st.sampled_from((*NAMES, "comm")), times_of, st.sampled_from(SAID), st.booleans())


@st.composite
def stage_trees(draw: st.DrawFn) -> list[Drawn]:
    """Draw stages inside stages, in the order of their end or in any; some may overlap their neighbours."""

    def inside(begin: int, end: int, depth: int) -> list[Drawn]:
        found: list[Drawn] = []
        at = begin
        while at < end and draw(st.booleans()):
            low = draw(st.integers(at, end))
            high = draw(st.integers(low, end))
            name = draw(st.sampled_from((*NAMES, "comm")))
            if depth < 3 and name != "comm":
                found += inside(low, high, depth + 1)
            found.append((name, low, high, draw(st.sampled_from(SAID)), draw(st.booleans())))
            at = high
        return found

    rows = inside(0, TICKS, 0)
    for name, (low, high), reason, is_hidden in draw(st.lists(one, max_size=4)):  # other threads'
        rows.append((name, min(low, high), max(low, high), reason, is_hidden))
    return draw(st.permutations(rows)) if draw(st.booleans()) else sorted(rows, key=lambda row: row[2])


def walk(rows: list[Drawn], begin: int, end: int) -> dict[tuple[str, str], int]:
    """Look at every tick of the step by itself."""
    found: dict[tuple[str, str], int] = {}
    for tick in range(begin, end):
        there = [row for row in rows if row[1] <= tick < row[2]]
        names = {row[0].partition(" ")[0] for row in there}
        reasons = {row[3] for row in there if row[0] == v.IDLE}
        stages = [row for row in there if row[0] not in ("comm", v.IDLE)]
        if v.IDLE in names:
            kind = "idle"
        elif names & {v.EVALUATE, v.CHECKPOINT, v.SYNC}:
            kind = "overhead"
        else:
            kind = "productive" if names - {"comm", "mine"} else "other"
        if v.IDLE in names:
            activity = "idle"
        elif "comm" in names:
            activity = "comm"
        elif any(row[4] for row in stages):
            activity = "inseparable"
        else:
            activity = "active" if stages else "other"
        reason = next((reason for reason in REASONS if reason in reasons), "other" if reasons else "")
        for key in ((v.GOODPUT_TIME, kind), (v.ACTIVITY_TIME, activity), (v.BUBBLE_RATIO, reason)):
            found[key] = found.get(key, 0) + 1
    return found


@given(stage_trees(), times_of)
def test_every_moment_counts_once(rows: list[Drawn], window: tuple[int, int]) -> None:
    """As what it is by the order of priority, and all of them add up to the step."""
    begin, end = min(window), max(window)
    fold = Fold(0)
    times, step = StepTime(fold), Trace(1, 0, step="train 1")
    container = made("rl.rank 0", begin, end, step, {v.ITERATION: 1})
    for name, low, high, reason, is_hidden in rows:
        if name == "comm":
            collective = Collective("all_reduce", 0)
            tracing.open.pop(collective, None)
            collective.stage, collective.began, collective.ended = container, low, high
            hand(times, collective)
        else:
            attributes: dict[str, Any] = {v.IDLE_REASON: reason} if name == v.IDLE and reason else {}
            hand(times, made(name, low, high, step, {**attributes, **({v.COMM_HIDDEN: True} if is_hidden else {})}))
    hand(times, container)
    found = found_in(fold)
    expected = walk(rows, begin, end)
    scale = {v.GOODPUT_TIME: 1e9, v.ACTIVITY_TIME: 1e9, v.BUBBLE_RATIO: end - begin}
    counted = {key: round(value * scale[key[0]], 6) for key, value in found.items() if value}
    assert {key: value for key, value in expected.items() if key != (v.BUBBLE_RATIO, "")} == counted
    assert [end - begin] * 2 == [
        round(sum(value for (metric, _), value in found.items() if metric == name) * 1e9)
        for name in (v.GOODPUT_TIME, v.ACTIVITY_TIME)
    ]


def test_points_are_those_of_the_steps_end(folded: tuple[StepTime, Fold]) -> None:
    """By the clock that places the step's spans."""
    times, fold = folded
    step = Trace(1, 1_000, step="train 1")
    hand(times, made("rl.rank 0", 5, 9, step, {v.ITERATION: 1}))
    (points,) = [points.points for points in fold.drain(0) if points.name == v.ACTIVITY_TIME]
    assert [Point(v.ACTIVITY_TIME, 4e-9, 1_009, ((v.ACTIVITY, "other"),))] == list(points)
