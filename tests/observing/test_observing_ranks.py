"""Two gloo ranks: sharded models are read whole, and NaN on one of them is named with rank, step and boundary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run, open_run
from tests.programs.launch import HERE, launcher, run
from tests.programs.observed import BAD_RANK, BAD_STEP, STEPS

pytestmark = pytest.mark.slow

RANKS = 2


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """Run the program once."""
    directory = tmp_path_factory.mktemp("observed")
    run(directory, *launcher(RANKS), str(HERE / "observed.py"), OTEL_RL_RUN_ID="observed")
    return directory, open_run(directory / "runs" / "observed")


def test_a_sharded_model_is_read_whole(recorded: tuple[Path, Run]) -> None:
    """DDP, FSDP2 and FSDP1 show the shapes and FLOPs of the plain one; flat parameters its FLOPs."""
    directory, _ = recorded
    for rank in range(RANKS):
        seen = json.loads((directory / f"shapes-{rank}.json").read_text())
        plain = seen["plain"]
        assert [plain["shapes"]] * 3 == [seen[name]["shapes"] for name in ("ddp", "fsdp2", "fsdp1")]
        assert [plain["flops"]] * 5 == [one["flops"] for one in seen.values()]
        assert {0} == {seen[name]["shared_by"] for name in ("plain", "ddp")}


def test_nan_on_one_rank_is_named(recorded: tuple[Path, Run]) -> None:
    """And nothing else is."""
    _, found = recorded
    mismatches = [log for log in found.logs(v.LEDGER_MISMATCH)]
    assert [(BAD_RANK, 13, f"step {BAD_STEP}, rank {BAD_RANK}, rl.train.forward: values that are NaN or infinite")] == [
        (log.resource[v.RANK], log.severity, log.body) for log in mismatches
    ]
    faults = [(point.resource[v.RANK], point.value) for point in found.points(v.LEDGER_FAULTS)]
    assert {(BAD_RANK, 1)} == set(faults)


def test_every_rank_counts_its_own(recorded: tuple[Path, Run]) -> None:
    """FLOP/s of each step on each rank, rows of each boundary, and one line on what is taken for granted."""
    _, found = recorded
    rates = [
        (point.resource[v.RANK], point.attributes[v.FLOPS_SCOPE])
        for point in found.points(v.FLOPS_RATE)
        if point.value > 0
    ]
    expected = [(rank, scope) for rank in range(RANKS) for scope in ("step", "update")] * STEPS
    assert sorted(expected) == sorted(rates)
    rows = [(log.resource[v.RANK], log.body) for log in found.logs(v.LEDGER)]
    expected = [(rank, boundary) for rank in range(RANKS) for boundary in ("rl.sample", "rl.train.forward")] * STEPS
    assert sorted(expected) == sorted(rows)
    notes = {log.body for log in found.logs(v.FLOPS_NOTE)}
    assert {"each rank is assumed to compute the whole model (qwen2) for tokens of its own"} == notes


def test_a_distributed_tensor_is_not_read(recorded: tuple[Path, Run]) -> None:
    """To read one is a collective; it is counted."""
    _, found = recorded
    dropped = {
        (p.resource[v.RANK], p.value)
        for p in found.points(v.SELF_DROPPED)
        if "distributed_tensor" in p.attributes.values()
    }
    assert {(0, 1), (1, 1)} == dropped
