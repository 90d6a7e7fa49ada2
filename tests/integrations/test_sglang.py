"""SGLang: the rows of requests, from a tokenizer manager shaped as those of 0.4.10, 0.5.4 and 0.5.23 are.

SGLang itself needs a GPU; ``tests/wheels`` looks whether what is hooked exists in its published versions.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from time import monotonic, monotonic_ns, time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import otel_rl
from otel_rl.hooks.install import wrap
from otel_rl.integrations import sglang
from otel_rl.requests.queue import UNKNOWN, Request
from tests.integrations.openai_calls import Notes, keep

(HOOK,) = sglang.HOOKS
S = 1_000_000_000

OLD = {"id": "a", "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 5, "completion_tokens": 3,
       "cached_tokens": 4, "e2e_latency": 0.25}  # fmt: skip
"""0.4.10; 0.5.4 adds ``weight_version``."""
NEW = {**OLD, "reasoning_tokens": 0, "weight_version": "7", "num_retractions": 2, "dp_rank": 1}
"""0.5.23."""


class Input:
    """What SGLang's GenerateReqInput is once it is normalized."""

    def __init__(
        self, *, prompts: int = 1, n: int = 1, stream: bool = False, rid: Any = "a", **parameters: Any
    ) -> None:
        self.rid = rid
        self.stream = stream
        self.sampling_params = {"max_new_tokens": 9, "n": n}
        self.batch_size = prompts
        self.parallel_sample_num = n


class Manager:
    """What is used of SGLang's TokenizerManager."""

    served_model_name = "/models/tiny"

    def __init__(self, *outputs: Any) -> None:
        self.outputs = outputs

    async def generate_request(self, obj: Any, request: Any = None) -> AsyncGenerator[Any, None]:
        for output in self.outputs:
            await asyncio.sleep(0)
            if isinstance(output, BaseException):
                raise output
            yield output


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notes]:
    """Record, and take the rows before the flusher does."""
    notes = Notes()
    monkeypatch.setattr(sglang, "record_requests", notes)
    monkeypatch.setattr(Manager, "generate_request", wrap(HOOK, Manager.generate_request))
    otel_rl.instrument([])
    yield notes
    otel_rl.uninstrument()


@pytest.fixture
def offset(monkeypatch: pytest.MonkeyPatch) -> float:
    """Stand for SGLang's own conversion of times; a clock that was set since shows in nothing."""
    module = ModuleType(sglang.TIMES)
    module.global_diff_realtime_monotonic = offset = time() - monotonic() - 100.0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, sglang.TIMES, module)
    return offset


class Refusal(ValueError):
    """An error that can be watched."""


def out(**told: Any) -> dict[str, Any]:
    """Give one output."""
    return {"text": "a b", "output_ids": [1, 2], "meta_info": {**NEW, **told}}


def read(*outputs: Any, obj: Any = None, manager: Manager | None = None) -> list[Any]:
    """Wait for everything, as ``Engine.generate`` does where it streams."""

    async def wait() -> list[Any]:
        return [item async for item in (manager or Manager(*outputs)).generate_request(obj or Input())]

    return asyncio.run(wait())


def first(*outputs: Any, obj: Any = None) -> Any:
    """Wait for the first output and forget the generator, as ``Engine.generate`` and verl do."""

    async def wait() -> Any:
        return await Manager(*outputs).generate_request(obj or Input()).__anext__()

    return asyncio.run(wait())


def row(**fields: Any) -> Request:
    """Give what most rows of these tests have in common."""
    common = {"engine": "sglang", "submitted": 0, "ended": 0, "streamed": True, "model": "tiny", "limit": 9, "id": "a"}
    counts = {"input_tokens": 5, "output_tokens": 3, "cached_tokens": 4, "finish": "stop"}
    newer = {"preemptions": 2, "policy_end": 7, "replica": "1"}
    return Request(**{**common, **counts, **newer, **fields})  # type: ignore[arg-type]


def untimed(notes: Notes, *, sample: str = "") -> list[Request]:
    """Give the rows without times and samples."""
    return [found._replace(submitted=0, ended=0, sample=sample) for found in notes.rows]


