"""Tests of samples and tokens per second."""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary as v
from otel_rl.process.state import state
from otel_rl.records import Deferred
from otel_rl.trace.memory import tracing
from otel_rl.trace.steps import Loop
from otel_rl.trace.throughput import Throughput
from tests.fixtures import MS, Recording


def rates(recording: Recording, name: str, wall: str, work: str) -> list[float]:
    """Stop and read one rate, in order of time."""
    points = sorted(recording.run().points(name), key=lambda point: point.time_ns)
    return [round(p.value, 6) for p in points if (p.attributes[v.WALL], p.attributes[v.WORK]) == (wall, work)]


def test_a_step_has_rates_of_its_own_and_of_its_cycle(recording: Recording) -> None:
    """One rollout for two steps: the rate per step alternates, the rate per cycle does not.

    Tokens of an environment are in no rate, and prompts not in that of training.
    """
    throughput, loop = Throughput(), Loop()
    tracing.loop = loop
    loop.at_end.append(throughput.end_step)
    for number in range(1, 7):
        loop.begin(number)
        if number % 2:
            throughput.rollout(4, 100, 300, 50)
        state.add(Deferred(throughput.count_forward, (40, 60, 20, 10)))
        recording.tick(500)
    loop.end()
    run = recording.stop()
    assert [8.0, 0.0] * 3 == rates(recording, v.SAMPLES_RATE, "step", "rollout")
    assert [800.0, 0.0] * 3 == rates(recording, v.TOKENS_RATE, "step", "rollout")
    assert [120.0] * 6 == rates(recording, v.TOKENS_RATE, "step", "train")
    assert [4.0, 4.0] == rates(recording, v.SAMPLES_RATE, "cycle", "rollout")
    assert [400.0, 400.0] == rates(recording, v.TOKENS_RATE, "cycle", "rollout")
    assert [120.0, 120.0] == rates(recording, v.TOKENS_RATE, "cycle", "train")
    totals: dict[tuple[str, Any], float] = {
        (p.name, p.attributes.get(v.TOKEN_KIND)): p.value for p in run.last_points() if p.kind == "counter"
    }
    assert (12, 300, 900, 150, 240, 360, 120, 60) == (
        totals[v.SAMPLES, None],
        totals[v.SAMPLE_TOKENS, "prompt"],
        totals[v.SAMPLE_TOKENS, "response"],
        totals[v.SAMPLE_TOKENS, "environment"],
        totals[v.TRAIN_TOKENS, "prompt"],
        totals[v.TRAIN_TOKENS, "response"],
        totals[v.TRAIN_TOKENS, "padding"],
        totals[v.TRAIN_TOKENS, "environment"],
    )


def test_train_time_leaves_out_evaluation_and_checkpoints(recording: Recording) -> None:
    """Only those of its own step."""
    throughput = Throughput()
    throughput.outside_ns = 30 * MS
    throughput.end_step(0, 100 * MS)
    throughput.end_step(100 * MS, 200 * MS)
    recording.stop()
    points = sorted(recording.run().points(v.TRAIN_TIME), key=lambda point: point.time_ns)
    assert [0.07, 0.1] == [round(point.value, 9) for point in points]


def test_a_step_without_duration_has_no_rate(recording: Recording) -> None:
    """Nothing is divided by zero."""
    throughput = Throughput()
    throughput.rollout(1, 1, 1)
    throughput.end_step(5, 5)
    assert [] == [point for point in recording.stop().points(v.SAMPLES_RATE)]
