"""The sidecar reads a run while it is written: its report has little left to read."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.config import Config
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import open_run
from otel_rl.report import cache
from otel_rl.sidecar import read_ahead
from otel_rl.sidecar.finding_teller import FindingTeller
from otel_rl.sidecar.read_ahead import ReadAhead
from tests.driver_runs import DrivenPlan, write_driven
from tests.made_runs import Plan, write_run
from tests.waiting import wait_for


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read often, and keep everything."""
    monkeypatch.setattr(read_ahead, "PERIOD_S", 0.02)
    monkeypatch.setattr(read_ahead, "SHARE", 1.0)
    monkeypatch.setattr(cache, "LEAST_BYTES", 1)
    monkeypatch.setattr(cache, "LEAST_SHARE", 0.0)


def until(path: Path, size: int) -> bool:
    """Wait until so many bytes of a run are known."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if cache.load(open_run(path)).read_bytes() == size:
            return True
        time.sleep(0.02)
    return False


def teller(path: Path) -> FindingTeller:
    """What would tell of findings."""
    return FindingTeller(path, "sidecar-0-1", Config(), print)


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.otlp"))


def test_what_comes_is_read(tmp_path: Path) -> None:
    """A second attempt is read when it is there; the thread ends when it is told to."""
    path = write_run(tmp_path, Plan(steps=8, killed_in=v.BACKWARD))
    ahead = ReadAhead(path, lambda _: True, teller(path))
    ahead.start()
    is_first_known = until(path, size_of(path))
    write_run(tmp_path, Plan(attempt="b" * 32, first_step=6, shift_ms=60_000))
    is_all_known = until(path, size_of(path))
    ahead.close()
    names = [thread.name for thread in threading.enumerate()]
    assert (True, True, False) == (is_first_known, is_all_known, "read ahead" in names)


@pytest.mark.parametrize("is_driven", [False, True])
def test_one_node_reads(tmp_path: Path, is_driven: bool) -> None:
    """That of rank 0, or of the driver."""
    path = write_driven(tmp_path, DrivenPlan()) if is_driven else write_run(tmp_path, Plan())
    first = "driver-0-" if is_driven else "trainer-0-"

    def leads(writer: WriterIdentity) -> bool:
        return writer.writer.startswith(first)

    assert (True, False) == tuple(
        ReadAhead(path, is_mine, teller(path))._leads(open_run(path))
        for is_mine in (leads, lambda writer: not leads(writer))
    )


def test_a_run_that_is_gone_is_no_error(tmp_path: Path) -> None:
    assert ReadAhead(tmp_path / "gone", lambda _: True, teller(tmp_path))._look() is None


def test_waiting_for_a_core_or_a_disk_is_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a run is judged as often as on another one: only CPU time counts for the pause."""
    monkeypatch.setattr(read_ahead, "SHARE", 1e-4)
    looks: list[float] = []

    def look(_: ReadAhead) -> None:
        looks.append(time.monotonic())
        time.sleep(0.1)

    monkeypatch.setattr(ReadAhead, "_look", look)
    ahead = ReadAhead(tmp_path, lambda _: True, teller(tmp_path))
    ahead.start()
    is_soon = wait_for(lambda: len(looks) == 3)
    ahead.close()
    assert is_soon
