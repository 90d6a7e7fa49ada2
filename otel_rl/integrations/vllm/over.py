"""vLLM: sequences that are over, from the engine's thread to where their rows are made.

The engine's thread only writes down what may change (``vllm._finished``). The rest is done by the flusher, or by who
needs to know before that what is inside an engine; by one of them at a time, and once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from time import sleep
from typing import Any, Final

from opentelemetry.trace import INVALID_SPAN

from otel_rl.guard import attempt
from otel_rl.integrations.vllm.finished import rows
from otel_rl.integrations.vllm.rows import Remembered
from otel_rl.process.state import state
from otel_rl.records import Deferred, Noted
from otel_rl.requests import queue as requests
from otel_rl.requests.reader import BREATH_S, SLICE

SIZE: Final = 9
"""Pieces of a sequence that is over: what waited for the flusher then; when it was over, monotonic ns; index of the
engine that gave its output; container that was open; class of the exception by which it failed; output processor,
sequence, reason, tokens of its output."""
NOTED: Final = 10
"""Pieces of it as the flusher reads them."""
MOST_HELD: Final = 18_000
"""While so many pieces wait, what is over is read at once: a sequence as it is holds tokens and log-probabilities."""
POOLED: Final = -1
"""In place of tokens: nothing was generated."""


def look(known: Remembered, over: Sequence[Any]) -> None:
    """Look at a sequence that is over if that cannot wait; else let it wait, and tell the flusher.

    Args:
        known: what is remembered of vLLM.
        over: ``SIZE`` pieces.
    """
    if known.strays or len(known.over) >= MOST_HELD:
        _leave(known, over, is_held=len(known.over) < MOST_HELD)
        return
    known.over += over
    if known.told is not over[0] or state.noted is not over[0]:
        tell(known, over[0])


def tell(known: Remembered, noted: Noted) -> None:
    """Have the flusher look, before what is queued behind this: the end of the step, behind which requests are late."""
    known.settle = settle
    is_told = state.add(Deferred(_take, (known, noted)))
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
        _leave(known, over, is_patient=is_patient)


def _leave(known: Remembered, over: Iterable[Any], *, is_held: bool = True, is_patient: bool = False) -> None:
    """Make of sequences that are over what the flusher reads. Cost: 0.6 us each.

    Args:
        known: what is remembered of vLLM.
        over: ``SIZE`` pieces of each.
        is_held: keep sequences as they are, rather than what is read of them.
        is_patient: see ``settle``.
    """
    rest = zip(*[iter(over)] * SIZE, strict=True)
    try:
        while not attempt("leave", "a finished sequence of vLLM", _leave_rest, known, rest, is_held, is_patient):
            pass  # the one that failed is not among the rest any more
    finally:
        known.over[:0] = chain.from_iterable(rest)  # where the program was interrupted


def _leave_rest(known: Remembered, rest: Iterator[Any], is_held: bool, is_patient: bool) -> bool:
    """Take sequences out of these until none is left; what was made of them before one fails is kept."""
    waiting, processor, common = state.noted, None, None
    pieces: list[Any] = []
    try:
        for noted, ended, replica, container, error, of, sequence, reason, tokens in rest:
            if noted is not waiting or len(pieces) >= SLICE * NOTED:
                made, pieces = pieces, []
                _note(made, waiting)
                waiting = noted
                if is_patient:
                    sleep(BREATH_S)
            if of is not processor or common != (replica, error):
                processor, common, engine = of, (replica, error), known.engine(of)
                how = engine, replica, error, engine.batch
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
            is_room = is_held and len(noted) + len(pieces) < MOST_HELD
            held = sequence if is_room else engine.read(sequence)
            pieces += (rows, parent, 7, how, held, tokens, arrival, shown, reason, ended)
    finally:
        _note(pieces, waiting)
    return True


def _note(pieces: list[Any], noted: Noted) -> None:
    if pieces:
        requests.note_many(pieces, len(pieces) // NOTED, noted)


def _is_stray(known: Remembered, processor: int, request_id: str) -> bool:
    """Whether it had neither parent nor queue; it is none any more."""
    strays = known.strays.get(processor, set())
    is_stray = request_id in strays
    strays.discard(request_id)
    if not strays:
        known.strays.pop(processor, None)
    return is_stray
