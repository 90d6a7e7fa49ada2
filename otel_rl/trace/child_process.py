"""What a worker that multiprocessing starts afresh (spawn, forkserver) learns from the process that started it.

A forked one has a copy of everything. This one gets what multiprocessing copies from each process to its children, the
configuration of its ``Process``: there stands where the parent is at the moment of the start. A program that is
launched gets nothing by that, and neither arguments nor environment of the host change.

Nobody knows of such a process, or of a forked one, whether it will train before it does. Until then it is a worker and
records for its parent; then it gives back all that is its parent's and goes on as if it had been launched. Of one that
runs a function of an engine's it is known: that never trains, whatever process group it joins.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic_ns
from typing import Any

from otel_rl import vocabulary
from otel_rl.guard import guard
from otel_rl.probes import deferred
from otel_rl.process.identity import from_launcher
from otel_rl.process.state import Trace, state
from otel_rl.records import Log, RecordQueue
from otel_rl.trace.stage import Stage

KEY = "otel_rl"
OWN = ("pid", "started_ns", "host", "device_id", "extra")
"""What a worker knows of itself."""
LAUNCHED = ("rank", "local_rank", "world_size", "coordinates")
"""What a launcher's variables say, where it set them."""
ENGINES = frozenset(("vllm", "sglang"))
"""Packages whose processes serve a model."""
SERVING = "rollout"
"""The role of these."""


class Place:
    """Stands for the place of this process; pickled, it is the values of that moment, which load nothing of ours."""

    def __reduce__(self) -> tuple[Any, ...]:
        values: tuple[Any, ...] = ()
        with guard("tell a worker whose it is"):
            values = _place()
        return tuple, (values,)


def _place() -> tuple[Any, ...]:
    """Say whose the worker is that is being started: run and rank, the step, open or left, and since when that is."""
    loop = state.training.loop
    container = state.container or (loop.last.container if loop is not None and loop.last is not None else None)
    if not state.on or not state.identity.known or container is None:
        return ()
    trace = container.trace
    identity = {key: value for key, value in asdict(state.identity).items() if key not in OWN}
    step = trace.trace_id, trace.sampled, trace.step
    return identity, step, container.span_id, str(state.config.directory), state.first_ns


def tell_workers() -> None:
    """Let the workers that this process starts from now on know whose they are."""
    with guard("tell workers whose they are"):
        _configuration().setdefault(KEY, Place())


def tell_no_more() -> None:
    """Undo ``tell_workers``."""
    with guard("tell workers no more whose they are"):
        _configuration().pop(KEY, None)


def take_place() -> bool:
    """Record below the step in which this worker was started, as a forked one does; False where that is not known."""
    with state.identifying, guard("learn whose this worker is"):
        configuration = _configuration()
        values = configuration.get(KEY)
        is_told = isinstance(values, tuple) and state.container is None
        if is_told:
            configuration[KEY] = Place()
            if values:
                _take(*values)
        if (is_told or state.inherited is not None) and is_serving() and state.identity.role != SERVING:
            state.identity = replace(state.identity, role=SERVING, coordinates={})
    return state.container is not None


def _take(identity: dict[str, Any], step: tuple[int, bool, str], span_id: int, directory: str, first_ns: int) -> None:
    """Take in what the parent has told."""
    trace_id, is_sampled, name = step
    if "RANK" in os.environ:
        identity = {key: value for key, value in identity.items() if key not in LAUNCHED}
    learned = dict(state.learned)
    state.identify(**identity)
    state.learned = learned
    state.config = replace(state.config, directory=Path(directory))
    state.first_ns = min(state.first_ns, first_ns)
    container = Stage(f"{vocabulary.RANK_SPAN} {state.identity.rank}")
    container.trace = Trace(trace_id, state.clock.anchor, sampled=is_sampled, step=name)
    container.span_id = span_id
    state.inherited, state.container, state.above = container.trace, container, (container,)


