"""Tests of collectives: all of them in metrics, the longest of a stage as spans."""

from __future__ import annotations

import functools
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import otel_rl
from otel_rl import vocabulary
from otel_rl.comm import collectives
from otel_rl.comm.collectives import SPANS_PER_STAGE, Collective
from otel_rl.comm.memory import comm
from otel_rl.flusher.dispatch import Dispatcher
from otel_rl.hooks import CollectiveHook
from otel_rl.hooks.collective import input_bytes, wrap_method
from otel_rl.hooks.hook import wrap
from otel_rl.metrics.record import Fold
from otel_rl.probes.device import DeviceInUse
from otel_rl.probes.memory import probes
from otel_rl.process.state import state
from otel_rl.runs.symmetric import shows_waits
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage
from otel_rl.trace.tree import close_phase
from tests.fake_cuda import FakeCuda
from tests.fixtures import Recording, Tree, orphans, trees


def collect(recording: Recording, ms: float, operation: str = "all_reduce", size: int = 0) -> None:
    """Record one collective that takes so long."""
    collective = Collective(operation, size)
    recording.tick(ms)
    collective.close()


def test_the_longest_of_a_stage_become_spans(recording: Recording) -> None:
    """32 of 40; of equal length the earlier; the stage says count, time and how many were left out."""
    lengths = [5, 1, 7, 2, 3] * 8
    with otel_rl.step(1), otel_rl.stage("train.backward"):
        for ms in lengths:
            collect(recording, ms)
    run = recording.stop()
    stage = next(span for span in run.spans(None) if span.name == "rl.train.backward")
    assert {
        vocabulary.COMM_COUNT: 40,
        vocabulary.COMM_TIME: sum(lengths) / 1000,
        vocabulary.COMM_OMITTED: 8,
    } == stage.attributes
    spans = [span for span in run.spans(None) if span.name == "rl.train.comm"]
    found = sorted((span.end_ns - span.start_ns) // 10**6 for span in spans)
    assert sorted(lengths)[8:] == found
    assert {stage.span_id} == {span.parent_id for span in spans}
    assert {"all_reduce"} == {span.attributes[vocabulary.COMM_OPERATION] for span in spans}
    (histogram,) = run.last_points(vocabulary.COMM_DURATION)
    assert (40, {vocabulary.COMM_OPERATION: "all_reduce"}) == (histogram.count, histogram.attributes)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_stage_that_ends_while_its_collectives_are_counted_has_them_all(recording: Recording, is_full: bool) -> None:
    """What of it came in one cycle waits for the end of the stage, which comes in the next, or behind a full slice."""
    dispatcher, stage = Dispatcher(Fold(0)), Stage("rl.train.forward")

    def drained() -> tuple[tuple[Any, ...], list[Any]]:
        found = tuple(tracing.open), list(state.queue)
        state.queue.clear()
        return found

    with otel_rl.step(1), stage:
        for _ in range(7):
            collect(recording, 1)
        opened, records = drained()
        collect(recording, 1)
    dispatcher.dispatch(() if is_full else opened, records, is_asked=False, is_all=not is_full, is_last=False)
    dispatcher.dispatch(*drained(), is_asked=False, is_all=True, is_last=False)
    assert stage.attributes is not None
    assert (8, 0.008) == (stage.attributes[vocabulary.COMM_COUNT], stage.attributes[vocabulary.COMM_TIME])


def test_of_equal_length_the_earlier_stays(recording: Recording) -> None:
    """What becomes a span does not depend on chance."""
    with otel_rl.step(1), otel_rl.stage("reward"):
        for _ in range(40):
            collect(recording, 1)
    step = next(tree for tree in recording.trees() if tree.name == "rl.loop").below[0]
    assert tuple(Tree("rl.train.comm", i, i + 1) for i in range(32)) == step.below[0].below


def test_bytes_are_counted_by_operation(recording: Recording) -> None:
    """In a counter, and on the span."""
    with otel_rl.step(1):
        collect(recording, 1, "all_reduce", 100)
        collect(recording, 1, "all_reduce", 20)
        collect(recording, 1, "broadcast", 3)
        collect(recording, 1, "barrier")
    run = recording.stop()
    assert {"all_reduce": 120, "broadcast": 3} == {
        point.attributes[vocabulary.COMM_OPERATION]: point.value for point in run.last_points(vocabulary.COMM_IO)
    }
    spans = sorted(
        (str(span.attributes[vocabulary.COMM_OPERATION]), span.attributes.get(vocabulary.COMM_BYTES))
        for span in run.spans(None)
        if span.name == "rl.train.comm"
    )
    assert [("all_reduce", 20), ("all_reduce", 100), ("barrier", None), ("broadcast", 3)] == spans


def test_one_that_was_journaled_as_open_becomes_a_span(recording: Recording) -> None:
    """However short it is, or its open record would stay for ever."""
    with otel_rl.step(1), otel_rl.stage("reward") as stage:
        collective = Collective("barrier", 0)
        recording.tick(1)
        assert otel_rl.flush()
        (opened,) = (s for s in recording.run().open_stages() if s.name == "rl.train.comm")
        about = {vocabulary.COMM_OPERATION: "barrier", vocabulary.STAGE: "rl.train.comm"}
        assert (stage.span_id, about) == (
            int.from_bytes(opened.parent_id, "big"),
            opened.attributes,
        )
        collective.close()
        for _ in range(40):
            collect(recording, 5)
    run = recording.stop()
    assert [] == run.open_stages()
    lengths = [span.end_ns - span.start_ns for span in run.spans() if span.name == "rl.train.comm"]
    assert ([1_000_000], [5_000_000] * 32) == (sorted(lengths)[:1], sorted(lengths)[1:])
    reward = next(span for span in run.spans(None) if span.name == "rl.reward")
    assert (41, 8) == (reward.attributes[vocabulary.COMM_COUNT], reward.attributes[vocabulary.COMM_OMITTED])


def test_one_that_outlives_its_stage_is_emitted(recording: Recording) -> None:
    """Another thread's: kept until it ends, and not for ever."""
    with otel_rl.step(1):
        with otel_rl.stage("reward"):
            collective = Collective("barrier", 0)
        recording.tick(1)
        assert otel_rl.flush()
        collective.close()
        assert otel_rl.flush()
        assert {} == recording.flusher.dispatcher._collectives.by_stage
    run = recording.stop()
    assert (1, []) == (sum(span.name == "rl.train.comm" for span in run.spans()), orphans(run))


def test_outside_of_every_stage_they_are_counted(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing that their spans could hang below."""
    stubbed.start()
    close_phase(stubbed.clock.ns)
    collect(stubbed, 1)
    run = stubbed.stop()
    assert ("rl.train.comm" not in {span.name for span in run.spans()}, 1) == (
        True,
        run.last_points(vocabulary.COMM_DURATION)[0].count,
    )


def test_an_unsampled_step_has_no_comm_spans(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """But all of them in metrics."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    stubbed.start()
    with otel_rl.step(1), otel_rl.stage("reward"):
        collect(stubbed, 1)
        otel_rl.flush()
        collect(stubbed, 1)
    run = stubbed.stop()
    assert ([], [], 2) == (
        list(run.spans()),
        [log for log in run.logs() if log.event_name != vocabulary.LOOP_LINE],
        run.last_points(vocabulary.COMM_DURATION)[0].count,
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.zeros(4), 32),
        ([np.zeros(4), np.zeros(1), None], 40),
        (None, 0),
        ("text", 0),
        (SimpleNamespace(nbytes="many"), 0),
        ((np.zeros(1),) * 5000, 8 * 1024),
    ],
)
def test_the_bytes_of_the_input_are_read_from_shapes(value: Any, expected: int) -> None:
    """What has none counts nothing."""
    assert expected == input_bytes(value)