# --- one sequence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (OLD, row(preemptions=UNKNOWN, policy_end=UNKNOWN, replica="")),
        ({**OLD, "weight_version": "default"}, row(preemptions=UNKNOWN, policy_end=UNKNOWN, replica="")),
        (NEW, row()),
        ({**NEW, "finish_reason": {"type": "length", "length": 9}}, row(finish="length")),
        (
            {**NEW, "weight_versions": [{"version": "5", "end": 2}, {"version": "6", "end": 3}]},
            row(policy_start=5, policy_end=6),
        ),
        (
            {**NEW, "weight_versions": [{"version": "default", "end": 3}]},
            row(policy_start=UNKNOWN, policy_end=UNKNOWN),
        ),
        (
            {"id": "a", "finish_reason": {"type": "abort", "message": "Abort before prefill"}},
            row(finish="abort", input_tokens=UNKNOWN, output_tokens=UNKNOWN, cached_tokens=UNKNOWN,
                preemptions=UNKNOWN, policy_end=UNKNOWN, replica=""),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("wait", [read, first])
def test_a_request_is_one_row(notes: Notes, wait: Callable[..., Any], told: dict[str, Any], expected: Request) -> None:
    """By what its version tells; when its tokens came is unknown, and how long it took is SGLang's own word."""
    output = {"text": "a", "meta_info": told}
    before = monotonic_ns()
    got = wait(output)
    after = monotonic_ns()
    assert (output, told) == (got if wait is first else got[0], output["meta_info"])
    assert [expected] == untimed(notes)
    (found,) = notes.rows
    assert before <= found.submitted <= found.ended <= after
    assert (0, 0, 0) == (found.scheduled, found.first_token, found.last_token)


def test_with_metrics_the_scheduler_tells_when_the_first_token_came(notes: Notes, offset: float) -> None:
    """Its wall times are turned back into the monotonic ones that they were made of."""
    now = monotonic()
    times = {
        "request_received_ts": now - 2.0 + offset, "forward_entry_time": now - 1.5 + offset,
        "prefill_finished_time": now - 1.25 + offset, "queue_time": 0.5, "e2e_latency": 1.75,
    }  # fmt: skip
    first(out(**times))
    (found,) = notes.rows
    expected = [round((now - seconds) * 1e6) for seconds in (2.0, 1.5, 1.25, 0.25, 0.25)]
    named = (found.submitted, found.scheduled, found.first_token, found.last_token, found.ended)
    assert expected == pytest.approx([ns / 1000 for ns in named], abs=5.0)


def test_a_false_first_token_is_no_first_token(notes: Notes, offset: float) -> None:
    """The tokenizer manager's own latency is that of the 50th token; AReaL's ``ttft`` is that of the whole request."""
    first(out(first_token_latency=0.1, ttft=0.25, e2e_latency=0.25, itl=[]))
    assert (0, 0) == (notes.rows[0].first_token, notes.rows[0].last_token)


def test_who_streams_sees_the_first_token(notes: Notes) -> None:
    """Not an output that holds none yet."""
    got: list[int] = []

    async def wait() -> None:
        parts = [out(finish_reason=None, completion_tokens=count) for count in (0, 1, 2)]
        async for _ in Manager(*parts, out()).generate_request(Input(stream=True)):
            got.append(monotonic_ns())

    asyncio.run(wait())
    (found,) = notes.rows
    assert got[0] <= found.first_token <= got[1]
    assert got[2] <= found.last_token == found.ended <= got[3]
    assert [row(first_token=found.first_token, last_token=found.last_token)] == untimed(notes)


# --- several ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_submitted_in_bulk(notes: Notes) -> None:
    """Two prompts of two sequences each; every sequence has its own end, although they come together."""
    first([out(id=str(i), e2e_latency=float(i) / 1e6) for i in range(4)], obj=Input(prompts=2, n=2, rid=list("abcd")))
    assert [row(id=str(i), streamed=False) for i in range(4)] == untimed(notes)
    samples = [found.sample for found in notes.rows]
    assert [samples[0], samples[0], samples[2], samples[2]] == samples
    assert 2 == len(set(samples))
    assert [0, 1_000, 2_000, 3_000] == [found.ended - found.submitted for found in notes.rows]


def test_a_streamed_batch_ends_one_by_one(notes: Notes) -> None:
    """SGLang says to which prompt an output belongs."""
    outputs = [
        {**out(id="y", finish_reason=None), "index": 1},
        {**out(id="x", finish_reason=None), "index": 0},
        {**out(id="x"), "index": 0},
        {**out(id="y"), "index": 1},
    ]
    read(*outputs, obj=Input(prompts=2, stream=True, rid=["x", "y"]))
    x, y = notes.rows
    assert ("x", "y", False) == (x.id, y.id, x.sample == y.sample)
    assert y.first_token < x.first_token < x.last_token < y.last_token


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "finish", "name"),
    [
        (ValueError("too long"), "error", "ValueError"),
        (TimeoutError(), "timeout", "TimeoutError"),
        (asyncio.CancelledError(), "abort", ""),
    ],
)
@pytest.mark.parametrize(("obj", "number"), [(Input(), 1), (Input(prompts=2, n=2, rid=list("abcd")), 4)])
def test_an_error_is_the_callers(
    notes: Notes, error: BaseException, finish: str, name: str, obj: Input, number: int
) -> None:
    """Every sequence that was asked for failed."""
    with pytest.raises(type(error)) as caught:
        read(error, obj=obj)
    assert caught.value is error
    assert [(finish, name)] * number == [(found.finish, found.error) for found in notes.rows]


