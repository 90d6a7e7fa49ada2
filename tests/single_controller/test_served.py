"""Calls of rollout servers: a stage, and the request itself where no engine's integration records it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.journal.views import SpanView
from otel_rl.process.carrier import Carrier
from otel_rl.single_controller.served import ENGINES, Answer, Asked, ServedCall
from tests.fixtures import Recording

ASKED = Asked("vllm", "r1", 5)
REQUEST = "generate_content"


def serve(
    recording: Recording, *answers: Answer, error: BaseException | None = None
) -> tuple[SpanView, list[SpanView]]:
    """Serve a call of 4 ms; return its stage and its requests."""

    def read(result: Any) -> Any:
        assert result == "result"
        return answers

    with otel_rl.step(0), otel_rl.stage("outer"):
        call = ServedCall(ASKED, read)
        recording.tick(4)
        call.item("ignored")
        call.end("result", error)
    spans = list(recording.stop().spans(None))
    (stage,) = [span for span in spans if span.name == v.SAMPLE_SERVE]
    return stage, [span for span in spans if span.name == REQUEST]


def test_a_call_that_is_answered(recording: Recording) -> None:
    """It says what was asked and what came, and its request lasts as long."""
    stage, (request,) = serve(recording, Answer(3, "stop", policy=2), Answer(4, "length", policy=2))
    keys = v.RESPONSE_ID, v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.FINISH_REASONS
    assert ["r1", 5, 7, ("stop", "length")] == [stage.attributes[key] for key in keys]
    assert v.REQUEST_ABORTED not in stage.attributes
    assert (stage.start_ns, stage.end_ns, stage.span_id) == (request.start_ns, request.end_ns, request.parent_id)
    assert ("stop",) == request.attributes[v.FINISH_REASONS]


def test_a_call_that_is_aborted(recording: Recording) -> None:
    """The stage says so; an answer that tells no end claims none."""
    stage, _ = serve(recording, Answer(1, "abort"), Answer(2))
    assert (True, ("abort",), 3) == tuple(
        stage.attributes[key] for key in (v.REQUEST_ABORTED, v.FINISH_REASONS, v.TOKENS_RESPONSE)
    )


def test_a_call_without_an_answer(recording: Recording) -> None:
    """It is a stage, and no request."""
    stage, requests = serve(recording)
    assert ([], 0) == (requests, stage.attributes[v.TOKENS_RESPONSE])
    assert v.FINISH_REASONS not in stage.attributes


def test_a_call_that_fails(recording: Recording) -> None:
    """Stage and request have the error, and nothing is read of a result."""
    stage, (request,) = serve(recording, Answer(9), error=ConnectionResetError())
    assert ("ConnectionResetError", "ConnectionResetError") == (
        stage.attributes[v.ERROR_TYPE], request.attributes[v.ERROR_TYPE],
    )  # fmt: skip
    assert v.TOKENS_RESPONSE not in stage.attributes


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_an_engine_records_its_requests_itself(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Then there is the stage alone."""
    monkeypatch.setitem(sys.modules, engine, ModuleType(engine))
    stage, requests = serve(recording, Answer(3, "stop"))
    assert ([], 3) == (requests, stage.attributes[v.TOKENS_RESPONSE])


@pytest.mark.parametrize("mode", ["eval", ""])
def test_a_call_says_whether_an_evaluation_makes_it(recording: Recording, mode: str) -> None:
    """As its caller says."""
    carrier = Carrier("job", "abc", "driver", "train 1", f"00-{7:032x}-{8:016x}-01", mode)
    with carrier.use():
        ServedCall(ASKED, lambda result: ()).end(None, None)
    (stage,) = [span for span in recording.stop().spans(None) if span.name == v.SAMPLE_SERVE]
    assert (mode or None) == stage.attributes.get(v.MODE)
