"""Tests of guest steps: what a rank records of a driver's steps when it only gets calls."""

from __future__ import annotations

import asyncio
import threading

import pytest

import otel_rl
from otel_rl import Carrier, ids
from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.probes.device import DeviceInUse
from otel_rl.probes.memory import PAGE, Device, probes
from otel_rl.process.identity import identifying
from otel_rl.process.state import state
from otel_rl.trace.carried import stand_in_of
from otel_rl.trace.guest import guest
from otel_rl.trace.memory import tracing
from tests.analysis.test_flops import QWEN_0_5B, forward_flops, train_flops
from tests.fake_cuda import FakeCuda
from tests.fixtures import MS, WALL_NS, Recording, Tree, in_child, milliseconds, trees

STEP_NUMBERS = (v.STEP_TIME, v.STEP_CPU_TIME, v.ACTIVITY_TIME, v.BUBBLE_RATIO)


def carrier(step: str, began: float | None, attempt: str = "abc") -> Carrier:
    """Make the carrier of a driver's stage in a trace that began then, ms of the fake clock."""
    loop, _, number = step.rpartition(" ")
    trace_id = ids.trace_id(attempt, loop, int(number))
    began_ns = 0 if began is None else WALL_NS + round((began + 1_000) * MS)
    return Carrier("job", attempt, "trainer", step, f"00-{trace_id:032x}-{1 << 40:016x}-01", "", began_ns)


