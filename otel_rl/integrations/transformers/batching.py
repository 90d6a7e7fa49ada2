"""Requests of transformers' continuous batching (``generate_batch``, ``ContinuousBatchingManager``).

Runs in the process that generates: a request is submitted on its caller's thread, whose open stage it belongs to, and
finishes on the manager's background thread. Source: ``generation/continuous_batching/`` of transformers 4.56.2, 4.57.6,
5.0, 5.8, 5.12 and 5.23. From 5.8 on the first token is timed where a batch reaches the host, and cancelled requests are
seen; before, TTFT needs ``record_timestamps``, which is never switched on here. The end is the engine's own (lifespan),
like the time of scheduling: for a child of a fork, that of the fork. The paged cache is measured with each batch that
was computed, by its tensors and its free blocks; the load by the scheduler's ``active_requests`` and
``waiting_requests``, which all these versions have. Under tensor parallelism rank 0 alone counts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns, perf_counter_shift
from otel_rl.hooks import CallbackHook, ReturnHook
from otel_rl.hooks.arguments import Args, Kwargs
from otel_rl.ids import random_bits
from otel_rl.probes import kv_cache
from otel_rl.process.memory import Memory
from otel_rl.process.state import state
from otel_rl.requests.memory import generation
from otel_rl.requests.queue import (
    LOAD_EVERY_NS,
    UNKNOWN,
    Request,
    count_when_dropped,
    record_kv_cache,
    record_load,
    record_requests,
)
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, current_parent

CHILD = "__child#"
"""Stands between the id of a request and the number of a sequence that was forked from it."""
WALL_SINCE_S = 1e9
"""Version 4 stamps by ``time.time()``, later ones by ``time.perf_counter()``, which begins with the machine."""


class Origin:
    """Where a request came from; shared by its forks."""

    __slots__ = ("index", "is_streamed", "left", "parent", "request_id", "rows", "sampling", "submitted")

    def __init__(self, prompt: Any, sequences: int) -> None:
        self.submitted = monotonic_ns()
        self.parent = current_parent()
        self.sampling = generation.sampling
        if self.sampling is not None and not isinstance(self.parent, Stage):  # up to 5.8 transformers has its own spans
            self.parent = next((one for one in tracing.open.copy() if _is_rollout(one)), self.parent)
        self.request_id = ""
        """Empty until it has one."""
        self.left = sequences
        """Sequences that are not over."""
        indices = generation.thread.indices
        self.is_streamed = indices is None
        self.index, self.rows = (UNKNOWN, 0) if indices is None else (indices.get(id(prompt), UNKNOWN), len(indices))


class BatchingEngine:
    """One manager and the requests that it has accepted."""

    def __init__(self, manager: Any = None) -> None:
        config = getattr(getattr(manager, "model", None), "config", None)
        self.name = f"{random_bits(64):016x}"
        """Managers count their requests from 0 again."""
        self.model = os.path.basename(str(getattr(config, "_name_or_path", "") or ""))
        self.sequences = int(getattr(manager, "num_return_sequences", 1) or 1)
        self.is_counted = bool(getattr(manager, "is_tp_driver", True))
        self.open: dict[str, Origin] = {}
        self.firsts: dict[str, int] = {}
        """When the first token of a sequence was there."""
        self.is_busy = False
        """Whether a batch was computed since the engine was last recorded as idle."""
        self.recorded = 0
        """When its load was last recorded, monotonic ns."""
        self.usage: float | None = None
        """Highest share of the KV cache in use since then."""

    @property
    def unfinished(self) -> int:
        """Sequences that are inside, unless another process counts them."""
        return sum(origin.left for origin in tuple(self.open.values())) if self.is_counted else 0

    def origin(self, request_id: str) -> Origin | None:
        """Find where a sequence that is over came from; forget it with the last one."""
        whole = request_id.partition(CHILD)[0]
        found = self.open.get(whole)
        if found is not None:
            found.left -= 1
            if found.left <= 0:
                del self.open[whole]
        return found


@dataclass(eq=False)
class BatchingMemory(Memory):
    """What is remembered of continuous batching."""

    engines: WeakKeyDictionary[Any, BatchingEngine] = field(default_factory=WeakKeyDictionary)
    """Keys are their managers."""


batching = BatchingMemory.keep("batching")


def _is_rollout(one: Any) -> bool:
    return isinstance(one, Stage) and one.name == vocabulary.SAMPLE


class Over(NamedTuple):
    """A sequence that is over."""

    sequence: Any
    """The ``RequestState`` of transformers."""
    prompt: int
    tokens: int
    limit: int
    first: int
    """When its first token was there, monotonic ns; 0 where it was not seen."""
    seen: int
    """When its end was seen."""
    finish: str
    error: str


def _engine_of(manager: Any) -> BatchingEngine:
    known = batching.engines
    engine: BatchingEngine | None = known.get(manager)
    if engine is None:
        made = BatchingEngine(manager)
        engine = known.setdefault(manager, made)
        if engine is made:  # not another thread's: the loop may begin while the first request is submitted
            count_when_dropped(manager, engine)
    return engine


# --- on the caller's thread -------------------------------------------------------------------------------------------


def _begin_bulk(args: Args, kwargs: Kwargs) -> None:
    prompts = args[1]
    generation.thread.indices = {id(prompt): index for index, prompt in enumerate(prompts)}


def _end_bulk(args: Args, kwargs: Kwargs, result: Any = None) -> None:
    generation.thread.indices = None


def _submit(args: Args, kwargs: Kwargs) -> None:
    """A request may be over before ``add_request`` returns; until it has an id it waits on its thread."""
    engine = _engine_of(args[0])
    origin = Origin(args[1], engine.sequences)
    generation.thread.origin = engine, origin
    _enter(engine, origin, str((args[2] if len(args) > 2 else None) or ""))


def _made(args: Args, kwargs: Kwargs, result: Any) -> None:
    """The first one that is made inside of ``add_request`` has the request's id, and is not handed over yet."""
    pending = generation.thread.origin
    if pending is not None and not pending[1].request_id:
        _enter(pending[0], pending[1], args[0].request_id)


