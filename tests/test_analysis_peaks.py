"""Devices by the names that torch reports."""

from __future__ import annotations

import pytest

from otel_rl.analysis.peaks import USER, Peak, peak


@pytest.mark.parametrize(
    ("device", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA H20", 148.0),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A10", 125.0),
        ("NVIDIA B200", 2250.0),
        ("NVIDIA GB200", 2500.0),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA L4", 121.0),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("AMD Instinct MI300X", 1307.4),
        ("AMD Instinct MI250X", 191.5),
        ("Ascend910B2", 354.0),
        ("Ascend910B", 354.0),
    ],
)
def test_a_device_has_its_own_row(device: str, tera: float) -> None:
    """A variant never gets the number of another, and each number says where it comes from."""
    found = peak(device)
    assert found is not None
    assert tera * 1e12 == pytest.approx(found.flops)
    assert found.source


@pytest.mark.parametrize(
    "device",
    ["cpu", "", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA RTX A1000", "NVIDIA A10G", "Tesla V100", "Ascend910_9391"],
)
def test_an_unknown_device_has_no_peak(device: str) -> None:
    """Nor has a slice of a known one."""
    assert None is peak(device)


def test_the_user_knows_better() -> None:
    """A given number wins, for known and unknown devices, and says that it was given."""
    assert [Peak(1e15, USER)] * 2 == [peak("NVIDIA H100 PCIe", 1e15), peak("my accelerator", 1e15)]
