"""What exit handlers of the program record after ours, and exits that could not write everything."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import otel_rl
from otel_rl import entry
from otel_rl import vocabulary as v
from otel_rl.journal.page import find_pages
from otel_rl.journal.read import Run, open_run
from otel_rl.process.state import state
from tests.fixtures import RUN, Recording
from tests.programs.launch import run

STEPS = """
for number in range(3):
    with otel_rl.step(number), otel_rl.stage("sample"):
        pass
"""
PROGRAM = """
import atexit, multiprocessing.util, sys, threading

def late():
    {late}

{register}
import otel_rl
otel_rl.instrument()
{body}
"""


def recorded(directory: Path, late: str, *, body: str = STEPS, register: str = "atexit.register(late)") -> Run:
    """Run a program whose exit handler comes after ours; it prints nothing."""
    code = PROGRAM.format(late=late.replace("\n", "\n    "), register=register, body=body)
    assert "" == run(directory, "-c", code, OTEL_RL_RUN_ID=RUN)
    return open_run(directory / "runs" / RUN)


def report(directory: Path) -> dict[str, Any]:
    """Ask for the report as a script would."""
    found: dict[str, Any] = json.loads(run(directory, "-m", "otel_rl", "report", RUN, "--json"))
    return found


def names(journal: Run) -> list[str]:
    """Name the stages that are no step, and the user's numbers."""
    own = (v.LOOP, v.SETUP, v.TEARDOWN, f"{v.RANK_SPAN} 0", "rl.sample")
    spans = [span.name for span in journal.spans() if span.name not in own]
    return sorted([*spans, *("my.number" for point in journal.points() if point.name == "user.my.number")])


LATE = """
with otel_rl.stage("outer"):
    with otel_rl.stage("inner"):
        otel_rl.record("my.number", 1)
otel_rl.record("my.number", 2)
for number in (98, 99):
    with otel_rl.step(number), otel_rl.stage("evaluate"):
        otel_rl.record("my.number", number)
otel_rl.stage("function")(lambda: None)()"""


@pytest.mark.parametrize("body", ["", STEPS], ids=["no step", "steps"])
def test_what_a_handler_records_after_ours_is_in_the_journal(tmp_path: Path, body: str) -> None:
    """Without a flush; and the journal is complete: nothing is open, and the run has ended well."""
    journal = recorded(tmp_path, LATE, body=body)
    ids = [span.span_id for span in journal.spans()]
    expected = [*["my.number"] * 4, "function", "inner", "outer", *["rl.evaluate"] * 2]
    assert (sorted(expected), [], len(ids), [], {}) == (
        names(journal), journal.open_stages(), len(set(ids)), journal.damage, find_pages(journal.path)
    )  # fmt: skip
    if body:
        assert "finished" == report(tmp_path)["state"]


def test_a_handler_that_comes_after_ours_may_flush_and_stop_the_recording(tmp_path: Path) -> None:
    """As if it came before."""
    late = """
with otel_rl.stage("save"):
    assert otel_rl.flush(60)
assert otel_rl.flush(60)
otel_rl.uninstrument()"""
    assert ["save"] == names(recorded(tmp_path, late))


def test_a_finalizer_of_multiprocessing_may_come_after_ours(tmp_path: Path) -> None:
    """In a child, which runs no exit handler."""
    late = 'with otel_rl.stage("save"): pass'
    body = """
def work():
    multiprocessing.util.Finalize(None, late, exitpriority=1)
    with otel_rl.stage("tool"):
        pass
import multiprocessing
with otel_rl.step(1):
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
"""
    assert ["save", "tool"] == names(recorded(tmp_path, late, body=body, register=""))


def test_a_child_of_a_late_handler_records_as_any_other(tmp_path: Path) -> None:
    """It has a flusher of its own."""
    late = """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=otel_rl.stage("tool")(lambda: None))
with otel_rl.stage("save"):
    child.start()
    child.join()"""
    assert ["save", "tool"] == names(recorded(tmp_path, late, register="import multiprocessing\natexit.register(late)"))


