"""Forks, workers, threads and deaths, in processes of their own: what was recorded is there, nothing is there twice."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

import otel_rl
from otel_rl import entry
from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.terminal import render
from tests.programs.launch import HERE, run, start
from tests.programs.recorded import Node, Recorded

pytestmark = pytest.mark.medium

PROGRAM = str(HERE / "processes.py")


def everything(directory: Path, *, limit: str = "") -> list[Recorded]:
    """Read every run below a directory; none has damage, an orphan or an error of ours, but for a ``limit`` reached."""
    found = [Recorded(path.parent, path.name) for path in sorted((directory / "runs").glob("[!.]*"))]
    errors = [{what: number for what, number in one.errors().items() if what != limit} for one in found]
    assert [([], [], {})] * len(found) == [
        (one.orphans, one.run.damage, more) for one, more in zip(found, errors, strict=True)
    ]
    pending = directory / "runs" / ".pending"
    assert not pending.exists() or not list(pending.iterdir())
    return found


def named(recorded: list[Recorded], name: str) -> list[Node]:
    """Find the spans of a name in all runs."""
    return [node for one in recorded for node in one.nodes if node.name == name]


@pytest.mark.slow
@pytest.mark.parametrize("program", ["workers", "workers_of_a_stranger"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_deliver_what_they_recorded(tmp_path: Path, program: str, method: str) -> None:
    """However multiprocessing starts them, and whether or not their parent records: three stages of each worker."""
    assert "0 0 0\n" == run(tmp_path, PROGRAM, program, method)
    recorded = everything(tmp_path)
    worked = named(recorded, "worked")
    expected = Counter({(worker, number): 1 for worker in range(3) for number in range(3)})
    assert expected == Counter((node.attributes["rl.worker"], node.attributes["rl.number"]) for node in worked)
    assert 3 == len({node.span.resource[v.SERVICE_INSTANCE_ID] for node in worked})
    assert 3 == len({node.span.resource[v.PROCESS_PID] for node in worked})
    if program == "workers":
        (one,) = recorded
        parents = [one.by_id[node.span.parent_id] for node in worked]
        assert {(f"{v.RANK_SPAN} 0", 1)} == {(parent.name, parent.attributes[v.ITERATION]) for parent in parents}
        assert 1 == len({node.span.resource[v.ATTEMPT_ID] for node in one.nodes})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_trainings_that_a_program_starts_are_loops_of_its_run(tmp_path: Path, method: str) -> None:
    """Each has traces of its own, though all count from 0; what they load is in the set-up of the program."""
    run(tmp_path, PROGRAM, "trainings", method)
    (recorded,) = everything(tmp_path)
    loaded = [node for node in recorded.roots[0].walk() if node.name == "load"]
    steps = [root for root in recorded.roots if root.name == v.LOOP]
    assert [0, 1, 2] == sorted(node.attributes["rl.training"] for node in loaded)
    trained = Counter((step.attributes[v.LOOP_NAME], tuple(step.outline()[1:])) for step in steps)
    pids = {node.span.resource[v.PROCESS_PID] for node in loaded}
    assert {(f"train.{pid}", ("  worked",)): 2 for pid in pids} == trained
    report = build_report(recorded.run, time.time_ns())
    assert ("finished", [6]) == (report.state, [attempt.steps for attempt in report.attempts])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_an_engine_belong_to_the_run_that_started_it(tmp_path: Path, method: str) -> None:
    """They make a process group, as trainings do; they are ranks of the rollout, not of the training."""
    pytest.importorskip("torch")
    assert "0 0\n" == run(tmp_path, str(HERE / "engine.py"), method, "serve")
    (recorded,) = everything(tmp_path)
    served = [node.span.resource for node in recorded.nodes if node.name == "serve"]
    keys = v.ROLE, v.RANK, v.WORLD_SIZE
    assert {("rollout", 0, 2), ("rollout", 1, 2)} == {tuple(resource[key] for key in keys) for resource in served}
    assert {"rollout"} == {node.span.resource[v.ROLE] for node in recorded.nodes if node.name == "load"}
    assert 1 == len({node.span.resource[v.ATTEMPT_ID] for node in recorded.nodes})
    report = build_report(recorded.run, time.time_ns())
    assert [("finished", 1, 1)] == [(one.state, one.steps, one.ranks) for one in report.attempts]
    assert [("trainer", 1, True), ("rollout", 2, False)] == [
        (one.role, one.processes, one.is_rank) for one in report.roles
    ]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ranks_that_a_program_starts_are_ranks_of_its_run(tmp_path: Path, method: str) -> None:
    """As ``torch.multiprocessing.spawn`` starts them: their steps are those of the run."""
    pytest.importorskip("torch")
    assert "0 0\n" == run(tmp_path, str(HERE / "engine.py"), method, "ranks")
    (recorded,) = everything(tmp_path)
    (step,) = (root for root in recorded.roots if root.name == v.LOOP)
    assert ["rl.rank 0", "rl.rank 1"] == sorted(child.name for child in step.children)
    report = build_report(recorded.run, time.time_ns())
    assert ("finished", [("trainer", 0), ("trainer", 1)]) == (
        report.state,
        [(rank.role, rank.rank) for rank in report.ranks],
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_training_inside_a_step_is_work_of_that_step(tmp_path: Path, method: str) -> None:
    """A judge that learns: its ranks begin no step of the run."""
    pytest.importorskip("torch")
    assert "0 0\n" == run(tmp_path, str(HERE / "engine.py"), method, "train")
    (recorded,) = everything(tmp_path)
    (step,) = (root for root in recorded.roots if root.name == v.LOOP)
    assert {"load": 2, "serve": 2} == Counter(node.name for node in step.walk() if node.name in ("load", "serve"))
    report = build_report(recorded.run, time.time_ns())
    assert [("finished", 1, 1)] == [(one.state, one.steps, one.ranks) for one in report.attempts]


@pytest.mark.slow
def test_a_forked_worker_does_not_count_for_its_parent(tmp_path: Path) -> None:
    """What the parent counted before the fork is in the parent's journal alone."""
    run(tmp_path, PROGRAM, "workers", "fork")
    (recorded,) = everything(tmp_path)
    counted = {
        (point.attributes[v.STAGE], point.resource[v.PROCESS_PID]): point.count
        for point in recorded.last(v.STAGE_DURATION)
    }
    (parent,) = {node.span.resource[v.PROCESS_PID] for node in recorded.nodes if node.name == "before"}
    workers = {node.span.resource[v.PROCESS_PID] for node in recorded.nodes if node.name == "worked"}
    assert {("before", parent): 5, **{("worked", worker): 3 for worker in workers}} == counted
    assert 4 == len(recorded.run.journals)
    assert 1 == len(list(recorded.run.points(v.STEP_TIME)))


