"""Four gloo ranks on a real device mesh: each says its place, and the two pipeline stages are not compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from tests.programs.launch import HERE, launcher, run

pytestmark = pytest.mark.slow

STEPS = 12


def test_a_real_mesh_says_the_place_of_each_rank(tmp_path: Path) -> None:
    """In every step's resource. A stage that computes for longer is not slow, and what stages share counts once.

    The making of its groups is seen, of those that a rank is not in as well.
    """
    run(tmp_path, "-W", "ignore", *launcher(4), str(HERE / "mesh.py"), str(STEPS), OTEL_RL_RUN_ID="mesh")
    steps: dict[int, list[tuple[int, ...]]] = {}
    recorded = open_run(tmp_path / "runs" / "mesh")
    for span in recorded.spans((v.ITERATION,)):
        if span.name.startswith(v.RANK_SPAN) and v.ITERATION in span.attributes:
            place = tuple(span.resource.get(key, -1) for key in (v.RANK_PP, v.RANK_DP, v.RANK_TP))
            steps.setdefault(span.resource[v.RANK], []).append(place)  # type: ignore[index,arg-type]
    assert {rank: [(rank // 2, rank % 2, -1)] * STEPS for rank in range(4)} == steps
    made = [
        (point.attributes.get(v.COMM_GROUP_KIND, ""), point.count)
        for point in recorded.last_points(v.COMM_DURATION)
        if (point.resource[v.RANK], point.attributes[v.COMM_OPERATION]) == (3, "new_group")
    ]
    assert [("", 2), ("mesh_dp", 1), ("mesh_pp", 1)] == sorted(made)  # type: ignore[type-var]

    report = json.loads(run(tmp_path, "-m", "otel_rl", "report", "mesh", "--json"))
    assert [(rank, rank // 2) for rank in range(4)] == [
        (row["rank"], row["pipeline"]) for row in report["efficiency"]["ranks"]
    ]
    assert [] == [row for row in report["efficiency"]["stragglers"] if row["ratio"] > 2], "stages were compared"
    (samples,) = [row for row in report["rates"] if (row["unit"], row["wall"]) == ("samples", "step")]
    step_s = report["steps"]["total_s"] / report["steps"]["averaged"]
    assert samples["per_second"] * step_s == pytest.approx(2 * 8)


COMPILED = """
import sys
import torch, torch.distributed as dist
if sys.argv[1] == "recorded":
    import otel_rl
    otel_rl.instrument()
from torch.distributed.device_mesh import DeviceMesh

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())

def twice(x):
    mesh = DeviceMesh("cpu", [0], mesh_dim_names=("dp",))
    return 2 * x * mesh.size()

print(torch.compile(twice, backend="eager")(torch.ones(2)).tolist())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["bare", "recorded"])
def test_a_mesh_may_be_made_in_what_is_compiled(tmp_path: Path, how: str) -> None:
    """Torch breaks its graph there and goes on; our frame in between changes nothing."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, how], env={**os.environ, "OTEL_RL_DIR": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (0, "[2.0, 2.0]\n") == (done.returncode, done.stdout), done.stderr
