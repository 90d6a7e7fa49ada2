"""Starts the programs of this folder as a user would: own processes, own environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def environment(directory: Path, **changes: str) -> dict[str, str]:
    """Make the environment of a program that journals below a directory."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "COV_CORE", "TORCHELASTIC")) and name not in ("RANK", "WORLD_SIZE")
    }
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OTEL_RL_DIR": str(directory / "runs"), **changes}


def own_lines(output: str) -> list[str]:
    """Return the lines that otel_rl wrote; the list of modules that faulthandler prints at a crash is none."""
    return [line for line in output.splitlines() if "otel_rl" in line and "Extension modules: " not in line]


def launcher(ranks: int, *options: str) -> list[str]:
    """Say with what ``python`` starts so many ranks."""
    return (
        []
        if ranks == 1
        else ["-m", "torch.distributed.run", *(options or ("--standalone",)), f"--nproc-per-node={ranks}"]
    )


def start(directory: Path, *command: str, **changes: str) -> subprocess.Popen[str]:
    """Start ``python`` with arguments."""
    return subprocess.Popen(
        [sys.executable, *command],
        env=environment(directory, **changes),
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(directory: Path, *command: str, code: int | None = 0, **changes: str) -> str:
    """Run ``python`` with arguments and give what it printed."""
    process = start(directory, *command, **changes)
    try:
        output, _ = process.communicate()
    finally:
        process.kill()  # if the time of the test is over
    assert code is None or process.returncode == code, f"exit code {process.returncode}\n{output[-8000:]}"
    return output


@dataclass
class Trained:
    """A training that has ended: where it journaled, what it printed, what really happened on each rank."""

    directory: Path
    output: str
    truths: list[dict[str, Any]]

    @property
    def runs(self) -> Path:
        return self.directory / "runs"

    @property
    def truth(self) -> dict[str, Any]:
        return self.truths[0]


class Trainings:
    """Trains in one process after the other, each forked from one that has imported the frameworks already."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._server = subprocess.Popen(
            [sys.executable, str(HERE / "train_trl.py"), "--serve"],
            env=environment(directory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def train(self, name: str, *, code: int | None = 0, env: dict[str, str] | None = None, **job: Any) -> Trained:
        """Train as ``train_trl.py`` describes it."""
        directory = self.directory / name
        directory.mkdir()
        output, truth = directory / "output", directory / "truth.json"
        sent = {
            "work": str(directory),
            "truth": str(truth),
            "output": str(output),
            "env": {"OTEL_RL_DIR": str(directory / "runs"), **(env or {})},
            **job,
        }
        assert self._server.stdin and self._server.stdout
        print(json.dumps(sent), file=self._server.stdin, flush=True)
        ended = int(self._server.stdout.readline())
        text = output.read_text()
        assert code is None or ended == code, f"exit code {ended}\n{text[-8000:]}"
        return Trained(directory, text, [json.loads(truth.read_text())])

    def close(self) -> None:
        """End the process."""
        assert self._server.stdin and self._server.stdout
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()


def training(directory: Path, ranks: int, launch: tuple[str, ...] = (), **job: Any) -> list[str]:
    """Say what ``python`` has to run."""
    job = {"work": str(directory), "truth": str(directory / "truth-{rank}.json"), **job}
    return [*launcher(ranks, *launch), str(HERE / "train_trl.py"), json.dumps(job)]


def train(
    directory: Path,
    *,
    ranks: int = 1,
    code: int | None = 0,
    launch: tuple[str, ...] = (),
    under: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    **job: Any,
) -> Trained:
    """Train as ``train_trl.py`` describes it, on so many ranks; ``under`` is what ``python`` runs instead of it."""
    directory.mkdir(exist_ok=True)
    output = run(directory, *under, *training(directory, ranks, launch, **job), code=code, **(env or {}))
    files = [directory / f"truth-{rank}.json" for rank in range(ranks)]
    return Trained(directory, output, [json.loads(file.read_text()) for file in files if file.exists()])