@pytest.mark.slow
def test_a_busy_process_may_fork_as_often_as_it_likes(tmp_path: Path) -> None:
    """From two threads at once, while others record and the flusher works: no deadlock, every child's stage."""
    assert "done\n" == run(tmp_path, PROGRAM, "forks", "100")
    (recorded,) = everything(tmp_path, limit="count the time of all stages of a step")
    children = Counter(node.attributes["rl.child"] for node in recorded.nodes if node.name == "child")
    assert Counter({number: 1 for number in (*range(100), *range(1000, 1025))}) == children
    assert 125 + 1 == len(recorded.run.journals)
    busy = [node for node in recorded.nodes if node.name == "busy"]
    assert 1 == len({node.span.resource[v.PROCESS_PID] for node in busy})
    assert len(busy) == len({node.span.span_id for node in busy})


def test_two_threads_that_fork_at_once_leave_the_flushers_lock_free() -> None:
    """The second one does not get it within its time; that must not make the first forget that it has it."""
    otel_rl.instrument()
    flusher = entry._parts.flusher
    assert flusher is not None
    assert otel_rl.flush(60)  # the next cycle comes later than the next lines
    entry._before_fork()
    second = threading.Thread(target=lambda: (entry._before_fork(), entry._after_fork_in_parent()))
    second.start()
    second.join()
    assert flusher.lock.locked()
    entry._after_fork_in_parent()
    assert otel_rl.flush(60)


def test_a_fork_waits_for_an_import_of_the_flusher(tmp_path: Path) -> None:
    """Else the child has the lock of an import that goes on in no thread of its own, and waits for it for ever."""
    assert "0\n" == run(tmp_path, PROGRAM, "forking_while_numpy_is_imported", "")


