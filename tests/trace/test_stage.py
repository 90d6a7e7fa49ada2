"""Tests of stages: what OpenTelemetry sees of them, and what of them ends up in the journal."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import os
import pickle
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode

import otel_rl
from otel_rl import guard, vocabulary
from otel_rl.probes.device import DeviceInUse
from otel_rl.probes.memory import UNREAD, Device, probes
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.trace import stage as spans
from otel_rl.trace import values
from otel_rl.trace.memory import tracing
from tests.fake_cuda import FakeCuda
from tests.fixtures import WALL_NS, Recording, Tree, described, trees

STEP = "rl.rank 0"


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A provider of the user's own, set before us."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def step_of(found: list[Tree]) -> Tree:
    """Find the container of the only step."""
    return next(tree for tree in found if tree.name == "rl.loop").below[0]


def proto_spans(recording: Recording) -> dict[str, Any]:
    """End the recording and read its spans as they are in the journal, by name."""
    requests = [ExportTraceServiceRequest.FromString(f.payload) for _, f in recording.stop().frames("traces")]
    return {
        span.name: span
        for request in requests
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    }


# --- trees ------------------------------------------------------------------------------------------------------------


def test_a_recording_is_a_tree_of_stages(recording: Recording) -> None:
    """Set-up, step and tear-down, with every time to the nanosecond."""
    recording.tick(7)
    with otel_rl.step(1):
        recording.tick(1)
        with otel_rl.stage("sample", batch_size=4):
            recording.tick(2)
            with otel_rl.stage("my tool"):
                recording.tick(3)
        with otel_rl.stage("reward"):
            recording.tick(4)
    assert [
        Tree("rl.setup", 0, 7, (Tree(STEP, 0, 7),)),
        Tree(
            "rl.loop",
            7,
            17,
            (
                Tree(
                    STEP,
                    7,
                    17,
                    (Tree("rl.sample", 8, 13, (Tree("my tool", 10, 13),)), Tree("rl.reward", 13, 17)),
                ),
            ),
        ),
        Tree("rl.teardown", 17, 17, (Tree(STEP, 17, 17),)),
    ] == recording.trees()


def test_a_stage_without_a_step_belongs_to_the_set_up(recording: Recording) -> None:
    """It is no orphan, and no trace of its own."""
    with otel_rl.stage("load"):
        recording.tick(5)
    assert [Tree("rl.setup", 0, 5, (Tree(STEP, 0, 5, (Tree("load", 0, 5),)),))] == recording.trees()


def test_nothing_is_recorded_without_instrument() -> None:
    """A stage is a no-op that takes everything a span takes."""
    with otel_rl.stage("reward", batch_size=1) as span:
        span.set_attribute("a", 1)
        span.add_event("event")
        span.record_exception(ValueError("x"))
        seen = trace.get_current_span()
    assert (False, trace.INVALID_SPAN, {}, 0) == (span.is_recording(), seen, tracing.open, len(state.queue))
    assert trace.INVALID_SPAN.get_span_context() == span.get_span_context()


def test_a_stage_that_is_open_when_recording_stops_is_left_alone(recording: Recording) -> None:
    """Its end does nothing, and what was current before it is current again."""
    with otel_rl.stage("reward"):
        recording.stop()
    assert (trace.INVALID_SPAN, 0) == (trace.get_current_span(), len(state.queue))


@pytest.mark.guarded
def test_a_stage_object_is_one_span(recording: Recording) -> None:
    """Opening it again is counted and records nothing, since two spans cannot share an object."""
    again = otel_rl.stage("reward")
    with otel_rl.step(1):
        for _ in range(3):
            with again:
                recording.tick(1)
    assert (Tree("rl.reward", 0, 1),) == step_of(recording.trees()).below
    assert {"open a stage a second time": 2} == guard.errors


# --- as a span of OpenTelemetry ---------------------------------------------------------------------------------------


def test_a_stage_is_current_while_it_is_open(recording: Recording) -> None:
    """Nested ones restore the one around them."""
    with otel_rl.step(1) as container:
        with otel_rl.stage("outer") as outer:
            with otel_rl.stage("inner") as inner:
                assert trace.get_current_span() is inner
            assert trace.get_current_span() is outer
        assert trace.get_current_span() is container
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_stage_below_an_unsampled_span_is_not_journaled(recording: Recording) -> None:
    """The decision of who began the trace holds."""
    context = trace.SpanContext(5, 6, is_remote=True, trace_flags=trace.TraceFlags(0))
    with trace.use_span(trace.NonRecordingSpan(context)), otel_rl.stage("reward") as reward:
        pass
    assert 0 == reward.get_span_context().trace_flags
    assert "rl.reward" not in recording.spans()


def test_what_propagates_is_the_spans_context(recording: Recording) -> None:
    """W3C headers made inside a stage name it."""
    from opentelemetry.propagate import inject

    headers: dict[str, str] = {}
    with otel_rl.step(1), otel_rl.stage("sample") as span:
        inject(headers)
    assert {"traceparent": f"00-{span.trace_id:032x}-{span.span_id:016x}-01"} == headers


def test_late_attributes_events_links_and_status_are_kept(recording: Recording) -> None:
    """Everything that a span takes while it is open is in the journal."""
    other = trace.SpanContext(7, 8, is_remote=False)
    with otel_rl.step(1), otel_rl.stage("reward", batch_size=4) as span:
        span.set_attribute("rl.tokens", 4096)
        span.set_attributes({"a": True, "b": [1.5, 2.5]})
        recording.tick(1)
        span.add_event("half", {"n": 1})
        span.add_event("early", timestamp=WALL_NS)
        span.add_link(other, {"why": "because"})
        span.set_status(Status(StatusCode.ERROR, "broke"))
        span.update_name("renamed")
    found = proto_spans(recording)["renamed"]
    attributes = {item.key: item.value for item in found.attributes}
    assert {"rl.batch_size", "rl.tokens", "a", "b"} == set(attributes)
    assert (4, 4096, True) == tuple(
        getattr(attributes[key], kind)
        for key, kind in (("rl.batch_size", "int_value"), ("rl.tokens", "int_value"), ("a", "bool_value"))
    )
    assert [1.5, 2.5] == [value.double_value for value in attributes["b"].array_value.values]
    assert [("half", WALL_NS + 1001 * 10**6), ("early", WALL_NS)] == [(e.name, e.time_unix_nano) for e in found.events]
    assert [((7).to_bytes(16, "big"), (8).to_bytes(8, "big"))] == [(x.trace_id, x.span_id) for x in found.links]
    assert (2, "broke") == (found.status.code, found.status.message)


@pytest.mark.parametrize("is_journaled", [False, True])
def test_what_is_set_on_a_stage_that_has_ended_is_ignored(recording: Recording, is_journaled: bool) -> None:
    """As OpenTelemetry wants it, whether or not its span was written meanwhile."""
    with otel_rl.step(1):
        with otel_rl.stage("reward") as span:
            pass
        if is_journaled:
            assert otel_rl.flush()
        span.set_attribute("late", 1)
        span.add_event("late")
        span.add_link(trace.SpanContext(7, 8, is_remote=False))
        span.set_status(StatusCode.ERROR, "late")
        span.update_name("late")
    found = proto_spans(recording)["rl.reward"]
    assert ([], [], [], 0) == (list(found.attributes), list(found.events), list(found.links), found.status.code)


def test_stages_below_one_that_was_never_opened_belong_to_the_step(recording: Recording) -> None:
    """It may be current all the same."""
    with otel_rl.step(1), trace.use_span(otel_rl.stage("never")), otel_rl.stage("child"):
        pass
    assert ["child"] == [stage.name for stage in step_of(recording.trees()).below]


@pytest.mark.parametrize(
    ("calls", "status"),
    [
        ([(StatusCode.OK, None)], (1, "")),
        ([(StatusCode.OK, "text")], (1, "")),
        ([(StatusCode.ERROR, "bad")], (2, "bad")),
        ([(StatusCode.ERROR, "bad"), (StatusCode.OK, None)], (1, "")),
        ([(StatusCode.OK, None), (StatusCode.ERROR, "bad")], (1, "")),
        ([(StatusCode.ERROR, "bad"), (StatusCode.UNSET, None)], (2, "bad")),
        ([(StatusCode.UNSET, None)], None),
        ([("nonsense", None)], None),
    ],
)
def test_the_last_status_counts_unless_one_was_ok(calls: list[Any], status: tuple[int, str] | None) -> None:
    """As OpenTelemetry has it: ok is final, unset is ignored."""
    span = otel_rl.stage("reward")
    for code, text in calls:
        span.set_status(code, text)
    assert status == span.status


def test_an_end_can_be_given(recording: Recording) -> None:
    """In the past it counts, before the begin or in the future it does not; a second end changes nothing."""
    ends = []
    with otel_rl.step(1):
        recording.tick(10)
        for end in (WALL_NS + 1012 * 10**6, WALL_NS + 1_000, WALL_NS + 10**15, -5, 1.5):
            span = otel_rl.stage("tool").__enter__()
            recording.tick(5)
            span.end(end)
            span.end(WALL_NS)
            ends.append((span.ended - span.began) / 1e6)
    assert [2.0, 0.0, 5.0, 0.0, 0.0] == ends


def test_use_span_of_the_api_works(recording: Recording) -> None:
    """OpenTelemetry's own way to hold a span ends a stage, too."""
    with otel_rl.step(1):
        span = otel_rl.stage("reward").__enter__()
        with trace.use_span(span, end_on_exit=True):
            recording.tick(3)
        assert not span.is_recording()
    assert (Tree("rl.reward", 0, 3),) == step_of(recording.trees()).below