def test_an_error_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what its frames hold, until the flusher reads."""
    kept: list[Any] = []
    monkeypatch.setattr(sglang, "record_requests", keep(kept))
    try:
        read(Refusal())
    except Refusal as error:
        gone = weakref.ref(error)
    gc.collect()
    assert (1, None) == (len(kept), gone())


def test_what_was_over_is_not_lost_with_the_others(notes: Notes) -> None:
    """Of two sequences one had ended."""
    with pytest.raises(ValueError):
        read({**out(id="x"), "index": 0}, ValueError(), obj=Input(n=2, stream=True, rid=["x", "y"]))
    assert [("x", "stop"), ("", "error")] == [(found.id, found.finish) for found in notes.rows]


def test_a_refused_request_is_an_error(notes: Notes) -> None:
    """SGLang raises before it has counted its prompts."""
    refused = SimpleNamespace(rid=None, stream=False, sampling_params=None, text=None)
    with pytest.raises(ValueError):
        read(ValueError("no prompt"), obj=refused)
    assert [("error", UNKNOWN)] == [(found.finish, found.limit) for found in notes.rows]


def test_a_caller_that_leaves_aborts(notes: Notes) -> None:
    """In the middle of a stream."""

    async def leave() -> None:
        stream = Manager(out(finish_reason=None), out()).generate_request(Input(stream=True))
        await stream.__anext__()
        await stream.aclose()

    asyncio.run(leave())
    assert [("a", "abort", "")] == [(found.id, found.finish, found.error) for found in notes.rows]


@pytest.mark.parametrize(
    ("error", "finish", "name"),
    [
        (asyncio.CancelledError(), "abort", ""),
        (TimeoutError(), "timeout", "TimeoutError"),
        (Refusal(), "error", "Refusal"),
    ],
)
def test_what_was_seen_of_a_stream_that_is_cut_stays(
    notes: Notes, error: BaseException, finish: str, name: str
) -> None:
    """Its first token, and the tokens so far, by its last output; its last token is unknown."""
    got: list[int] = []
    parts = [out(finish_reason=None, completion_tokens=count) for count in (0, 1, 2)]

    async def wait() -> None:
        async for _ in Manager(*parts, error).generate_request(Input(stream=True)):
            got.append(monotonic_ns())

    with pytest.raises(type(error)):
        asyncio.run(wait())
    (found,) = notes.rows
    assert got[0] <= found.first_token <= got[1] < got[2] <= found.ended
    assert [row(output_tokens=2, first_token=found.first_token, finish=finish, error=name)] == untimed(notes)


def test_of_a_batch_that_is_cut_all_are_told(notes: Notes) -> None:
    """One was over, one is named by what was seen of it, of two nothing came."""
    outputs = [
        {**out(id="x", finish_reason=None, completion_tokens=1), "index": 0},
        {**out(id="y", finish_reason=None, completion_tokens=2), "index": 1},
        {**out(id="x"), "index": 0},
    ]
    with pytest.raises(Refusal):
        read(*outputs, Refusal(), obj=Input(prompts=2, n=2, stream=True, rid=["x", "y"]))
    assert [("x", 3, "stop"), ("y", 2, "error"), ("", UNKNOWN, "error"), ("", UNKNOWN, "error")] == [
        (found.id, found.output_tokens, found.finish) for found in notes.rows
    ]
    assert [True, True, False, False] == [found.first_token > 0 for found in notes.rows]


def test_a_stream_that_a_child_inherits_is_the_parents(notes: Notes) -> None:
    """Though it is gone there, too."""
    stream = Manager(out(finish_reason=None), out()).generate_request(Input(stream=True))

    async def fork() -> None:
        await stream.__anext__()
        child = os.fork()
        if not child:
            stream.__del__()
            os._exit(len(notes.rows))
        assert (child, 0) == os.waitpid(child, 0)
        await stream.aclose()

    asyncio.run(fork())
    assert ["abort"] == [found.finish for found in notes.rows]


def test_what_is_over_cannot_fail_any_more(notes: Notes) -> None:
    """Its generator is passed through behind its only output, whatever it does there."""
    with pytest.raises(ValueError):
        read(out(), ValueError())
    assert ["stop"] == [found.finish for found in notes.rows]


@pytest.mark.parametrize(
    "obj", [SimpleNamespace(rid="a", sampling_params={}), Input(rid="HEALTH_CHECK_1.5"), Input(rid="HEALTH_CHECK")]
)
def test_what_is_no_rollout_is_no_request(notes: Notes, obj: Any) -> None:
    """Embeddings, and the question whether the server lives."""
    assert 1 == len(read(out(), obj=obj))
    assert [] == notes.rows


def test_a_request_belongs_to_the_stage_that_waits_for_it(notes: Notes) -> None:
    """Its handler runs in a task that began with the first request of all."""
    with otel_rl.step(1), otel_rl.stage("sample") as stage:
        first(out())
    assert [stage] == notes.parents


# --- trace context ----------------------------------------------------------------------------------------------------

TRACEPARENT = f"00-{7:032x}-{9:016x}-01"


class Tracing(Manager):
    """An engine that exports spans of its own: 0.5.7 to 0.5.9 and from 0.5.16 on."""

    enable_trace = True


class TracingSince(Manager):
    """The same in 0.5.10 to 0.5.15."""

    server_args = SimpleNamespace(enable_trace=True)


class NotTracing(Manager):
    """An engine that does not."""

    enable_trace = False


def traced(manager: Manager, request: Any = None, **given: Any) -> tuple[Any, str]:
    """Ask for one answer below a stage; returns what was asked, and the stage's W3C name."""
    obj = Input()
    vars(obj).update(given)
    with otel_rl.step(1), otel_rl.stage("sample") as stage:
        context = stage.get_span_context()

        async def wait() -> Any:
            return await manager.generate_request(obj, request).__anext__()

        asyncio.run(wait())
    return obj, f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


