"""Peak operations per second of devices: dense BF16 matrix products with FP32 accumulation, as their vendors publish.

Published numbers assume boost clocks. Many are "with sparsity", which is twice the dense number in this table. Other
tools' tables differ (MI300X: 1,300 to 1,336), so the source is a part of the number, and the user may set another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """The peak of one device, in operations per second, and its source."""

    flops: float
    source: str


USER: Final = "given by the user"
_HALVED: Final = "with sparsity, halved"

_TABLE: Final[tuple[tuple[str, float, str], ...]] = (
    ("GB300", 2500.0, f"NVIDIA GB300 NVL72 data sheet, 5 PFLOPS per GPU {_HALVED}"),
    ("GB200", 2500.0, f"NVIDIA GB200 NVL72 data sheet, 5 PFLOPS per GPU {_HALVED}"),
    ("B300", 2250.0, f"NVIDIA HGX B300 data sheet, 36 PFLOPS for 8 GPUs {_HALVED}"),
    ("B200", 2250.0, f"NVIDIA HGX B200 data sheet, 36 PFLOPS for 8 GPUs {_HALVED}"),
    ("GH200", 989.4, "NVIDIA H100 architecture white paper, SXM5, the same GPU"),
    ("H200 NVL", 835.5, f"NVIDIA H200 data sheet, NVL, 1,671 TFLOPS {_HALVED}"),
    ("H200", 989.5, f"NVIDIA H200 data sheet, SXM, 1,979 TFLOPS {_HALVED}"),
    ("H100 NVL", 835.5, f"NVIDIA H100 data sheet, NVL, 1,671 TFLOPS {_HALVED}"),
    ("H100 PCIe", 756.0, "NVIDIA H100 architecture white paper, PCIe"),
    ("H100", 989.4, "NVIDIA H100 architecture white paper, SXM5"),
    ("H800 PCIe", 756.0, "NVIDIA H100 architecture white paper, PCIe; the H800 differs in its links"),
    ("H800", 989.4, "NVIDIA H100 architecture white paper, SXM5; the H800 differs in its links"),
    ("H20(?: 3e)?", 148.0, "NVIDIA H20 data sheet"),
    ("A100(?: PCIe| PG509 200)?", 312.0, "NVIDIA A100 data sheet"),
    ("A800(?: PCIe| Active)?", 312.0, "NVIDIA A100 data sheet; the A800 differs in its links"),
    ("A40", 149.7, "NVIDIA A40 data sheet"),
    ("A30", 165.0, "NVIDIA A30 data sheet"),
    ("A10", 125.0, "NVIDIA A10 data sheet"),
    ("RTX A6000", 154.8, f"NVIDIA RTX A6000 data sheet, 309.7 TFLOPS {_HALVED}"),
    ("L40S", 362.05, "NVIDIA L40S data sheet"),
    ("L40", 181.05, "NVIDIA L40 data sheet"),
    ("L20", 119.5, "NVIDIA L20 data sheet"),
    ("L4", 121.0, f"NVIDIA L4 data sheet, 242 TFLOPS {_HALVED}"),
    ("RTX 5090", 209.5, "NVIDIA RTX Blackwell architecture white paper"),
    ("RTX 4090", 165.2, "NVIDIA Ada architecture white paper"),
    ("RTX 3090", 71.0, "NVIDIA Ampere GA102 architecture white paper"),
    ("MI355X", 2516.6, "AMD Instinct MI355X data sheet"),
    ("MI350X", 2306.9, "AMD Instinct MI350X data sheet"),
    ("MI325X", 1307.4, "AMD Instinct MI325X data sheet"),
    ("MI300X", 1307.4, "AMD Instinct MI300X data sheet"),
    ("MI250X", 191.5, "AMD Instinct MI250X data sheet, 383 TFLOPS for two dies; each is a device"),
    ("Ascend ?910B(?:[1-4]|4 1)?", 354.0, "table of verl for every Ascend 910B; Huawei publishes no peak by variant"),
)
"""The card (a regular expression of its name without the words of `_ASIDE`), TFLOPS, source."""

_KNOWN: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), DevicePeak(tera * 1e12, source)) for pattern, tera, source in _TABLE
)
_ASIDE: Final = re.compile(
    r"NVIDIA|GeForce|AMD|Instinct|(?:40|80|94|96|120|144|480)GB?|HBM3e?|SXM\d?|OAM|AC", re.IGNORECASE
)
"""Words of a name that do not distinguish cards; a size that the table does not have does (A100 of 64 GB)."""


def peak(device: str, given: float | None = None) -> DevicePeak | None:
    """Find a device's peak by its name as torch reports it.

    Args:
        device: its name; every word counts, since one more is another card or a part of one.
        given: the user's own number, operations per second.

    Returns:
        None for an unknown device (a CPU, a variant, a part of a device by MIG or vGPU); then there is no MFU.
    """
    if given is not None:
        return DevicePeak(given, USER)
    card = " ".join(word for word in re.findall("[^ -]+", device) if not _ASIDE.fullmatch(word))
    return next((found for pattern, found in _KNOWN if pattern.fullmatch(card)), None)