# --- exceptions -------------------------------------------------------------------------------------------------------


class Odd(BaseException):
    """An exception that is no Exception."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("secret"), (2, "")),
        (KeyboardInterrupt(), (2, "")),
        (asyncio.CancelledError(), (2, "")),
        (MemoryError(), (2, "")),
        (Odd(), (2, "")),
        (StopIteration(3), None),
        (StopAsyncIteration(), None),
        (GeneratorExit(), None),
        (SystemExit(), None),
        (SystemExit(0), None),
        (SystemExit(3), (2, "")),
        (SystemExit("no data"), (2, "")),
    ],
)
def test_the_very_exception_passes_and_leaves_a_status(
    recording: Recording, error: BaseException, status: tuple[int, str] | None
) -> None:
    """What ends an iterator, or a program with success, is no error; the text of the others stays out."""
    with otel_rl.step(1), pytest.raises(type(error)) as caught, otel_rl.stage("reward") as span:
        raise error
    assert caught.value is error
    assert status == span.status
    expected = {} if status is None else {vocabulary.ERROR_TYPE: type(error).__qualname__}
    assert expected == described(span.attributes or {})
    assert "secret" not in str(span.events)


def test_the_text_of_an_exception_is_recorded_when_asked_for(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_RL_CAPTURE_CONTENT brings message and traceback."""
    monkeypatch.setenv("OTEL_RL_CAPTURE_CONTENT", "true")
    stubbed.start()
    with pytest.raises(ValueError, match="secret"), otel_rl.step(1), otel_rl.stage("reward") as span:
        raise ValueError("secret")
    assert (2, "secret") == span.status
    values = span.events[0].attributes
    assert ("ValueError", "secret") == (values["exception.type"], values["exception.message"])
    assert "trace/test_stage.py" in values["exception.stacktrace"]


