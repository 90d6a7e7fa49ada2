"""Devices by the names that torch reports."""

from __future__ import annotations

import pytest

from otel_rl.analysis.flops_peaks import USER, DevicePeak, peak


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
        ("NVIDIA GH200 144G HBM3e", 989.4),
        ("NVIDIA H800", 989.4),
        ("NVIDIA H800 PCIe", 756.0),
        ("NVIDIA H20-3e", 148.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A100-SXM4-40GB", 312.0),
        ("A100-SXM-80GB", 312.0),
        ("NVIDIA A100 80GB PCIe", 312.0),
        ("NVIDIA A100-PCIE-40GB", 312.0),
        ("NVIDIA A100-PG509-200", 312.0),
        ("NVIDIA A800-SXM4-80GB", 312.0),
        ("NVIDIA A800 80GB PCIe", 312.0),
        ("NVIDIA A800 40GB Active", 312.0),
        ("NVIDIA A40", 149.7),
        ("NVIDIA A30", 165.0),
        ("NVIDIA A10", 125.0),
        ("NVIDIA RTX A6000", 154.8),
        ("NVIDIA B200", 2250.0),
        ("NVIDIA B300 SXM6 AC", 2250.0),
        ("NVIDIA GB200", 2500.0),
        ("NVIDIA GB300", 2500.0),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA L40", 181.05),
        ("NVIDIA L20", 119.5),
        ("NVIDIA L4", 121.0),
        ("NVIDIA GeForce RTX 5090", 209.5),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("GeForce RTX 3090", 71.0),
        ("AMD Instinct MI355X", 2516.6),
        ("AMD Instinct MI350X", 2306.9),
        ("AMD Instinct MI325X", 1307.4),
        ("AMD Instinct MI300X", 1307.4),
        ("AMD Instinct MI300X OAM", 1307.4),
        ("AMD Instinct MI250X", 191.5),
        ("Ascend910B2", 354.0),
        ("Ascend910B4-1", 354.0),
        ("Ascend 910B3", 354.0),
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


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA GeForce RTX 5090 D v2",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 SUPER",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA A100-4C",
        "NVIDIA A100-1-5C",
        "NVIDIA A100D-80C",
        "GRID A100-40C",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A10-24Q",
        "NVIDIA A10-8A",
        "NVIDIA A40-10B",
        "NVIDIA RTXA6000-48Q",
        "NVIDIA L4-24Q",
        "NVIDIA L40S-48Q",
        "NVIDIA H100-80C",
        "NVIDIA H100 80GB HBM2e",
        "NVIDIA H100 80GB HBM3 MIG 7g.80gb",
        "NVIDIA H800 NVL",
        "AMD Instinct MI300X VF",
        "AMD Instinct MI300X HF",
        "AMD Instinct MI250X/MI250",
    ],
)
def test_a_variant_or_a_slice_is_not_the_card_of_the_row(device: str) -> None:
    """Laptops, Ti, SUPER and D, profiles of vGPU, parts of a partitioned card, a card with another memory."""
    assert None is peak(device)


@pytest.mark.parametrize(("device", "tera"), [("NVIDIA H100 80GB PCIe", 756.0), ("NVIDIA H100 NVL 94GB", 835.5)])
def test_a_form_with_a_row_of_its_own_has_it_in_any_spelling(device: str, tera: float) -> None:
    """The memory's size may stand before it and behind it."""
    assert tera * 1e12 == pytest.approx(getattr(peak(device), "flops", None))


def test_the_user_knows_better() -> None:
    """A given number wins, for known and unknown devices, and says that it was given."""
    assert [DevicePeak(1e15, USER)] * 2 == [peak("NVIDIA H100 PCIe", 1e15), peak("my accelerator", 1e15)]
