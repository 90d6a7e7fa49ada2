"""Rollout requests: what an engine knows of one finished sequence, on its way to the flusher."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from otel_rl.current import CURRENT, SPAN_KEY
from otel_rl.runtime import state

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


class Noted(NamedTuple):
    """Requests that are over, still in the engine's own objects: the flusher reads them by ``read(*arguments)``."""

    read: Callable[..., Iterable[Request]]
    arguments: tuple[Any, ...]
    parent: Any
    """The span they belong to: the rollout stage that was current, or where their context came from."""


def note(read: Callable[..., Iterable[Request]], *arguments: Any, parent: Any = None) -> None:
    """Hand finished requests to the flusher. Cost: 0.5 us; nothing of them is read here.

    Args:
        read: makes the rows of ``arguments``, on the flusher's thread; what it is given must not change any more.
        arguments: the engine's own objects.
        parent: the span they belong to; the current one where it is None.
    """
    if state.on:
        state.add(Noted(read, arguments, parent or CURRENT.get().get(SPAN_KEY)))