def hooked(function: Any, **options: Any) -> Any:
    """Wrap a function as a collective."""
    return wrap(CollectiveHook(target="package.module:all_gather", **options), function)


def test_a_collective_inside_one_belongs_to_it(recording: Recording) -> None:
    """Object collectives call tensor collectives: one row, and no trace left for the next."""
    state.identify(world_size=2)
    inner = hooked(lambda x: recording.tick(1))
    outer = hooked(lambda x: [inner(x), inner(x)])
    with otel_rl.step(1), otel_rl.stage("reward"):
        outer(np.zeros(1))
        outer(np.zeros(1))
    run = recording.stop()
    assert (2, 2, 16) == (
        sum(span.name == "rl.train.comm" for span in run.spans()),
        run.last_points(vocabulary.COMM_DURATION)[0].count,
        run.last_points(vocabulary.COMM_IO)[0].value,
    )


def test_a_group_is_made_by_its_ranks_together(recording: Recording) -> None:
    """It has no number, what is called to make it belongs to it, and its ranks are no input."""
    state.identify(world_size=2)
    group, inner = ProcessGroup(), hooked(lambda x: recording.tick(1))

    def new_group(ranks: Any, local: bool = False) -> Any:
        inner(np.zeros(1))
        return group if 0 in ranks else -100

    call = wrap(CollectiveHook(target="torch.distributed:new_group"), new_group)
    barrier = wrap(CollectiveHook(target="package:barrier"), lambda group: recording.tick(1))
    with otel_rl.step(1):
        assert call(np.arange(2)) is group
        assert -100 == call(ranks=[1])
        barrier(group)
    assert [
        ("new_group", "default_pg", None, None, None, 1),
        ("new_group", None, None, None, None, 1),
        ("barrier", "default_pg", 1, None, None, 1),
    ] == rows(recording)


