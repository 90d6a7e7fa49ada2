"""The spool: a process that is killed in its set-up loses the last second only, and one that ends leaves nothing."""

from __future__ import annotations

import errno
import itertools
import math
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.flusher import spool, thread
from otel_rl.journal import segment
from otel_rl.journal.frame import Signal
from otel_rl.journal.read import Run, open_run
from otel_rl.process import directories
from otel_rl.process.state import state
from otel_rl.records import Count
from otel_rl.report.build import build_report
from otel_rl.runs.locate import find_run, recorded_below, written_at
from otel_rl.trace.attempt import know_attempt
from tests.fixtures import RUN, WALL_NS, Recording, in_child, modules_with
from tests.flusher.test_thread import Disk
from tests.programs.launch import HERE, start
from tests.waiting import patience

PROGRAM = str(HERE / "processes.py")


def spooled(directory: Path) -> list[str]:
    """List the signals that have a spool in a directory."""
    return sorted(path.name.split(".")[-3] for path in directory.glob("*.spool.otlp"))


def dead(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Open a run as if this process were dead."""
    run = open_run(directory)
    for journal in run.journals:
        monkeypatch.setattr(journal, "alive", lambda: False)
    return run


# --- killed in set-up -------------------------------------------------------------------------------------------------


def killed(directory: Path, **environment: str) -> int:
    """Kill a process that records in its set-up; how many turns it said at least."""
    process = start(directory, PROGRAM, "dying_in_set_up", "", **environment)
    assert process.stdout is not None
    for _ in range(500):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    ended = 500 + process.stdout.read().count("\n")
    assert -signal.SIGKILL == process.wait()
    process.stdout.close()
    return ended


def check_turns(run: Run, ended: int) -> None:
    """Each turn is there once, as a span and a point, up to the last second by the process's own clock."""
    turns = sorted(span.attributes["rl.number"] for span in run.spans(["rl.number"]) if span.name == "turn")
    points = sorted(int(point.value) for point in run.points("user.turn.number"))
    for found in (turns, points):
        assert list(range(len(found))) == found
        assert len(found) >= ended - 200
    counted = [point.count for point in run.last_points(v.STAGE_DURATION) if point.attributes[v.STAGE] == "turn"]
    assert (1, True) == (len(counted), sum(counted) >= ended - 200)
    assert [] == run.damage


@pytest.mark.medium
def test_a_process_that_is_killed_before_its_first_step(tmp_path: Path) -> None:
    """Its metrics wait for what trains, its spans do not: both are there."""
    ended = killed(tmp_path)
    (directory,) = (tmp_path / "runs").glob("[!.]*")
    check_turns(open_run(directory), ended)


@pytest.mark.medium
def test_a_rank_that_is_killed_before_its_group_is_made(tmp_path: Path) -> None:
    """Spans and metrics wait for its attempt; what it did is one trace, with the stages in which it died."""
    ended = killed(tmp_path, RANK="1", WORLD_SIZE="2")
    (directory,) = (tmp_path / "runs" / ".pending").iterdir()
    run = open_run(directory)
    check_turns(run, ended)
    opened = {stage.name: stage for stage in run.open_stages()}
    assert {f"{v.RANK_SPAN} 1", "load"} <= set(opened) <= {f"{v.RANK_SPAN} 1", "load", "turn"}
    assert 1 == len({span.trace_id for span in run.closed_spans()})
    assert {opened["load"].span_id} == {span.parent_id for span in run.spans() if span.name == "turn"}
    (attempt,) = build_report(run, time.time_ns()).attempts
    assert ("killed", 0) == (attempt.state, attempt.steps)


@pytest.mark.medium
def test_the_run_says_where_a_rank_was_killed(tmp_path: Path) -> None:
    """The report of the run that rank 0 made names rank 1, and where more of it is."""
    first = start(tmp_path, PROGRAM, "dying", "", RANK="0", WORLD_SIZE="2")
    assert first.stdout is not None
    try:
        killed(tmp_path, RANK="1", WORLD_SIZE="2")
        assert first.stdout.readline()
        (directory,) = (tmp_path / "runs").glob("[!.]*")
        for _ in patience():
            report = build_report(open_run(directory), time.time_ns())
            if report.attempts:
                break
    finally:
        first.kill()
        first.communicate()
    (one,) = report.pending
    (row,) = one.open_stages
    assert (1, False, True) == (row.rank, row.is_alive, row.stage == "turn" or row.inside == [v.SETUP])
    assert {"turn", "load"} <= {span.name for span in open_run(one.path).closed_spans()}


# --- while it waits ---------------------------------------------------------------------------------------------------


def pending(recording: Recording) -> Path:
    """The folder of a process whose run is not known."""
    (path,) = (recording.root / ".pending").iterdir()
    return path


def record(number: int, first: int = 0) -> None:
    """Record stages, points and counts."""
    for one in range(first, first + number):
        with otel_rl.stage("tool", number=one):
            pass
        otel_rl.record("my.metric", one)
        state.add(Count(v.TRAIN_STEPS, 1))


def told(run: Run) -> tuple[list[Any], list[float], list[float]]:
    """Numbers of the stages, values of the points, the last count, as a reader finds them."""
    return (
        sorted(span.attributes["rl.number"] for span in run.spans(["rl.number"]) if span.name == "tool"),
        sorted(point.value for point in run.points("user.my.metric")),
        [point.value for point in run.last_points(v.TRAIN_STEPS)],
    )


def expected(number: int) -> tuple[list[Any], list[float], list[float]]:
    """The same of what ``record`` recorded."""
    return [*range(number)], [*range(number)], [number]


def test_what_waits_is_in_the_spool(rank_1: Recording) -> None:
    """Readers see it as a part of the journal. It is for the owner only."""
    record(3)
    assert not otel_rl.flush()
    directory = pending(rank_1)
    assert ["metrics", "traces"] == spooled(directory)
    assert {0o600} == {path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert expected(3) == told(open_run(directory))
    record(2, 3)
    assert not otel_rl.flush()
    assert expected(5) == told(open_run(directory))


def test_a_report_shows_what_a_living_rank_did(rank_1: Recording) -> None:
    """How long calls of the stage took in which it may hang, and its own numbers."""
    with otel_rl.stage("load"):
        rank_1.tick(2_000)
    record(3)
    with otel_rl.stage("load"):
        otel_rl.flush()
        report = build_report(open_run(pending(rank_1)), WALL_NS + 33_000_000_000)
    (row,) = report.open_stages
    assert (1, "load", 30.0, 2.0, True) == (row.rank, row.stage, row.open_s, row.longest_s, row.is_hanging)
    assert ["user.my.metric"] == [series.name for series in report.numbers]


def test_the_spool_goes_once_it_is_journaled(rank_1: Recording) -> None:
    """The files move with the journal, and each goes when its own records are there."""
    record(3)
    assert not otel_rl.flush()
    know_attempt("abc", "together")
    assert not otel_rl.flush()
    assert ["metrics"] == spooled(rank_1.root / "together")
    assert [] == list((rank_1.root / ".pending").iterdir())
    with otel_rl.step(1):
        assert otel_rl.flush()
        assert [] == spooled(rank_1.root / "together")
    otel_rl.uninstrument()
    assert expected(3) == told(rank_1.run("together"))


def test_spans_of_another_library_are_read_with_the_spool(rank_1: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for nothing, and are in the journal before."""
    from opentelemetry import trace

    with otel_rl.stage("load"), trace.get_tracer("another").start_as_current_span("theirs"):
        pass
    record(2)
    otel_rl.flush()
    run = dead(pending(rank_1), monkeypatch)
    assert {"load", "theirs", "tool"} == {span.name for span in run.spans()}
    assert expected(2) == told(run)
    assert 1 == len({span.trace_id for span in run.spans()})


def test_a_process_is_found_by_its_spool(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has nothing else (the size cap removed its logs): it is a run, with a time, and the newest one."""
    state.add(Count(v.TRAIN_STEPS, 3))
    assert not otel_rl.flush()
    directory = recording.root / RUN
    for path in directory.glob("*.logs.*"):
        path.unlink()
    assert (["metrics"], 1) == (spooled(directory), len(list(directory.glob("*.otlp"))))
    assert ([directory], directory) == (recorded_below(recording.root), find_run(None, recording.root))
    assert math.isfinite(written_at(directory))
    run = dead(directory, monkeypatch)
    assert ([3], 1) == ([point.value for point in run.points(v.TRAIN_STEPS)], run.journals[0].records["metrics"])
    assert run.journals[0].last_ns > 0


def test_a_resource_that_becomes_known_is_told_of_all_that_waits(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No series has two names, and no point comes twice."""
    record(2)
    otel_rl.flush()
    state.identify(system="trl")
    record(1, 2)
    otel_rl.flush()
    run = dead(recording.root / RUN, monkeypatch)
    assert expected(3) == told(run)
    assert {"trl-trainer"} == {str(point.resource[v.SERVICE_NAME]) for point in run.points()}


def test_a_set_up_is_written_when_it_changes(rank_1: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing new writes nothing; a file that took long is not written again for a while."""
    record(1000)
    otel_rl.flush()
    written: list[int] = []
    real = os.write
    with monkeypatch.context() as watched:
        watched.setattr(os, "write", lambda to, data: (written.append(len(data)), real(to, data))[1])
        otel_rl.flush()
        assert [] == written
        rank_1.flusher._spool._next = 0.0
        record(1, 1000)
        otel_rl.flush()
        assert expected(1001) == told(open_run(pending(rank_1)))
        rank_1.flusher._spool._next = float("inf")
        written.clear()
        record(1, 1001)
        otel_rl.flush()
        assert [] == written
    know_attempt("abc", "together")
    otel_rl.uninstrument()
    assert expected(1002) == told(rank_1.run("together"))


# --- a run that ends --------------------------------------------------------------------------------------------------

SIGNALS: tuple[Signal, ...] = ("traces", "metrics")
ACTIONS = ("stage", "point", "count", "histogram", "not a number", "flush", "tick", "system", "attempt")


def act(recording: Recording, action: str, number: int) -> None:
    """Do one thing that a program does in its set-up."""
    if action == "stage":
        with otel_rl.stage("tool", number=number):
            recording.tick(1)
    elif action in ("point", "not a number"):
        otel_rl.record("my.metric", number if action == "point" else float("nan"))
    elif action == "count":
        state.add(Count(v.TRAIN_STEPS, 1))
    elif action == "histogram":
        with otel_rl.stage("load", text="x" * 3_000):
            recording.tick(number)
    elif action == "flush":
        otel_rl.flush()
    elif action == "tick":
        recording.tick(1)
    elif action == "system":
        state.identify(system=f"system {number}")
    else:
        know_attempt("abc", "together")


def play(recording: Recording, rank: int, actions: list[str], root: Path) -> dict[str, list[Any]]:
    """Record a set-up and a step from the same state as ever; the requests of what may wait, and where they end.

    Logs never wait; in what order they name stages that are open together is a set's.
    """
    recording.root, recording.clock.ns = root, 1_000_000_000
    numbers = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        for path in modules_with("random_bits"):
            patch.setattr(path, "random_bits", lambda bits: next(numbers))
        second = time.gmtime(WALL_NS // 1_000_000_000)  # or the next one begins between two runs that are compared
        clock = SimpleNamespace(time_ns=lambda: WALL_NS, strftime=lambda form: time.strftime(form, second))
        for name in ("strftime", "time_ns"):
            patch.setattr(f"otel_rl.process.identity.{name}", getattr(clock, name))
        patch.setattr("otel_rl.entry.MEET_LIMIT_S", 0.0)  # the other rank never comes
        for name, value in {"OTEL_RL_DIR": str(root), "RANK": str(rank), "WORLD_SIZE": "2"}.items():
            patch.setenv(name, value)
        if rank:
            patch.delenv("OTEL_RL_RUN_ID")
        recording.start()
        for number, action in enumerate(actions):
            act(recording, action, number)
        with otel_rl.step(1):
            act(recording, "stage", 0)
        otel_rl.uninstrument()
    (directory,) = root.glob("[!.]*")
    assert ([], []) == (spooled(directory), list((root / ".pending").glob("*")))
    run = open_run(directory)
    return {signal: [(frame.payload, frame.offset) for _, frame in run.frames(signal)] for signal in SIGNALS}


@pytest.mark.medium
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rank=st.integers(0, 1), actions=st.lists(st.sampled_from(ACTIONS), max_size=12))
def test_a_run_that_ends_is_as_without_a_spool(
    stubbed: Recording, tmp_path: Path, rank: int, actions: list[str]
) -> None:
    """Byte for byte, and no other file is left."""
    root = tmp_path / os.urandom(4).hex()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool.Spool, "update", lambda self, writer, resource: None)
        plain = play(stubbed, rank, actions, root / "plain")
    assert plain == play(stubbed, rank, actions, root / "spooled")


# --- the disk, the cap, a fork ----------------------------------------------------------------------------------------


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk under control."""
    return Disk(monkeypatch)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_holds_nobody_up(
    rank_1: Recording, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    """What was on disk stays there, what came since waits in memory; when it works again all is there, once."""
    record(3)
    otel_rl.flush()
    disk.error = error
    for number in range(3, 6):
        record(1, number)
        assert not otel_rl.flush()
        assert expected(3) == told(dead(pending(rank_1), monkeypatch))
    assert "cannot write the spool" in str(rank_1.flusher._writer.failure)  # type: ignore[union-attr]
    assert 1 == caplog.text.count("up to 64 MiB of records wait in memory; training goes on")
    disk.error = None
    record(1, 6)
    otel_rl.flush()
    assert expected(7) == told(dead(pending(rank_1), monkeypatch))
    assert rank_1.flusher._writer.failure is None  # type: ignore[union-attr]
    know_attempt("abc", "together")
    otel_rl.uninstrument()
    assert expected(7) == told(rank_1.run("together"))
    assert [] == spooled(rank_1.root / "together")


def test_a_disk_that_refuses_from_the_start(rank_1: Recording, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half is left behind."""
    disk.error = errno.ENOSPC
    record(3)
    assert not otel_rl.flush()
    assert [] == list(pending(rank_1).iterdir())
    disk.error = None
    assert not otel_rl.flush()
    assert expected(3) == told(dead(pending(rank_1), monkeypatch))


def test_a_file_that_somebody_removes_is_begun_anew(rank_1: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next record, with all that waits."""
    record(3)
    otel_rl.flush()
    for path in pending(rank_1).glob("*.spool.otlp"):
        path.unlink()
    rank_1.flusher._beat -= 2 * thread.HEARTBEAT_S
    record(1, 3)
    otel_rl.flush()
    otel_rl.flush()
    assert expected(4) == told(dead(pending(rank_1), monkeypatch))


def test_the_spool_stays_while_the_disk_is_full(rank_1: Recording, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt becomes known while the disk is full: the file goes when the records are in the journal."""
    record(3)
    otel_rl.flush()
    disk.error = errno.ENOSPC
    know_attempt("abc", "together")
    assert not otel_rl.flush()
    directory = rank_1.root / "together"
    assert ["metrics", "traces"] == spooled(directory)
    assert expected(3) == told(dead(directory, monkeypatch))
    disk.error = None
    with otel_rl.step(1):
        assert otel_rl.flush()
    assert [] == spooled(directory)
    otel_rl.uninstrument()
    assert expected(3) == told(rank_1.run("together"))


def test_records_that_go_elsewhere_at_the_end_leave_no_spool(
    rank_1: Recording, disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run's disk takes nothing, the folder for temporary files has all."""
    monkeypatch.setattr(directories, "fallback_root", lambda: tmp_path / "fallback")
    record(3)
    otel_rl.flush()
    know_attempt("abc", "together")
    real = disk.write

    def write(descriptor: int, data: Any) -> int:
        if "fallback" not in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(segment.os, "write", write)
    otel_rl.uninstrument()
    assert expected(3) == told(open_run(tmp_path / "fallback" / "together"))
    assert [] == spooled(rank_1.root / "together")


def test_a_full_journal_has_no_spool(rank_1: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spool stays below the cap with the rest, and goes before segments do."""
    record(50)
    otel_rl.flush()
    writer = rank_1.flusher._writer
    assert writer is not None
    monkeypatch.setattr(writer, "_max_bytes", size := total(pending(rank_1)))
    record(50, 50)
    otel_rl.flush()
    assert total(pending(rank_1)) <= size
    with otel_rl.stage("load"):
        rank_1.tick(10)
        otel_rl.flush()  # that it is open goes into the journal
    assert total(pending(rank_1)) <= size
    assert len(spooled(pending(rank_1))) < 2
    know_attempt("abc", "together")
    monkeypatch.setattr(writer, "_max_bytes", 1 << 30)
    otel_rl.uninstrument()
    assert expected(100) == told(rank_1.run("together"))


def total(directory: Path) -> int:
    """How large the journals of a directory are."""
    return sum(path.stat().st_size for path in directory.glob("*.otlp"))


def test_a_forked_child_has_a_spool_of_its_own(rank_1: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes nothing into its parent's files, and closes none of them."""
    record(3)
    otel_rl.flush()
    mine = pending(rank_1)

    def work() -> None:
        record(2, 100)
        otel_rl.flush(60)
        os.kill(os.getpid(), signal.SIGKILL)

    in_child(work)
    record(1, 3)
    otel_rl.flush()
    assert expected(4) == told(dead_one(mine, os.getpid()))
    found = [dead_one(path, 0) for path in (rank_1.root / ".pending").iterdir()]
    numbers = sorted(number for run in found for number in told(run)[0])
    assert [100, 101] == numbers
    know_attempt("abc", "together")
    otel_rl.uninstrument()
    assert expected(4) == told(rank_1.run("together"))


def dead_one(directory: Path, pid: int) -> Run:
    """Open what this process wrote into a directory (``pid`` 0: what others did), as if its writer were dead."""
    run = open_run(directory)
    run.journals = [one for one in run.journals if (one.identity.pid == os.getpid()) == bool(pid)]
    for journal in run.journals:
        journal.alive = lambda: False  # type: ignore[method-assign]
    return run
