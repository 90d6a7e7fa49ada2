"""Start, watch and stop the programs of the stack, and keep on disk which they are."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from otel_rl.journal.identity import WriterIdentity, start_time
from otel_rl.stack.plan import LOOPBACK, Program, StackError, environment

WAIT_S = 120.0
"""A program may take this time until it answers: a Prometheus with much data reads it first."""
STOP_S = 10.0
"""A program may take this time to end after SIGTERM."""
GONE_S: Final = 10.0
"""The system may take this time to end a program after SIGKILL."""
POLL_S: Final = 0.1
ASK_S = 2.0
LAST_LINES: Final = 4
FILE: Final = "stack.json"

Show = Callable[[str, str], None]
"""A function that shows the name of a program and what it does now."""


@dataclass(frozen=True, slots=True)
class RunningProgram:
    """One process of the stack, known by pid and start: the system gives the pid to another process later."""

    name: str
    pid: int
    start_time: int
    started_s: float
    address: str
    health_port: int
    health_path: str
    is_killed: bool = False


@dataclass(frozen=True, slots=True)
class RunningStack:
    """The stack of one root of runs."""

    host: str
    boot_id: str
    pid_namespace: str
    offset: int
    programs: tuple[RunningProgram, ...] = ()

    @classmethod
    def here(cls, offset: int, programs: tuple[RunningProgram, ...] = ()) -> RunningStack:
        me = WriterIdentity.current("stack", 0)
        return cls(me.host, me.boot_id, me.pid_namespace, offset, programs)

    @property
    def is_elsewhere(self) -> bool:
        """Return whether another machine started it, so that its processes are not visible from here."""
        here = self.here(self.offset)
        return self.boot_id != here.boot_id and self.host != here.host

    def is_alive(self, program: RunningProgram) -> bool:
        """Return whether it lives: the same pid, started at the same moment of the same boot."""
        here = self.here(self.offset)
        if (self.boot_id, self.pid_namespace) != (here.boot_id, here.pid_namespace):
            return False
        return start_time(program.pid) == program.start_time


def load(folder: Path) -> RunningStack | None:
    """Read which stack was started; None if none was.

    Raises:
        StackError: the file is damaged.
        OSError: it cannot be read.
    """
    path = folder / FILE
    try:
        values = json.loads(path.read_bytes())
        return RunningStack(**values | {"programs": tuple(RunningProgram(**one) for one in values["programs"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise StackError(f"{path} is damaged: remove it, and end the programs that run in its folder") from error


def save(folder: Path, stack: RunningStack) -> None:
    """Write which stack runs, for this user only, whole or not at all."""
    new = folder / f"{FILE}.new"
    with open(new, "w", encoding="utf-8", opener=_private) as file:
        json.dump(asdict(stack), file, indent=1)
    os.replace(new, folder / FILE)


def forget(folder: Path) -> None:
    (folder / FILE).unlink(missing_ok=True)


def start(program: Program, folder: Path) -> RunningProgram:
    """Start a program in a session of its own, so that it outlives the terminal and this process.

    Raises:
        StackError: it cannot be started, or ended at once.
    """
    with open(log_of(folder, program.name), "wb", opener=_private) as log:
        try:
            process = subprocess.Popen(
                program.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(program),
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            raise StackError(f"{program.command[0]} cannot be started: {error.strerror}") from None
    process.returncode = 0  # it outlives us, which Popen would otherwise warn of
    ticks = start_time(process.pid)
    if ticks is None:
        raise _died(program.name, process.pid, folder)
    return RunningProgram(
        program.name, process.pid, ticks, time.time(), program.address,
        program.health_port, program.health_path, program.is_killed,
    )  # fmt: skip


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Hold back Ctrl-C until the end of the block; for the main thread."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def wait(stack: RunningStack, folder: Path, show: Show) -> None:
    """Wait until every program answers.

    Raises:
        StackError: one ended, or did not answer in time.
    """
    deadline = time.monotonic() + WAIT_S
    silent = list(stack.programs)
    while silent:
        for program in stack.programs:
            if not stack.is_alive(program):
                raise _died(program.name, program.pid, folder)
        for program in [program for program in silent if answers(program)]:
            silent.remove(program)
            show(program.name, "answers")
        if silent and time.monotonic() > deadline:
            log = log_of(folder, silent[0].name)
            raise StackError(
                f"{silent[0].name} runs, but did not answer on port {silent[0].health_port} within {WAIT_S:.0f} s; "
                f"its log is {log}",
                last_lines(log),
            )
        if silent:
            time.sleep(POLL_S)


def stop(stack: RunningStack, programs: Iterable[RunningProgram]) -> list[RunningProgram]:
    """End programs together: SIGTERM, and SIGKILL to those that are still there after ``STOP_S``.

    Returns:
        Those that still live: of another user, or in the kernel.
    """
    living = [program for program in programs if stack.is_alive(program)]
    for program in living:
        _signal(program, signal.SIGKILL if program.is_killed else signal.SIGTERM)
    living = _wait_for_end(stack, living, STOP_S)
    for program in living:
        _signal(program, signal.SIGKILL)
    return _wait_for_end(stack, living, GONE_S)


def answers(program: RunningProgram) -> bool:
    """Ask its health endpoint on loopback, past every proxy of the environment; 503 means that it is not ready."""
    connection = HTTPConnection(LOOPBACK, program.health_port, timeout=ASK_S)
    try:
        connection.request("GET", program.health_path)
        return connection.getresponse().status < 500
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def used_ports(ports: Iterable[int]) -> list[int]:
    """List the TCP ports of the loopback interface that another program uses."""
    return [port for port in ports if _is_used(port)]


def _is_used(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection that just ended does not count
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            return error.errno in {errno.EADDRINUSE, errno.EACCES}
    return False


def holder(port: int) -> str:
    """Return who listens on a TCP port, as `otelcol (pid 12)`, or that it is unknown (another user's)."""
    import psutil

    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return "a program that this user cannot see"


def log_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.log"


def last_lines(log: Path) -> list[str]:
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            return list(deque((line.rstrip() for line in file if line.strip()), maxlen=LAST_LINES))
    except OSError:
        return []


def _died(name: str, pid: int, folder: Path) -> StackError:
    log = log_of(folder, name)
    lines = last_lines(log)
    ending = "and ends with:" if lines else "and is empty"
    return StackError(f"{name} ended right after it was started{_reap(pid)}; its log is {log}, {ending}", lines)


def _reap(pid: int) -> str:
    """Return how a child of this process ended; nothing if it is another's, or lives."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except OSError:
        return ""
    code = os.waitstatus_to_exitcode(status)
    return "" if not ended else f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"


def _wait_for_end(stack: RunningStack, programs: list[RunningProgram], limit_s: float) -> list[RunningProgram]:
    deadline = time.monotonic() + limit_s
    while (living := [one for one in programs if stack.is_alive(one)]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for program in set(programs).difference(living):
        _reap(program.pid)
    return living


def _signal(program: RunningProgram, number: signal.Signals) -> None:
    """Signal the whole session: on PATH there may be a script that runs the program."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, number)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
