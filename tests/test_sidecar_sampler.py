"""Tests of sampling on a thread of its own."""

from __future__ import annotations

import threading

import pytest

from otel_rl import vocabulary as v
from otel_rl.probes.node import NodeProbe
from otel_rl.probes.sample import Sample
from otel_rl.sidecar.sampler import Sampler


class Hanging(NodeProbe):
    """Counts its readings; hangs in the second one, as a driver does whose device fell off the bus."""

    def __init__(self) -> None:
        self.readings = 0
        self.go_on = threading.Event()
        self.is_closed = threading.Event()

    def read(self) -> list[Sample]:
        self.readings += 1
        if self.readings == 2:
            self.go_on.wait()
        return [Sample(v.POWER, self.readings)]

    def close(self) -> None:
        self.is_closed.set()


def test_a_driver_that_hangs_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Its numbers are left out, said once, and what it says at last is too old; then it is asked anew."""
    probe = Hanging()
    sampler = Sampler(probe, answer_s=0.2)
    assert [Sample(v.POWER, 1)] == sampler.read()
    assert [[], []] == [sampler.read(), sampler.read()]
    assert ["the node's hardware does not answer; its numbers are left out as long"] == caplog.messages
    probe.go_on.set()
    found: list[Sample] = []
    while not found:
        found = sampler.read()
    assert [Sample(v.POWER, 3)] == found
    sampler.close()
    assert probe.is_closed.is_set()


def test_the_end_does_not_wait_for_it() -> None:
    """The thread is left behind; it is a daemon's."""
    probe = Hanging()
    sampler = Sampler(probe, answer_s=0.05)
    sampler.read()
    sampler.read()
    sampler.close()
    assert not probe.is_closed.is_set()
    probe.go_on.set()
    assert probe.is_closed.wait(60)
