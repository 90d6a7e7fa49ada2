"""Bring the stack up, whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from otel_rl.journal.filesystem import make_directory
from otel_rl.stack import compose, configurations, processes, programs, state
from otel_rl.stack.answer import answers
from otel_rl.stack.look import strays
from otel_rl.stack.plan import CONFIGURATIONS, Part, make_plan
from otel_rl.stack.ports import holder, taken
from otel_rl.stack.problem import StackError
from otel_rl.stack.processes import Show
from otel_rl.stack.state import Damaged, Stack


def up(root: Path, offset: int, show: Show) -> tuple[Stack, bool]:
    """Start the stack of a root of runs and wait until all of it answers.

    From programs of this machine, or by `docker compose` where they are missing and a Docker engine answers.

    Args:
        root: the root of the runs, made where it is missing.
        offset: by how much all ports are shifted.
        show: told what each part does.

    Returns:
        The stack, and whether it is new: False where it ran already.

    Raises:
        StackError: it cannot be; nothing that this call started is left running then.
        OSError: the root cannot be written.
    """
    folder = root / state.FOLDER
    make_directory(folder)
    with state.alone(root):
        running = _running(folder)
        if running is not None:
            if running.offset != offset:
                raise StackError(
                    f"the stack of {root} already runs with --port-offset {running.offset}: "
                    "`otel-rl stack down` ends it, then it can start with other ports"
                )
            return running, False
        found = programs.find_all()
        if names := programs.missing(found):
            if not compose.is_there():
                raise StackError(_how_to_get(names))
            return compose.up(folder, offset, show), True
        parts = make_plan(found, offset)
        _refuse_taken(parts)
        configurations.copy(folder / CONFIGURATIONS)
        return _start(parts, folder, offset, show), True


def _running(folder: Path) -> Stack | None:
    """Give the stack that runs; None where nothing of one does.

    Raises:
        StackError: a part of one runs and another does not, or does not answer, or it cannot be told.
    """
    try:
        noted = state.read(folder)
    except Damaged as error:
        if strays(folder):
            raise StackError(f"{error}, and processes of its stack run: `otel-rl stack down` says which") from None
        return None
    if noted is None:
        return None
    if noted.is_elsewhere:
        raise StackError(
            f"{folder} belongs to the stack that {noted.host} started: end it there, or take another --dir here"
        )
    if noted.by == "compose":
        return noted if compose.rows(folder) else None
    dead = [part.name for part in noted.parts if not noted.is_alive(part)]
    if len(dead) == len(noted.parts):
        return None
    silent = [part.name for part in noted.parts if not answers(part.health_port, part.health_path)]
    if dead or silent:
        what = f"{', '.join(dead)} ended by itself" if dead else f"{', '.join(silent)} does not answer"
        log = processes.log_of(folder, (dead or silent)[0])
        raise StackError(
            f"the stack runs in part: {what} (its log is {log}). `otel-rl stack down`, then `otel-rl stack up`",
            processes.last_lines(log),
        )
    return noted


def _start(parts: Sequence[Part], folder: Path, offset: int, show: Show) -> Stack:
    stack = Stack.here("programs", offset)
    try:
        for part in parts:
            show(part.name, "starts")
            with processes.uninterrupted():
                stack = Stack.here("programs", offset, (*stack.parts, processes.start(part, folder)))
                state.write(folder, stack)  # after each one: what is started can be ended, whatever happens to us
        processes.wait(stack, folder, show)
    except BaseException:  # Ctrl-C too
        if not processes.stop(stack, stack.parts):
            state.forget(folder)
        raise
    return stack


def _refuse_taken(parts: Sequence[Part]) -> None:
    held: dict[str, list[int]] = {}
    for port in taken(port for part in parts for port in part.ports):
        held.setdefault(holder(port) or "a program that this user cannot see", []).append(port)
    if held:
        rows = [f"{name} has {', '.join(map(str, ports))}" for name, ports in held.items()]
        raise StackError(
            f"ports that are needed are taken: {'; '.join(rows)}. "
            "Stop what has them, or shift all ports with `otel-rl stack up --port-offset 1000`"
        )


def _how_to_get(names: Sequence[str]) -> str:
    found = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not there"
    return f"{found}, and no Docker engine answers: {programs.HOW_TO_GET_THEM}"
