"""The four log layers as JSON lines: against the records of the journal."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.exports.log_lines import SCOPES, log_lines
from tests.fixtures import ATTEMPT, Recording
from tests.layers.records import layered

pytestmark = pytest.mark.medium

NAN = float("nan")


def record_steps(recording: Recording) -> None:
    """Record two steps with all layers, and one that fails."""
    for number in (1, 2):
        with otel_rl.step(number), otel_rl.stage("sample"):
            for index in range(3):
                otel_rl.sample(id=f"{number}.{index}", group=str(number), reward=NAN if index else 1.5, finish="stop")
            otel_rl.record(v.LOSS, 0.25)
            recording.tick(10)
    with pytest.raises(ValueError, match="no"), otel_rl.step(3):
        raise ValueError("no")


def test_each_record_of_the_layers_is_a_line(recording: Recording) -> None:
    """With the head that every line has, and its attributes by their names."""
    record_steps(recording)
    run = recording.stop()
    records = layered(run)
    lines = [json.loads(line) for line in log_lines(run)]
    assert len(records) == len(lines)
    assert {"loop", "rollout", "update", "sample"} == {line["scope"] for line in lines}
    for record, line in zip(records, lines, strict=True):
        seconds = datetime.fromtimestamp(record.time_ns // 10**9, timezone.utc)
        assert f"{seconds:%Y-%m-%dT%H:%M:%S}.{record.time_ns % 10**9:09d}Z" == line["timestamp"]
        head = SCOPES[record.event_name], record.body, record.span_id.hex(), ATTEMPT, 0
        assert head == tuple(line[key] for key in ("scope", "message", "span_id", "attempt", "rank"))
        assert (record.attributes[v.ITERATION], record.attributes[v.LOOP_NAME]) == (line["step"], line["loop"])
        assert record.attributes.keys() - {v.ITERATION, v.LOOP_NAME} <= line.keys()


def test_levels_and_numbers_that_json_has_not(recording: Recording) -> None:
    """A step that failed is an error; NaN is a text, as in OTLP/JSON."""
    record_steps(recording)
    lines = [json.loads(line) for line in log_lines(recording.stop())]
    assert ["INFO", "INFO", "ERROR"] == [line["level"] for line in lines if line["scope"] == "loop"]
    rewards = [line[v.SAMPLE_REWARD] for line in lines if line["scope"] == "sample"]
    assert [1.5, "NaN", "NaN"] * 2 == rewards
