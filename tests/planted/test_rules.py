"""Rules that read several numbers, or a device: planted into short trainings, of which few are made here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from otel_rl.report.findings.health import HEALTH
from otel_rl.report.findings.learning import LEARN
from otel_rl.report.findings.timing import TIME
from tests.planted import rules
from tests.programs.launch import environment

KNOWN = {one.name for table in (TIME, LEARN, HEALTH) for one in table}
TRAINED = "rollout_drifts", "device_throttled"
"""The others: ``python -m tests.planted.rules``."""


def test_what_is_planted_is_a_rule() -> None:
    """Each once."""
    names = [one.name for one in rules.PLANTED]
    assert len(names) == len(set(names))
    assert set(names) <= KNOWN


@pytest.mark.slow
def test_a_planted_rule_is_told_and_a_clean_training_raises_nothing(tmp_path: Path) -> None:
    """Of a plain loop, and of one with a device that stands in; in a process without what other tests left in this."""
    pytest.importorskip("torch")
    command = ["-W", "ignore", "-m", "tests.planted.rules", *TRAINED, "own", "--seeds", "0", f"--dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, *command],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    expected = [f"| {one.name} | {one.fed_by} | told |" for one in rules.PLANTED if one.name in TRAINED]
    rows = tuple(f"| {name} |" for name in (*TRAINED, "own"))
    assert [*expected, "| own | - |"] == [line for line in done.stdout.splitlines() if line.startswith(rows)], (
        done.stdout
    )
    assert done.returncode == 0
