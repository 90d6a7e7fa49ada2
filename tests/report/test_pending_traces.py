"""Records that come behind their step, and values that are none: the rest is whole, in the report and live."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.journal import files
from otel_rl.journal.read import open_run
from otel_rl.probes.device import DeviceInUse
from otel_rl.probes.memory import probes
from otel_rl.report.build import build_report
from otel_rl.report.fold import writer
from tests.fake_cuda import FakeCuda
from tests.fixtures import Recording
from tests.peers import BEGIN_NS, Did, Met, Peer
from tests.watched import FakeClock, Watched, clock

__all__ = ["clock"]


def calls_of(run: Any) -> dict[str, int]:
    """Say how many calls of each stage a report found."""
    return {row.stage: row.calls for row in build_report(run, time.time_ns()).stages if row.stage != "rl.other"}


@pytest.mark.medium
@pytest.mark.parametrize("steps_of_a_cycle", [3, 10])
def test_a_stage_whose_device_is_late_belongs_to_its_step(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, steps_of_a_cycle: int
) -> None:
    """The device lags half a step behind the host: of each cycle's last step the backward comes with the next."""
    cuda = FakeCuda()
    monkeypatch.setattr(probes, "device", DeviceInUse(cuda))
    monkeypatch.setattr(probes, "read_memory", lambda: (b"", None))
    for number in range(1, 31):
        with otel_rl.step(number):
            with otel_rl.stage("train.forward"):
                cuda.launch(0.03)
                recording.tick(1)
                if number % steps_of_a_cycle == 0:
                    recording.flusher._cycles()
            cuda.wait(0.06)
            with otel_rl.stage("train.backward"):
                cuda.launch(0.06)
                recording.tick(1)
            cuda.wait(0.03)
    assert {v.FORWARD: 28, v.BACKWARD: 28} == calls_of(recording.stop())


@pytest.mark.parametrize(
    ("behind", "step_ms", "most", "expected"), [(20, 100, 256, 26), (20, 100, 10, 25), (4, 13_000, 256, 25)]
)
def test_a_step_waits_for_its_stages_by_time_and_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int, step_ms: int, most: int, expected: int
) -> None:
    """Twelve seconds of its writer's own clock, four steps at least and so many at most."""
    monkeypatch.setattr(writer, "MOST_PENDING", most)
    monkeypatch.setattr(writer, "ROWS", 1)
    monkeypatch.setattr(files, "BATCH_BYTES", 1)
    rank = Peer(tmp_path, 0, 1)
    late = []
    for number in range(1, 29):
        *first, container, root = rank.step(number, [Did(v.REWARD, step_ms)], is_journaled=False)
        late = late or first if number == 4 else late
        rank.write([root, container, *([] if number == 4 else first)])
        if number == 4 + behind + 1:
            rank.write(late)
    assert {v.REWARD: expected} == calls_of(open_run(tmp_path))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -1.0])
@pytest.mark.parametrize("name", [v.COMM_TIME, v.DEVICE_TIME])
def test_a_time_that_is_none(tmp_path: Path, clock: FakeClock, name: str, value: float) -> None:
    """A user may set any attribute: what cannot be a duration is none, live and in the report."""
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    watched = Watched(tmp_path, clock)
    for number in range(1, 7):
        for rank in ranks:
            more = {name: value, v.CLOCK: "host"} if number == 3 else {}
            rank.step(number, [Did(v.REWARD, 10, [Met(5, number)], more)])
    watched.settle()
    assert {"derived": 6, "too_large": 0} == {"too_large": 0, **watched.counts}
    report = build_report(open_run(tmp_path), BEGIN_NS)
    assert 5 == report.steps.averaged
