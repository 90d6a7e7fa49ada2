"""What a worker that multiprocessing starts afresh (spawn, forkserver) learns from the process that started it.

A forked one has a copy of everything. This one gets what multiprocessing copies from each process to its children, the
configuration of its ``Process``: there stands where the parent is at the moment of the start. A program that is
launched gets nothing by that, and neither arguments nor environment of the host change.
"""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from otel_rl import vocabulary
from otel_rl.guard import guard
from otel_rl.runtime import Trace, state
from otel_rl.spans import Stage

KEY = "otel_rl"
OWN = ("pid", "started_ns", "host", "extra")
"""What a worker knows of itself."""
LAUNCHED = ("rank", "local_rank", "world_size", "coordinates")
"""What a launcher's variables say, where it set them."""


class Place:
    """Stands for the place of this process; pickled, it is the values of that moment, which load nothing of ours."""

    is_taken = False
    """Whether this process is a worker that records below the step in which it was started."""

    def __reduce__(self) -> tuple[Any, ...]:
        values: tuple[Any, ...] = ()
        with guard("tell a worker whose it is"):
            values = _place()
        return tuple, (values,)


def _place() -> tuple[Any, ...]:
    """Say whose the worker is that is being started: run and rank, and the step, open or left, that it belongs to."""
    loop = state.training.loop
    container = state.container or (loop.last.container if loop is not None and loop.last is not None else None)
    if not state.on or not state.identity.known or container is None:
        return ()
    trace = container.trace
    identity = {key: value for key, value in asdict(state.identity).items() if key not in OWN}
    return identity, (trace.trace_id, trace.sampled, trace.step), container.span_id, str(state.config.directory)


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
        if not isinstance(values, tuple) or state.container is not None:
            return state.container is not None
        configuration[KEY] = place = Place()
        if values:
            identity, (trace_id, is_sampled, step), span_id, directory = values
            if "RANK" in os.environ:
                identity = {key: value for key, value in identity.items() if key not in LAUNCHED}
            state.identify(**identity)
            state.config = replace(state.config, directory=Path(directory))
            container = Stage(f"{vocabulary.RANK_SPAN} {state.identity.rank}")
            container.trace = Trace(trace_id, state.clock.anchor, sampled=is_sampled, step=step)
            container.span_id = span_id
            state.inherited, state.container, place.is_taken = container.trace, container, True
    return state.container is not None


def leave_place() -> bool:
    """Be a process of its own, since it trains; True where it was a worker, and the attempt is now unknown again."""
    with state.identifying, guard("leave the step in which this worker was started"):
        configuration = _configuration()
        before = configuration.get(KEY)
        configuration[KEY] = Place()
        if isinstance(before, Place) and before.is_taken:
            state.container = state.inherited = None
            state.identity = replace(state.identity, attempt_id="")
            return True
    return False


def _configuration() -> dict[str, Any]:
    """Give what multiprocessing hands from a process to its children."""
    configuration: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    return configuration