class Speechless(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.guarded
def test_an_exception_without_a_text_is_one_all_the_same(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host gets its exception, the span its status, and the step is closed."""
    monkeypatch.setenv("OTEL_RL_CAPTURE_CONTENT", "true")
    stubbed.start()
    error = Speechless()
    with pytest.raises(Speechless) as caught, otel_rl.step(1), otel_rl.stage("reward") as span:
        raise error
    assert caught.value is error
    assert ((2, ""), None, {}) == (span.status, tracing.container, tracing.open)


def test_an_exception_closes_every_open_stage(recording: Recording) -> None:
    """From the inside out, each with its status, and the step with them."""
    with pytest.raises(ValueError), otel_rl.step(1), otel_rl.stage("sample"), otel_rl.stage("tool"):
        recording.tick(2)
        raise ValueError
    found = list(recording.stop().spans())
    step = next(span.trace_id for span in found if span.name == "rl.loop")
    codes = {span.name: span.status_code for span in found if span.trace_id == step}
    assert {"rl.loop": 2, STEP: 2, "rl.sample": 2, "tool": 2} == codes


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


def test_out_of_memory_says_what_every_open_stage_held(recording: Recording) -> None:
    """One log record for each open stage, once for each error, with its tokens and its memory."""
    probes.device, probes.read_device = DeviceInUse(FakeCuda()), lambda index: Device(30, 40, 50, 60)
    with pytest.raises(OutOfMemoryError), otel_rl.step(1), otel_rl.stage("sample", tokens=7):
        recording.tick(2)
        raise OutOfMemoryError
    logs = [log for log in recording.stop().logs(vocabulary.OUT_OF_MEMORY)]
    assert {"rl.loop", STEP, "rl.sample"} == {log.body for log in logs}
    sample = next(log for log in logs if log.body == "rl.sample")
    wanted = (vocabulary.TOKENS, vocabulary.ALLOCATED_END, vocabulary.STAGE)
    assert (7, 30, "rl.sample", 17) == (*(sample.attributes[key] for key in wanted), sample.severity)
    assert 3 == len(logs)


def test_out_of_memory_on_another_thread_says_what_stages_hold(recording: Recording) -> None:
    """Of the device that each began on: of a thread another one is current."""
    cuda = FakeCuda()
    probes.device = DeviceInUse(cuda)
    probes.read_device = lambda index: Device(0, 0, 0, 0) if index is None else Device(70, 80, 75, 80, device=index)
    with otel_rl.step(1), spans.Stage("rl.train") as around:
        around.before = (b"", Device(1, 2, 3, 4, device=3))

        def fail() -> None:
            with pytest.raises(OutOfMemoryError), otel_rl.stage("save"):
                raise OutOfMemoryError

        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    told = {
        log.body: log.attributes[vocabulary.ALLOCATED_END] for log in recording.stop().logs(vocabulary.OUT_OF_MEMORY)
    }
    assert 70 == told["rl.train"]


# --- decorator --------------------------------------------------------------------------------------------------------


def test_a_decorated_function_is_a_stage_at_every_call(recording: Recording) -> None:
    """With attributes of its own each time, and with the function's name, result and signature."""

    @otel_rl.stage("reward", batch_size=2)
    def score(x: int, *, y: int = 1) -> int:
        """Add."""
        spans.current_stage().set_attribute("x", x)
        recording.tick(1)
        return x + y

    with otel_rl.step(1):
        assert (3, 9) == (score(2), score(4, y=5))
    assert ("score", "Add.") == (score.__name__, score.__doc__)
    found = [dict(s.attributes) for s in recording.stop().spans(None) if s.name == "rl.reward"]
    assert [{"rl.batch_size": 2, "x": 2}, {"rl.batch_size": 2, "x": 4}] == sorted(found, key=lambda a: a["x"])


def test_a_decorated_coroutine_function_stays_one(recording: Recording) -> None:
    """The stage lasts as long as the coroutine, not as long as its making."""

    @otel_rl.stage("reward")
    async def score() -> int:
        recording.tick(2)
        await asyncio.sleep(0)
        recording.tick(2)
        return 5

    assert asyncio.iscoroutinefunction(score)
    with otel_rl.step(1):
        assert 5 == asyncio.run(score())
    assert (Tree("rl.reward", 0, 4),) == step_of(recording.trees()).below


def test_an_object_that_is_called_like_a_coroutine_function_is_one(recording: Recording) -> None:
    """As judges are that keep a client."""

    class Judge:
        async def __call__(self, text: str) -> int:
            await asyncio.sleep(0)
            recording.tick(4)
            return len(text)

    score = otel_rl.stage("reward")(Judge())
    with otel_rl.step(1):
        assert 3 == asyncio.run(score("abc"))
    assert (Tree("rl.reward", 0, 4),) == step_of(recording.trees()).below


def test_generators_are_refused_with_a_reason() -> None:
    """The stage would end before the first value."""

    class Called:
        def __call__(self) -> Iterator[int]:
            yield 1

    def plain() -> Iterator[int]:
        yield 1

    async def awaited() -> Any:
        yield 1

    for function in (plain, awaited, Called()):
        with pytest.raises(TypeError, match=r"cannot decorate the generator .*: open the stage inside it"):
            otel_rl.stage("reward")(function)


def test_a_decorated_function_needs_no_recording() -> None:
    """Before instrument() it is the function."""

    @otel_rl.stage("reward")
    def score() -> int:
        return 1

    assert 1 == score()


def test_the_exception_of_a_decorated_function_is_the_same(recording: Recording) -> None:
    """Sync and async."""
    error = KeyError("x")

    @otel_rl.stage("a")
    def fails() -> None:
        raise error

    @otel_rl.stage("b")
    async def fails_later() -> None:
        raise error

    for call in (fails, lambda: asyncio.run(fails_later())):
        with pytest.raises(KeyError) as caught:
            call()
        assert caught.value is error


# --- threads and tasks ------------------------------------------------------------------------------------------------


def test_a_thread_has_the_step_as_parent(recording: Recording) -> None:
    """Also one that was started without our context."""

    def work() -> None:
        with otel_rl.stage("reward"), otel_rl.stage("inner"):
            pass

    with otel_rl.step(1):
        thread = threading.Thread(target=work)
        with otel_rl.stage("sample"):
            thread.start()
            thread.join()
    below = step_of(recording.trees()).below
    assert {Tree("rl.sample", 0, 0), Tree("rl.reward", 0, 0, (Tree("inner", 0, 0),))} == set(below)


def test_overlapping_tasks_have_stages_of_their_own(recording: Recording) -> None:
    """Each below the stage that gathered them, none below the other."""
    turn = asyncio.Event

    async def score(name: str, mine: asyncio.Event, other: asyncio.Event) -> None:
        with otel_rl.stage(name):
            recording.tick(1)
            other.set()
            await mine.wait()
            with otel_rl.stage(f"{name} inner"):
                recording.tick(1)
            other.set()

    async def both() -> None:
        first, second = turn(), turn()
        with otel_rl.stage("reward"):
            await asyncio.gather(score("a", first, second), score("b", second, first))

    with otel_rl.step(1):
        asyncio.run(both())
    expected = Tree(
        "rl.reward",
        0,
        4,
        (Tree("a", 0, 4, (Tree("a inner", 3, 4),)), Tree("b", 1, 3, (Tree("b inner", 2, 3),))),
    )
    assert (expected,) == step_of(recording.trees()).below


def test_a_stage_may_end_in_another_task(recording: Recording) -> None:
    """It is recorded with its true end; only the context of where it began cannot be restored from there."""

    async def close(span: Any) -> None:
        recording.tick(3)
        span.__exit__(None, None, None)

    async def main() -> None:
        span = otel_rl.stage("reward").__enter__()
        await asyncio.get_running_loop().create_task(close(span))

    with otel_rl.step(1):
        asyncio.run(main())
    assert (Tree("rl.reward", 0, 3),) == step_of(recording.trees()).below


# --- generators -------------------------------------------------------------------------------------------------------


def rollout(number: int) -> Generator[int]:
    """Yield while a stage is open."""
    with otel_rl.stage("rollout"):
        yield from range(number)


def aside(call: Callable[[], object]) -> None:
    """Call something on another thread."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "end", [lambda items: items.close(), lambda items: aside(items.close), lambda items: aside(lambda: [*items])]
)
@pytest.mark.parametrize("is_inside", [True, False])
def test_nothing_is_below_the_stage_of_a_generator_that_is_over(
    recording: Recording, end: Any, is_inside: bool
) -> None:
    """Wherever it ends, and whether or not the stage around it has ended before: what is around that goes on."""
    with otel_rl.step(1), otel_rl.stage("epoch") as epoch:
        with otel_rl.stage("load"):
            items = rollout(3)
            next(items)
            recording.tick(1)
            if is_inside:
                end(items)
        if not is_inside:
            recording.tick(2)
            end(items)
        assert epoch is spans.current_stage()
        with otel_rl.stage("learn"):
            recording.tick(4)
    load = Tree("load", 0, 1, (Tree("rollout", 0, 1 if is_inside else 3),))
    begin = 1 if is_inside else 3
    assert (Tree("epoch", 0, begin + 4, (load, Tree("learn", begin, begin + 4))),) == step_of(recording.trees()).below


def test_a_generator_that_spans_steps_leaves_nothing_in_the_step_in_which_it_began(recording: Recording) -> None:
    """What follows its end belongs to the step that is open then."""
    with otel_rl.step(1), otel_rl.stage("load"):
        items = rollout(3)
        next(items)
    recording.tick(1)
    with otel_rl.step(2) as container:
        items.close()
        assert container is spans.current_stage()
        with otel_rl.stage("learn"):
            pass
    first, second = [tree.below[0] for tree in recording.trees() if tree.name == "rl.loop"]
    assert (["load"], ["learn"]) == ([one.name for one in first.below], [one.name for one in second.below])


def test_an_asynchronous_generator_may_end_in_another_task(recording: Recording) -> None:
    """As those do that a loop leaves early: the event loop closes them in a task of its own."""

    async def rollouts() -> AsyncGenerator[int]:
        with otel_rl.stage("rollout"):
            yield 1

    async def main() -> None:
        async for _ in rollouts():
            break
        items = rollouts()
        await anext(items)
        await asyncio.create_task(items.aclose())
        with otel_rl.stage("learn"):
            pass

    with otel_rl.step(1):
        asyncio.run(main())
    assert {"rollout", "learn"} == {tree.name for tree in step_of(recording.trees()).below}


@pytest.mark.medium
def test_many_threads_lose_nothing(recording: Recording) -> None:
    """The flusher works while eight threads record; every span arrives with its own parent."""

    def work(number: int) -> None:
        for i in range(200):
            with otel_rl.stage(f"outer {number} {i}"), otel_rl.stage(f"inner {number} {i}"):
                pass

    with otel_rl.step(1):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert otel_rl.flush()
        for thread in threads:
            thread.join()
    found = step_of(trees(recording.stop()))
    expected = {f"outer {number} {i}": f"inner {number} {i}" for number in range(8) for i in range(200)}
    assert expected == {outer.name: outer.below[0].name for outer in found.below}


# --- memory -----------------------------------------------------------------------------------------------------------


def test_memory_is_read_at_both_ends(recording: Recording) -> None:
    """A stage longer than ten milliseconds has its own readings; the peak is exact only where the stage raised it."""
    host = iter([(b"10 5 0", None), (b"20 8 0", None)])
    device = iter([Device(1, 100, 2, 200), Device(3, 100, 4, 300)])
    with otel_rl.step(1):
        recording.tick(11)
        probes.read_memory = lambda: next(host)
        probes.device, probes.read_device = DeviceInUse(FakeCuda()), lambda index: next(device)
        with otel_rl.stage("sample"):
            recording.tick(11)
        probes.device, probes.read_memory = None, lambda: UNREAD
    found = recording.spans()["rl.sample"].attributes
    page = os.sysconf("SC_PAGE_SIZE")
    assert {
        vocabulary.VMS_START: 10 * page,
        vocabulary.VMS_END: 20 * page,
        vocabulary.RSS_START: 5 * page,
        vocabulary.RSS_END: 8 * page,
        vocabulary.ALLOCATED_START: 1,
        vocabulary.ALLOCATED_END: 3,
        vocabulary.ALLOCATED_PEAK: 3,
        vocabulary.ALLOCATED_PEAK_EXACT: False,
        vocabulary.RESERVED_START: 2,
        vocabulary.RESERVED_END: 4,
        vocabulary.RESERVED_PEAK: 300,
        vocabulary.RESERVED_PEAK_EXACT: True,
    } == found


def test_a_short_stage_does_not_read_memory(recording: Recording) -> None:
    """The reading of a moment ago serves."""
    count = 0

    def read() -> tuple[bytes, None]:
        nonlocal count
        count += 1
        return UNREAD

    probes.read_memory = read
    with otel_rl.step(1):
        before = count
        for _ in range(50):
            with otel_rl.stage("tool"):
                pass
        assert before == count


def test_a_short_stage_of_an_integration_says_what_was_read_a_moment_ago(recording: Recording) -> None:
    """At both ends the same; a short stage of a user's says nothing."""
    with otel_rl.step(1):
        recording.tick(11)
        probes.read_memory = lambda: (b"10 5 0", None)
        with spans.Stage("rl.sample", coarse=True):
            pass
        with spans.Stage("rl.train.forward", coarse=True), otel_rl.stage("reward"):
            recording.tick(2)
        probes.read_memory = lambda: UNREAD
    found = recording.spans()
    page = os.sysconf("SC_PAGE_SIZE")
    expected = {
        vocabulary.VMS_START: 10 * page,
        vocabulary.VMS_END: 10 * page,
        vocabulary.RSS_START: 5 * page,
        vocabulary.RSS_END: 5 * page,
    }
    assert (expected, expected, {}) == tuple(
        found[name].attributes for name in ("rl.sample", "rl.train.forward", "rl.reward")
    )


# --- the keyword form -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("reward", "rl.reward"),
        ("train.forward", "rl.train.forward"),
        ("rl.reward", "rl.reward"),
        ("my own", "my own"),
        ("", "unnamed"),
        ("\ud800", "\ud800"),
        (5, "5"),
        (None, "unnamed"),
    ],
)
def test_short_names_of_the_vocabulary_are_completed(name: Any, expected: str) -> None:
    """A name that is not in it stays; what is no name does not raise."""
    assert expected == otel_rl.stage(name).name


