"""Samples on their way to the log, by the trace that made them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from otel_rl.clock import monotonic_ns
from otel_rl.layers.kept_samples import FinishedSample, StepSamples
from otel_rl.layers.sample_numbers import SampleNumbers
from otel_rl.process.memory import Memory
from otel_rl.process.state import Trace, state
from otel_rl.records import Value


@dataclass(eq=False)
class Layering(Memory):
    """What the flusher knows of the open steps, beyond their numbers."""

    samples: dict[Trace, StepSamples] = field(default_factory=dict)
    numbers: dict[Trace, SampleNumbers] = field(default_factory=dict)
    """The numbers of each open step, made of the samples that the user's loop recorded."""
    said: dict[Trace, dict[str, Value]] = field(default_factory=dict)
    """What an integration says of the lines of a step, which counts before the metric of the same name."""


layering = Layering.keep("layering")


def add_samples(parent: Any, samples: Iterable[FinishedSample]) -> bool:
    """Add finished samples that a stage made; return whether it belongs to a trace. Used by the flusher only."""
    trace: Trace | None = getattr(parent, "trace", None)
    if trace is None:
        return False
    found = layering.samples.get(trace)
    if found is None:
        limit = state.config.sample_records
        found = layering.samples[trace] = StepSamples(limit, trace.step)
    found.touched_ns = monotonic_ns()
    listed = list(samples)
    for sample in listed:
        sample.span_id = sample.span_id or parent.span_id
    found.add(listed)
    return True


def add_users_sample(parent: Any, sample: FinishedSample) -> bool:
    """Add a sample of a user's own loop; return whether it belongs to a trace. Used by the flusher only."""
    if not add_samples(parent, (sample,)):
        return False
    if not sample.is_evaluation:
        layering.numbers.setdefault(parent.trace, SampleNumbers()).add(sample)
    return True


def say_of_step(parent: Any, said: dict[str, Value]) -> tuple[()]:
    """Add attributes to the lines of the step that a stage is in; used by the flusher only."""
    trace: Trace | None = getattr(parent, "trace", None)
    if trace is not None and not trace.is_carried:
        layering.said.setdefault(trace, {}).update(said)
    return ()