def _enter(engine: BatchingEngine, origin: Origin, request_id: str) -> None:
    origin.request_id = request_id
    if request_id:
        engine.open[request_id] = origin


def _submitted(args: Args, kwargs: Kwargs, result: Any) -> None:
    _end_submission(str(result or ""))


def _failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    _end_submission("")


def _end_submission(request_id: str) -> None:
    """Forget a request that was not accepted: the manager has stopped, or its queue has been full for ten seconds."""
    pending, generation.thread.origin = generation.thread.origin, None
    if pending is None:
        return
    engine, origin = pending
    if not request_id:
        engine.open.pop(origin.request_id, None)
    elif not origin.request_id:
        _enter(engine, origin, request_id)


# --- on the background thread -----------------------------------------------------------------------------------------


def _begin_loop(args: Args, kwargs: Kwargs) -> None:
    generation.thread.engine = _engine_of(args[0])


def _engine() -> BatchingEngine:
    """Return the engine of this thread; a nameless one where its loop began before ``instrument()``."""
    generating = generation.thread
    if generating.engine is None:
        generating.engine = BatchingEngine()
    engine: BatchingEngine = generating.engine
    return engine


def _arrived(args: Args, kwargs: Kwargs, result: Any) -> None:
    """The tokens of a batch are on the host, and not yet with their requests. Cost: 0.1 us a request."""
    first = [
        future.state.request_id for future in result[0] if future.has_new_token and not future.state.generated_tokens
    ]
    if first:
        now, firsts = monotonic_ns(), _engine().firsts
        for request_id in first:
            firsts.setdefault(request_id, now)


def _computed(args: Args, kwargs: Kwargs) -> None:
    """A batch was computed, and none of its requests has given its blocks of the KV cache back."""
    engine = _engine()
    cache = getattr(args[0], "cache", None)
    known = None if cache is None else kv_cache.of_pages(cache)
    if known is not None:
        record_kv_cache("transformers", "", *known)
        if known.size and known.used is not None:
            engine.usage = max(engine.usage or 0.0, known.used / known.size)
    engine.is_busy = engine.is_busy or bool(args[0].scheduler.active_requests)


def _updated(args: Args, kwargs: Kwargs, result: Any) -> None:
    _record_load(args[0].scheduler)


def _record_load(scheduler: Any) -> None:
    """Record how busy the engine is: every 10 ms at most, and when it falls idle.

    The usage of the KV cache is the highest of that time, so that no peak is lost.
    """
    engine = _engine()
    if not engine.is_busy or not engine.is_counted:
        return
    running, waiting = len(scheduler.active_requests), len(scheduler.waiting_requests)
    now = monotonic_ns()
    engine.is_busy = bool(running or waiting)
    if now - engine.recorded >= LOAD_EVERY_NS or not engine.is_busy:
        record_load("transformers", "", now, running, waiting, engine.usage)
        engine.recorded, engine.usage = now, None


def _keep_error(args: Args, kwargs: Kwargs) -> None:
    errors = (type(value).__qualname__ for value in (*args, *kwargs.values()) if isinstance(value, BaseException))
    generation.thread.error = next(errors, "")