def test_keywords_become_attributes() -> None:
    """``k`` is ``rl.k``, a whole name stays; None says nothing."""
    span = otel_rl.stage("reward", batch_size=4, tokens=None, name="x")
    assert {"rl.batch_size": 4, "rl.name": "x"} == span.attributes
    assert {} == otel_rl.stage("reward", tokens=None).attributes
    assert {"rl.tokens.response": 7} == otel_rl.stage("sample", **{"rl.tokens.response": 7}).attributes


def test_keys_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that make up keywords do not fill the memory."""
    monkeypatch.setattr(values, "MAX_KEYS", 3)
    monkeypatch.setattr(spans, "KEYS", values.Keys())
    for i in range(10):
        assert {f"rl.k{i}": 1} == otel_rl.stage("x", **{f"k{i}": 1}).attributes
    assert 3 == len(spans.KEYS)


# --- hostile arguments ------------------------------------------------------------------------------------------------


class Unreadable:
    """Nothing about it can be read."""

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __bool__ = __hash__ = __len__ = __str__  # type: ignore[assignment]


@pytest.mark.guarded
def test_hostile_arguments_do_not_raise(recording: Recording) -> None:
    """No method of a span raises into the host, whatever it is given."""
    odd: Any = Unreadable()
    with otel_rl.step(1), otel_rl.stage(odd) as span:
        span.set_attribute(odd, odd)
        span.set_attribute("a", odd)
        span.set_attribute(None, 1)
        span.set_attribute("", 1)
        span.set_attribute(5, 1)
        span.set_attributes(odd)
        span.set_attributes(None)
        span.set_attributes([("a", 1)])
        span.add_event(odd, odd)
        span.add_event("e", {"k": odd})
        span.add_event("e", {5: 1, "": 2, None: 3}, "noon")
        span.add_link(odd)
        span.add_link(None)
        span.record_exception(odd)
        span.set_status(odd)
        span.update_name(odd)
        span.update_name("named")
        span.end(odd)
    found = recording.spans()["named"]
    assert {"a": "<Unreadable>", "5": 1} == found.attributes


def test_the_no_stage_of_compiled_regions_takes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """While torch.compile traces, a stage is an object without an effect."""
    monkeypatch.setattr(hooking, "is_compiling", lambda: True)
    with otel_rl.stage("reward", tokens=1) as span:
        span.set_attribute("a", 1)
        span.set_attributes({"a": 1})
    assert 5 == spans.Stage("reward")(lambda: 5)()


# --- compiled regions -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("instrumented", [False, True])
def test_a_stage_inside_a_compiled_region_compiles(stubbed: Recording, instrumented: bool) -> None:
    """Whole graphs, no break, right result; as a block, as a decorator, and around a hooked function."""
    torch = pytest.importorskip("torch")
    from otel_rl.hooks import StageHook
    from otel_rl.hooks.hook import wrap

    if instrumented:
        stubbed.start("torch")
    torch.compiler.reset()
    target = SimpleNamespace(double=wrap(StageHook(target="x:double", stage="rl.sample"), lambda x: x * 2))

    @otel_rl.stage("advantage")
    def decorated(x: Any) -> Any:
        return x - 1

    def block(x: Any) -> Any:
        with otel_rl.stage("reward", tokens=3) as span:
            span.set_attribute("a", 1)
            y = torch.sin(x) + 1
        return y

    def everything(x: Any) -> Any:
        return decorated(target.double(block(x)))

    compiled = torch.compile(everything, fullgraph=True, backend="eager")
    x = torch.arange(4.0)
    with otel_rl.step(1):
        assert torch.equal((torch.sin(x) + 1) * 2 - 1, compiled(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["stage", "decorator", "step", "record", "request", "observe"])
@pytest.mark.parametrize("instrumented", [False, True])
def test_what_a_program_calls_inside_a_compiled_region_breaks_no_graph(
    stubbed: Recording, instrumented: bool, name: str
) -> None:
    """Neither at the first call nor at later ones, when more has been recorded; whether or not anything is."""
    torch = pytest.importorskip("torch")
    if instrumented:
        stubbed.start("torch")
    torch.compiler.reset()

    def block(x: Any) -> Any:
        with otel_rl.stage("reward", tokens=3) as span:
            span.set_attribute("a", 1)
            span.add_event("e", {"a": 1})
            span.add_link(trace.INVALID_SPAN_CONTEXT)
            span.record_exception(ValueError())
            span.set_status(trace.StatusCode.OK)
            span.update_name("r")
            span.end()
            assert not span.is_recording()
            assert not span.get_span_context().is_valid
            return x * 2

    def step(x: Any) -> Any:
        with otel_rl.step(100):
            return x * 2

    def record(x: Any) -> Any:
        otel_rl.record("mine", 0.5)
        return x * 2

    def request(x: Any) -> Any:
        otel_rl.request("mine", submitted=1.0, ended=2.0)
        return x * 2

    def observe(x: Any) -> Any:
        otel_rl.observe(batch={"input_ids": x})
        return x * 2

    functions = {"stage": block, "decorator": otel_rl.stage("reward")(lambda x: x * 2), "step": step}
    functions |= {"record": record, "request": request, "observe": observe}
    compiled = torch.compile(functions[name], fullgraph=True, backend="eager")
    for number in range(10):
        with otel_rl.step(number), otel_rl.stage("train"):
            assert [2.0, 2.0] == compiled(torch.ones(2)).tolist()
    if instrumented:
        run = stubbed.stop()
        names = [span.name for span in run.spans()]
        found = [names.count(one) for one in (vocabulary.LOOP, vocabulary.TRAIN, vocabulary.REWARD)]
        assert ([10, 10, 0], []) == (found, list(run.points("mine")))


def test_a_decorator_without_a_name_is_an_error_that_says_so() -> None:
    """It would replace the function by one that never calls it."""
    with pytest.raises(TypeError, match=r'write @otel_rl.stage\("reward"\)'):
        otel_rl.stage(len)  # type: ignore[arg-type]


def test_an_error_that_was_handled_is_not_kept_alive(recording: Recording) -> None:
    """An out-of-memory error holds every tensor of its frames: logged, it must be free to go."""

    class OutOfMemoryError(RuntimeError):
        """Known by its name, as torch's is."""

    alive = []
    with otel_rl.step(1):
        for _ in range(2):
            with contextlib.suppress(OutOfMemoryError), otel_rl.stage("forward"):
                error = OutOfMemoryError()
                alive.append(weakref.ref(error))
                raise error
            del error
    gc.collect()
    assert [None, None] == [reference() for reference in alive]
    assert 6 == len(list(recording.stop().logs(vocabulary.OUT_OF_MEMORY)))