@pytest.mark.parametrize("kind", [Tracing, TracingSince])
def test_an_engine_that_traces_is_told_whose_request_it_is(notes: Notes, kind: type[Manager]) -> None:
    """Its spans hang below the stage that waits."""
    obj, name = traced(kind(out()), external_trace_header=None)
    assert {"traceparent": name} == obj.external_trace_header
    assert 1 == len(notes.rows)


@pytest.mark.parametrize(
    ("manager", "request_", "given"),
    [
        (NotTracing(out()), None, {"external_trace_header": None}),
        (Manager(out()), None, {"external_trace_header": None}),
        (Tracing(out()), None, {}),  # until 0.5.6
        (Tracing(out()), None, {"external_trace_header": {"traceparent": TRACEPARENT}}),
        (Tracing(out()), SimpleNamespace(headers={}), {"external_trace_header": None}),
    ],
    ids=["not tracing", "0.4.10", "nowhere to say it", "the caller's own", "a server's client"],
)
def test_no_other_engine_is_told_anything(notes: Notes, manager: Manager, request_: Any, given: dict[str, Any]) -> None:
    """What the caller hands over stays as it is."""
    obj, _ = traced(manager, request_, **given)
    assert given == {name: value for name, value in vars(obj).items() if name == "external_trace_header"}
    assert 1 == len(notes.rows)


def test_no_propagator_hands_nothing_over(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_PROPAGATORS=none."""
    monkeypatch.setenv("OTEL_PROPAGATORS", "none")
    obj, _ = traced(Tracing(out()), external_trace_header=None)
    assert obj.external_trace_header is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_servers_request_belongs_to_what_its_headers_name(notes: Notes, stream: bool) -> None:
    """SGLang keeps them where it has tracing."""
    obj = Input(stream=stream)
    obj.external_trace_header = {"traceparent": TRACEPARENT}
    first(out(), obj=obj)
    (parent,) = notes.parents
    assert (7, 9) == (parent.get_span_context().trace_id, parent.get_span_context().span_id)


def test_headers_that_name_nothing_are_none(notes: Notes) -> None:
    """Then it belongs to the step."""
    obj = Input()
    obj.external_trace_header = {"traceparent": "00-x"}
    with otel_rl.step(1), otel_rl.stage("sample") as stage:
        first(out(), obj=obj)
    assert [stage] == notes.parents
