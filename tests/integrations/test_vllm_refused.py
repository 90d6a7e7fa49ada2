"""vLLM: requests that a frontend does not take, as every version refuses them.

With a real engine: ``tests/vllm``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

import otel_rl
from otel_rl.hooks.install import wrap
from otel_rl.integrations.vllm.memory import vllm
from otel_rl.requests.queue import UNKNOWN, Request
from otel_rl.trace import context
from tests.fixtures import Recording
from tests.integrations.vllm_shapes import (
    HOOKS,
    FinishReason,
    Frontend,
    Parent,
    Processor,
    Queue,
    S,
    at,
    config,
    every_version,
    monotonic,
    wall,
)
from tests.noted import take


@dataclass
class Params:
    """SamplingParams."""

    n: int = 1
    max_tokens: int | None = 16


class Engine(Frontend):
    """LLMEngine: takes a prompt, or raises what it is."""

    def _add(self, request_id: str, prompt: Any, params: Any, arrival_time: float | None = None, **more: Any) -> str:
        if not isinstance(prompt, BaseException):
            self.output_processor.submit(request_id, wall(2.0), **more)
        if prompt is not None:
            raise prompt
        return request_id

    add_request = wrap(HOOKS["LLMEngine.add_request"], _add)


class AsyncEngine:
    """AsyncLLM: the same; ``lost`` is raised when the request is inside."""

    def __init__(self, processor: Processor) -> None:
        self.output_processor = processor

    async def _add(self, request_id: str, prompt: Any, params: Any, lost: Any = None, **more: Any) -> None:
        if isinstance(prompt, BaseException):
            raise prompt
        if not hasattr(prompt, "__anext__"):
            self.output_processor.submit(request_id, wall(2.0), queue=Queue())
        if lost is not None:
            raise lost

    add_request = wrap(HOOKS["AsyncLLM.add_request"], _add)


class Offline:
    """LLM: hands prompts over one by one; what it cannot render never gets to its engine."""

    def __init__(self, engine: Any) -> None:
        self.llm_engine = engine

    def _add(self, prompts: Any, params: Any, *, broken: Any = None) -> None:
        for number, prompt in enumerate(prompts):
            if prompt is broken is not None:
                raise prompt
            self.llm_engine.add_request(str(number), prompt, params[0] if isinstance(params, list) else params)

    render = wrap(HOOKS["LLM._render_and_add_requests"], _add)
    validate = wrap(HOOKS["LLM._validate_and_add_requests"], _add)


class EngineDeadError(Exception):
    """As vLLM calls it."""


class VLLMValidationError(ValueError):
    """As vLLM calls it."""


@every_version
@pytest.mark.parametrize(
    ("error", "finish", "name"),
    [
        (VLLMValidationError("too long"), "error", "VLLMValidationError"),
        (asyncio.CancelledError(), "abort", ""),
        (TimeoutError(), "timeout", "TimeoutError"),
    ],
)
def test_what_is_not_taken_is_a_row(
    recording: Recording, version: str, error: BaseException, finish: str, name: str
) -> None:
    """Below the stage of its caller, who gets his exception; also one of the same id as a turn before it had."""
    processor = Processor(version)
    Frontend(config(), processor)
    engine = AsyncEngine(processor)
    processor.process_outputs([(processor.submit("7", wall(2.0)).request_id, [1], FinishReason.STOP)])
    assert ["stop"] == [row.finish for row in take().rows]
    at(recording, 3.0)
    with otel_rl.step(1), otel_rl.stage("sample") as stage, pytest.raises(type(error)) as caught:
        asyncio.run(engine.add_request("7", error, Params()))
    taken = take()
    row = Request(
        engine="vllm", submitted=0, ended=3 * S, finish=finish, error=name, streamed=True, model="tiny", id="7",
        sample="7", replica="0", limit=16,
    )  # fmt: skip
    assert caught.value is error
    assert ([row], [stage]) == (taken.rows, taken.parents)


@every_version
@pytest.mark.parametrize("parent", [None, "7"])
def test_what_fails_inside_counts_when_it_ends(recording: Recording, version: str, parent: str | None) -> None:
    """Once: the engine dies while it gets a request that the frontend has taken, or some of those of one prompt."""
    processor = Processor(version)
    for name in ("0_7", "1_7") if parent else ("7",):
        processor.submit(name, wall(2.0), queue=Queue(), parent=Parent("7") if parent else None)
    with pytest.raises(EngineDeadError):
        Engine(config(), processor).add_request("7", EngineDeadError(), Params())
    assert [] == take().rows
    processor.propagate_error(EngineDeadError())
    assert [("error", "EngineDeadError", "7")] * (2 if parent else 1) == [
        (row.finish, row.error, row.sample) for row in take().rows
    ]


def test_of_a_refused_prompt_every_sequence_is_a_row(recording: Recording) -> None:
    """With the submission, where the caller names it."""
    engine = Engine(config(), Processor("0.32.0"))
    with pytest.raises(VLLMValidationError):
        engine.add_request("7", VLLMValidationError(), Params(n=3, max_tokens=None), arrival_time=wall(2.0))
    submitted = monotonic(wall(2.0))
    assert [(f"{index}_7", "7", submitted, False, UNKNOWN) for index in range(3)] == [
        (row.id, row.sample, row.submitted, row.streamed, row.limit) for row in take().rows
    ]


def test_a_refused_request_belongs_to_who_is_named(recording: Recording) -> None:
    """By the headers that came with it, where no span is current."""
    with otel_rl.step(1) as step:
        headers = context.headers()
    assert headers is not None
    with pytest.raises(VLLMValidationError):
        asyncio.run(
            AsyncEngine(Processor("0.32.0")).add_request("7", VLLMValidationError(), Params(), trace_headers=headers)
        )
    (parent,) = take().parents
    assert step.get_span_context().span_id == parent.get_span_context().span_id


@pytest.mark.parametrize("way", ["render", "validate"])
@pytest.mark.parametrize("params", [Params(n=2), [Params(n=2)] * 3])
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_batch_that_stops_at_a_prompt_counts_it_once(
    recording: Recording, way: str, params: Any, is_asked: bool
) -> None:
    """Whether the engine refuses it or is never asked, time and again; what is inside is told when it ends."""
    processor = Processor("0.32.0")
    llm, error = Offline(Engine(config(), processor)), VLLMValidationError()
    for _ in range(2):
        with pytest.raises(VLLMValidationError):
            getattr(llm, way)([None, error, None], params, broken=None if is_asked else error)
        assert [("error", "VLLMValidationError", False, 16)] * 2 == [
            (row.finish, row.error, row.streamed, row.limit) for row in take().rows
        ]
        assert ["0-5eed"] == processor.abort_requests(["0-5eed"])
        assert ["abort"] == [row.finish for row in take().rows]


def test_params_that_differ_do_not_tell_of_the_refused_one(recording: Recording) -> None:
    """It is one sequence, at least."""
    llm, error = Offline(Engine(config(), Processor("0.32.0"))), VLLMValidationError()
    with pytest.raises(VLLMValidationError):
        llm.render([error, error], [Params(n=2, max_tokens=3), Params(n=4)], broken=error)
    assert [UNKNOWN] == [row.limit for row in take().rows]


def test_what_is_refused_without_a_request_is_none(recording: Recording) -> None:
    """What generates nothing, a session, an interrupted program, another engine of vLLM's, and a rank that follows."""
    processor = Processor("0.32.0")
    engine, error = Engine(config(), processor), VLLMValidationError()
    with pytest.raises(VLLMValidationError):
        engine.add_request("7", error, object())
    with pytest.raises(VLLMValidationError):
        asyncio.run(AsyncEngine(processor).add_request("7", aiter(Nobody()), Params(), lost=error))
    with pytest.raises(KeyboardInterrupt):
        Offline(engine).render([stop := KeyboardInterrupt()], Params(), broken=stop)
    with pytest.raises(VLLMValidationError):
        Offline(SimpleNamespace(output_processor=object())).validate([error], Params(), broken=error)
    vllm.engine(processor).is_copy = True
    with pytest.raises(VLLMValidationError):
        engine.add_request("7", error, Params())
    assert [] == take().rows


class Nobody:
    """A generator of further input."""

    def __aiter__(self) -> Nobody:
        return self

    async def __anext__(self) -> Any:
        """Give the next part."""