def test_a_forked_child_that_is_gone_at_once_keeps_all_but_the_last_second(tmp_path: Path) -> None:
    """os._exit runs nothing of ours; what was recorded a cycle before is in the journal."""
    run(tmp_path, PROGRAM, "leaving_hard", "")
    (recorded,) = everything(tmp_path)
    assert 20 == sum(node.name == "early" for node in recorded.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_loses_at_most_the_last_second(tmp_path: Path, number: signal.Signals) -> None:
    """All that ended before is a span and a point, and what was open is named, with its parent and its begin.

    A second by the process's own clock, its turns of 5 ms: a machine that is slow is so to the flusher as well.
    """
    process = start(tmp_path, PROGRAM, "dying", "")
    assert process.stdout is not None
    for _ in range(1000):
        process.stdout.readline()
    process.send_signal(number)
    ended = 1000 + process.stdout.read().count("\n")
    assert -number == process.wait()
    gone_ns = time.time_ns()
    process.stdout.close()
    (directory,) = (tmp_path / "runs").glob("[!.]*")
    journal = open_run(directory)
    turns = sorted(span.attributes["rl.number"] for span in journal.spans(["rl.number"]) if span.name == "turn")
    points = sorted(int(point.value) for point in journal.points("user.turn.number"))
    for found in (turns, points):
        assert list(range(len(found))) == found
        assert len(found) >= ended - 200
    opened = {stage.name: stage for stage in journal.open_stages()}
    assert {v.LOOP, f"{v.RANK_SPAN} 0", "rollout"} <= set(opened) <= {v.LOOP, f"{v.RANK_SPAN} 0", "rollout", "turn"}
    assert opened["rollout"].parent_id == opened[f"{v.RANK_SPAN} 0"].span_id
    assert {False} == {stage.alive for stage in opened.values()}
    closed = {span.name: span for span in journal.closed_spans(None) if span.attributes.get(v.TRUNCATED)}
    assert set(opened) == set(closed)
    assert max(span.end_ns for span in journal.spans()) <= closed[v.LOOP].end_ns <= gone_ns
    assert ([], 7) == (journal.damage, closed[v.LOOP].attributes[v.ITERATION])


def test_a_handler_that_exits_loses_nothing(tmp_path: Path) -> None:
    """SIGTERM with a handler that calls sys.exit, as schedulers expect of a program: every turn, and nothing open."""
    process = start(tmp_path, PROGRAM, "dying", "handler")
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    said = [int(line) for line in process.stdout.read().splitlines()]
    assert 3 == process.wait()
    process.stdout.close()
    (recorded,) = everything(tmp_path)
    turns = [node.attributes["rl.number"] for node in recorded.nodes if node.name == "turn"]
    assert set(range(max(said, default=19) + 1)) <= set(turns)
    assert [] == recorded.run.open_stages()


@pytest.mark.parametrize(
    ("how", "code", "error", "state"),
    [
        ("exception", 1, "LookupError", "failed"),
        ("between", 1, None, "failed"),
        ("exit", 4, "SystemExit", "failed"),
        ("exit", 0, None, "finished"),
        ("interrupt", -2, "KeyboardInterrupt", "failed"),
        ("end", 0, None, "finished"),
    ],
)
def test_however_a_program_ends_everything_is_there(
    tmp_path: Path, how: str, code: int, error: str | None, state: str
) -> None:
    """Its exit code is its own; an exception closes the step with its type, an exit only with a code."""
    run(tmp_path, PROGRAM, "exits", f"{how} {code}", code=code)
    (recorded,) = everything(tmp_path)
    assert 10 == sum(node.name == "last" for node in recorded.nodes)
    assert [error] == [step.attributes.get(v.ERROR_TYPE) for step in recorded.steps().values()]
    assert [] == recorded.run.open_stages()
    assert state == build_report(recorded.run, time.time_ns()).state


@pytest.mark.parametrize(
    ("how", "code", "errors", "state"),
    [("0", 0, [], "interrupted"), ("3", 3, [], "interrupted"), ("exception", 1, ["LookupError"], "failed")],
)
def test_a_step_that_the_program_leaves_on_a_thread_is_truncated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, code: int, errors: list[str], state: str
) -> None:
    """The step before it is counted, the program's exit code is its own."""
    run(tmp_path, PROGRAM, "leaves", how, code=code)
    (recorded,) = everything(tmp_path)
    report = build_report(recorded.run, time.time_ns())
    cut = [node.name for node in recorded.nodes if v.TRUNCATED in node.attributes]
    assert {f"{v.RANK_SPAN} 0", v.REWARD} == set(cut)
    assert (1, 1) == (report.steps.recorded, len(list(recorded.run.points(v.STEP_TIME))))
    assert ([], errors, state) == (recorded.run.open_stages(), [one.error for one in report.failures], report.state)
    assert v.TEARDOWN not in {peak.stage for peak in report.memory}, "there was none"
    render(report, Console(width=100))
    said = "The program exited inside a step, which is in no average."
    assert (state == "interrupted") == (said in capsys.readouterr().out)


def test_threads_and_tasks_record_side_by_side(tmp_path: Path) -> None:
    """Nothing is lost; threads belong to the step, tasks nest as they were written."""
    run(tmp_path, PROGRAM, "threads", "")
    (recorded,) = everything(tmp_path)
    (step,) = recorded.steps().values()
    expected = Counter({"threaded": 4000, "task": 50})
    assert expected == Counter(child.name for child in step.children)
    tasks = [child for child in step.children if child.name == "task"]
    assert [["inner"]] * 50 == [task.outline() for task in tasks]
    assert list(range(50)) == sorted(task.children[0].attributes["rl.number"] for task in tasks)
