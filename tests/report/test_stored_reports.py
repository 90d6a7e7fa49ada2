"""Every number of the reports of many kinds of runs, as it was when it was last looked at.

The guard of a change of how runs are read: what it changes shows here, number by number.
`WRITE_REPORTS=1 pytest tests/report/test_stored_reports.py` stores the numbers anew; look at what changed.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.rule_settings import RuleSettings
from otel_rl.report.schema import to_json
from tests.driver_runs import ACTORS, AGENT, REWARD, DrivenPlan, write_driven
from tests.made_runs import BEGIN_NS, Plan, write_run

STORED = Path(__file__).with_name("stored")
NOW_NS = BEGIN_NS + 3_600_000_000_000
Write = Callable[[Path], Path]


def damaged(root: Path) -> Path:
    """Write a run whose largest file of spans has zeros in its middle."""
    run = write_run(root, Plan())
    largest = max(run.glob("*.traces.*"), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    largest.write_bytes(data)
    return run


def restarted(root: Path) -> Path:
    """Write a run whose second attempt repeats the last steps of the first, which was killed."""
    write_run(root, Plan(steps=8, killed_in=v.BACKWARD))
    return write_run(root, Plan(attempt="b" * 32, first_step=6, shift_ms=60_000))


def recorded(root: Path, name: str) -> Path:
    """Unpack the run of a real training (``store_run.py``)."""
    with tarfile.open(STORED / f"{name}.tar.xz") as archive:
        archive.extractall(root / name, filter="data")
    return root / name


def made(plan: Plan) -> Write:
    return partial(write_run, plan=plan)


def driven(plan: DrivenPlan) -> Write:
    return partial(write_driven, plan=plan)


RECORDED = (
    "fsdp2_four_ranks", "roll_agentic", "roll_async", "roll_critic_stall", "roll_failed_reward", "trl_demo",
    "verl_sync",
)  # fmt: skip
RUNS: dict[str, Write] = {
    "healthy": made(Plan()),
    "one_rank": made(Plan(ranks=1)),
    "slow_rank_of_8": made(Plan(ranks=8, slow_rank=5, steps=20)),
    "nan_loss_and_losses": made(Plan(nan_loss_step=3, dropped=9, changed=3)),
    "killed": made(Plan(killed_in=v.BACKWARD)),
    "going_on": made(Plan(killed_in=v.SAMPLE, is_alive=True)),
    "set_clock": made(Plan(clock_set_s={(0, 7): -30.0, (1, 4): 12.5})),
    "checkpoints": made(Plan(checkpoint=True)),
    "host_clock": made(Plan(host_clock=True)),
    "device_clock": made(Plan(host_clock=True, device_ms=8.0, device_memory=True)),
    "without_metrics": made(Plan(metrics=False)),
    "restarted": restarted,
    "damaged": damaged,
    "driven": driven(DrivenPlan()),
    "driven_slow_rank": driven(DrivenPlan(slow_rank=1)),
    "driven_held_step": driven(DrivenPlan(long_in=6)),
    "driven_growing_sync": driven(DrivenPlan(sync_grows=60)),
    "driven_slow_loop": driven(DrivenPlan(slow_loop=True)),
    "driven_leak": driven(DrivenPlan(grows=(REWARD, 80))),
    "driven_failed_reward": driven(DrivenPlan(fails_in=4)),
    "driven_tools": driven(DrivenPlan(tool=3, slow_reward=600, waits_in=v.SAMPLE, turns=3)),
    "driven_two_hosts": driven(DrivenPlan(elsewhere=(AGENT, ACTORS[1]))),
    "driven_killed": driven(DrivenPlan(ends="killed", hangs=True)),
    "driven_lost": driven(DrivenPlan(ends="lost")),
    "driven_fails_in_setup": driven(DrivenPlan(ends="set-up")),
    "driven_going_on": driven(DrivenPlan(ends="open", is_alive=True)),
}
RUNS |= {name: partial(recorded, name=name) for name in RECORDED}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each number and text of a report with the path to it."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if not pairs:
        yield path, float(f"{value:.12g}") if isinstance(value, float) else value  # sums of floats depend on the order
        return
    for key, below in pairs:
        yield from leaves(below, f"{path}.{key}" if path else str(key))


@pytest.mark.parametrize("name", RUNS)
def test_a_report_has_the_numbers_that_were_stored(name: str, tmp_path: Path) -> None:
    """All of them, of all its parts but the settings of the rules, which are no numbers of the run."""
    report = build_report(open_run(RUNS[name](tmp_path)), NOW_NS)
    text = re.sub(r"-\d+-[0-9a-f]{8}\b", "-PROCESS", to_json(report)).replace(str(tmp_path), "ROOT")
    document = json.loads(text)
    assert asdict(RuleSettings()) == document.pop("rules")
    file = STORED / f"{name}.json.gz"
    if os.environ.get("WRITE_REPORTS"):
        file.write_bytes(gzip.compress(json.dumps(document, indent=2).encode(), mtime=0))
    stored = dict(leaves(json.loads(gzip.decompress(file.read_bytes()))))
    assert stored == dict(leaves(document))


def test_nothing_is_stored_of_runs_that_are_gone() -> None:
    """Each file belongs to a run."""
    stored = {f"{name}.json.gz" for name in RUNS} | {f"{name}.tar.xz" for name in RECORDED}
    assert stored == {file.name for file in STORED.iterdir()}