def test_without_instrument_an_error_leaves_no_mark_on_a_stage() -> None:
    """A stage that was never opened takes nothing."""
    span = otel_rl.stage("reward")
    with contextlib.suppress(ValueError), span:
        raise ValueError("text")
    assert (None, None, None) == (span.status, span.events, span.attributes)


@pytest.mark.parametrize(("captured", "expected"), [(False, ""), (True, "ValueError: a prompt")])
def test_the_text_of_an_exception_is_no_description(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, captured: bool, expected: str
) -> None:
    """OpenTelemetry's use_span writes it there."""
    monkeypatch.setattr(state, "config", replace(state.config, capture_content=captured))
    with otel_rl.step(1), otel_rl.stage("reward") as span:
        current = trace.use_span(span, record_exception=False)
        with contextlib.suppress(ValueError), current:
            raise ValueError("a prompt")
    assert (2, expected) == span.status


@pytest.mark.guarded
def test_a_stage_that_collects_without_end_is_bounded(recording: Recording) -> None:
    """Attributes, events and links of an open stage have a limit."""
    with otel_rl.step(1), otel_rl.stage("tool") as span:
        for number in range(3000):
            span.set_attribute(f"k{number}", number)
            span.add_event("e")
            span.add_link(span.get_span_context())
        assert (1024, 1024, 1024) == (len(span.attributes), len(span.events), len(span.links))


def test_a_copy_of_an_open_stage_is_a_new_one(recording: Recording) -> None:
    """A model that holds a stage can be copied and pickled while it is open."""
    with otel_rl.step(1), otel_rl.stage("tool") as span:
        copies = [copy.deepcopy(span), pickle.loads(pickle.dumps(span))]
    assert [("tool", False)] * 2 == [(found.name, found.is_recording()) for found in copies]
