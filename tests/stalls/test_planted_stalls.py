"""Stalls of a real two-rank TRL run: each is found while it lasts, explained and told once, and changes no number."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.journal.views import LogView

AFTER_S = 8.0
FOUND_S = 15.0
"""A stall is found so soon after its bound."""
PROGRAM = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.stalls.training")


@dataclass(frozen=True)
class Planted:
    """A stall that ``tests.stalls.training`` plants, and what is to be said of it."""

    kind: str
    cause: str
    stage: str
    rank: int
    shown: str
    """What its stacks or facts show."""


PLANTED = (
    Planted("sample", "stage", "rl.reward parity", 1, r"training.py\", line \d+ in score_one"),
    Planted("late", "stage", "rl.log", 1, r"training.py\", line \d+ in sleep_before_collective"),
    Planted("held", "silent", "rl.reward parity", 1, r"training.py\", line \d+ in parse_answer"),
    Planted("stopped", "stopped", "rl.reward parity", 1, r"state T \(stopped\)"),
    Planted("data", "stage", "rl.idle", 1, r"training.py\", line \d+ in fetch_item"),
    Planted("checkpoint", "silent", "rl.checkpoint", 0, r"trainer.py\", line \d+ in _save_optimizer_and_scheduler"),
)
HOOK = """
import json, sys
with open(sys.argv[1], "a") as file:
    told = json.load(sys.stdin)
    file.write(json.dumps([told["id"], told["evidence"]["rl.stall.state"]]) + "\\n")
"""


def train(directory: Path, kinds: tuple[str, ...], *, is_watched: bool) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Train with stalls; return what was printed, and the losses."""
    directory.mkdir()
    hook = directory / "hook.py"
    hook.write_text(HOOK)
    environ = {
        **os.environ, "OTEL_RL_DIR": str(directory / "runs"), "OUTPUT": str(directory / "out"),
        "OTEL_RL_STALL_AFTER": f"{AFTER_S},rl.checkpoint={AFTER_S}",
        "OTEL_RL_ON_FINDING": f"{sys.executable} {hook} {directory / 'told'}",
    }  # fmt: skip
    under = ("-m", "otel_rl", "run", "--") if is_watched else ()
    command = [sys.executable, *under, *([sys.executable] if is_watched else []), *PROGRAM]
    done = subprocess.run(
        [*command, str(directory / "losses"), *kinds], env=environ, capture_output=True, text=True, check=True
    )
    return done, json.loads((directory / "losses").read_text())


def told(run: Path) -> list[LogView]:
    """Return what was told of stalls, in order."""
    return sorted(open_run(run).logs(v.STALL), key=lambda log: log.time_ns)


def what(log: LogView) -> tuple[Any, ...]:
    """Return what a record says of a stall."""
    said = log.attributes
    return said[v.STALL_STATE], said[v.STALL_CAUSE], said[v.STAGE], said[v.STALL_RANK]


@pytest.mark.slow
def test_each_stall_is_found_explained_and_told_once(tmp_path: Path) -> None:
    """One after the other, each for 20 s; the numbers are those of a training without otel_rl and without stalls."""
    done, losses = train(tmp_path / "stalls", tuple(one.kind for one in PLANTED), is_watched=True)
    (run,) = (tmp_path / "stalls" / "runs").glob("2*")
    logs = told(run)
    expected = [(state, one.cause, one.stage, one.rank) for one in PLANTED for state in ("found", "ended")]
    assert expected == [what(log) for log in logs]
    for one, log in zip(PLANTED, logs[::2], strict=True):
        age_s = float(str(log.attributes[v.STALL_AGE]))
        assert (one.kind, True) == (one.kind, AFTER_S < age_s < AFTER_S + FOUND_S)
        assert log.body.startswith(f"Rank {one.rank} "), log.body
        assert re.search(one.shown, log.body), log.body
    chains = [log.attributes[v.STALL_CHAIN] for log in logs]
    lines = [line.removeprefix("otel-rl: ") for line in done.stderr.splitlines() if line.startswith("otel-rl: ")]
    assert chains == [line for line in lines if " stall " in line or "everybody" in line]
    calls = [json.loads(line) for line in (tmp_path / "stalls" / "told").read_text().splitlines()]
    assert sorted(calls) == sorted([log.attributes[v.STALL_ID], log.attributes[v.STALL_STATE]] for log in logs)
    _, clean = train(tmp_path / "clean", (), is_watched=False)
    assert clean == losses
