"""Ranks without a process group find each other: real processes of a small loop, as `srun` or a script starts them."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TypeVar

import pytest

from otel_rl import vocabulary as v
from otel_rl.config import Config
from otel_rl.journal.read import open_run
from otel_rl.process import rendezvous
from otel_rl.process.identity import Identity
from otel_rl.process.rendezvous import Rendezvous
from otel_rl.report.build import build_report
from tests.fixtures import orphans
from tests.programs.launch import start
from tests.waiting import wait_for

T = TypeVar("T")
RANKS, STEPS = 4, 12
PROGRAM = """
import os, subprocess, sys, time
from pathlib import Path
import otel_rl

def wait(condition):
    while not condition():
        time.sleep(0.02)

rank, met = os.environ["RANK"], Path(os.environ.get("MET", ""))
otel_rl.instrument(())
print("began", flush=True)
if "BEGIN" in os.environ:
    wait(Path(os.environ["BEGIN"]).exists)
for number in range(1, 13):
    with otel_rl.step(number):
        with otel_rl.stage("reward"):
            time.sleep(0.02)
    if number == 1 and "GO_ON" in os.environ:
        wait(Path(os.environ["GO_ON"]).exists)
    if number == 1 and met.name:
        wait(otel_rl.flush)
        (met / rank).touch()
        wait(lambda: len(list(met.iterdir())) == 4)
        if rank == os.environ.get("HELPED"):
            subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""
HELPER = """
import otel_rl
otel_rl.instrument(())
with otel_rl.step(1):
    pass
"""
LAUNCHER = """
import os, subprocess, sys
script, program = os.environ.pop("WRAPPED", ""), [sys.executable, "-c", *sys.argv[1:]]
if script:
    program = ["sh", "-c", script + '; "$@"; exit $?', "sh", *program]
name = "OMPI_COMM_WORLD_RANK" if script else "RANK"
each = [subprocess.Popen(program, env={**os.environ, name: str(n)}) for n in range(4)]
sys.exit(any([one.wait() for one in each]))
"""
"""One process that starts the ranks, as srun's daemon, mpirun or a script does."""

Steps = dict[tuple[str, int], set[str]]
"""By attempt and number of a step, the ranks in its trace."""


def launch(directory: Path, **changes: str) -> subprocess.Popen[str]:
    """Start all ranks as one job; they go on behind their first step when all have met."""
    met = Path(tempfile.mkdtemp(dir=directory))
    environ = {"WORLD_SIZE": str(RANKS), "OTEL_RL_SIDECAR": "false", "MET": str(met), **changes}
    return start(directory, "-c", LAUNCHER, PROGRAM, HELPER, **environ)


def rank(directory: Path, number: int, **changes: str) -> subprocess.Popen[str]:
    """Start one rank of a job with a name; returns when it records."""
    environ = {"OTEL_RL_RUN_ID": "job", "OTEL_RL_SIDECAR": "false", "RANK": str(number), **changes}
    process = start(directory, "-c", PROGRAM, WORLD_SIZE=str(RANKS), **environ)
    assert process.stdout is not None
    assert "began\n" == process.stdout.readline()
    return process


def over(*processes: subprocess.Popen[str]) -> str:
    """Wait until they have ended, and return what they printed."""
    outputs = [process.communicate()[0] for process in processes]
    assert [0] * len(processes) == [process.returncode for process in processes], outputs
    return "".join(outputs)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a rank."""
    process.kill()
    process.communicate()


def there(directory: Path, last: str = "") -> list[str]:
    """Names of the files that ranks have put where they meet."""
    return [path.name for path in (directory / "runs" / rendezvous.FOLDER).glob(f"*/?.*.*{last}")]


def runs(directory: Path) -> list[Path]:
    """What was recorded."""
    return sorted((directory / "runs").glob("[!.]*"))


def joined(path: Path, *lone: int) -> Steps:
    """Read the steps of a run; each has one trace, one root and no orphan.

    Args:
        path: of the run.
        lone: ranks that are without their rank 0, which has the roots.
    """
    recorded = open_run(path)
    assert set(orphans(recorded)) == {f"{v.RANK_SPAN} {rank}" for rank in lone}
    traces: defaultdict[tuple[str, int], set[bytes]] = defaultdict(set)
    found: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    roots = []
    for span in recorded.spans([v.ITERATION, v.LOOP_NAME]):
        if v.ITERATION in span.attributes:
            attempt, loop = str(span.resource[v.ATTEMPT_ID]), str(span.attributes.get(v.LOOP_NAME, "train"))
            step = attempt if loop == "train" else f"{attempt} {loop}", int(span.attributes[v.ITERATION])
            traces[step].add(span.trace_id)
            if span.name == v.LOOP:
                roots.append(step)
            else:
                found[step].add(span.name)
    assert {1} == {len(ids) for ids in traces.values()}
    assert len(set(roots)) == len(roots)
    return dict(found)


def whole(attempt: str) -> Steps:
    """An attempt in which all ranks are in the trace of each step."""
    return {(attempt, step): {f"{v.RANK_SPAN} {rank}" for rank in range(RANKS)} for step in range(1, STEPS + 1)}


def attempts(steps: Steps) -> set[str]:
    """Those of some steps."""
    return {attempt for attempt, _ in steps}


def alone(directory: Path) -> list[tuple[str, int]]:
    """Each rank of the run that is in no trace of another, and how many steps it has."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for (attempt, _), names in joined(*runs(directory), 1, 2, 3).items():
        found[attempt] += names
    return sorted((names[0], len(names)) for names in found.values())


