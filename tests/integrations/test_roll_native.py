"""ROLL's own tracers: nothing of them is recorded while its flag is off, and a provider of ROLL's keeps them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import ProxyTracer

import otel_rl
from otel_rl.integrations.roll.native import ATTACHMENTS
from tests.fixtures import Recording, trees


def get_tracer(name: str = "roll") -> trace.Tracer:
    """Return a tracer."""
    return TracerProvider().get_tracer(name) if name == "own" else ProxyTracer(name)


def attached(function: Callable[..., trace.Tracer]) -> Any:
    """Attach to a module that has this function, and return it with what takes it back."""
    module = SimpleNamespace(get_tracer=function)
    return module, ATTACHMENTS[0].attach(module)  # type: ignore[arg-type]


def test_spans_of_roll_are_not_recorded_twice(recording: Recording) -> None:
    """Stages say the same."""
    traced = attached(get_tracer)[0].get_tracer
    with otel_rl.step(0), otel_rl.stage("train"), traced("driver").start_as_current_span("train") as span:
        assert not span.is_recording()
    (root,) = [tree for tree in trees(recording.stop()) if tree.name == "rl.loop"]
    assert [("rl.train", ())] == [(stage.name, stage.below) for rank in root.below for stage in rank.below]


def test_a_provider_of_roll_has_its_spans(recording: Recording) -> None:
    """Its tracer stays what it is."""
    with attached(get_tracer)[0].get_tracer("own").start_as_current_span("train") as span:
        assert span.is_recording()


def test_without_a_recording_the_tracer_stays() -> None:
    """Whatever it is; what is attached is taken back."""
    module, undo = attached(get_tracer)
    assert type(module.get_tracer()) is ProxyTracer
    undo()
    assert module.get_tracer is get_tracer


def test_what_raises_goes_on(recording: Recording) -> None:
    """The very error."""
    error = ValueError()

    def broken(name: str) -> trace.Tracer:
        raise error

    with pytest.raises(ValueError) as raised:
        attached(broken)[0].get_tracer("x")
    assert raised.value is error
