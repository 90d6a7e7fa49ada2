"""vLLM: sequences that are over, from the engine's thread to where their rows are made.

The engine's thread only writes down what may change (``vllm._iterated``). The rest is done by the flusher, or by who
needs to know before that what is inside an engine; by one of them at a time, and once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import sleep
from typing import Any, Final

from opentelemetry.trace import INVALID_SPAN

from otel_rl import requests
from otel_rl.guard import attempt
from otel_rl.integrations.vllm_finished import rows
from otel_rl.integrations.vllm_rows import Remembered
from otel_rl.records import Later, Noted
from otel_rl.runtime import state

HEAD: Final = 6
"""Pieces of an iteration: what waited for the flusher then; when it was through, monotonic ns; index of the engine that
gave its outputs; container that was open; class of the exception by which its sequences failed; how many they are."""
SIZE: Final = 4
"""Pieces of each of them behind that: output processor, sequence, reason, tokens of its output."""
SLICE: Final = 250
"""Sequences that are looked at before the interpreter is let go of."""
BREATH_S: Final = 0.000_05
POOLED: Final = -1
"""In place of tokens: nothing was generated."""


def look(known: Remembered, over: Sequence[Any], most: int) -> None:
    """Look at sequences that are over if that cannot wait; else let them wait, and tell the flusher.

    Args:
        known: what is remembered of vLLM.
        over: an iteration: ``HEAD`` and its sequences.
        most: pieces may wait; beyond that they are read at once, rather than kept as they are.
    """
    is_room = len(known.over) + len(over[0]) < most
    if known.strays or not is_room:
        _leave(known, over, is_held=is_room)
        return
    known.over += over
    if known.told is not over[0] or state.noted is not over[0]:
        tell(known, over[0])


def tell(known: Remembered, noted: Noted) -> None:
    """Have the flusher look, before what is queued behind this: the end of the step, behind which requests are late."""
    known.settle = settle
    is_told = state.add(Later(_take, (known, noted)))
    # Only now others may rely on it: what they had added before it is queued could be behind the end of the step.
    known.told = noted if is_told and not known.strays else None
    if not is_told:
        settle(known)


def _take(known: Remembered, noted: Noted) -> Iterable[Noted]:
    """Give what was over until now, on the flusher's thread."""
    if state.noted is noted:
        state.noted = Noted()  # who adds to it from now on will see that, and tell again
    settle(known, is_patient=True)
    return (noted,)


def settle(known: Remembered, *, is_patient: bool = False) -> None:
    """Look at all that is over, and say so to the flusher.

    Args:
        known: what is remembered of vLLM.
        is_patient: let go of the interpreter now and then: the training thread may wait for it.
    """
    with known.settling:
        over = known.over[:]
        del known.over[: len(over)]
        last = done = 0
        try:
            while last < len(over):
                first, number = last, over[last + HEAD - 1]
                last += HEAD + SIZE * number
                attempt("leave", "finished sequences of vLLM", _leave, known, over[first:last])
                done += number
                if done >= SLICE and is_patient:
                    sleep(BREATH_S)
                    done = 0
        finally:
            known.over[:0] = over[last:]  # where the program was interrupted


def _leave(known: Remembered, over: Sequence[Any], *, is_held: bool = True) -> None:
    """Make of sequences that ended together what the flusher reads.

    Cost: 0.3 us each, 1 us where it is one (``benchmarks/engine_requests.py``).

    Args:
        known: what is remembered of vLLM.
        over: the iteration.
        is_held: keep sequences as they are, rather than what is read of them.
    """
    noted, ended, replica, container, error, number = over[:HEAD]
    processor: Any = None
    pieces: list[Any] = []
    for place in range(HEAD, len(over), SIZE):
        of, sequence, reason, tokens = over[place : place + SIZE]
        if of is not processor:
            processor, engine = of, known.engine(of)
            iteration = (engine, replica, ended, error, engine.batch)
        request_id, queue = sequence.request_id, sequence.queue
        parent, arrival = engine.give(request_id)
        shown = known.shown.pop(queue, None) if known.shown else None
        is_stray = bool(known.strays) and _is_stray(known, id(of), request_id)
        if tokens == POOLED or engine.is_copy:
            continue
        if parent is None:
            # Never what is current where a queue is: the first of all callers began the task that handles outputs.
            around = container or (INVALID_SPAN if queue is not None else None)
            parent = requests.place() if is_stray or around is None else around
        pieces += (rows, parent, 6, iteration, sequence if is_held else engine.read(sequence), tokens, arrival, shown)
        pieces.append(reason)
    if pieces:
        requests.note_many(pieces, number, noted)


def _is_stray(known: Remembered, processor: int, request_id: str) -> bool:
    """Whether it had neither parent nor queue; it is none any more."""
    strays = known.strays.get(processor, set())
    is_stray = request_id in strays
    strays.discard(request_id)
    if not strays:
        known.strays.pop(processor, None)
    return is_stray
