"""What shows where a process is: its stacks, by itself, by its C handler or from outside, and facts of the machine."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from otel_rl.journal.page import ANSWERED, ASKED, SIZE, STALLED
from otel_rl.probes.python_stacks import catches, process_status
from otel_rl.stalls.flight_recorder import recorded
from otel_rl.stalls.members import Process

ANSWER_S: Final = 3.0
"""How long the flusher of a process may take to answer: it looks every half second."""
DUMP_S: Final = 1.0
SPY_S: Final = 10.0
LONGEST: Final = 64 << 10
MOST_CHILDREN: Final = 8
LONGEST_FILE: Final = 4 << 20
"""Stacks at the end of a page's file are removed beyond this size."""


def evidence_of(process: Process) -> str:
    """Return stacks and facts as text, at most 64 KiB of stacks. Cost: at most 30 s, nearly always 1 s.

    The process goes on meanwhile. A signal goes only to a process that has a handler for it, and never to one that a
    debugger holds.
    """
    if not process.is_local:
        return f"The process runs on {process.page.identity.host}, whose stacks cannot be read from here."
    if process.state == "dead":
        return "The process has ended."
    pid = process.page.identity.local_pid  # 0 in another container: there only the process itself can tell
    lines = [*_facts(process, pid), *_shown(*_stacks(process, pid))]
    since_s = (process.page.began_ns + process.page.anchor_ns) / 1e9
    if collectives := recorded(pid, process.page.rank, since_s):
        lines += ["Collectives that have not ended, by torch's flight recorder:", *collectives]
    for child in _forked(pid):
        shown = _shown("by faulthandler in C", _by_signal(process, child))
        lines += [f"Forked process {child}: state {state_letter(child)}", *shown]
    return "\n".join(lines)[:LONGEST] + "\n"


def _shown(how: str, text: str) -> list[str]:
    if text:
        return [f"Stacks, {how}:", text.rstrip()]
    hint = "" if shutil.which("py-spy") else "; with py-spy installed they can be read from outside"
    return [f"No stacks: {how}{hint}."]


def _stacks(process: Process, pid: int) -> tuple[str, str]:
    """Return how the stacks were read, and the stacks; without any the reason and nothing."""
    why = "the process is stopped"
    if process.state in {"working", "traced"} and not process.is_quiet:
        why = "the process did not answer"
        text = _by_itself(process.page.memory)
        if text:
            return "by the process itself", text
    if process.state not in {"stopped", "traced"}:
        why = "the process did not answer, nor did its handler in C"
        text = _by_signal(process, pid)
        if text:
            return "by faulthandler in C", text
    return ("by py-spy", text) if pid and (text := _by_spy(pid)) else (why, "")


def _by_itself(path: Path | None) -> str:
    """Ask the flusher of a process, and wait for what it appends."""
    if path is None:  # the memory of another container
        return ""
    with suppress(OSError, ValueError), _words(path) as words:
        begin = _end(path)
        asked = words[ASKED] = words[ASKED] + 1
        until = time.monotonic() + ANSWER_S
        while words[ANSWERED] < asked and time.monotonic() < until:
            time.sleep(0.05)
        return _read(path, begin)
    return ""


@contextmanager
def _words(path: Path) -> Iterator[memoryview[int]]:
    """Map the words of another process's page, to write them."""
    with (
        open(path, "r+b") as file,
        mmap.mmap(file.fileno(), SIZE) as mapped,
        memoryview(mapped) as data,
        data.cast("Q") as words,
    ):
        yield words


def _by_signal(process: Process, pid: int) -> str:
    """Make the handler in C append the stacks; it needs no interpreter."""
    path, number = process.page.memory, process.page.signal
    if path is None:
        return ""
    with suppress(OSError):
        begin = size = _end(path)
        if not catches(pid, number):
            return ""
        os.kill(pid, number)
        until = time.monotonic() + DUMP_S
        while time.monotonic() < until:
            time.sleep(0.1)
            before, size = size, path.stat().st_size
            if size == before > begin:
                break
        return _interrupted_first(_read(path, begin))
    return ""


