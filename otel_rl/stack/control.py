"""Bring the stack up, show it, and take it down."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_rl.journal.filesystem import make_directory
from otel_rl.stack import processes, programs
from otel_rl.stack.plan import CONFIGURATIONS, Program, StackError, copy_configurations, make_plan
from otel_rl.stack.processes import RunningProgram, RunningStack, Show

FOLDER: Final = ".stack"
"""A folder below the root of the runs; its name keeps it from being taken for a run."""
ANSWERS: Final = "answers"
SILENT: Final = "does not answer"
DEAD: Final = "dead"


@dataclass(frozen=True, slots=True)
class ProgramStatus:
    """One line of `otel-rl stack status`."""

    name: str
    state: str
    """``ANSWERS``, ``SILENT`` or ``DEAD``."""
    address: str
    pid: int
    age_s: float | None


def up(root: Path, offset: int, show: Show) -> tuple[RunningStack, bool]:
    """Start the stack of a root of runs, with all ports shifted by an offset, and wait until all of it answers.

    Returns:
        The stack, and whether it is new: False if it ran already.

    Raises:
        StackError: it cannot be started; nothing that this call started is left running.
        OSError: the root cannot be written.
    """
    folder = root / FOLDER
    make_directory(folder)
    running = _running(folder)
    if running is not None:
        if running.offset != offset:
            raise StackError(
                f"the stack of {root} already runs with --port-offset {running.offset}: "
                "run `otel-rl stack down` first, then start it with other ports"
            )
        return running, False
    found = programs.find_all()
    if names := programs.missing(found):
        verb = "is" if len(names) == 1 else "are"
        raise StackError(f"{', '.join(names)} {verb} missing: {programs.HOW_TO_GET_THEM}")
    plan = make_plan(found, offset)
    _refuse_used(plan)
    copy_configurations(folder / CONFIGURATIONS)
    return _start(plan, folder, offset, show), True


def status(root: Path) -> list[ProgramStatus]:
    """List the programs of the stack of a root of runs; none if it is not up.

    Raises:
        StackError: it cannot be seen from here.
    """
    stack = _load(root / FOLDER)
    return [] if stack is None else [_status(stack, program) for program in stack.programs]


def down(root: Path, *, delete: bool) -> list[str]:
    """End what `up` started, and nothing else; on demand also remove the data, the logs and the queue.

    Returns:
        The names of the programs that were ended; none if nothing ran.

    Raises:
        StackError: something still runs.
        OSError: something cannot be removed.
    """
    folder = root / FOLDER
    stack = _load(folder)
    ended = [] if stack is None else _stop(stack)
    processes.forget(folder)
    if delete and folder.is_dir():
        shutil.rmtree(folder)
    return ended


def _load(folder: Path) -> RunningStack | None:
    stack = processes.load(folder)
    if stack is not None and stack.is_elsewhere:
        raise StackError(
            f"{folder} belongs to the stack that {stack.host} started: use it there, or give another --dir here"
        )
    return stack


def _running(folder: Path) -> RunningStack | None:
    """Return the stack that runs; None if none of it runs.

    Raises:
        StackError: only a part of it runs and answers.
    """
    stack = _load(folder)
    rows = [] if stack is None else [_status(stack, program) for program in stack.programs]
    bad = [row for row in rows if row.state != ANSWERS]
    if all(row.state == DEAD for row in rows):
        return None
    if bad:
        log = processes.log_of(folder, bad[0].name)
        raise StackError(
            f"the stack runs in part: {bad[0].name} {bad[0].state if bad[0].state == SILENT else 'ended by itself'} "
            f"(its log is {log}). Run `otel-rl stack down`, then `otel-rl stack up`",
            processes.last_lines(log),
        )
    return stack


def _start(plan: Sequence[Program], folder: Path, offset: int, show: Show) -> RunningStack:
    stack = RunningStack.here(offset)
    try:
        for program in plan:
            show(program.name, "starts")
            with processes.no_interrupt():  # a program that has started and is not known would be left
                stack = RunningStack.here(offset, (*stack.programs, processes.start(program, folder)))
            processes.save(folder, stack)  # after each one: `down` can end it, whatever happens to us
        processes.wait(stack, folder, show)
    except BaseException:  # Ctrl-C too
        if not processes.stop(stack, stack.programs):
            processes.forget(folder)
        raise
    return stack


def _refuse_used(plan: Sequence[Program]) -> None:
    by_holder: dict[str, list[str]] = {}
    for port in processes.used_ports(port for program in plan for port in program.ports):
        by_holder.setdefault(processes.holder(port), []).append(str(port))
    if by_holder:
        rows = [f"{name} has {', '.join(ports)}" for name, ports in by_holder.items()]
        raise StackError(
            f"ports that are needed are in use: {'; '.join(rows)}. "
            "Stop what uses them, or shift all ports with `otel-rl stack up --port-offset 1000`"
        )


def _status(stack: RunningStack, program: RunningProgram) -> ProgramStatus:
    if not stack.is_alive(program):
        return ProgramStatus(program.name, DEAD, program.address, program.pid, None)
    state = ANSWERS if processes.answers(program) else SILENT
    return ProgramStatus(program.name, state, program.address, program.pid, max(time.time() - program.started_s, 0.0))


def _stop(stack: RunningStack) -> list[str]:
    """End the Collector first, which then sends what it still has."""
    living = [program for program in stack.programs if stack.is_alive(program)]
    senders = [program for program in living if program.name == "collector"]
    stores = [program for program in living if program.name != "collector"]
    left = [*processes.stop(stack, senders), *processes.stop(stack, stores)]
    if left:
        rows = ", ".join(f"{program.name} (pid {program.pid})" for program in left)
        raise StackError(
            f"{rows} cannot be ended, since it belongs to another user or waits for a disk: end it yourself"
        )
    return [program.name for program in living]
