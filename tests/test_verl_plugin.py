"""The plugin that verl imports in each of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

pytestmark = pytest.mark.medium

AUTOLOAD = str(files("otel_rl") / "autoload")
ROOT = Path(__file__).parent.parent
LOADED = """
import sys, otel_rl.verl_plugin
module = sys.modules.get("otel_rl.process.state")
print(module and module.state.on)
"""


def load(directory: Path, *paths: str, **environ: str) -> tuple[str, str]:
    """Import the plugin in a process; return whether that records, and what it says."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join((*paths, str(ROOT))), **environ}
    result = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, env=variables, cwd=directory
    )
    return result.stdout.strip(), result.stderr


def test_it_does_nothing_unless_asked_to(tmp_path: Path) -> None:
    """Nor imports anything: verl imports it wherever otel_rl is installed."""
    assert ("None", "") == load(tmp_path)
    assert ("None", "") == load(tmp_path, OTEL_RL_ENABLED="")
    assert ("False", "") == load(tmp_path, OTEL_RL_ENABLED="false")


def test_it_records_and_says_where(tmp_path: Path) -> None:
    """In one line, with the command that shows it."""
    runs = tmp_path / "runs"
    said = f"otel_rl: records below {runs}; to look at it: OTEL_RL_DIR={runs} otel-rl report\n"
    assert ("True", said) == load(tmp_path, OTEL_RL_ENABLED="true", OTEL_RL_DIR="runs")


def test_it_is_quiet_where_the_process_records_already(tmp_path: Path) -> None:
    """Under ``otel-rl run``, which shows the report itself."""
    assert ("True", "") == load(tmp_path, AUTOLOAD, OTEL_RL_ENABLED="true")


def test_a_wrong_setting_is_said_and_raises_nothing(tmp_path: Path) -> None:
    """Verl would swallow an exception."""
    on, said = load(tmp_path, OTEL_RL_ENABLED="maybe")
    assert ("False", 1) == (on, said.count("\n"))
    assert "OTEL_RL_ENABLED" in said