def is_serving() -> bool:
    """Whether multiprocessing started this process to run a function of an engine's.

    Engines with tensor parallelism start one for each of their ranks. Source: ``make_worker_process`` in
    ``v1/executor/multiproc_executor.py`` of vLLM 0.33, ``_launch_scheduler_processes`` of SGLang's ``Engine``.
    """
    process = multiprocessing.current_process()
    target = getattr(process, "_target", None) or type(process)
    module = getattr(getattr(target, "func", target), "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in ENGINES


def join_worker(rank: int, world_size: int) -> None:
    """Take in a process group that is no training's: as a worker its parent's rank counts, in an engine the engine's.

    Where it trains in spite of that, it has the rank that it has in the group.
    """
    with state.identifying:  # the flusher may be learning the attempt
        state.learned |= {"rank": rank, "world_size": world_size}
        if is_serving() and world_size > 1:
            state.identity = replace(state.identity, rank=rank, world_size=world_size)


def share_attempt() -> None:
    """Before a fork: where this process waits for its attempt, let the child learn it, too."""
    if state.on and not state.identity.known and state.told is None and state.heard is None:
        with guard("share an attempt with forked children"):
            state.told = mmap.mmap(-1, mmap.PAGESIZE)


def tell_attempt() -> None:
    """Let the children that wait for it know the attempt."""
    if state.told is not None:
        with guard("tell forked children the attempt"):
            said = f"{state.identity.attempt_id} {state.identity.run_id}".encode()
            state.told[1 : 1 + len(said)] = said  # raises for a name that is too long
            state.told[0] = 1  # last: it is whole


def hear_attempt() -> bool:
    """Learn what the parent has learned since it forked this process; False where it has not, or knew it then."""
    with state.identifying, guard("learn the attempt from the parent"):
        if state.heard is not None and state.heard[0] and state.inherited is not None:
            attempt_id, _, run_id = state.heard[1:].rstrip(b"\0").decode().partition(" ")
            state.identify(attempt_id=attempt_id, run_id=run_id)
            state.inherited.derive(attempt_id)
    return state.identity.known


def leave_place(**known: Any) -> None:
    """Be a process of its own, since it trains; a worker that has recorded nothing yet never was one.

    What it has recorded until now was its parent's, and so is the journal of it, which ends. What comes is its own:
    run and attempt, set-up, counts, the rest of the stages that are open.

    Args:
        known: what is known already of the process as it is now; rank 0, the default, knows the attempt at once.
    """
    _configuration()[KEY] = Place()
    if state.inherited is None:
        return
    with guard("end the journal of a worker"):
        _end_journal()
    with state.identifying, guard("leave the step in which this worker was started"):
        own = from_launcher(state.config)
        given = {"attempt_id": "", "run_id": state.config.run_id, "started_ns": state.identity.started_ns}
        state.identity, state.frozen = replace(own, **state.learned | given), False
        state.heard, state.may_meet = None, False
        state.identify(**known)
        if state.identity.rank == 0:
            state.found_attempt()
        state.phase.open(vocabulary.SETUP, 0, state.started_ns)
        _move(state.container)
    state.awake, state.wake_again_ns = False, 0
    state.ensure_awake()


def _end_journal() -> None:
    """End the journal with what is its parent's; from now on other threads record into another one."""
    deferred.drain()
    if state.queue or _inherited(state.open):
        state.ensure_awake()
    if state.awake and not state.identity.known and not hear_attempt():
        state.found_attempt()  # nobody can say its parent's any more
    left, state.queue = state.queue, RecordQueue()
    now = monotonic_ns()
    opened = [one for one in state.open.copy() if isinstance(one, Stage) and not one.ended]
    for stage in opened:
        if stage.trace is state.inherited:
            left.append(_until(now, stage))
        elif state.awake:  # otherwise no journal has named it
            left.append(_over(stage))
    state.end_journal(left)


def _move(setup: Stage) -> None:
    """Put what is in the parent's step still into the set-up, and let what was open there be over."""
    moved = _inherited(state.open) + _inherited(state.queue)
    above = {stage.span_id for stage in moved}
    for stage in moved:
        stage.trace = setup.trace
        stage.parent_id = stage.parent_id if stage.parent_id in above else setup.span_id
    for stage in [one for one in state.above if isinstance(one, Stage)]:
        # As a container that has ended, which may still be current: what comes is below the one that is open then.
        stage.name, stage.trace, stage.span_id, stage.ended = setup.name, setup.trace, setup.span_id, setup.began
    state.inherited, state.above = None, ()


def _inherited(records: Iterable[Any]) -> list[Stage]:
    """Find the stages that are in the step in which this process was forked or started."""
    return [one for one in tuple(records) if isinstance(one, Stage) and one.trace is state.inherited]


def _until(now: int, stage: Stage) -> Stage:
    """Give the part of an open stage that is over; it has the id of the whole, which stands in another trace."""
    part = Stage(stage.name, {**(stage.attributes or {}), vocabulary.TRUNCATED: True})
    part.trace, part.span_id, part.parent_id = stage.trace, stage.span_id, stage.parent_id
    part.began, part.ended = stage.began, now
    return part


def _over(stage: Stage) -> Log:
    """Say that a stage in a trace of others is open no more here: its one span comes in the run that begins."""
    names = {vocabulary.STAGE: stage.name}
    return Log(vocabulary.ENDED, state.now(), names, stage.name, trace_id=stage.trace_id, span_id=stage.span_id)


def _configuration() -> dict[str, Any]:
    """Give what multiprocessing hands from a process to its children."""
    configuration: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    return configuration