def test_late_records_need_no_new_thread(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that ends starts none (Python 3.12); whoever recorded nothing before writes by himself."""

    def refuse(thread: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    entry._finish_at_exit()
    monkeypatch.setattr("threading.Thread.start", refuse)
    with otel_rl.stage("by the thread"):
        pass
    first = names(recording.run())
    with monkeypatch.context() as patch:  # not for longer: its thread is waited for after this test, and no other
        patch.setattr(entry._parts, "flusher", None)
        with otel_rl.stage("by itself"):
            pass
    assert (["by the thread"], ["by itself", "by the thread"]) == (first, names(recording.run()))


def test_late_records_wait_for_a_time_only(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them together as long as an exit may; the thread journals what comes after that."""
    flusher, stopped = recording.flusher, []
    entry._finish_at_exit()
    real = flusher.stop
    monkeypatch.setattr(flusher, "stop", lambda limit_s, **given: stopped.append(limit_s) or real(60, **given))
    monkeypatch.setattr("otel_rl.flusher.thread.PERIOD_S", 0.01)
    for took_s in (0.0, entry.EXIT_LIMIT_S, 0.0):
        entry._parts.exit_s -= took_s
        with otel_rl.stage(f"after {took_s}"):
            pass
    assert (1, entry.EXIT_LIMIT_S) == (len(stopped), stopped[0])
    while len(names(recording.run())) < 3:
        pass
    assert state.is_ending


SLOW = """
import threading
import otel_rl
from otel_rl import entry
from otel_rl.journal.write import Writer
entry.EXIT_LIMIT_S = 0.2
otel_rl.instrument()
for number in range(3):
    with otel_rl.step(number), otel_rl.stage("sample"):
        otel_rl.record("rl.reward.score", 0.5)
otel_rl.flush(60)
Writer.append = lambda *_: threading.Event().wait()
{more}
"""


@pytest.mark.parametrize("more", ["", "with otel_rl.step(3): pass", "1 / 0"], ids=["set-up", "step", "failure"])
def test_an_exit_that_could_not_write_everything_is_no_kill(tmp_path: Path, more: str) -> None:
    """The report says what it was, also where the disk took nothing any more."""
    output = run(tmp_path, "-c", SLOW.format(more=more), OTEL_RL_RUN_ID=RUN, code=None)
    found = report(tmp_path)
    said = {one["rule"]: one["sentence"] for one in found["findings"]["health"]}
    shown = run(tmp_path, "-m", "otel_rl", "report", RUN)
    assert "otel_rl: the journal was not done in time; what was recorded last may be lost" in output
    assert ("unwritten", [], {"telemetry_lost"}) == (found["state"], found["open_stages"], set(said))
    assert said["telemetry_lost"].startswith("Lost: what the process recorded last, which ended before all was written")
    assert ("ended before all was written, at least" in shown, "kill" in shown.lower()) == (True, False)


def test_what_otel_rl_run_has_seen_does_not_go_with_the_machines_memory(tmp_path: Path) -> None:
    """Another machine reads the run later, or a container is gone: here the memory is another folder."""
    program = ("-c", SLOW.format(more=""))
    run(tmp_path, "-m", "otel_rl", "run", "-q", "--", sys.executable, *program, OTEL_RL_RUN_ID=RUN)
    assert [True] == [page.is_unwritten for page in find_pages(tmp_path / "runs" / RUN).values()]


def test_a_process_that_was_killed_is_still_killed(tmp_path: Path) -> None:
    """Its page says nothing of an end."""
    more = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    run(tmp_path, "-c", SLOW.format(more=more), OTEL_RL_RUN_ID=RUN, code=-9)
    assert "killed" == report(tmp_path)["state"]


RAISES = """
import otel_rl
from otel_rl.single_controller.driver import begin_loop, begin_step
otel_rl.instrument([])

class Script:
    pass

begin_loop(Script(), "output", None)
for number in range(2):
    begin_step(number)
    {error}
"""


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [("1 / number", 1, {0: "ZeroDivisionError"}), ("number / 1", 0, {0: None, 1: None})],
)
def test_a_script_that_raises_inside_a_step(
    error: str, code: int, expected: dict[int, str | None], tmp_path: Path
) -> None:
    """The step failed, though no function of ours saw the exception: a driver may be a script."""
    run(tmp_path, "-c", RAISES.format(error=error), OTEL_RL_RUN_ID=RUN, code=code)
    loops = [span.attributes for span in open_run(tmp_path / "runs" / RUN).spans(None) if span.name == v.LOOP]
    assert expected == {one[v.ITERATION]: one.get(v.ERROR_TYPE) for one in loops}
