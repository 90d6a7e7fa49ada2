"""Tests of what the sidecar reads of its node."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from otel_rl import guard
from otel_rl import vocabulary as v
from otel_rl.probes import hardware
from otel_rl.probes.hardware import HostProbe, NodeProbe
from otel_rl.probes.sample import Sample, Totals


def test_whatever_this_machine_has() -> None:
    """Every name is in the vocabulary, nothing is raised."""
    probe = NodeProbe()
    found = {sample.name for _ in range(2) for sample in probe.read()}
    probe.close()
    assert {v.CPU_UTILIZATION, v.NODE_MEMORY} <= found <= set(v.METRICS)


def test_the_host_is_sampled() -> None:
    """Ratios are ratios, and what is used is below what there is."""
    probe = HostProbe()
    found = {(sample.name, *sample.labels): sample.value for sample in probe.read()}
    probe.close()
    assert 0 <= found[v.CPU_UTILIZATION,] <= 1
    assert 0 < found[v.NODE_MEMORY,] < found[v.NODE_MEMORY_LIMIT,]


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        ([{"lo": 5}, {"lo": 9}], [{}, {}]),
        ([{"lo": 5, "eth0": 7}, {"lo": 9, "eth0": 8}], [{"receive": 0, "transmit": 0}, {"receive": 1, "transmit": 10}]),
        (
            [{"eth0": 7, "veth1": 900}, {"eth0": 8}, {"eth0": 8, "veth2": 40}, {"eth0": 9, "veth2": 42}],
            [{"receive": n, "transmit": 10 * n} for n in (0, 1, 1, 4)],
        ),
        ([{"eth0": 7}, {"eth0": 2}, {"eth0": 3}], [{"receive": n, "transmit": 10 * n} for n in (0, 0, 1)]),
    ],
)
def test_bytes_of_the_network_are_those_of_interfaces(
    monkeypatch: pytest.MonkeyPatch, interfaces: list[dict[str, int]], expected: list[dict[str, int]]
) -> None:
    """From the first reading on, without loopback, whichever come and go; where there is none there is no number."""
    readings = iter(interfaces)

    def counters(*, pernic: bool) -> dict[str, SimpleNamespace]:
        assert pernic
        return {name: SimpleNamespace(bytes_recv=n, bytes_sent=10 * n) for name, n in next(readings).items()}

    monkeypatch.setattr("psutil.net_io_counters", counters)
    probe = HostProbe()
    found = [[each for each in probe.read() if each.name == v.NETWORK_IO] for _ in interfaces]
    assert expected == [{each.labels[0][1]: each.value for each in samples} for samples in found]


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
    monkeypatch.setattr(hardware, "PROBES", (Broken, HostProbe))
    probe = NodeProbe()
    found = [sample.name for sample in probe.read()]
    probe.close()
    assert [v.POWER, v.CPU_UTILIZATION] == found[:2]
    assert {"sample broken": 1, "close broken": 1} == dict(guard.errors)
