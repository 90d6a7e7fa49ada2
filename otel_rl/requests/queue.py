"""Rollout requests: what an engine knows of one finished sequence, on its way to the flusher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple
from weakref import finalize

from otel_rl import vocabulary as v
from otel_rl.guard import guard
from otel_rl.process.state import state
from otel_rl.records import Count, Deferred
from otel_rl.requests.memory import CountsUnfinished, generation
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, current_parent, rollout_around

UNKNOWN = -1
"""A count that the engine does not report; a time that it does not report is 0."""
MOST_WAITING: Final = 4_000_000
"""Pieces of finished requests that may wait: 200,000 requests of vLLM; more are dropped and counted."""
LOAD_EVERY_NS: Final = 10_000_000
"""An engine that steps all the time reports its load at most this often."""
SAYING: Final = frozenset((v.SAMPLE, v.EVALUATE, v.REWARD))
"""Stages that say what the requests inside them are for; so does one with a mode."""


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
    """Input tokens that were read from the engine's prefix cache."""
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


Values = tuple[Any, ...]
"""A ``Request``, or a plain tuple of all its values in their order: to make one takes a fifth of the time."""


class EngineLoad(NamedTuple):
    """How busy an engine is at one moment."""

    engine: str
    replica: str
    time_ns: int
    running: int
    waiting: int
    kv_usage: float | None
    preemptions: int = UNKNOWN


class KvCache(NamedTuple):
    """How many bytes an engine's KV cache takes at one moment; None is not known."""

    engine: str
    replica: str
    time_ns: int
    """Time since 1970."""
    size: int | None
    """Bytes that are taken ahead of time: a pool, a static cache."""
    used: int | None
    """Bytes of the keys and values in it."""


def record_requests(read: Callable[..., Iterable[Values]], *arguments: Any, parent: Any = None) -> None:
    """Record finished requests. Cost: 0.4 us (``benchmarks/requests.py``); nothing is read here.

    Args:
        read: makes the requests from ``arguments``, on the flusher's thread.
        arguments: the engine's own objects, which must not change any more.
        parent: the span they belong to, or its ``SpanContext``; None is that of ``find_parent``.
    """
    if state.on:
        add_finished((read, parent or find_parent(), len(arguments), *arguments))


def add_finished(finished: tuple[Any, ...]) -> None:
    """Add finished requests to the queue: their reader, parent, number of arguments, and the arguments."""
    queued = state.queue.finished
    if not queued:  # or so it was a moment ago: queued twice it does no harm
        if not state.add(queued):
            return
    elif len(queued) > MOST_WAITING:
        dropped = state.dropped
        dropped["traces", "queue_full"] += 1
        return
    queued += finished  # in one piece: other threads add to it, too
    if state.queue.finished is not queued:  # the flusher has taken it meanwhile, perhaps too early for this
        state.add(queued)


def record_load(
    engine: str,
    replica: str,
    time_ns: int,
    running: int,
    waiting: int,
    kv_usage: float | None,
    preemptions: int = UNKNOWN,
) -> None:
    """Record how busy an engine is; from any thread, as often as it likes. Cost: 0.5 us.

    Args:
        engine: as in ``Request``.
        replica: which of several equal engines; empty where there is one.
        time_ns: when that was so, monotonic.
        running: requests that it works on.
        waiting: requests that wait in it.
        kv_usage: share of the KV cache in use, 0..1; None is not known.
        preemptions: since the last call.

    Emits: ``rl.engine.*`` (gauges: the last value of each half second, and the KV cache's peak of each step).
    """
    if state.on:
        state.add(EngineLoad(engine, replica, time_ns, running, waiting, kv_usage, preemptions))


def record_kv_cache(engine: str, replica: str, size: int | None, used: int | None) -> None:
    """Record how many bytes the KV cache of an engine takes, None where unknown; from any thread. Cost: 0.5 us.

    Args:
        engine: as in ``Request``.
        replica: which of several equal engines; empty where there is one.
        size: of the memory taken ahead of time for keys and values.
        used: of the keys and values in it.

    Emits: ``rl.memory.kv_cache.size`` and ``.peak`` (gauges of each step).
    """
    if state.on:
        state.add(KvCache(engine, replica, state.now(), size, used))


def count_when_dropped(owner: object, engine: CountsUnfinished) -> None:
    """Count what is inside an engine as unfinished when the program drops it: its end is never seen.

    Args:
        owner: the program's own object; when it goes, the engine is gone.
        engine: of an integration.

    Emits: ``rl.request.bad`` (counter).
    """
    generation.engines.add(engine)
    finalize(owner, _dropped, engine, generation.recording).atexit = False  # the exit counts those that are left


def _dropped(engine: CountsUnfinished, recording: object) -> None:
    with guard("count the requests of an engine that is gone"):
        if state.on and generation.recording is recording:
            generation.engines.discard(engine)
            # This may run anywhere, under any lock of its thread: the flusher asks the engine.
            state.add(Deferred(_unfinished, (engine,)))


def _unfinished(engine: CountsUnfinished) -> Iterator[Count]:
    number = engine.unfinished
    if number:
        yield Count(v.BAD_REQUESTS, number, ((v.REASON, "unfinished"),))


def find_parent() -> Any:
    """Return the span that a request belongs to if nothing else is known of it.

    The current span; in a thread that has none (a pool's) the innermost open stage that says what requests are for; of
    several side by side the innermost one that all of them are in; else the step.
    """
    return current_parent() or _open_parent()


def _open_parent() -> Any:
    """Find the parent for requests of a thread that has no span.

    Cost: 2 us, and 0.2 us for each open stage; 0.6 us where hundreds of samples are each inside a stage of its own.
    """
    stage = None
    with guard("find the parent of requests"):
        opened = {one.span_id: one for one in tracing.open.copy() if one.__class__ is Stage}
        found = {one for one in opened.values() if one.name in SAYING or (one.attributes and v.MODE in one.attributes)}
        stage = _innermost(found, opened) if len(found) > 1 else next(iter(found), None)
        if stage is not None and stage.name == v.SAMPLE_GENERATE:
            stage = rollout_around(stage)
    if stage is None and tracing.container is None:  # requests that come before everything else
        with guard("find the parent of requests"):
            tracing.open_setup()
    return stage or tracing.container


def _innermost(found: set[Stage], opened: dict[int, Stage]) -> Stage | None:
    """Return the innermost stage that each of the others contains or is inside of; None if there is none."""
    outer: set[int] = set()
    level = {one.parent_id for one in found}
    while level:  # of hundreds side by side few have a parent of their own, so this is short
        outer |= level
        level = {opened[span_id].parent_id for span_id in level if span_id in opened} - outer
    inner = [one for one in found if one.span_id not in outer]
    if len(inner) == 1:
        return inner[0]
    first, *others = {one.parent_id for one in inner}
    common = []
    while first in opened:
        common.append(first)
        first = opened[first].parent_id
    for parent_id in others:
        span_id = parent_id
        while span_id in opened and span_id not in common:
            span_id = opened[span_id].parent_id
        common = common[common.index(span_id) :] if span_id in common else []
    return next((opened[span_id] for span_id in common if opened[span_id] in found), None)