@pytest.mark.medium
@pytest.mark.parametrize("run_id", ["job", ""])
def test_ranks_share_an_attempt(tmp_path: Path, run_id: str) -> None:
    """With a name and without one, and the report compares them; where they met nothing is left."""
    over(launch(tmp_path, OTEL_RL_RUN_ID=run_id))
    (path,) = runs(tmp_path)
    steps = joined(path)
    (attempt,) = attempts(steps)
    assert whole(attempt) == steps
    report = build_report(open_run(path), time.time_ns())
    assert (1, [0, 1, 2, 3]) == (len(report.attempts), [one.rank for one in report.ranks])
    assert {attempt} == {str(point.resource[v.ATTEMPT_ID]) for point in open_run(path).points(v.STEP_TIME)}
    assert [] == list((tmp_path / "runs" / rendezvous.FOLDER).iterdir())


@pytest.mark.medium
def test_a_program_that_records_may_start_ranks(tmp_path: Path) -> None:
    """It is no rank itself, so they are none's helpers."""
    with (tmp_path / "its.otlp").open("wb"):  # open in this process, which starts the launcher
        over(launch(tmp_path))
    steps = joined(*runs(tmp_path))
    assert whole(*attempts(steps)) == steps


@pytest.mark.medium
def test_a_script_between_launcher_and_rank_is_no_launcher(tmp_path: Path) -> None:
    """As mpirun starts it for each task; it sets what torch reads."""
    over(launch(tmp_path, WRAPPED="export RANK=$OMPI_COMM_WORLD_RANK", OMPI_COMM_WORLD_SIZE=str(RANKS)))
    (path,) = runs(tmp_path)
    steps = joined(path)
    assert whole(*attempts(steps)) == steps


@pytest.mark.medium
def test_each_start_is_an_attempt(tmp_path: Path) -> None:
    """In one directory, also behind one whose ranks were killed while they looked for rank 0."""
    killed = [rank(tmp_path, number, GO_ON=str(tmp_path / "never")) for number in (1, 2, 3)]
    left = wait_for(lambda: len(names := there(tmp_path)) == 3 and names)
    for process in killed:
        kill(process)
    for _ in range(2):
        over(launch(tmp_path, OTEL_RL_RUN_ID="job"))
    steps = joined(*runs(tmp_path), 1, 2, 3)  # the set-up of those that were killed
    first, second = attempts(steps)
    assert {**whole(first), **whole(second)} == steps
    assert (3, []) == (len(left), there(tmp_path))


@pytest.mark.medium
def test_a_rank_may_come_late(tmp_path: Path) -> None:
    """The others have met by then, and go on meanwhile."""
    go = tmp_path / "go"
    ranks = [rank(tmp_path, number, GO_ON=str(go)) for number in (0, 1, 2)]
    assert wait_for(lambda: len(there(tmp_path, rendezvous.DONE)) == 2)
    ranks.append(rank(tmp_path, 3, BEGIN=str(go)))
    go.touch()
    over(*ranks)
    steps = joined(*runs(tmp_path))
    assert whole(*attempts(steps)) == steps


@pytest.mark.medium
@pytest.mark.parametrize("is_killed", [False, True], ids=["missing", "killed"])
def test_without_rank_0_the_others_go_on(tmp_path: Path, is_killed: bool) -> None:
    """As attempts of their own, and say so."""
    go = tmp_path / "go"
    first = [rank(tmp_path, 0, BEGIN=str(tmp_path / "never"))] if is_killed else []
    ranks = [rank(tmp_path, number, GO_ON=str(go)) for number in (1, 2, 3)]
    assert wait_for(lambda: len(there(tmp_path)) == 3)
    for process in first:
        kill(process)
    go.touch()
    output = over(*ranks)
    assert [f"rank {number} found no process group" in output for number in range(RANKS)] == [False, True, True, True]
    assert [(f"{v.RANK_SPAN} {number}", STEPS) for number in (1, 2, 3)] == alone(tmp_path)


@pytest.mark.medium
@pytest.mark.parametrize("names", [("one", "two"), ("", "")], ids=["named", "unnamed"])
def test_jobs_side_by_side_do_not_mix(tmp_path: Path, names: tuple[str, str]) -> None:
    """Below one root, at one time."""
    over(*[launch(tmp_path, OTEL_RL_RUN_ID=name) for name in names])
    found = [joined(path) for path in runs(tmp_path)]
    assert [whole(*attempts(steps)) for steps in found] == found
    assert 2 == len({attempt for steps in found for attempt in attempts(steps)})


