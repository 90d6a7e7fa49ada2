"""What benchmarks need of each other, and that they start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run, open_run

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_the_benchmark_of_requests_hides_no_package() -> None:
    """The others, which lie beside it, find the package that has its name."""
    program = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import requests; print(requests.Session.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Session" == done.stdout.strip()


@pytest.mark.medium
def test_what_a_benchmark_records_is_gone_when_it_ends(tmp_path: Path) -> None:
    """Also what is written last, at the end of the program."""
    program = (
        f"import os, sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import measure\n"
        "os.environ['OTEL_RL_DIR'] = folder = measure.make_folder()\n"
        "import otel_rl\n"
        "otel_rl.instrument(())\n"
        "with otel_rl.step(1): pass\n"
        "assert otel_rl.flush(60) and os.listdir(folder)\n"
    )
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)
    assert [] == os.listdir(tmp_path)


@pytest.mark.slow
def test_requests_are_measured(tmp_path: Path) -> None:
    """Our ways and the stock one, with a handful of requests; ours keep all times of each, and spans of some."""
    count = 200
    given = ("--rounds", "1", "--bursts", "1", "--counts", str(count))
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "requests.py"), *given],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{count} requests; medians of 1 x 1 bursts" in done.stdout
    kept = [_kept(open_run(folder)) for folder in tmp_path.glob("*/benchmark")]
    warming = 100
    assert [(0, dict.fromkeys(HISTOGRAMS, warming + count), True)] * 2 == kept


HISTOGRAMS = (v.REQUEST_DURATION, v.TTFT, v.TPOT, v.QUEUE_TIME, v.PREFILL_TIME)


def _kept(run: Run) -> tuple[float, dict[str, int], bool]:
    """Give how many requests were bad, how many are in each histogram, and whether some are spans."""
    bad = sum(point.value for point in run.last_points(v.BAD_REQUESTS))
    counts = {name: sum(point.count for point in run.last_points(name)) for name in HISTOGRAMS}
    return bad, counts, any(v.SUBMISSION in span.attributes for span in run.spans((v.SUBMISSION,)))


@pytest.mark.slow
def test_the_start_of_a_python_is_measured(tmp_path: Path) -> None:
    """Memory is a process's own, not its parent's: a Python that imports nothing takes less than one that does."""
    command = [sys.executable, str(BENCHMARKS / "start.py"), "--rounds", "2", "--json", str(tmp_path / "figures.json")]
    subprocess.run(command, capture_output=True, text=True, check=True)
    plain, waiting, _, started = json.loads((tmp_path / "figures.json").read_text()).values()
    assert plain["rss_mb"][1] < waiting["rss_mb"][1] < started["rss_mb"][1] / 2
