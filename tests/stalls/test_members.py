"""What a process is in, as its page says, and how it is doing, as the kernel says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.probes.c_stacks import DUMP_SIGNAL
from otel_rl.probes.python_stacks import catches
from otel_rl.stalls import members
from otel_rl.stalls.members import Leaf, State
from tests.stuck import NOW_NS, ago, process, row

STEP = row("rl.rank 3", 100, id="c")
REWARD = row(v.REWARD, 90, id="r", parent="c", said={v.SAMPLE_ID: 17})


def leaf(name: str, began_s: float, touched_s: float, span_id: str = "", **more: Any) -> Leaf:
    """Make a leaf."""
    return Leaf(name, name, ago(began_s), ago(touched_s), span_id, **more)


@pytest.mark.parametrize(
    ("rows", "state", "stage", "expected"),
    [
        ([STEP, REWARD], "working", ("", 5), [leaf(v.REWARD, 90, 90, "r", attributes=((v.SAMPLE_ID, 17),))]),
        ([STEP, REWARD], "traced", ("", 5), [leaf(v.REWARD, 90, 90, "r", attributes=((v.SAMPLE_ID, 17),))]),
        ([STEP, REWARD], "silent", (v.REWARD, 90), [leaf(v.REWARD, 90, 90, "r", attributes=((v.SAMPLE_ID, 17),))]),
        ([STEP, REWARD], "silent", ("tool", 70), [leaf("tool", 70, 70)]),
        ([STEP, REWARD], "stopped", ("", 60), [leaf("rl.rank 3", 100, 60, "c")]),
        ([row(v.SETUP, 200, id="s"), STEP], "dead", ("", 60), [leaf("rl.rank 3", 100, 60, "c")]),
        ([REWARD], "dead", ("", 60), []),
        ([], "working", (v.REWARD, 0.5), []),
        ([STEP, row("a", 9), row("b", 8)], "working", ("", 5), [
            leaf("rl.rank 3", 100, 100, "c"), leaf("a", 9, 9, "a 9"), leaf("b", 8, 8, "b 8"),
        ]),
    ],
)  # fmt: skip
def test_the_innermost_stages(
    rows: list[dict[str, Any]], state: State, stage: tuple[str, float], expected: list[Leaf]
) -> None:
    """As listed; of a process that gives no sign of life what its threads showed last."""
    assert expected == process(3, *rows, state=state, stage=stage).leaves


def test_a_stage_without_a_code_is_known_by_its_begin() -> None:
    """A page has room for 120 names; its threads show the others without one."""
    assert [leaf("n" * 80, 90, 90, "x")] == process(
        3, row("n" * 80, 90, id="x"), state="silent", stage=("n" * 63, 90)
    ).leaves
    assert [leaf("late", 90, 90, "x")] == process(3, row("late", 90, id="x"), state="silent", stage=("", 90)).leaves


def test_a_stage_of_a_process_that_runs_is_as_old_as_its_flusher_knows() -> None:
    """The flusher has not looked since; of one that does not run nothing will come any more."""
    one = process(3, REWARD, silent_s=9, stage=(v.REWARD, 90))
    assert (81.0, 90.0) == (one.age_s(one.leaves[0]), replace(one, state="silent").age_s(one.leaves[0]))
    assert (9.0, ago(90)) == (one.silent_s(), replace(one, page=replace(one.page, began_ns=ago(91))).moved_ns())


def state_of(silent_s: float, *, is_local: bool = True) -> State:
    """Return the state of this very process, whose heartbeat is so old."""
    page = replace(process(0, silent_s=silent_s).page, identity=WriterIdentity.current("trainer", 0))
    return members._state(page, NOW_NS, is_local=is_local)


def test_a_late_heartbeat_is_silence() -> None:
    """A file server shows it late."""
    assert ["working", "silent"] == [state_of(silent_s) for silent_s in (9.9, 10.1)]
    assert ["working", "silent"] == [state_of(silent_s, is_local=False) for silent_s in (119.0, 121.0)]


def test_a_process_that_runs_another_program_is_dead() -> None:
    """It has the number of before (exec), and takes no signal of ours; without one nothing is known of it."""
    page = replace(process(0, silent_s=20).page, identity=WriterIdentity.current("trainer", 0))
    states = [
        members._state(replace(page, signal=number), NOW_NS, is_local=True)
        for number in (signal.SIGINT, 0, DUMP_SIGNAL)
    ]
    assert ["silent", "silent", "dead"] == states


def test_the_kernel_knows_more() -> None:
    """Whether a process is stopped, dead, and which signals it takes."""
    program = "import signal; signal.signal(signal.SIGUSR1, print); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        identity = replace(WriterIdentity.current("trainer", 0), pid=child.pid, start_time=start_time(child.pid))
        page = replace(process(0).page, identity=identity)
        seen: list[Any] = [members._state(page, NOW_NS, is_local=True)]
        seen += [catches(child.pid, signal.SIGUSR1), catches(child.pid, signal.SIGUSR2), catches(child.pid, 0)]
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        seen.append(members._state(page, NOW_NS, is_local=True))
        child.kill()
    seen += [members._state(page, NOW_NS, is_local=True), catches(child.pid, signal.SIGUSR1)]
    assert ["working", True, False, False, "stopped", "dead", False] == seen


def start_time(pid: int) -> int:
    """Return when a process began, as the kernel counts."""
    return int(Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[19])
