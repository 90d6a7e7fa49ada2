"""Signals reach a command below `otel-rl run` as often as without it, whoever sends them to whom."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.medium

PROGRAM: Final = str(Path(__file__).parents[1] / "programs" / "counts_signals.py")
WRAPPER: Final = [
    sys.executable,
    "-c",
    "import os, sys; from otel_rl.cli.child import run_child; sys.exit(run_child(sys.argv[1:], os.environ))",
]
TRAINER: Final = [sys.executable, PROGRAM]
SIGNALS: Final = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGHUP", "SIGCONT")
Send = Callable[[subprocess.Popen[str], signal.Signals], None]


def children(pid: int) -> list[int]:
    """List the processes that a process started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def stands_still(pid: int) -> bool:
    """Return whether a process is stopped."""
    return ") T " in Path(f"/proc/{pid}/stat").read_text()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait as long as it takes."""
    while not condition():
        time.sleep(0.01)


def to_one(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """As `kill PID` does."""
    process.send_signal(number)


def to_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """As `kill -PGID` and a terminal do."""
    os.killpg(process.pid, number)


def to_each(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """As SLURM does: to all processes of a job, one by one."""
    for pid in [process.pid, *children(process.pid)]:
        os.kill(pid, number)
        time.sleep(0.02)


@contextmanager
def started(command: list[str], wrappers: int = 1) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a command with a wrapper in it, as a job of its own; yields it and the wrapper's pid once all is there."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    with process:
        assert "ready\n" == process.stdout.readline()
        pid = process.pid if wrappers else children(process.pid)[0]
        wait_until(lambda: 3 == len(children(pid)))  # the trainer and two witnesses
        yield process, pid


def counted(process: subprocess.Popen[str], wrapper: int) -> str:
    """Ask the trainer what it got; the wrapper passes this on after everything that came before."""
    assert process.stdout is not None
    os.kill(wrapper, signal.SIGQUIT)
    return next(line for line in process.stdout if line.startswith("counted"))


def once(*names: str) -> str:
    """Return what a trainer says that got each of some signals once."""
    return f"counted {dict.fromkeys(sorted([*names, 'SIGQUIT']), 1)}\n"


@pytest.mark.parametrize("begins", [[], ["setsid"]], ids=["in the group", "apart"])
@pytest.mark.parametrize("send", [to_one, to_group, to_each])
def test_each_signal_arrives_once(send: Send, begins: list[str]) -> None:
    """Sent to the wrapper alone or to all, whether the command stays in the wrapper's group or not."""
    with started([*WRAPPER, *begins, *TRAINER]) as (process, wrapper):
        assert process.stdout is not None
        for name in SIGNALS:
            send(process, signal.Signals[name])
            assert f"got {name}\n" == process.stdout.readline()
        assert once(*SIGNALS) == counted(process, wrapper)
    assert 7 == process.returncode


@pytest.mark.parametrize("options", [[], ["--foreground"]])
def test_what_timeout_sends_arrives_once(options: list[str]) -> None:
    """It signals its child, and then the whole group unless it is told not to."""
    with started(["timeout", *options, "600", *WRAPPER, *TRAINER], wrappers=0) as (process, wrapper):
        assert process.stdout is not None
        process.terminate()
        assert "got SIGTERM\n" == process.stdout.readline()
        assert "'SIGTERM': 1" in counted(process, wrapper)
    assert 7 == process.returncode


@pytest.mark.parametrize("begins", [[], ["setsid"]], ids=["in the group", "apart"])
def test_a_key_of_the_terminal_arrives_once(begins: list[str]) -> None:
    """The kernel sends what Ctrl-C means to the group in the foreground."""
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [*WRAPPER, *begins, *TRAINER])
    with open(terminal, buffering=1, errors="replace") as output:
        lines = (line.removeprefix("^C").replace("\r\n", "\n") for line in output)
        assert "ready\n" == next(lines)
        wait_until(lambda: 3 == len(children(pid)))
        os.write(terminal, b"\x03")
        assert "got SIGINT\n" == next(lines)
        os.kill(pid, signal.SIGQUIT)
        assert once("SIGINT") == next(line for line in lines if line.startswith("counted"))
        assert 7 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_witness_that_does_not_run_has_what_waits_for_it() -> None:
    """One that is swapped out takes long to say what it got."""
    with started([*WRAPPER, *TRAINER]) as (process, wrapper):
        witnesses = [pid for pid in children(wrapper) if "-I" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")]
        assert 2 == len(witnesses)
        for pid in witnesses:
            os.kill(pid, signal.SIGSTOP)
            # A signal that comes before it stands still is taken from what is pending, and not said either.
            wait_until(partial(stands_still, pid))
        to_group(process, signal.SIGTERM)
        assert once("SIGTERM") == counted(process, wrapper)
    assert 7 == process.returncode


def test_a_search_for_the_command_finds_it_once() -> None:
    """`pkill -f train.py` signals the wrapper, too, whose arguments have the command's in them."""
    mark = f"mark-{os.getpid()}"
    with started([*WRAPPER, *TRAINER, mark]) as (process, wrapper):
        subprocess.run(["pkill", "-TERM", "-f", mark], check=True)
        assert once("SIGTERM") == counted(process, wrapper)


ALONE = """
import os, sys
sys.executable = "/no/such/python"
from otel_rl.cli.child import run_child
command = "trap 'exit 3' USR1; kill -USR1 $PPID; while :; do sleep 0.05; done"
sys.exit(run_child(["sh", "-c", command], os.environ))
"""


def test_a_command_runs_where_nothing_stands_beside_it() -> None:
    """Without a further process every signal is passed on."""
    assert 3 == subprocess.run([sys.executable, "-c", ALONE], check=False).returncode
