"""Four gloo ranks with clocks that are wrong, FSDP2 and DDP: who is slow, where, and what it costs.

One rank is late by 100 ms in one place, or the collectives are slow on all of them. DDP differs where it reduces: in
its forward and backward.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

pytest.importorskip("torch")

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run, open_run
from otel_rl.report.read.average import average
from otel_rl.tables.calls import join
from tests.fixtures import folded_run
from tests.programs.launch import HERE, launcher, run
from tests.programs.straggle import SKEW_NS, SLOW_RANK
from tests.tables.made import StageCall, listed_calls, part_of
from tests.timelines import slow_ranks

pytestmark = pytest.mark.slow

STEPS = 40
WARMUP = 2
"""Steps that reports leave out."""
STAGES = {"forward": v.FORWARD, "backward": v.BACKWARD}

SLOW_RULES = frozenset(("starved_rank", "slow_rank", "slow_stage"))


@dataclass
class Drill:
    """What a run of ``straggle.py`` left."""

    run: Run
    report: dict[str, Any]
    """What ``otel-rl report --json`` says."""
    slept_s: list[float]
    """By how much the slow rank was late."""

    def slow(self) -> tuple[int, str]:
        """What is said of the slow rank: itself and the stage; what else it is short of depends on the machine."""
        (one,) = [one for one in self.report["findings"]["time"] if one["rule"] in SLOW_RULES]
        (rank,) = one["values"]["ranks"]
        return rank, one["values"]["stage"]

    def steps(self) -> list[list[StageCall]]:
        """The calls of all ranks in each step that averages are made of."""
        folded = folded_run(self.run)
        calls = join(folded.calls)
        found: defaultdict[int, list[StageCall]] = defaultdict(list)
        for record in average(folded.steps).steady:
            own = calls.take(calls.rank_step == record.number, calls.rank_step)
            found[record.step.iteration] += listed_calls(own, record.rank.rank)
        return list(found.values())


def drill(directory: Path, wrapping: str, where: str) -> Drill:
    """Run the program and its report."""
    truth = directory / "truth.json"
    program = [str(HERE / "straggle.py"), wrapping, where, str(WARMUP + STEPS), str(truth)]
    run(directory, "-W", "ignore", *launcher(len(SKEW_NS)), *program, OTEL_RL_RUN_ID="drill")
    printed = run(directory, "-m", "otel_rl", "report", "drill", "--json")
    slept_s = json.loads(truth.read_text()) if truth.exists() else []
    return Drill(open_run(directory / "runs" / "drill"), json.loads(printed), slept_s)


@pytest.mark.parametrize(("wrapping", "where"), [("fsdp2", "forward"), ("ddp", "backward")])
def test_a_slow_rank_is_named_with_its_stage(tmp_path: Path, wrapping: str, where: str) -> None:
    """In every step, and by the report of the run, which says what it costs and blames nobody else.

    On a machine that is short of cores another rank may be held up for longer, and is then named before it.
    """
    found = drill(tmp_path, wrapping, where)
    steps, late_s = found.steps(), median(found.slept_s)
    culprit = (SLOW_RANK, STAGES[where])

    named = [{(one.rank, stage): one.excess_s for stage, one in slow_ranks(calls).items()} for calls in steps]

    assert [True] * STEPS == [culprit in slow for slow in named]
    assert median(slow[culprit] for slow in named) == pytest.approx(late_s, rel=0.1)
    (straggler,) = found.report["efficiency"]["stragglers"]
    assert (SLOW_RANK, STAGES[where], STEPS) == tuple(straggler[key] for key in ("rank", "stage", "slow_steps"))
    assert straggler["cost_s"] == pytest.approx(late_s, rel=0.1)
    assert (SLOW_RANK, STAGES[where]) == found.slow()


def test_a_rank_that_is_slow_between_its_stages_is_named(tmp_path: Path) -> None:
    """By what it does under no stage, since the others are seen to wait for it."""
    found = drill(tmp_path, "fsdp2", "between")
    (straggler,) = found.report["efficiency"]["stragglers"]
    assert (SLOW_RANK, v.OTHER, STEPS) == tuple(straggler[key] for key in ("rank", "stage", "slow_steps"))
    assert straggler["cost_s"] == pytest.approx(median(found.slept_s), rel=0.1)
    assert (SLOW_RANK, v.OTHER) == found.slow()


def test_slow_communication_is_no_ranks_fault(tmp_path: Path) -> None:
    """Every collective takes longer on all ranks alike: it is named, and nobody is.

    Where cores are short a rank may be held up in a step, but hardly ever for as long.
    """
    found = drill(tmp_path, "fsdp2", "collective")
    steps = found.steps()
    assert STEPS == len(steps)
    transfer_s = [sum(part_of(calls).transfers_ns.values()) / 1e9 for calls in steps]
    blamed_s = [sum(one.excess_s for one in slow_ranks(calls).values()) for calls in steps]
    assert 0.9 * STEPS <= sum(comm > blamed for comm, blamed in zip(transfer_s, blamed_s, strict=True))
    efficiency = found.report["efficiency"]
    assert [] == efficiency["stragglers"]
    assert v.BACKWARD == efficiency["slow_communication"][0]["stage"]
    assert "slow_communication" in [one["rule"] for one in found.report["findings"]["time"]]


def test_nobody_is_blamed_where_all_are_slow(tmp_path: Path) -> None:
    """Four ranks on however few cores, late alike in their rewards, with clocks that are 330 ms apart."""
    found = drill(tmp_path, "fsdp2", "everywhere")
    begins: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for record in folded_run(found.run).steps:
        begins[record.step.iteration][record.rank.rank] = record.step.begin_ns
    apart_ns = median(begin[1] - begin[SLOW_RANK] for begin in begins.values())
    assert apart_ns == pytest.approx(SKEW_NS[1] - SKEW_NS[SLOW_RANK], rel=0.2), "the clocks are not wrong"
    assert [] == found.report["efficiency"]["stragglers"]
    assert {"starved_rank", "slow_rank", "slow_stage"}.isdisjoint(
        one["rule"] for one in found.report["findings"]["time"]
    )