def _interrupted_first(text: str) -> str:
    """Put the thread that the signal interrupted first: it is the main one, as a rule."""
    threads = text.strip().split("\n\n")
    return "\n\n".join(sorted(threads, key=lambda one: not one.startswith("Current")))


def _forked(pid: int) -> Iterator[int]:
    """Yield the processes that it has forked and that run the same program, such as workers of a data loader.

    They have inherited its handler in C, which appends to the same file.
    """
    with suppress(OSError):
        program = Path(f"/proc/{pid}/cmdline").read_bytes()
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        children = [int(child) for task in tasks for child in task.read_text("ascii").split()]
        for child in sorted(children)[:MOST_CHILDREN]:
            if Path(f"/proc/{child}/cmdline").read_bytes() == program:
                yield child


def _by_spy(pid: int) -> str:
    program = shutil.which("py-spy")
    if program is None:
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        command = [program, "dump", "--nonblocking", "--pid", str(pid)]
        found = subprocess.run(command, capture_output=True, timeout=SPY_S, check=True, stdin=subprocess.DEVNULL)
        return found.stdout.decode("utf-8", "replace")
    return ""


def _end(path: Path) -> int:
    """Return where the next stacks begin; old ones go if there are many."""
    if path.stat().st_size > LONGEST_FILE:
        os.truncate(path, SIZE)
    return path.stat().st_size


def _read(path: Path, begin: int) -> str:
    with open(path, "rb") as file:
        file.seek(begin)
        return file.read(LONGEST).decode("utf-8", "replace")


def mark(process: Process, began_ns: int) -> None:
    """Let the process add the stall to the span of its step. ``began_ns``: when the stage began; 0 without a stall."""
    path = process.page.memory
    if path is not None:
        with suppress(OSError, ValueError), _words(path) as words:
            words[STALLED] = began_ns


# --- facts of the machine ---------------------------------------------------------------------------------------------


def _facts(process: Process, pid: int) -> Iterator[str]:
    before, began = _cpu_s(pid), time.monotonic()
    time.sleep(0.2)
    after, took_s = _cpu_s(pid), time.monotonic() - began
    identity = process.page.identity
    yield f"Process {pid or identity.pid} on {identity.host}: state {state_letter(pid) or 'unknown'}"
    if before is not None and after is not None:
        yield f"CPU: {(after - before) / took_s:.0%} of one core now, {after:.1f} s in all"
    yield from _waits_in(pid)
    with suppress(OSError):
        for line in Path("/proc/pressure/memory").read_text("ascii").splitlines():
            if " avg10=0.00 " not in line:
                yield f"Memory pressure of the machine: {line}"
    killed = _oom_kills(pid)
    if killed:
        yield f"Processes of its control group that were killed for memory: {killed}"


def state_letter(pid: int) -> str:
    """Return the kernel's word for what a process does, such as ``D (disk sleep)``; empty if it is gone."""
    return process_status(pid).get("State", "")


def _cpu_s(pid: int) -> float | None:
    with suppress(OSError, IndexError, ValueError):
        words = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return None


def _waits_in(pid: int) -> Iterator[str]:
    """Yield what its main thread waits for in the kernel, if that may be known."""
    with suppress(OSError):
        place = Path(f"/proc/{pid}/wchan").read_text("ascii").strip()
        if place not in {"", "0"}:
            yield f"Its main thread waits in the kernel: {place}"


def _oom_kills(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        group = Path(f"/proc/{pid}/cgroup").read_text("utf-8").strip().rpartition("::")[2]
        lines = Path(f"/sys/fs/cgroup{group}/memory.events").read_text("ascii").splitlines()
        return int(dict(line.split() for line in lines).get("oom_kill", "0"))
    return 0
