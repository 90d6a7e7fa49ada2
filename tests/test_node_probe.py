"""Tests of what the sidecar reads of its node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from otel_rl import guard
from otel_rl import vocabulary as v
from otel_rl.probes import node
from otel_rl.probes.host import HostProbe
from otel_rl.probes.node import NodeProbe
from otel_rl.probes.sample import Sample, Totals


def test_whatever_this_machine_has() -> None:
    """Every name is in the vocabulary, nothing is raised."""
    probe = NodeProbe()
    found = {sample.name for _ in range(2) for sample in probe.read()}
    probe.close()
    assert {v.CPU_UTILIZATION, v.SYSTEM_MEMORY} <= found <= set(v.METRICS)


def test_the_host_is_sampled() -> None:
    """Ratios are ratios, what is used is below what there is, and bytes count from the first reading on."""
    probe = HostProbe()
    found = {(sample.name, *sample.labels): sample.value for sample in probe.read()}
    probe.close()
    assert 0 <= found[v.CPU_UTILIZATION,] <= 1
    assert 0 < found[v.SYSTEM_MEMORY,] < found[v.SYSTEM_MEMORY_LIMIT,]
    assert 0 == found[v.NETWORK_IO, (v.NETWORK_DIRECTION, "receive")]


def test_counters_never_fall() -> None:
    """One that begins anew goes on from where it was."""
    totals = Totals()
    assert [0, 5, 5, 8, 20] == [totals.sample("a", value, ()).value for value in (10, 15, 15, 3, 15)]
    assert 0 == totals.sample("a", 100, (("b", "c"),)).value


class Broken:
    """A vendor whose library fails in its own way."""

    name = "broken"

    def read(self) -> Iterator[Sample]:
        yield Sample(v.POWER, 1.0)
        raise OSError("its library")

    def close(self) -> None:
        raise OSError("its library")


@pytest.mark.guarded
def test_a_vendor_is_one_line_and_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said before it failed is kept."""
    monkeypatch.setattr(node, "PROBES", (Broken, HostProbe))
    probe = NodeProbe()
    found = [sample.name for sample in probe.read()]
    probe.close()
    assert [v.POWER, v.CPU_UTILIZATION] == found[:2]
    assert {"sample broken": 1, "close broken": 1} == dict(guard.errors)
