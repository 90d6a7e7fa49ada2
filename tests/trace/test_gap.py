"""Tests of stages that no function holds."""

from __future__ import annotations

import otel_rl
from otel_rl import vocabulary
from otel_rl.trace.gap import begin_between, end_between
from otel_rl.trace.memory import tracing
from tests.fixtures import Recording, Tree


def test_one_stage_ends_where_the_next_begins(recording: Recording) -> None:
    """And is current meanwhile."""
    with otel_rl.step(1):
        begin_between(vocabulary.SAMPLE_PROCESS, {vocabulary.MODE: "train"})
        recording.tick(2)
        with otel_rl.stage("tool"):
            recording.tick(1)
        begin_between(vocabulary.ADVANTAGE)
        recording.tick(3)
        end_between()
        end_between()
        recording.tick(4)
    step = next(tree for tree in recording.trees() if tree.name == "rl.loop").below[0]
    expected = (
        Tree("rl.sample.process", 0, 3, (Tree("tool", 2, 3),)),
        Tree("rl.advantage", 3, 6),
    )
    assert expected == step.below


def test_an_error_ends_it_with_its_status(recording: Recording) -> None:
    """The error itself goes its own way."""
    with otel_rl.step(1):
        begin_between(vocabulary.LOG)
        end_between(ValueError())
    found = recording.spans()["rl.log"]
    assert (2, "ValueError") == (found.status_code, found.attributes[vocabulary.ERROR_TYPE])


def test_outside_of_a_recording_nothing_opens() -> None:
    """There is nothing that it could be part of."""
    begin_between(vocabulary.LOG)
    assert (None, {}) == (tracing.between, tracing.open)
