"""What benchmarks need of each other, and that they start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_the_benchmark_of_requests_hides_no_package() -> None:
    """The others, which lie beside it, find the package that has its name."""
    program = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import requests; print(requests.Session.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "Session" == done.stdout.strip()


@pytest.mark.slow
def test_requests_are_measured() -> None:
    """Our way and the stock one, with a handful of requests."""
    count = 200
    command = [
        sys.executable,
        str(BENCHMARKS / "requests.py"),
        "--rounds",
        "1",
        "--bursts",
        "1",
        "--counts",
        str(count),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert f"{count} requests; medians of 1 x 1 bursts" in done.stdout