def _given(args: Args, kwargs: Kwargs, result: Any) -> None:
    """An output is made of a request: for its last token, its failure, or for each token where it is streamed."""
    status = result.status.name
    if status == "FINISHED":
        sequence = args[0]
        ends = sequence.eos_token_id
        ends = (ends,) if isinstance(ends, int) else ends or ()
        tokens = result.generated_tokens
        _over(sequence, result, "stop" if tokens and tokens[-1] in ends else "length", "")
    elif status == "FAILED":
        generating = generation.thread
        error, generating.error = generating.error, ""
        _over(args[0], result, "error", error)


def _cancelled(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Sequences were taken out between two batches; perhaps none is left, and there is no other batch."""
    for sequence in result or ():
        _over(sequence, sequence.to_generation_output(), "abort", "")
    _record_load(args[0])


def _over(sequence: Any, output: Any, finish: str, error: str) -> None:
    """Leave a sequence to the flusher; the output is the caller's, who may change it: it is counted here."""
    engine = _engine()
    request_id = sequence.request_id
    first = engine.firsts.pop(request_id, 0)
    origin = engine.origin(request_id)
    if not engine.is_counted:
        return
    tokens = len(output.generated_tokens)
    limit = UNKNOWN
    if sequence.max_new_tokens is not None:  # one that was set back goes on with what is left of it
        limit = sequence.max_new_tokens + tokens - len(getattr(sequence, "generated_tokens", output.generated_tokens))
    over = Over(sequence, len(output.prompt_ids), tokens, limit, first, monotonic_ns(), finish, error)
    record_requests(_request, engine, origin, over, parent=origin and origin.parent)


# --- in the flusher ---------------------------------------------------------------------------------------------------


def _request(engine: BatchingEngine, origin: Origin | None, over: Over) -> tuple[Request]:
    sequence, tokens, first = over.sequence, over.tokens, over.first
    is_whole = over.finish in ("stop", "length")
    begin, end = sequence.lifespan
    ended = (_monotonic(end) if is_whole else 0) or over.seen
    if not first and tokens:
        timestamps = getattr(sequence, "timestamps", None)
        first = _monotonic(timestamps[0]) if timestamps else ended if is_whole and tokens == 1 else 0
    sampling = origin.sampling if origin is not None else None
    policy = UNKNOWN if sampling is None else sampling.policy
    sample = group = ""
    if origin is not None and sampling is not None and origin.index >= 0 and engine.sequences == 1:
        sample, group = sampling.place(origin.index, origin.rows)
    elif engine.sequences > 1:
        sample = f"{engine.name}.{sequence.request_id.partition(CHILD)[0]}"
    request = Request(
        "transformers",
        origin.submitted if origin is not None else _monotonic(sequence.created_time),
        ended,
        scheduled=_monotonic(begin) if tokens else 0,
        first_token=first,
        last_token=ended if is_whole else 0,
        input_tokens=over.prompt,
        output_tokens=tokens,
        finish=over.finish,
        error=over.error,
        streamed=origin is not None and origin.is_streamed,
        model=engine.model,
        id=f"{engine.name}.{sequence.request_id}",
        sample=sample,
        group=group,
        policy_start=policy,
        policy_end=policy,
        limit=over.limit,
    )
    return (request,)


def _monotonic(time_s: float) -> int:
    """Turn a time that the engine reports into monotonic ns of this host; 0 where it reports none."""
    if time_s <= 0:
        return 0
    return round(time_s * 1e9) + (-state.clock.anchor if time_s > WALL_SINCE_S else perf_counter_shift())


API = "transformers.generation.continuous_batching.continuous_api"
HOOKS = (
    CallbackHook(
        target=f"{API}:ContinuousBatchingManager.add_requests", before=_begin_bulk, after=_end_bulk, failed=_end_bulk
    ),
    CallbackHook(
        target=f"{API}:ContinuousBatchingManager.add_request", before=_submit, after=_submitted, failed=_failed
    ),
    ReturnHook(target=f"{API}:RequestState.__init__", after=_made, is_constructor=True),
    CallbackHook(target=f"{API}:ContinuousBatchingManager._run_generation_loop", before=_begin_loop),
    CallbackHook(target=f"{API}:ContinuousBatchingIOs.prepare_batch_update", after=_arrived, optional=True),
    CallbackHook(target=f"{API}:ContinuousBatchProcessor.update_batch", before=_computed, after=_updated),
    CallbackHook(target=f"{API}:ContinuousBatchProcessor.fail_all_requests", after=_updated),
    CallbackHook(target=f"{API}:ContinuousBatchProcessor._handle_request_error", before=_keep_error),
    CallbackHook(target=f"{API}:OutputRouter.fail_and_deliver", before=_keep_error, optional=True),
    CallbackHook(target=f"{API}:RequestState.to_generation_output", after=_given),
    CallbackHook(
        target="transformers.generation.continuous_batching.scheduler:Scheduler.clear_cancelled_requests",
        after=_cancelled,
        optional=True,
    ),
)
