"""Two real ranks that hang in collectives, of which one is killed, or in DDP; and two that count steps differently."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pytest

pytest.importorskip("torch")

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from tests.programs.launch import HERE, launcher, run, start
from tests.waiting import patience

pytestmark = pytest.mark.slow


def report(directory: Path) -> dict[str, Any]:
    """Ask for the report as a script would."""
    found: dict[str, Any] = json.loads(run(directory, "-m", "otel_rl", "report", "misfortune", "--json"))
    return found


def text(directory: Path) -> str:
    """Ask for the report as a person would; lines may break anywhere."""
    return " ".join(run(directory, "-m", "otel_rl", "report", "misfortune").split())


def wait_until_hanging(directory: Path) -> dict[str, Any]:
    """Look again and again until the report says that both ranks hang."""
    for _ in patience():
        if any((directory / "runs" / "misfortune").glob("*.otlp")):
            found = report(directory)
            if [True, True] == [stage["is_hanging"] for stage in found["open_stages"]]:
                return found
    raise AssertionError("the report named no hang")


def collectives(found: dict[str, Any]) -> dict[int, tuple[Any, ...]]:
    """Say of each rank that is in a collective in which one, and in which stage and step."""
    keys = ("operation", "sequence", "group", "group_size")
    return {
        stage["rank"]: (*(stage["collective"][key] for key in keys), stage["inside"], stage["iteration"])
        for stage in found["open_stages"]
        if stage["collective"] is not None
    }


def test_a_hang_shows_while_it_lasts_and_after_a_kill(tmp_path: Path) -> None:
    """Each rank is in a collective that the other never calls: which one, since when; then one dies by SIGKILL."""
    started_ns = time.time_ns()
    process = start(
        tmp_path, *launcher(2), str(HERE / "misfortune.py"), "hang", OTEL_RL_RUN_ID="misfortune", COLUMNS="300"
    )
    try:
        hanging = wait_until_hanging(tmp_path)
        said = text(tmp_path)
        victim = next(s for s in open_run(tmp_path / "runs" / "misfortune").open_stages() if s.resource["rl.rank"] == 1)
        os.kill(victim.journal.identity.pid, signal.SIGKILL)
        output, _ = process.communicate()
    except TimeoutExpired:
        process.kill()
        raise
    where = {
        0: ("all_reduce", 6, "default_pg", 2, ["rl.reward"], 6),
        1: ("barrier", 6, "pair 1", 2, ["rl.reward"], 6),
    }
    assert ("alive", where) == (hanging["state"], collectives(hanging))
    assert all(started_ns < stage["since_ns"] < hanging["end_ns"] for stage in hanging["open_stages"])
    for rank, which in enumerate(("all_reduce 6 of default_pg", "barrier 6 of pair 1")):
        assert f"rank {rank} may hang: in rl.train.comm ({which}, 2 ranks), in rl.reward, step 6, for" in said
    assert 0 != process.returncode, output
    dead = report(tmp_path)
    assert "killed" == dead["state"]
    assert where[1] == collectives(dead)[1]
    said = text(tmp_path)
    # gloo may tell rank 0 that its peer is gone, and torchrun then kill it while its exception passes
    assert (
        "Rank 1 was killed, last seen in rl.train.comm, in rl.reward, step 6" in said
        or "rank 1 was last seen in rl.train.comm (barrier 6 of pair 1, 2 ranks), in rl.reward, step 6" in said
    )
    failed = [(one["rank"]["rank"], one["error"], one["stage"], one["step"]) for one in dead["failures"]]
    is_ended = 0 in {stage["rank"] for stage in dead["open_stages"]}  # by torchrun, before its exception was through
    assert failed == [(0, "RuntimeError", "rl.reward", 6)] or is_ended
    assert 5 == dead["steps"]["recorded"]


def test_a_hang_in_ddp_is_one_in_its_reduction(tmp_path: Path) -> None:
    """The rank whose peer does not begin its backward is inside it, and since when; it goes on, and it is a span."""
    release, program = tmp_path / "release", str(HERE / "misfortune.py")
    process = start(tmp_path, *launcher(2), program, "late", str(release), OTEL_RL_RUN_ID="misfortune", COLUMNS="300")
    try:
        hanging = wait_until_hanging(tmp_path)
        said = text(tmp_path)
    finally:
        release.touch()
        output, _ = process.communicate()
    waits, late = hanging["open_stages"]
    keys = ("rank", "stage", "inside", "iteration", "collective")
    which = {"operation": "ddp_all_reduce", "group": "default_pg", "group_size": 2, "sequence": None}
    assert [0, v.COMM, [v.BACKWARD], 6, which] == [waits[key] for key in keys]
    assert [1, "rl.advantage", [], 6, None] == [late[key] for key in keys]
    where = f"{v.COMM} (ddp_all_reduce of default_pg, 2 ranks), in {v.BACKWARD}, step 6, for"
    assert f"rank 0 may hang: in {where}" in said
    assert "rank 1 may hang: in rl.advantage, step 6, for" in said
    assert 0 == process.returncode, output
    ended = open_run(tmp_path / "runs" / "misfortune")
    rows = [one for one in ended.spans(None) if one.attributes.get(v.COMM_OPERATION) == v.DDP_ALL_REDUCE]
    began = {rank: sorted(one.start_ns for one in rows if one.resource["rl.rank"] == rank) for rank in (0, 1)}
    assert ([], 6, 6, waits["since_ns"]) == (ended.open_stages(), len(began[0]), len(began[1]), began[0][-1])


def test_ranks_that_count_their_steps_differently(tmp_path: Path) -> None:
    """They are compared by their order, so the report knows; what it says of the ranks is not to be trusted then."""
    run(tmp_path, *launcher(2), str(HERE / "misfortune.py"), "disagree", OTEL_RL_RUN_ID="misfortune")
    first = [{"rank": 0, "loop": "train", "iteration": 1}, {"rank": 1, "loop": "train", "iteration": 3}]
    (found,) = report(tmp_path)["disagreements"]
    assert (6, 6, first) == (found["steps"], found["compared"], found["first"])
    said = text(tmp_path)
    assert "Ranks call 6 of 6 steps by different numbers: what rank 0 calls step 1 is step 3 on rank 1." in said