@pytest.fixture
def process(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A worker."""
    monkeypatch.delenv("OTEL_RL_RUN_ID")
    monkeypatch.setenv("OTEL_RL_PROCESS_KIND", "worker")
    monkeypatch.setattr("otel_rl.entry._is_worker", lambda: True)
    return stubbed


@pytest.fixture
def rank(process: Recording, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A worker that its launcher made rank 1."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    return process.start()


def called(rank: Recording, by: Carrier, name: str, ms: float) -> None:
    """Serve a call of one stage."""
    with by.use(), otel_rl.stage(name):
        rank.tick(ms)


def points(run: Run) -> list[tuple[float, str, str, float]]:
    """Read the numbers of steps: time (ms), name, label, value."""
    found = [point for name in STEP_NUMBERS for point in run.points(name)]
    return sorted(
        (
            milliseconds(point.time_ns),
            point.name,
            str(point.attributes.get(v.ACTIVITY, point.attributes.get(v.IDLE_REASON, ""))),
            round(point.value, 9),
        )
        for point in found
    )


def kinds(run: Run) -> dict[str, float]:
    """Read the time by kind, ms."""
    return {str(one.attributes[v.GOODPUT_KIND]): round(one.value * 1_000, 6) for one in run.last_points(v.GOODPUT_TIME)}


def parents(run: Run, name: str) -> list[tuple[str, str]]:
    """Name trace and parent of the spans of a name, in the order of their begin, as far as they are a driver's."""
    traces = {ids.trace_id("abc", "train", number): f"train {number}" for number in range(10)}
    roots = {ids.root_id("abc", "train", number): f"root {number}" for number in range(10)}
    return [
        (traces[int.from_bytes(span.trace_id, "big")], roots[int.from_bytes(span.parent_id, "big")])
        for span in sorted(run.spans(), key=lambda span: span.start_ns)
        if span.name == name
    ]


def test_two_steps_by_hand(rank: Recording) -> None:
    """They are the driver's: a wait that reaches over its end is in both."""
    rank.tick(10)
    first, second, over = carrier("train 7", 4), carrier("train 8", 60), carrier("rl.teardown 1", 110)
    called(rank, first, "logprob", 20)  # 10 to 30
    rank.tick(5)
    called(rank, first, "train", 15)  # 35 to 50
    rank.tick(25)
    called(rank, second, "logprob", 10)  # 75 to 85
    rank.tick(0.5)
    called(rank, second, "train", 14.5)  # 85.5 to 100
    rank.tick(20)
    with over.use():  # 120
        rank.tick(1)
    otel_rl.uninstrument()
    run = rank.run("job")
    assert [
        Tree("?rl.idle", 4, 10),
        Tree("?rl.logprob", 10, 30),
        Tree("?rl.idle", 30, 35),
        Tree("?rl.train", 35, 50),
        Tree("?rl.idle", 50, 60),
        Tree("?rl.idle", 60, 75),
        Tree("?rl.logprob", 75, 85),
        Tree("?rl.train", 85.5, 100),
        Tree("?rl.idle", 100, 110),
    ] == trees(run)
    sevens, eights = [("train 7", "root 7")], [("train 8", "root 8")]
    assert 3 * sevens + 2 * eights == parents(run, v.IDLE)
    assert {"controller"} == {span.attributes[v.IDLE_REASON] for span in run.spans(None) if span.name == v.IDLE}
    assert [
        (60.0, v.BUBBLE_RATIO, "controller", 0.375),
        (60.0, v.ACTIVITY_TIME, "active", 0.035),
        (60.0, v.ACTIVITY_TIME, "idle", 0.021),
        (60.0, v.STEP_CPU_TIME, "", 0.0),
        (60.0, v.STEP_TIME, "", 0.056),
        (110.0, v.BUBBLE_RATIO, "controller", 0.5),
        (110.0, v.ACTIVITY_TIME, "active", 0.0245),
        (110.0, v.ACTIVITY_TIME, "idle", 0.025),
        (110.0, v.ACTIVITY_TIME, "other", 0.0005),
        (110.0, v.STEP_CPU_TIME, "", 0.0),
        (110.0, v.STEP_TIME, "", 0.05),
    ] == points(run)
    assert {"overhead": 4, "idle": 46, "productive": 59.5, "other": 0.5} == kinds(run)
    (durations,) = run.last_points(v.STAGES[v.LOOP].duration)
    assert (2, pytest.approx(0.106)) == (durations.count, durations.sum)


def test_a_step_without_a_known_begin_begins_with_its_first_call(rank: Recording) -> None:
    """And one that seems to begin before this process was free begins then; the last one ends with its last call."""
    called(rank, carrier("train 1", None), "train", 10)
    rank.tick(10)
    called(rank, carrier("train 2", None), "train", 10)
    called(rank, carrier("train 3", 5), "train", 10)  # it began before the second one, whose call it is then not
    rank.tick(10)
    called(rank, carrier("train 4", 25), "train", 5)
    rank.tick(10)
    otel_rl.uninstrument()
    run = rank.run("job")
    times = [(time, value) for time, name, _, value in points(run) if name == v.STEP_TIME]
    assert [(20.0, 0.02), (40.0, 0.02), (55.0, 0.015)] == times
    assert [("train 1", "root 1"), ("train 4", "root 4")] == parents(run, v.IDLE)


def test_a_late_call_begins_no_step(rank: Recording) -> None:
    """Its stages are in its own trace; the numbers count them where they fall."""
    first, second = carrier("train 1", 0), carrier("train 2", 10)
    called(rank, first, "train", 10)
    called(rank, second, "train", 10)
    called(rank, first, "sync", 5)
    called(rank, second, "train", 10)
    otel_rl.uninstrument()
    run = rank.run("job")
    assert [(10.0, 0.01), (35.0, 0.025)] == [(one[0], one[3]) for one in points(run) if one[1] == v.STEP_TIME]
    assert {"overhead": 5, "productive": 30} == kinds(run)


def test_a_rank_waits_only_while_no_call_is_open(rank: Recording) -> None:
    """Calls of an asynchronous actor overlap, and end in any order."""
    given = carrier("train 1", 0)

    async def long(begun: asyncio.Event, goes_on: asyncio.Event) -> None:
        with given.use(), otel_rl.stage("train"):
            begun.set()
            await goes_on.wait()
            rank.tick(10)

    async def program() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(long(begun, goes_on))
        with given.use():
            await begun.wait()
            rank.tick(10)
        rank.tick(5)
        called(rank, given, "train", 5)
        goes_on.set()
        await task

    asyncio.run(program())
    rank.tick(10)
    called(rank, given, "train", 1)
    otel_rl.uninstrument()
    run = rank.run("job")
    waits = [span for span in run.spans() if span.name == v.IDLE]
    assert [(30.0, 40.0)] == [(milliseconds(span.start_ns), milliseconds(span.end_ns)) for span in waits]
    assert {"idle": 10, "productive": 31} == kinds(run)


def open_waits_of(run: Run) -> list[tuple[float, str]]:
    """Read the waits that are open: begin (ms), reason."""
    views = run.open_stages(with_waits=True)
    return [(milliseconds(view.start_ns), str(view.attributes[v.IDLE_REASON])) for view in views if view.name == v.IDLE]


def test_the_last_wait_is_open_in_the_journal(rank: Recording) -> None:
    """So a process that is killed in it leaves it; what looks for what hangs does not see it."""
    first = carrier("train 7", 4)
    rank.tick(10)
    called(rank, first, "logprob", 20)
    rank.tick(900)
    otel_rl.flush()
    short = open_waits_of(rank.run("job"))
    rank.tick(200)
    otel_rl.flush()
    left, others = open_waits_of(rank.run("job")), rank.run("job").open_stages()
    called(rank, first, "train", 10)
    otel_rl.flush()
    over = open_waits_of(rank.run("job"))
    waits = [
        (milliseconds(one.start_ns), milliseconds(one.end_ns)) for one in rank.run("job").spans() if one.name == v.IDLE
    ]
    assert ([], [(30.0, "controller")], [], []) == (short, left, others, over)
    assert [(4.0, 10.0), (30.0, 1_130.0)] == waits


def test_a_listed_wait_ends_with_what_the_rank_does_itself_and_with_its_exit(rank: Recording) -> None:
    """Also where no span tells its end."""
    first = carrier("train 7", 4)
    rank.tick(10)
    called(rank, first, "logprob", 20)
    rank.tick(2_000)
    otel_rl.flush()
    with otel_rl.stage("own"):
        rank.tick(10)
    otel_rl.flush()
    own = open_waits_of(rank.run("job"))
    rank.tick(2_000)
    otel_rl.flush()
    listed = open_waits_of(rank.run("job"))
    otel_rl.uninstrument()
    assert ([], [(2_040.0, "controller")], []) == (own, listed, open_waits_of(rank.run("job")))


def test_threads_may_serve_calls(rank: Recording) -> None:
    """Of an actor that has several, also where a step begins."""
    begun, goes_on = threading.Event(), threading.Event()

    def long() -> None:
        with carrier("train 1", 0).use(), otel_rl.stage("train"):
            begun.set()
            goes_on.wait(60)

    thread = threading.Thread(target=long)
    thread.start()
    begun.wait(60)
    rank.tick(10)
    called(rank, carrier("train 2", 8), "train", 5)
    goes_on.set()
    thread.join()
    otel_rl.uninstrument()
    run = rank.run("job")
    times = [(time, value) for time, name, _, value in points(run) if name == v.STEP_TIME]
    assert ([(8.0, 0.008), (15.0, 0.007)], []) == (times, [span for span in run.spans() if span.name == v.IDLE])


def test_what_a_rank_does_between_calls_is_in_the_step(rank: Recording) -> None:
    """Below the driver's root, and no wait: Ray pickles results when a method has returned."""
    with otel_rl.stage("load"):
        rank.tick(3)
    given = carrier("train 1", 0)
    called(rank, given, "train", 10)
    with otel_rl.stage("pickle"):
        rank.tick(5)
    between = Carrier.current()
    rank.tick(2)
    called(rank, given, "train", 10)
    otel_rl.uninstrument()
    run = rank.run("job")
    assert [
        Tree("?rl.rank 1", 0, 3, (Tree("load", 0, 3),)),
        Tree("?rl.train", 3, 13),
        Tree("?pickle", 13, 18),
        Tree("?rl.idle", 18, 20),
        Tree("?rl.train", 20, 30),
    ] == trees(run)
    assert [("train 1", "root 1")] == parents(run, "pickle") == parents(run, v.IDLE)
    assert between is not None
    assert (given.trace_id, ids.root_id("abc", "train", 1), given.began_ns) == (
        between.trace_id,
        between.span_id,
        between.began_ns,
    )
    assert {"overhead": 3, "productive": 20, "idle": 2, "other": 5} == kinds(run)


def test_memory_is_read_where_a_step_ends(rank: Recording) -> None:
    """Once a step."""
    probes.read_memory = lambda: (b"3 2 0 0 0 0 0", None)
    for number in (1, 2, 3):
        called(rank, carrier(f"train {number}", 10 * number - 10), "train", 10)
    otel_rl.uninstrument()
    run = rank.run("job")
    assert [3 * PAGE] * 3 == [point.value for point in run.points(v.VMS)]
    assert [10, 20, 30] == [milliseconds(point.time_ns) for point in run.points(v.RSS)]


def test_a_device_is_read_where_a_step_ends(rank: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of a loop's step."""
    cuda = FakeCuda()
    memory = Device(allocated=2, allocated_peak=3, reserved=8, reserved_peak=9)
    monkeypatch.setattr(probes, "read_device", lambda index: memory)
    monkeypatch.setattr(probes, "device", DeviceInUse(cuda))
    for number in (1, 2):
        called(rank, carrier(f"train {number}", 10 * number - 10), "train", 10)
    otel_rl.uninstrument()
    run = rank.run("job")
    assert [(10, 2), (20, 2)] == [(milliseconds(one.time_ns), one.value) for one in run.points(v.ALLOCATED)]
    assert [8, 8] == [one.value for one in run.points(v.RESERVED)]


@pytest.mark.parametrize("kind", ["no rank", "engine", "child"])
def test_who_serves_several_steps_is_no_guest(process: Recording, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """An agent loop, a server, and a process that a rank started, which inherits the launcher's variables."""
    if kind != "no rank":
        monkeypatch.setenv("RANK", "1")
    if kind == "engine":
        monkeypatch.setenv("OTEL_RL_PROCESS_KIND", "engine")
    process.start()
    if kind == "child":
        tracing.inherited = stand_in_of(carrier("rl.setup 0", 0)).trace
    for number in (1, 2):
        called(process, carrier(f"train {number}", 20 * number), "train", 10)
        process.tick(10)
    otel_rl.uninstrument()
    run = process.run("job")
    assert ["rl.train", "rl.train"] == [span.name for span in run.spans()]
    assert ([], {}) == (points(run), kinds(run))


def test_a_process_group_makes_a_rank(process: Recording) -> None:
    """From the next step on."""
    process.start()
    called(process, carrier("train 1", 0), "train", 10)
    state.identify(rank=1, world_size=2)
    assert "world_size" in identifying.learned
    for number in (2, 3):
        called(process, carrier(f"train {number}", None), "train", 10)
        process.tick(10)
    otel_rl.uninstrument()
    times = [(one[0], one[3]) for one in points(process.run("job")) if one[1] == v.STEP_TIME]
    assert [(30.0, 0.02), (40.0, 0.01)] == times


def test_a_child_of_a_rank_is_no_guest(rank: Recording) -> None:
    """It is forked in a call."""
    given, later = carrier("train 1", 0), carrier("train 2", 10)

    def work() -> None:
        called(rank, given, "inside", 5)
        called(rank, later, "inside", 5)
        otel_rl.uninstrument()

    with given.use():
        in_child(work)
        rank.tick(10)
    otel_rl.uninstrument()
    run = rank.run("job")
    assert [0.01] == [point.value for point in run.points(v.STEP_TIME)]
    assert ["inside", "inside"] == [span.name for span in run.spans()]


def test_a_driver_is_no_guest_in_its_own_steps(recording: Recording) -> None:
    """Nor in a trace of another run that one of its threads serves."""
    with otel_rl.step(1):
        recording.tick(5)
        given = Carrier.current()
        assert given is not None
        with given.use():
            recording.tick(5)
        recording.tick(5)
        with carrier("train 5", 0).use():
            recording.tick(5)
    run = recording.stop()
    assert guest.trace is None
    assert [0.02] == [point.value for point in run.points(v.STEP_TIME)]
    assert [] == [span.name for span in run.spans() if span.name == v.IDLE]


def test_an_unsampled_step_has_its_numbers(rank: Recording) -> None:
    """And no spans."""
    for number in (1, 2):
        sampled = carrier(f"train {number}", 20 * number - 20)
        called(rank, Carrier(**{**vars(sampled), "traceparent": f"{sampled.traceparent[:-1]}0"}), "train", 10)
        rank.tick(10)
    otel_rl.uninstrument()
    run = rank.run("job")
    assert [] == list(run.spans())
    assert {"idle": 10, "productive": 20} == kinds(run)


def test_a_wall_clock_that_was_set_is_followed_between_steps(rank: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a loop does; the driver says by its own clock when a step began, which may have been set as well."""
    called(rank, carrier("train 1", 0), "train", 10)
    monkeypatch.setattr("otel_rl.clock.measure_anchor", lambda: WALL_NS + 5_000 * MS)
    rank.tick(10)
    called(rank, carrier("train 1", 0), "train", 10)
    called(rank, carrier("train 2", 5_015), "train", 10)
    otel_rl.uninstrument()
    run = rank.run("job")
    assert [
        Tree("?rl.train", 0, 10),
        Tree("?rl.idle", 10, 20),
        Tree("?rl.train", 20, 30),
        Tree("?rl.train", 5_030, 5_040),
    ] == trees(run)
    assert ["the wall clock was set by 5.000 s"] == [log.body for log in run.logs(v.CLOCK_STEPPED)]
    assert [0.03, 0.01] == [point.value for point in run.points(v.STEP_TIME)]


def test_what_is_shown_in_a_step_has_its_rates(rank: Recording) -> None:
    """They are those of the step that the rank is a guest in; what comes in tear-down is in none."""
    shown = {"model": QWEN_0_5B, "batch": {"lengths": [5, 6]}}
    with carrier("train 1", 0).use(), otel_rl.stage("train"):
        rank.tick(20)
        otel_rl.observe(**shown)
    with carrier("train 2", 40).use(), otel_rl.stage("logprob"):
        rank.tick(10)
        otel_rl.observe(**shown)
    with carrier("rl.teardown 1", 50).use(), otel_rl.stage("train"):
        otel_rl.observe(**shown)
    otel_rl.uninstrument()
    run = rank.run("job")
    update, once = train_flops(QWEN_0_5B, [5, 6]), forward_flops(QWEN_0_5B, [5, 6])
    assert [
        (20.0, "step", pytest.approx(update / 0.02)),
        (20.0, "update", pytest.approx(update / 0.02)),
        (30.0, "logprob", pytest.approx(once / 0.01)),
        (30.0, "step", pytest.approx(once / 0.01)),
    ] == sorted(
        (milliseconds(point.time_ns), str(point.attributes[v.FLOPS_SCOPE]), point.value)
        for point in run.points(v.FLOPS_RATE)
    )
    assert [1] == [point.value for point in run.last_points(v.SELF_DROPPED)]
