"""Processes that began with a run and are in none yet: a rank that hangs before its process group is made is named."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from otel_rl import vocabulary as v
from otel_rl.journal.read import JournalNotFound, open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Report
from otel_rl.report.terminal import render
from tests.made_runs import FakeSpan
from tests.peers import ALIVE, BEGIN_NS, MS, Did, Peer
from tests.programs.launch import start
from tests.waiting import patience
from tests.watched import DEAD

ATTEMPT = "a" * 16
UNNAMED = f"20231114-221320-{ATTEMPT[:6]}"
PROGRAM = """
import os, sys, time
from pathlib import Path
import otel_rl
otel_rl.instrument(())
with otel_rl.stage("load_model"):
    while os.environ["RANK"] == "1" and not Path(sys.argv[1]).exists():
        time.sleep(0.05)
with otel_rl.step(1):
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)
"""


def reported(root: Path, *waiting: Peer, run: str = UNNAMED) -> Report:
    """Report on a run of 10 s, 8 s behind its begin, while others wait in a stage."""
    for one in waiting:
        one.open(v.SETUP, "load_model")
    Peer(root / run, 0, attempt=ATTEMPT, identity=DEAD).step(1, [Did(v.REWARD, 10_000)])
    return build_report(open_run(root / run), BEGIN_NS + 8_000 * MS)


def waiting(root: Path, rank: int = 1, *, began_ms: int = 0, boot_id: str = ALIVE.boot_id) -> Peer:
    """Make a process that does not know its run."""
    identity = replace(ALIVE, created_ns=BEGIN_NS + began_ms * MS, boot_id=boot_id)
    return Peer(root / ".pending" / f"{rank:032x}", rank, attempt="", identity=identity)


def test_who_waits_beside_a_run_is_named(tmp_path: Path) -> None:
    """Where it is, for how long, and with the path to more; it may have begun a little before the run."""
    report = reported(tmp_path, waiting(tmp_path, 2), waiting(tmp_path, 1, began_ms=-1_000))
    paths = [str(tmp_path / ".pending" / f"{rank:032x}") for rank in (1, 2)]
    assert [(path, [(rank, "load_model", [v.SETUP], 8.0, True, False)]) for rank, path in enumerate(paths, 1)] == [
        (one.path, [(row.rank, row.stage, row.inside, row.open_s, row.is_alive, row.is_hanging) for row in
                    one.open_stages])
        for one in report.pending
    ]  # fmt: skip
    assert [0] == [one.rank for one in report.ranks]
    out = io.StringIO()
    render(report, Console(file=out, width=120))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    first = lines.index("Of the processes that began with this run 2 are in no run and may belong to it:")
    assert [f"rank {rank} is in load_model, in rl.setup, 8.00 s so far; no call of it has ended yet" for rank in (1, 2)
            ] == lines[first + 1 : first + 3]  # fmt: skip
    assert [report.path, *paths] == lines[-3:]


def test_who_waits_may_hang(tmp_path: Path) -> None:
    """By the calls of the stage that ended, which are held until its run is known."""
    peer = waiting(tmp_path)
    spans = [FakeSpan("load_model", 7, number, 1, BEGIN_NS, BEGIN_NS + number * MS) for number in (500, 700)]
    peer.spool(spans)
    (one,) = reported(tmp_path, peer).pending
    assert [("load_model", 8.0, 0.7, False)] == [
        (row.stage, row.open_s, row.longest_s, row.is_hanging) for row in one.open_stages
    ]


@pytest.mark.parametrize("path", [".", f"../{UNNAMED}"])
def test_who_waits_is_named_from_inside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Whatever the path to it says, its name and what is beside it are the directory's."""
    expected = [str(one.path) for one in reported(tmp_path, waiting(tmp_path)).pending]
    monkeypatch.chdir(tmp_path / UNNAMED)
    report = build_report(open_run(Path(path)), BEGIN_NS + 8_000 * MS)
    assert (1, expected) == (len(expected), [one.path for one in report.pending])


@pytest.mark.parametrize(
    "other",
    [{"boot_id": "of another host"}, {"began_ms": 10_001}, {"began_ms": -60_001}],
    ids=["elsewhere", "later", "before"],
)
def test_who_cannot_belong_to_a_run_is_not_named(tmp_path: Path, other: dict[str, object]) -> None:
    """What waits on another host or began when the run was not there is another training's."""
    assert [] == reported(tmp_path, waiting(tmp_path, **other)).pending  # type: ignore[arg-type]


def test_nobody_waits_for_a_run_with_a_name(tmp_path: Path) -> None:
    """Who is told the name of the run writes there from the start."""
    assert [] == reported(tmp_path, waiting(tmp_path), run="named").pending


@pytest.mark.medium
def test_a_rank_that_hangs_before_its_group_is_made(tmp_path: Path) -> None:
    """The report of the run that rank 0 made says where rank 1 is."""
    go = tmp_path / "go"
    ranks = [start(tmp_path, "-c", PROGRAM, str(go), RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    try:
        found: list[tuple[int, str, bool]] = []
        for _ in patience():
            for run in (tmp_path / "runs").glob("[!.]*"):
                try:
                    pending = build_report(open_run(run), time.time_ns()).pending
                except JournalNotFound:  # its directory is made a moment before its first file
                    continue
                rows = [row for one in pending for row in one.open_stages]
                found = [(row.rank, row.stage, row.calls_known) for row in rows if row.stage == "load_model"]
            if found:
                break
        (path,) = (tmp_path / "runs" / ".pending").iterdir()
        alone = build_report(open_run(path), time.time_ns())
    finally:
        go.touch()
        outputs = [process.communicate()[0] for process in ranks]
    assert ([(1, "load_model", False)], ["load_model"], "alive", []) == (
        found, [row.stage for row in alone.open_stages], alone.state, alone.pending,
    ), outputs  # fmt: skip
