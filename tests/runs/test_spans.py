"""From spans to what the arithmetic takes: what a stage is called."""

from __future__ import annotations

from math import inf, nan

import pytest

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import kind_of
from otel_rl.records import Value
from otel_rl.report.read import span_attributes as pieces
from otel_rl.runs.spans import call_of, label, nanoseconds
from otel_rl.sidecar.compare import rank_step

CASES: list[tuple[str, dict[str, Value], str]] = [
    (v.LOGPROB, {v.LOGPROB_KIND: "ref"}, "rl.logprob ref"),
    (v.IDLE, {v.IDLE_REASON: "data"}, "rl.idle data"),
    (v.CHECKPOINT, {}, "rl.checkpoint"),
    (v.CHECKPOINT, {v.CHECKPOINT_LOAD: True}, "rl.checkpoint load"),
    (v.CHECKPOINT, {v.CHECKPOINT_LOAD: False}, "rl.checkpoint"),
    ("restore", {v.CHECKPOINT_LOAD: True}, "restore"),
    (" ", {}, "unnamed"),
]


@pytest.mark.parametrize(("name", "attributes", "expected"), CASES)
def test_what_differs_is_told_apart(name: str, attributes: dict[str, Value], expected: str) -> None:
    """By one attribute, and a call is measured by those of its own name; all of them are of one kind."""
    assert (expected, expected) == (label(name, attributes), call_of(name, attributes))
    if name.strip():
        assert kind_of(name) is kind_of(expected)


def test_what_tells_stages_apart_is_read() -> None:
    """By the report, and by the sidecar, which calls them the same."""
    needed = {key for _, attributes, _ in CASES for key in attributes}
    assert (set(), set()) == (needed - set(pieces.KEYS), needed - set(rank_step.KEYS))


@pytest.mark.parametrize("said", [1e300, 1e12, -1.0, nan, inf, "0.5", None])
def test_no_time_is_read_of_what_is_none(said: Value | None) -> None:
    assert nanoseconds(said) is None
    assert nanoseconds(0.25) == 250_000_000
