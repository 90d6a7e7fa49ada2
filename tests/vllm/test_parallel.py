"""An engine with tensor parallelism: its processes make a group of several ranks, and yet no training of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from tests.programs.launch import run
from tests.programs.recorded import Recorded
from tests.vllm.scenario import ENVIRONMENT

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def test_the_ranks_of_an_engine_are_in_the_run_of_the_trainer(model: Path, tmp_path: Path) -> None:
    """In its attempt, in a role of their own, below the stage that built the engine."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("vLLM binds each rank to cores of its own")
    program = str(Path(__file__).parent / "parallel.py")
    changes = {**ENVIRONMENT, "VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[1]}"}
    run(tmp_path, "-m", "otel_rl", "run", "--", sys.executable, program, str(model), **changes)
    recorded = Recorded(tmp_path / "runs")
    keys = v.ROLE, v.RANK, v.WORLD_SIZE
    found = {tuple(node.span.resource[key] for key in keys) for node in recorded.nodes}
    assert {("trainer", 0, 1), ("rollout", 0, 2), ("rollout", 1, 2)} <= found
    assert 1 == len({node.span.resource[v.ATTEMPT_ID] for node in recorded.nodes})
    assert ([], {}, []) == (recorded.orphans, recorded.errors(), recorded.run.damage)