@pytest.mark.medium
@pytest.mark.parametrize(("restarts", "expected"), [("0", "job-7"), ("2", "job-7.2")])
def test_a_launcher_names_the_attempt(tmp_path: Path, restarts: str, expected: str) -> None:
    """And the run where nobody does; a restart by torchrun, which keeps the name, is another attempt."""
    changes = {"OTEL_RL_ATTEMPT_ID": "job-7", "TORCHELASTIC_RESTART_COUNT": restarts}
    first = over(launch(tmp_path, **changes))
    (path,) = runs(tmp_path)
    assert (expected, whole(expected)) == (path.name, joined(path))
    used = f"OTEL_RL_ATTEMPT_ID: an earlier start had the attempt {expected}"
    assert [0, 1] == [first.count(used), over(launch(tmp_path, **changes)).count(used)]


@pytest.mark.medium
@pytest.mark.parametrize("helped", ["0", "1"])
@pytest.mark.parametrize("given", [{"OTEL_RL_ATTEMPT_ID": "job-7"}, {}], ids=["given", "found"])
def test_what_a_rank_starts_is_no_rank(tmp_path: Path, helped: str, given: dict[str, str]) -> None:
    """A program that trains by itself, with the variables of the rank that started it: a loop apart, or an attempt."""
    over(launch(tmp_path, OTEL_RL_RUN_ID="job", HELPED=helped, **given))
    steps = joined(*runs(tmp_path), *([1] if helped == "1" and not given else []))
    (attempt,) = {attempt for attempt, step in steps if step == STEPS}
    assert whole(attempt) == {step: ranks for step, ranks in steps.items() if step[0] == attempt}
    assert [{f"{v.RANK_SPAN} {helped}"}] == [ranks for step, ranks in steps.items() if step[0] != attempt]


@pytest.mark.medium
def test_ranks_sample_the_same_steps(tmp_path: Path) -> None:
    """Those too that began before the attempt was known."""
    over(launch(tmp_path, OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="0.5"))
    steps = joined(*runs(tmp_path))
    (attempt,) = attempts(steps)
    assert len(steps) < STEPS
    assert {step: ranks for step, ranks in whole(attempt).items() if step in steps} == steps


def meeting(root: Path, number: int) -> Rendezvous:
    """The part of one rank of two, which is there."""
    one = Rendezvous(Identity(rank=number, world_size=2), Config(run_id="job", directory=root))
    assert one.poll(Identity(), is_asked=True) is None
    return one


def test_a_later_start_takes_a_ranks_place(tmp_path: Path) -> None:
    """Who waits from the one before is not answered any more."""
    before, now = meeting(tmp_path, 1), meeting(tmp_path, 1)
    first = Rendezvous(Identity(rank=0, world_size=2), Config(run_id="job", directory=tmp_path))
    known = Identity(attempt_id="a", run_id="job")
    first.poll(known, is_asked=True)
    assert (None, ("a", "job")) == (before.poll(Identity(), is_asked=True), now.poll(Identity(), is_asked=True))
    first.poll(known, is_asked=True)
    assert [True] * 3 == [one.is_over for one in (before, now, first)]


def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the limit each goes on, and leaves nothing there."""
    ranks = [meeting(tmp_path, 1), meeting(tmp_path / "elsewhere", 0)]
    monkeypatch.setattr(rendezvous, "LIMIT_S", 0.0)
    assert [None, None] == [one.poll(Identity(), is_asked=True) for one in ranks]
    assert [True, True] == [one.is_over for one in ranks]
    assert [] == list(tmp_path.glob(f"**/{rendezvous.FOLDER}/*"))


def test_who_was_answered_is_not_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A rank may take the answer when rank 0 has ended."""
    first = Rendezvous(Identity(rank=0, world_size=3), Config(run_id="job", directory=tmp_path))
    ranks = [Rendezvous(Identity(rank=n, world_size=3), Config(run_id="job", directory=tmp_path)) for n in (1, 2)]
    known = Identity(attempt_id="a", run_id="job")
    for one in (ranks[0], first):
        one.poll(known if one is first else Identity(), is_asked=True)
    first.leave()
    assert "1 of the 3 ranks did not find rank 0" in caplog.text
    caplog.clear()
    again = Rendezvous(Identity(rank=0, world_size=3), Config(run_id="job", directory=tmp_path))
    for one in (ranks[1], again):
        one.poll(known if one is again else Identity(), is_asked=True)
    again.leave()
    assert (("a", "job"), "") == (ranks[1].poll(Identity(), is_asked=True), caplog.text)


def test_a_disk_that_cannot_be_written_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be there again later."""
    monkeypatch.setattr(rendezvous, "FOLDER", "file/folder")
    (tmp_path / "file").touch()
    waiting = meeting(tmp_path, 1)
    (tmp_path / "file").unlink()
    assert waiting.poll(Identity(), is_asked=True) is None
    assert 1 == len(list(tmp_path.glob("file/folder/*/1.*")))
