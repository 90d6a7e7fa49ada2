"""A job that is submitted to Ray, on one machine. The environment of verl has what Ray needs for that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from tests.programs.launch import HERE, ROOT, environment
from tests.programs.ray_cluster import RAY, cluster
from tests.programs.recorded import Recorded
from tests.waiting import wait_for

pytestmark = pytest.mark.verl

PROGRAM = "-W", "ignore", str(HERE / "ray_job.py"), "--attached"
RUN = "-m", "otel_rl", "run", "-q", "--", sys.executable
ROLES = {"trainer", "Trainer", "Generator", "worker"}


def submit(directory: Path, address: str, variables: dict[str, str], *command: str) -> str:
    """Submit a job with an environment and wait for its end; return what it printed."""
    given = json.dumps({"env_vars": {"OTEL_RL_SIDECAR": "false", **variables}})
    options = ["job", "submit", f"--address={address}", f"--runtime-env-json={given}", "--", sys.executable, *command]

    def answer() -> str:
        ended = subprocess.run(
            [sys.executable, *RAY, *options],
            env=environment(directory, RAY_AUTH_MODE="disabled", RAY_ADDRESS=address),
            capture_output=True,
            text=True,
            check=False,
        )
        printed = ended.stdout + ended.stderr
        return "" if "No available agent" in printed else printed

    return str(wait_for(answer))


def test_a_submitted_job_is_one_run(tmp_path: Path) -> None:
    """Under ``otel-rl run``, and with all that is needed in its environment; what it ends with is passed on."""
    mine = {"PYTHONPATH": f"{ROOT / 'otel_rl' / 'autoload'}:{ROOT}", "OTEL_RL_RUN_ID": "mine"}
    with cluster(tmp_path, takes_jobs=True) as address:
        for directory, variables, command, end in (
            (tmp_path / "under", {"PYTHONPATH": str(ROOT)}, (*RUN, *PROGRAM), "succeeded"),
            (tmp_path / "mine", mine, (*PROGRAM, "--fail"), "failed with exit code 3"),
        ):
            output = submit(tmp_path, address, {**variables, "OTEL_RL_DIR": str(directory)}, *command)
            assert end in output, output
            found = Recorded(directory, "mine" if variables is mine else "*")
            assert ([], [], {}) == (found.orphans, found.run.damage, found.errors())
            assert ROLES == {node.span.resource[v.ROLE] for node in found.nodes}
