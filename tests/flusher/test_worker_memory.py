"""The memory of processes that work for the steps of others."""

from __future__ import annotations

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.flusher import worker_memory
from otel_rl.probes.memory import probes
from otel_rl.process.carrier import Carrier
from otel_rl.trace.carried import in_carrier
from tests.fixtures import Recording

CARRIER = Carrier("run", "a" * 16, "driver", "train 1", f"00-{1:032x}-{2:016x}-01", "", 0)


def points(recording: Recording, calls: int, *, has_loop: bool = False) -> int:
    """Work off some calls for a step of another process; return how many points of memory there are."""
    probes.read_memory = lambda: (b"%d 2 0 0 0 0 0" % 3, None)  # another reading each time
    for _ in range(calls):
        with in_carrier(CARRIER), otel_rl.stage("reward"):
            recording.tick(20)
        otel_rl.flush()
    if has_loop:
        with otel_rl.step(1):
            recording.tick(20)
    return sum(1 for point in recording.stop().points(v.RSS))


@pytest.mark.parametrize(("every_ns", "expected"), [(10**18, 1), (0, 3)])
def test_a_worker_says_its_memory(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, every_ns: int, expected: int
) -> None:
    """Every so often where a call has read it, and at the end."""
    monkeypatch.setattr(worker_memory, "EVERY_NS", every_ns)
    assert expected == points(recording, 3)


def test_a_process_with_steps_says_it_at_their_ends(recording: Recording) -> None:
    """And nowhere else."""
    assert 1 == points(recording, 3, has_loop=True)
