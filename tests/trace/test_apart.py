"""Traces of their own: work that a step submits and that may outlive it."""

from __future__ import annotations

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.process.carrier import Carrier
from otel_rl.trace import apart
from otel_rl.trace.apart import open_apart, root_of
from otel_rl.trace.stage import Stage
from tests.fixtures import Recording


def work(recording: Recording, key: str, submitted: Carrier | None = None) -> Stage:
    """Do the work of a key."""
    stage = Stage(v.SAMPLE_GROUP, coarse=True)
    open_apart(stage, key, submitted)
    recording.tick(5)
    stage.close(recording.clock.ns)
    return stage


def test_a_key_that_is_opened_again_has_a_stage_below_its_root(recording: Recording) -> None:
    """A group that is made again, or in parts: no id is there twice."""
    with otel_rl.step(1):
        submitted = Carrier.current()
    first, again, other = (work(recording, key, submitted) for key in ("a", "a", "b"))
    root = root_of("a")
    assert (root.trace_id, root.span_id) == (first.trace_id, first.span_id) == (again.trace_id, again.parent_id)
    assert (0, root_of("b").span_id) == (other.parent_id, other.span_id)
    drawn = [tree for tree in recording.trees() if tree.name == v.SAMPLE_GROUP]
    assert [(v.SAMPLE_GROUP,), ()] == [tuple(below.name for below in tree.below) for tree in drawn]


def test_few_keys_are_remembered(recording: Recording) -> None:
    """The newest."""
    for number in range(apart.MOST_KEYS + 2):
        work(recording, str(number))
    assert (apart.MOST_KEYS, "2") == (len(apart.apart.opened), next(iter(apart.apart.opened)))