def test_only_ranks_of_the_group_that_was_made_waited_for_each_other() -> None:
    """Nothing tells what another rank did there."""
    made = {vocabulary.COMM_OPERATION: "new_group"}
    assert [True, False] == [shows_waits({**made, vocabulary.COMM_GROUP: "even 1"}), shows_waits(made)]


class Work:
    """What torch gives back for an asynchronous collective."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def wait(self) -> bool:
        """Wait, 3 ms."""
        self.recording.tick(3)
        return True


class ProcessGroup:
    """A process group of torch's."""

    group_name, group_desc = "0", "default_pg"

    def size(self) -> int:
        """How many ranks."""
        return 2


def rows(recording: Recording) -> list[tuple[Any, ...]]:
    """Give operation, group, place, whether it was a wait, bytes and ms of every row, in order of their begin."""
    keys = (vocabulary.COMM_OPERATION, vocabulary.COMM_GROUP, vocabulary.COMM_SEQUENCE, vocabulary.COMM_ASYNC)
    spans = [span for span in recording.stop().spans(None) if span.name == vocabulary.COMM]
    spans.sort(key=lambda span: span.start_ns)
    return [
        (
            *(span.attributes.get(key) for key in keys),
            span.attributes.get(vocabulary.COMM_BYTES),
            (span.end_ns - span.start_ns) // 10**6,
        )
        for span in spans
    ]


def test_arguments_are_found_by_position_and_by_name(recording: Recording) -> None:
    """FSDP2 names its input, its output and the group; a group that this rank is not in has no row."""
    state.identify(world_size=2)
    group = ProcessGroup()

    def reduce_scatter(output: Any, input: Any, op: str = "sum", group: Any = None, async_op: bool = False) -> None:
        recording.tick(1)

    call = wrap(CollectiveHook(target="package:reduce_scatter", position=1), reduce_scatter)
    with otel_rl.step(1):
        call(np.zeros(1), np.zeros(2), "sum", group)
        call(output=np.zeros(1), input=np.zeros(3), group=group)
        call(np.zeros(1), np.zeros(2), group=-100)
    assert [
        ("reduce_scatter", "default_pg", 1, None, 16, 1),
        ("reduce_scatter", "default_pg", 2, None, 24, 1),
    ] == rows(recording)


def test_a_launched_collective_is_what_it_is_waited_for(recording: Recording) -> None:
    """The launch has a place in the order and no row; the wait has its name, its bytes, and its own length."""
    state.identify(world_size=2)
    group = ProcessGroup()
    launch = wrap(
        CollectiveHook(target="package:all_reduce"), lambda tensor, group=None, async_op=False: Work(recording)
    )
    wait = wrap(CollectiveHook(target="package:Work.wait"), Work.wait)
    with otel_rl.step(1):
        first, second = (launch(np.zeros(size), group, True) for size in (1, 2))
        launch(np.zeros(3), group=group, async_op=True)  # nobody keeps it
        assert 2 == len(comm.launched)
        assert wait(second) is wait(self=first) is wait(second) is True
    assert {} == comm.launched
    assert [
        ("all_reduce", "default_pg", 2, True, 16, 3),
        ("all_reduce", "default_pg", 1, True, 8, 3),
        ("wait", None, None, True, None, 3),
    ] == rows(recording)


