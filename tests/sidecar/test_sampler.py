"""Tests of sampling on a thread of its own."""

from __future__ import annotations

import threading

import pytest

from otel_rl import vocabulary as v
from otel_rl.probes.hardware import NodeProbe
from otel_rl.probes.sample import Sample
from otel_rl.sidecar import sampler as sampler_module
from otel_rl.sidecar.sampler import FIRST_S, Sampler


class Hanging(NodeProbe):
    """Counts its readings; hangs in the second one, as a driver does whose device fell off the bus."""

    def __init__(self) -> None:
        self.readings = 0
        self.hangs = threading.Event()
        self.go_on = threading.Event()
        self.is_closed = threading.Event()

    def read(self) -> list[Sample]:
        self.readings += 1
        if self.readings == 2:
            self.hangs.set()
            self.go_on.wait()
        return [Sample(v.POWER, self.readings)]

    def close(self) -> None:
        self.is_closed.set()


def test_a_driver_that_hangs_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Its numbers are left out, said once, and what it says at last is too old; then it is asked anew."""
    probe = Hanging()
    sampler = Sampler(probe, answer_s=60)
    assert [Sample(v.POWER, 1)] == sampler.read()
    sampler._answer_s = 0.05
    assert [[], []] == [sampler.read(), sampler.read()]
    assert ["Hardware metrics are paused: the driver does not respond."] == caplog.messages
    sampler._answer_s = 60
    probe.go_on.set()
    assert [Sample(v.POWER, 3)] == sampler.read()
    sampler.close()
    assert probe.is_closed.is_set()


def test_the_end_does_not_wait_for_it() -> None:
    """The thread is left behind; it is a daemon's."""
    probe = Hanging()
    sampler = Sampler(probe, answer_s=60)
    sampler.read()
    sampler._answer_s = 0.05
    sampler.read()
    assert probe.hangs.wait(60)
    sampler.close()
    assert not probe.is_closed.is_set()
    probe.go_on.set()
    assert probe.is_closed.wait(60)


def test_nothing_is_said_of_a_driver_that_takes_long_to_wake(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it takes a minute."""
    probe = Hanging()
    probe.readings = 1  # the first one takes long
    sampler = Sampler(probe, answer_s=0.0)
    assert ([], []) == (sampler.read(), caplog.messages)
    clock = sampler_module.monotonic
    monkeypatch.setattr(sampler_module, "monotonic", lambda: clock() + FIRST_S)
    assert [[], []] == [sampler.read(), sampler.read()]
    assert ["Hardware metrics are paused: the driver does not respond."] == caplog.messages
    probe.go_on.set()
    sampler.close()
