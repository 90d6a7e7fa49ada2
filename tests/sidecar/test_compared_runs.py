"""What a sidecar says of the ranks of whole runs: each span, number and count as it was when it was last looked at.

`WRITE_COMPARED=1 pytest tests/sidecar/test_compared_runs.py` stores it anew; look at what changed.
"""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.sidecar.compare import compare
from tests.report.test_stored_reports import RUNS
from tests.watched import SIDECAR, FakeClock, Watched, clock

__all__ = ["clock"]

STORED = Path(__file__).with_name("compared")
PIECES = 7
COMPARED = (
    "slow_rank_of_8", "killed", "checkpoints", "device_clock", "restarted", "set_clock", "fsdp2_four_ranks", "trl_demo",
    "verl_sync",
)  # fmt: skip


def watch(run: Path, seen: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, pieces: int) -> Watched:
    """Compare the ranks of a run while its files grow, each by a piece between two looks."""
    boot_id = next(one.identity.boot_id for one in open_run(run).journals if not one.identity.is_sidecar)
    files = [file for file in sorted(run.glob("*.otlp")) if not file.name.startswith("sidecar-")]
    seen.mkdir()
    watched = Watched(seen, clock, replace(SIDECAR, boot_id=boot_id))
    monkeypatch.setattr(watched.node, "is_alive", lambda writer: True)
    for piece in range(1, pieces + 1):
        for file in files:
            data = file.read_bytes()
            (seen / file.name).write_bytes(data[: len(data) * piece // pieces])
        watched.look(1.0)
    watched.settle()
    monkeypatch.undo()
    monkeypatch.setattr(compare, "monotonic", clock)
    watched.look(1.0)
    return watched


def told(watched: Watched) -> dict[str, Any]:
    """Return all that it emitted."""
    spans = [
        [span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_id.hex(), span.start_ns, span.end_ns,
         dict(span.attributes), span.resource[v.RANK], span.resource[v.ROLE]]
        for span in watched.spans
    ]  # fmt: skip
    points = [
        [point.name, point.time_ns, point.start_ns, round(point.value, 9), dict(point.attributes),
         point.resource[v.RANK], point.resource[v.ROLE]]
        for point in watched.points
    ]  # fmt: skip
    return json.loads(json.dumps({"spans": spans, "points": points, "counts": watched.counts}))  # type: ignore[no-any-return]


@pytest.mark.parametrize("pieces", [1, PIECES])
@pytest.mark.parametrize("name", COMPARED)
def test_the_ranks_of_a_run_are_compared_as_before(
    name: str, pieces: int, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether all is there at once, or comes piece by piece."""
    found = told(watch(RUNS[name](tmp_path / "made"), tmp_path / "seen", clock, monkeypatch, pieces))
    file = STORED / f"{name}.json.gz"
    if os.environ.get("WRITE_COMPARED"):
        file.write_bytes(gzip.compress(json.dumps(found, indent=1).encode(), mtime=0))
    assert json.loads(gzip.decompress(file.read_bytes())) == found
