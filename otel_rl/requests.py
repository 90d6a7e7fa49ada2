"""Rollout requests: what an engine knows of one finished sequence, on its way to the flusher."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

from otel_rl.current import CURRENT, SPAN_KEY
from otel_rl.guard import guard
from otel_rl.runtime import QUEUE_LIMIT, state

UNKNOWN = -1
"""A count that the engine does not tell; a time that it does not tell is 0."""


class Request(NamedTuple):
    """One sequence of one attempt, over. Times are monotonic ns of this host, 0 where unknown."""

    engine: str
    """``vllm``, ``sglang``, ``transformers``, ``openai``, or a custom engine's own name."""
    submitted: int
    ended: int
    """When it was finished, aborted, or failed, as the caller sees it."""
    scheduled: int = 0
    first_token: int = 0
    last_token: int = 0
    input_tokens: int = UNKNOWN
    output_tokens: int = UNKNOWN
    cached_tokens: int = UNKNOWN
    """Of the input, read from the engine's prefix cache."""
    finish: str = ""
    """``stop``, ``length``, ``abort``, ``timeout``, ``error``, or the engine's own word."""
    error: str = ""
    """Class of the exception, where it failed."""
    preemptions: int = UNKNOWN
    streamed: bool = False
    """Submitted one by one while others run, rather than all at once."""
    operation: str = "generate_content"
    model: str = ""
    id: str = ""
    sample: str = ""
    """Shared by the n sequences of one prompt, and by what resumes a sequence."""
    group: str = ""
    turn: int = UNKNOWN
    policy_start: int = UNKNOWN
    """Optimizer updates in the weights that made the first token."""
    policy_end: int = UNKNOWN
    replica: str = ""
    limit: int = UNKNOWN
    """Output tokens that were allowed."""


_new = tuple.__new__


class Noted(tuple[Any, ...]):
    """Requests that are over, still in the engine's own objects: the flusher reads them by ``read(*arguments)``.

    One flat tuple of reader, parent and arguments: 100,000 of them may wait, and the garbage collector looks at each.
    """

    __slots__ = ()

    def __new__(cls, read: Callable[..., Iterable[Request]], arguments: tuple[Any, ...], parent: Any) -> Noted:
        """Note requests of which the flusher itself has learnt; hot threads call ``note``."""
        return _new(cls, (read, parent, *arguments))

    @property
    def read(self) -> Callable[..., Iterable[Request]]:
        """Makes the rows."""
        return cast("Callable[..., Iterable[Request]]", self[0])

    @property
    def parent(self) -> Any:
        """The span they belong to: the rollout stage that was current, or where their context came from."""
        return self[1]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the reader is given."""
        return self[2:]


class Load(NamedTuple):
    """How busy an engine is at one moment."""

    engine: str
    replica: str
    time_ns: int
    running: int
    waiting: int
    kv_usage: float | None
    preemptions: int


def note(read: Callable[..., Iterable[Request]], *arguments: Any, parent: Any = None) -> None:
    """Hand finished requests to the flusher. Cost: at most 0.5 us (``benchmarks/requests.py``); nothing is read here.

    Args:
        read: makes the rows of ``arguments``, on the flusher's thread; what it is given must not change any more.
        arguments: the engine's own objects.
        parent: the span they belong to, or its ``SpanContext``; where it is None the current span, else the step.
    """
    if state.on:
        parent = parent or CURRENT.get().get(SPAN_KEY) or state.container or _place()
        noted = _new(Noted, (read, parent, *arguments))
        queue = state.queue
        if state.awake and len(queue) < QUEUE_LIMIT:  # as ``state.add`` does, whose call would be a seventh of the cost
            queue.append(noted)
        else:
            state.add(noted)


def load(
    engine: str,
    replica: str,
    time_ns: int,
    running: int,
    waiting: int,
    kv_usage: float | None,
    preemptions: int = 0,
) -> None:
    """Say how busy an engine is; from any thread, as often as it likes. Cost: 0.5 us.

    Args:
        engine: as in ``Request``.
        replica: which of several equal engines; empty where there is one.
        time_ns: when that was so, monotonic.
        running: requests that it works on.
        waiting: requests that wait in it.
        kv_usage: share of the KV cache in use, 0..1; None where the engine does not tell.
        preemptions: since the last call.

    Emits: ``rl.engine.*`` (gauges: the last value of each half second, and the KV cache's peak of each step).
    """
    if state.on:
        state.add(Load(engine, replica, time_ns, running, waiting, kv_usage, preemptions))


def _place() -> Any:
    """Open the set-up's trace for requests that come before everything else."""
    with guard("find a place for requests"):
        state.open_setup()
    return state.container
