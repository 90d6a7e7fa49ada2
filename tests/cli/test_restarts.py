"""What one `otel-rl run` starts again and again is one run, and each start an attempt of it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_rl.report.build import build_report
from otel_rl.report.data.report import Report
from otel_rl.runs.locate import open_whole, recorded_below

OTEL_RL = [sys.executable, "-c", "from otel_rl.cli import main; main()"]
TRAIN = """
import pathlib, sys, time
import otel_rl
otel_rl.instrument()
again = pathlib.Path(sys.argv[0] + ".again")
first, is_second = (3, True) if again.exists() else (0, False)
if "at once" in sys.argv:
    pathlib.Path(f"{sys.argv[0]}.{sys.argv[1]}.began").touch()
    while len(list(pathlib.Path(".").glob("*.began"))) < 2:
        time.sleep(0.01)
for number in range(first, 6):
    with otel_rl.step(number), otel_rl.stage("reward"):
        time.sleep(0.01)
        if "fails" in sys.argv and number == 4 and not is_second:
            again.touch()
            raise KeyError("no such sample")
"""
RANKS = """
import os
import torch, torch.distributed as dist
import otel_rl
otel_rl.instrument()
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# a file of its own: in torchrun's store gloo sometimes finds the addresses of the former start
dist.init_process_group("gloo", init_method=f"file://{__file__}.{again}", rank=rank, world_size=size)
for number in range(3 if again else 0, 6):
    with otel_rl.step(number):
        with otel_rl.stage("reward"):
            if not again and number == 4 and dist.get_rank() == 1:
                raise KeyError("no such sample")
        dist.all_reduce(torch.ones(1))
"""


def reports(root: Path, command: str, **files: str) -> list[Report]:
    """Run a shell command below `otel-rl run`; return what is reported of its runs."""
    for name, code in files.items():
        (root / f"{name}.py").write_text(code)
    runs = root / "runs"
    whole = [*OTEL_RL, "run", f"--dir={runs}", "-q", "--", "bash", "-c", command]
    subprocess.run(whole, cwd=root, check=True)
    return [build_report(open_whole(path), time.time_ns()) for path in recorded_below(runs)]


def attempts(report: Report) -> list[tuple[str, int]]:
    """Return how each attempt of a run ended, and how many steps it finished."""
    return [(attempt.state, attempt.steps) for attempt in report.attempts]


@pytest.mark.medium
def test_a_loop_of_the_shell_makes_attempts_of_one_run(tmp_path: Path) -> None:
    """A step that the second one does again is wasted, and the exception that ended the first is told."""
    (report,) = reports(tmp_path, f"until {sys.executable} train.py fails; do :; done", train=TRAIN)
    assert [("failed", 4), ("finished", 3)] == attempts(report)
    assert [("KeyError", 4)] == [(failure.error, failure.step) for failure in report.failures]


@pytest.mark.medium
def test_other_programs_and_trainings_at_once_are_runs_of_their_own(tmp_path: Path) -> None:
    """A pipeline trains by one program and then by another; a sweep trains by one with several seeds at once."""
    python = sys.executable
    command = f"{python} sft.py; {python} train.py 1 'at once' & {python} train.py 2 'at once' & wait"
    assert 3 * [[("finished", 6)]] == [
        attempts(report) for report in reports(tmp_path, command, sft=TRAIN, train=TRAIN)
    ]


@pytest.mark.slow
def test_a_restart_by_torchrun_is_an_attempt_of_the_run(tmp_path: Path) -> None:
    """All ranks are started anew because one failed."""
    options = "--standalone --nproc-per-node 2 --max-restarts 1 --monitor-interval 4"
    launcher = f"{sys.executable} -m torch.distributed.run {options}"
    command = f"GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 {launcher} ranks.py"
    (report,) = reports(tmp_path, command, ranks=RANKS)
    assert [("failed", 4), ("finished", 3)] == attempts(report)
    assert (1, "KeyError", 4) in [(failure.rank.rank, failure.error, failure.step) for failure in report.failures]
