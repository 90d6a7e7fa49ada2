"""Trains with OpenRLHF's own code, as examples/openrlhf_cpu does, and reads what was recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.programs.launch import ROOT, environment
from tests.roll.training import Trained

SCRIPT = ROOT / "examples" / "openrlhf_cpu" / "run.sh"
VERSION = "0.11.2"


def download(folder: Path) -> Path:
    """Return the wheel of OpenRLHF, from pip's package index; skip where there is none."""
    options = "--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", "3.11"
    platform = "--platform", "manylinux1_x86_64", "--dest", str(folder)
    pip = sys.executable, "-m", "pip", "--disable-pip-version-check", "download"
    done = subprocess.run((*pip, *options, *platform, f"openrlhf=={VERSION}"), check=False)
    if done.returncode:
        pytest.skip("pip's package index has no OpenRLHF")
    (wheel,) = folder.glob("*.whl")
    return wheel


class Plain(Trained):
    """A training that nothing recorded."""

    def __init__(self, directory: Path, output: str) -> None:
        self.directory, self.output = directory, output


def train(wheel: Path, directory: Path, *options: str, is_recorded: bool = True, code: int = 0) -> Trained:
    """Train three steps; options are OpenRLHF's, the exit code its own."""
    work = directory / "files"
    env = environment(directory) | {"PYTHON": sys.executable, "OTEL_RL_SIDECAR": "false", "PYTHONPATH": str(ROOT)}
    if is_recorded:
        env["PREFIX"] = f"{sys.executable} -m otel_rl run -q --"
    done = subprocess.run(
        [str(SCRIPT), str(work), str(wheel), *options],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout[-6000:]
    return (Trained if is_recorded else Plain)(directory, done.stdout)


def scalars(trained: Trained) -> dict[str, list[float]]:
    """Return what OpenRLHF's TensorBoard logger wrote of each number, but for times."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (trained.directory / "files" / "tensorboard").iterdir()
    events: Any = EventAccumulator(str(folder))
    events.Reload()
    names = [name for name in events.Tags()["scalars"] if "timing/" not in name]
    return {name: [one.value for one in events.Scalars(name)] for name in names}
