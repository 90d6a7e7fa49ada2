"""A job on a Ray cluster that ran before, and what is said where a node has no otel_rl."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from tests.programs.launch import HERE, own_lines, run
from tests.programs.ray_cluster import cluster
from tests.programs.recorded import Recorded

pytestmark = pytest.mark.slow

PROGRAM = str(HERE / "ray_job.py")
QUIET = {"OTEL_RL_SIDECAR": "false", "PYTHONWARNINGS": "ignore", "RAY_AUTH_MODE": "disabled"}
ROLES = {"trainer", "Trainer", "Generator", "worker"}


def roles(directory: Path) -> set[str]:
    """Read the roles in the only run, of which nothing is missing."""
    found = Recorded(directory / "runs")
    assert ([], [], {}) == (found.orphans, found.run.damage, found.errors())
    return {str(node.span.resource[v.ROLE]) for node in found.nodes}


def test_a_job_on_a_cluster_that_ran_before_is_one_run(tmp_path: Path) -> None:
    """The environment of the job says to its processes whose run they belong to."""
    pytest.importorskip("ray")
    with cluster(tmp_path) as address:
        output = run(tmp_path, PROGRAM, "--instrument", "--attached", RAY_ADDRESS=address, **QUIET)
    assert (ROLES, []) == (roles(tmp_path), own_lines(output))


def test_a_node_without_otel_rl_is_said_in_one_line(tmp_path: Path) -> None:
    """By each actor, and by each process of a task, of which Ray shows the first; the program goes on."""
    pytest.importorskip("ray")
    output = run(tmp_path, PROGRAM, "--instrument", "--elsewhere", RAY_DEDUP_LOGS="0", **QUIET)
    found = set(re.findall(r"\((\w+) pid=\d+\)\S* (otel_rl.*)", output))
    why = "otel_rl: what runs here is not recorded: there is no /nowhere/autoload on this node"
    assert {(name, why) for name in ("Trainer", "Generator", "Storage", "score")} == found, output
    assert {"trainer"} == roles(tmp_path)
