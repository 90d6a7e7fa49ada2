"""A run that is read bit by bit, and kept between, has the report of one that is read as a whole."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl.journal.frame import SIGNALS, TYPES, Damage, Frame, pack
from otel_rl.journal.read import open_run
from otel_rl.report import cache
from otel_rl.report.build import build_report
from otel_rl.report.fold import writer
from otel_rl.report.reading import RunReading
from otel_rl.report.schema import to_json
from tests.report.test_stored_reports import NOW_NS, RUNS, leaves

PARTS = 4
CHOSEN = (
    "slow_rank_of_8", "killed", "going_on", "set_clock", "checkpoints", "damaged", "restarted", "driven_held_step",
    "driven_two_hosts", "driven_killed", "driven_going_on", "fsdp2_four_ranks", "roll_async", "trl_demo", "verl_sync",
)  # fmt: skip


def pieces(item: Frame | Damage, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Split a frame into one for each span, with the time of its end; what is no frame stays as it is."""
    if isinstance(item, Damage):
        yield 0, data[item.offset : item.offset + item.length]
    elif item.type != TYPES["traces"]:
        yield item.last_ns if item.type in SIGNALS else 0, data[item.offset : item.end]
    else:
        for group in ExportTraceServiceRequest.FromString(item.payload).resource_spans:
            for scope in group.scope_spans:
                for span in scope.spans:
                    one = ExportTraceServiceRequest()
                    made = one.resource_spans.add(resource=group.resource, schema_url=group.schema_url)
                    made.scope_spans.add(scope=scope.scope, schema_url=scope.schema_url, spans=[span])
                    first_ns, last_ns = span.start_time_unix_nano, span.end_time_unix_nano
                    yield last_ns, pack(item.type, one.SerializeToString(), 1, first_ns, last_ns)


def growing(run: Path, root: Path) -> Iterator[Path]:
    """Write a run again in parts, each up to a moment, which is the same in all its files."""
    of_file: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for journal in open_run(run).journals:
        for segment in journal.segments:
            data = segment.path.read_bytes()
            for item in segment.items():
                of_file[segment.path.name] += pieces(item, data)
    times = sorted(time_ns for listed in of_file.values() for time_ns, _ in listed if time_ns)
    for part in range(1, PARTS + 1):
        until_ns = times[len(times) * part // PARTS - 1]
        for name, listed in of_file.items():
            count = next((at for at, (time_ns, _) in enumerate(listed) if time_ns > until_ns), len(listed))
            (root / name).write_bytes(b"".join(data for _, data in listed[: count if part < PARTS else None]))
            os.utime(root / name, (1, 1))  # a file that was just written would be that of a process that lives
        yield root


@pytest.mark.parametrize("name", CHOSEN)
def test_a_run_that_is_read_as_it_grows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was open, or not known, when it was read before."""
    monkeypatch.setattr(writer, "PENDING_NS", 0)  # these runs are short: nothing would be folded before the end
    monkeypatch.setattr(writer, "PENDING_STEPS", 2)
    whole = RUNS[name](tmp_path / "whole")
    root = tmp_path / "again" / whole.name
    root.mkdir(parents=True)
    body = cache.dump(RunReading())
    for path in growing(whole, root):
        run = open_run(path)
        reading = cache.restore(body, run)
        reading.read()
        body = cache.dump(reading)
    reading = cache.restore(body, run)
    expected, made = build_report(open_run(root), NOW_NS), build_report(open_run(root), NOW_NS, reading)
    assert dict(leaves(json.loads(to_json(expected)))) == dict(leaves(json.loads(to_json(made))))