def test_what_a_device_does_says_that_it_was_launched(recording: Recording) -> None:
    """Its duration is that of the launch, and tells no wait; what lies on the host blocks it, beside a device too."""
    state.identify(world_size=2)
    probes.device = DeviceInUse(FakeCuda())
    group = ProcessGroup()

    def all_reduce(tensor: Any, group: Any = None, async_op: bool = False) -> Work:
        recording.tick(1)
        return Work(recording)

    launch = wrap(CollectiveHook(target="package:all_reduce"), all_reduce)
    wait = wrap(CollectiveHook(target="package:Work.wait"), Work.wait)
    values = [SimpleNamespace(nbytes=8, is_cpu=False), [SimpleNamespace(nbytes=8, is_cpu=False)], np.zeros(1), None]
    with otel_rl.step(1):
        for value in values:
            launch(value, group)
        wait(launch(values[0], group, True))
        launch(SimpleNamespace(nbytes=8, is_cpu=True), group)
    read = recording.stop()
    spans = sorted((one for one in read.spans(None) if one.name == vocabulary.COMM), key=lambda one: one.start_ns)
    clocks = ["host", "host", None, None, "host", None]
    assert clocks == [one.attributes.get(vocabulary.CLOCK) for one in spans]
    assert [clock is None for clock in clocks[:4]] == [shows_waits(one.attributes) for one in spans[:4]]
    points = [
        (point.attributes.get(vocabulary.CLOCK), point.attributes.get(vocabulary.COMM_ASYNC), point.count)
        for point in read.last_points(vocabulary.COMM_DURATION)
    ]
    assert {("host", None, 2), ("host", True, 1), (None, None, 3)} == set(points)


def test_a_coalesced_collective_is_not_asked(recording: Recording) -> None:
    """Torch gives something in the place of work that refuses every question; no error of ours."""
    state.identify(world_size=2)

    class Illegal(Work):
        def __getattribute__(self, name: str) -> Any:
            raise ValueError(name)

    with otel_rl.step(1):
        work = wrap(CollectiveHook(target="package:all_reduce"), lambda tensor, async_op: Illegal(recording))(0, True)
    assert type(work) is Illegal
    assert [] == rows(recording)


def test_a_functional_collective_is_waited_for_by_its_tensor(recording: Recording) -> None:
    """Or by its result, which holds the tensor; the bytes of several together count once. One that waits is a call."""
    state.identify(world_size=2)
    group = ProcessGroup()
    tensors = [np.zeros(1), np.zeros(2)]
    late = [SimpleNamespace(elem=tensor) for tensor in tensors]
    call = wrap(
        CollectiveHook(target="torch.distributed._functional_collectives:all_gather"), lambda value, group: late
    )
    wait = wrap(CollectiveHook(target="package:wait_tensor"), lambda tensor: recording.tick(1))

    def waits_inside(value: Any, group: Any) -> Any:
        wait(tensors[0])
        return tensors[0]

    with otel_rl.step(1):
        call(tensors, group)
        for waited in (tensors[0], late[1]):
            wait(waited)
        wrap(CollectiveHook(target="torch.distributed._functional_collectives:all_gather"), waits_inside)(
            tensors, group
        )
    assert [
        ("all_gather", "default_pg", 1, True, 24, 1),
        ("all_gather", "default_pg", 1, True, None, 1),
        ("all_gather", "default_pg", 2, None, 24, 1),
    ] == rows(recording)


def test_a_launch_that_was_journaled_as_open_becomes_a_span(recording: Recording) -> None:
    """Or its open record would stay for ever; what counts, and what ranks are compared by, is its wait alone."""
    state.identify(world_size=2)

    def slow(tensor: Any, async_op: bool = False) -> Work:
        recording.tick(1)
        assert otel_rl.flush()
        return Work(recording)

    launch = wrap(CollectiveHook(target="package:all_reduce"), slow)
    with otel_rl.step(1):
        with otel_rl.stage("train.backward"):
            wrap(CollectiveHook(target="package:Work.wait"), Work.wait)(launch(np.zeros(1), async_op=True))
        launch(np.zeros(1), async_op=True)
    run = recording.stop()
    spans = [span for span in run.spans() if span.name == vocabulary.COMM]
    (stage,) = (span for span in run.spans(None) if span.name == vocabulary.BACKWARD)
    (histogram,) = run.last_points(vocabulary.COMM_DURATION)
    (sent,) = run.last_points(vocabulary.COMM_IO)
    assert ([], 3, [False] * 2) == (run.open_stages(), len(spans), [shows_waits(one.attributes) for one in spans[:2]])
    assert ({vocabulary.COMM_COUNT: 1, vocabulary.COMM_TIME: 0.003}, 1, 8) == (
        stage.attributes,
        histogram.count,
        sent.value,
    )


