"""What `otel-rl run` prints of its runs while they go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.cli.stall_lines import StallLines
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.write import Writer
from otel_rl.records import Log, Value


@pytest.mark.parametrize(("launch", "is_ours"), [("here", True), ("elsewhere", False)])
def test_lines_of_our_own_sidecar_are_printed_once(tmp_path: Path, launch: str, is_ours: bool) -> None:
    """A finding that says what a stall said already is left out."""
    identity = replace(WriterIdentity.current("sidecar", 0, "1.0"), launch=launch)
    writer, encoder = Writer(tmp_path / "run", identity, max_bytes=1 << 20), SpanEncoder({}, "1.0")
    stall: dict[str, Value] = {v.STALL_ID: "s", v.STALL_STATE: "found", v.STALL_CHAIN: "Rank 1 hangs."}
    told = [
        Log(v.STALL, 1, stall),
        Log(v.FINDING, 2, {v.FINDING_KIND: "health", v.FINDING_RULE: "stalled"}, "Rank 1 hangs."),
        Log(v.FINDING, 3, {v.FINDING_KIND: "learn", v.FINDING_RULE: "update_nan"}, "Loss is NaN."),
        Log(v.FINDING_CALL_FAILED, 4, {}, "The hook exited with code 3."),
        Log(v.NO_STATISTICS, 5, {}, "of no interest"),
    ]
    for request in encoder.encode_logs(told):
        writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
    lines = StallLines(tmp_path, "here", 0.0)
    expected = ["Rank 1 hangs.", "learn: Loss is NaN.", "The hook exited with code 3."] if is_ours else []
    assert (expected, []) == (list(lines.new()), list(lines.new()))
