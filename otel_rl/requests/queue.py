"""Rollout requests: what an engine knows of one finished sequence, on its way to the flusher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from weakref import finalize, ref

from otel_rl import vocabulary as v
from otel_rl.guard import guard
from otel_rl.journal.otlp.native import find_native
from otel_rl.process.state import QUEUE_LIMIT, state
from otel_rl.records import Count, Later, Noted
from otel_rl.trace.current import CURRENT
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, current_parent

FORM: Final = 3
"""Of what ``requests/_native.c`` takes and gives."""
native = find_native("otel_rl.requests._native", FORM)

UNKNOWN = -1
"""A count that the engine does not tell; a time that it does not tell is 0."""
MOST_PIECES = 8 * QUEUE_LIMIT
"""Of finished requests that may wait: 200,000 whose readers take five arguments; more are dropped and counted."""
LOAD_EVERY_NS: Final = 10_000_000
"""An engine that steps all the time says no more often how busy it is."""
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


Row = tuple[Any, ...]
"""A ``Request``, or a plain tuple of all its values in their order: to make one takes a fifth of the time."""


class Load(NamedTuple):
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
    """ns since 1970."""
    size: int | None
    """Taken ahead of time: a pool, a static cache."""
    used: int | None
    """Of the keys and values in it."""


class OneOf:
    """The reader of one finished request, by a function that reads many in one go, which the flusher takes first."""

    __slots__ = ("many",)

    def __init__(self, many: Callable[..., list[Row]]) -> None:
        """Make it of a function that takes, of each argument of the reader, a sequence with one for each request."""
        self.many = many

    def __call__(self, *arguments: Any) -> list[Request]:
        """Read one."""
        return list(map(Request._make, self.many(*zip(arguments, strict=False))))


def _note(read: Callable[..., Iterable[Row]], *arguments: Any, parent: Any = None) -> None:
    """Hand finished requests to the flusher. Cost: 0.1 us (``benchmarks/requests.py``); nothing is read here.

    With a parent, or where there is no C, 0.3 us.

    Args:
        read: makes the rows of ``arguments``, on the flusher's thread; what it is given must not change any more. It
            may have an attribute ``many``, which makes the rows of several calls: it takes a list of each argument,
            and gives a list of rows; where it fails they are read one by one.
        arguments: the engine's own objects.
        parent: the span they belong to, or its ``SpanContext``; where it is None that of ``place``.
    """
    if state.on:
        parent = parent or place()
        noted = state.noted
        if 0 < len(noted) < MOST_PIECES or _may_wait(noted):
            noted += [read, parent, len(arguments), *arguments]  # in one piece: other threads add to it, too
            if state.noted is not noted:  # the flusher has come for it meanwhile, and may have been too early for this
                state.add(noted)


note: Final[Callable[..., None]] = _note if native is None else native.noter(state, CURRENT, MOST_PIECES, _note)


def note_many(pieces: Sequence[Any], number: int, noted: Noted | None = None) -> None:
    """Hand over what was finished together, in the form of ``Noted``.

    Args:
        pieces: reader, parent, number of arguments and arguments of each; no parent is None.
        number: how many they are.
        noted: what waited for the flusher when they were finished, if that was not now.
    """
    noted = state.noted if noted is None else noted
    if 0 < len(noted) < MOST_PIECES or _may_wait(noted, number):
        noted += pieces
        if state.noted is not noted:
            state.add(noted)


def count_when_dropped(owner: Any, engine: Any) -> None:
    """Count what is inside an engine as unfinished when the program drops it: nobody will see it end.

    Args:
        owner: the program's own object; when it goes, the engine is gone.
        engine: of an integration, which tells how many requests are ``unfinished``.

    Emits: ``rl.request.bad`` (counter).
    """
    finalize(owner, _dropped, engine, ref(state.training)).atexit = False  # at the end all that is there is counted


def _dropped(engine: Any, training: ref[Any]) -> None:
    with guard("count the requests of an engine that is gone"):
        if state.on and state.training is training():  # neither another recording's nor a parent's
            # The flusher asks: this may run anywhere, under any lock of its thread, and an engine may wait for another.
            state.add(Later(_unfinished, (engine,)))


def _unfinished(engine: Any) -> Iterator[Count]:
    number = engine.unfinished
    if number:
        yield Count(v.BAD_REQUESTS, number, ((v.REASON, "unfinished"),))


def place() -> Any:
    """Say what a request belongs to of which nobody knows more.

    The current span; in a thread that has none (a pool's) the innermost open stage that says what requests are for; of
    several side by side the innermost around all of them; else the step.
    """
    return current_parent() or _around()


def _may_wait(noted: Noted, number: int = 1) -> bool:
    """Queue what is empty, or was a moment ago: twice does no harm; say whether anything may be added."""
    if len(noted) >= MOST_PIECES or len(state.queue) >= QUEUE_LIMIT:
        state.dropped["traces", "queue_full"] += number
        return False
    if not state.add(noted):  # filled meanwhile, and one is counted; it must stay empty, or all would add to it unseen
        state.dropped["traces", "queue_full"] += number - 1
        return False
    return True


def load(
    engine: str,
    replica: str,
    time_ns: int,
    running: int,
    waiting: int,
    kv_usage: float | None,
    preemptions: int = UNKNOWN,
) -> None:
    """Say how busy an engine is; from any thread, as often as it likes. Cost: 0.5 us.

    Args:
        engine: as in ``Request``.
        replica: which of several equal engines; empty where there is one.
        time_ns: when that was so, monotonic.
        running: requests that it works on.
        waiting: requests that wait in it.
        kv_usage: share of the KV cache in use, 0..1; None where the engine does not tell.
        preemptions: since the last call; left out where the engine does not tell.

    Emits: ``rl.engine.*`` (gauges: the last value of each half second, and the KV cache's peak of each step).
    """
    if state.on:
        state.add(Load(engine, replica, time_ns, running, waiting, kv_usage, preemptions))


def kv_cache(engine: str, replica: str, size: int | None, used: int | None) -> None:
    """Say how many bytes the KV cache of an engine takes; from any thread. Cost: 0.5 us.

    Args:
        engine: as in ``Request``.
        replica: which of several equal engines; empty where there is one.
        size: of the memory taken ahead of time for keys and values, bytes of this process; None where none is, or
            where it is not known.
        used: of the keys and values in it, bytes; None where that is not known.

    Emits: ``rl.memory.kv_cache.size`` and ``.peak`` (gauges of each step).
    """
    if state.on:
        state.add(KvCache(engine, replica, state.now(), size, used))


def _around() -> Any:
    """Find a place for requests of a thread that has no span.

    Cost: 2 us, and 0.2 us for each open stage; 0.6 us where hundreds of samples are each inside a stage of its own.
    """
    stage = None
    with guard("find a place for requests"):
        opened = {one.span_id: one for one in tracing.open.copy() if one.__class__ is Stage}
        found = {one for one in opened.values() if one.name in SAYING or (one.attributes and v.MODE in one.attributes)}
        stage = _innermost(found, opened) if len(found) > 1 else next(iter(found), None)
    return stage or tracing.container or _setup()


def _innermost(found: set[Stage], opened: dict[int, Stage]) -> Stage | None:
    """Give of these stages the innermost one that each of the others is around, or inside of; None where none is."""
    around: set[int] = set()
    level = {one.parent_id for one in found}
    while level:  # of hundreds side by side few have a parent of their own, so this is short
        around |= level
        level = {opened[span_id].parent_id for span_id in level if span_id in opened} - around
    inner = [one for one in found if one.span_id not in around]
    if len(inner) == 1:
        return inner[0]
    first, *others = {one.parent_id for one in inner}
    common = _upwards(first, opened)
    for parent_id in others:
        span_id = parent_id
        while span_id in opened and span_id not in common:
            span_id = opened[span_id].parent_id
        common = common[common.index(span_id) :] if span_id in common else []
    return next((opened[span_id] for span_id in common if opened[span_id] in found), None)


def _upwards(span_id: int, opened: dict[int, Stage]) -> list[int]:
    """Give a stage and the open ones around it, the innermost first."""
    path = []
    while span_id in opened:
        path.append(span_id)
        span_id = opened[span_id].parent_id
    return path


def _setup() -> Any:
    """Open the set-up's trace for requests that come before everything else."""
    with guard("find a place for requests"):
        tracing.open_setup()
    return tracing.container