@pytest.mark.parametrize(("backwards", "task", "expected"), [(1, 0, "backward"), (1, -1, ""), (2, 0, "")])
def test_a_thread_of_autograd_finds_its_backward(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, backwards: int, task: int, expected: str
) -> None:
    """Where there is but one; another thread without a stage belongs to the rank."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace(_current_graph_task_id=lambda: task)))
    with otel_rl.step(1) as container:
        opened = [Stage(vocabulary.BACKWARD).__enter__() for _ in range(backwards)]
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(Collective("barrier", 0).stage))
        thread.start()
        thread.join()
        for stage in reversed(opened):
            stage.__exit__(None, None, None)
    assert [opened[0] if expected else container] == found


def test_the_thread_that_writes_a_checkpoint_finds_it(recording: Recording) -> None:
    """It has no stage of its own: what it calls is in the asynchronous checkpoint, and not in the step."""
    with otel_rl.step(1) as container:
        found: list[Any] = []
        for is_async in (True, False):
            with Stage(vocabulary.CHECKPOINT, {vocabulary.CHECKPOINT_ASYNC: is_async}) as saved:
                thread = threading.Thread(target=lambda: found.append(Collective("barrier", 0).stage))
                thread.start()
                thread.join()
            found.append(saved)
    assert [found[1], found[1], container, found[3]] == found


def test_a_collective_on_another_thread_is_its_own(recording: Recording) -> None:
    """Being inside one is a matter of the thread."""
    state.identify(world_size=2)
    inner = hooked(lambda: None)

    def both() -> None:
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()

    with otel_rl.step(1):
        hooked(both)()
    run = recording.stop()
    assert 2 == run.last_points(vocabulary.COMM_DURATION)[0].count


def test_the_error_of_a_collective_passes_and_ends_it(recording: Recording) -> None:
    """The next one is recorded as ever."""
    state.identify(world_size=2)
    error = RuntimeError("timeout")

    def fail() -> None:
        raise error

    with otel_rl.step(1):
        for _ in range(2):
            with pytest.raises(RuntimeError) as caught:
                hooked(fail)()
            assert caught.value is error
    run = recording.stop()
    assert 2 == run.last_points(vocabulary.COMM_DURATION)[0].count
    assert {} == tracing.open


def test_a_collective_that_fails_is_a_span_with_its_error(recording: Recording) -> None:
    """However many longer ones its stage has: the report tells by it that another rank may be the cause."""
    state.identify(world_size=2)

    def fail(*_: object) -> None:
        raise ConnectionResetError("by peer")

    with otel_rl.step(1), otel_rl.stage("reward"):
        for _ in range(SPANS_PER_STAGE):
            hooked(functools.partial(recording.tick, 5))()
        for method in (False, True):
            failing = functools.partial(wrap_method("made:wait", None, fail), None) if method else hooked(fail)
            with pytest.raises(ConnectionResetError):
                failing()
    found = [span for span in recording.stop().spans(None) if span.status_code == 2]
    assert [(vocabulary.COMM, "ConnectionResetError")] * 2 == [
        (one.name, one.attributes["error.type"]) for one in found
    ]


def test_asynchronous_and_lonely_collectives_are_not_recorded(recording: Recording) -> None:
    """The first would be measured by its launch, the second waits for nobody; ``before`` hears of both."""
    heard = []
    call = hooked(lambda x=0, async_op=False: (x, async_op), before=lambda args, kwargs: heard.append(kwargs))
    with otel_rl.step(1):
        assert (1, False) == call(1)
        state.identify(world_size=2, rank=0)
        assert (2, True) == call(2, async_op=True)
    run = recording.stop()
    assert ([{}, {"async_op": True}], []) == (heard, run.last_points(vocabulary.COMM_DURATION))


def test_a_collective_is_a_span_where_it_must(recording: Recording) -> None:
    """It takes nobody's place as the current one, and keeps the id that it was given."""
    with otel_rl.step(1), otel_rl.stage("reward") as stage:
        collective = Collective("barrier", 5)
        recording.tick(1)
        collective.close()
        assert 0 == collective.span_id
        span = collective.as_span()
    assert (stage.trace_id, stage.span_id, span.span_id) == (
        span.trace_id,
        span.parent_id,
        collective.as_span().span_id,
    )
    assert (stage.start_ns, stage.end_ns) == (span.start_ns, span.end_ns)
    collective.stage = None
    assert (0, 0, 0, 0) == (span.trace_id, span.parent_id, span.start_ns, span.end_ns)
    assert collectives.SPANS_PER_STAGE == 32
    assert [] == [tree for tree in trees(recording.stop()) if tree.name.startswith("?")]
