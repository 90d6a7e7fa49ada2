"""vLLM: what is remembered of its engines and of the requests inside them, and the rows that finished ones become."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from operator import attrgetter
from time import monotonic_ns, time
from typing import Any
from weakref import ref

from otel_rl.guard import errors
from otel_rl.ids import random_bits
from otel_rl.requests import UNKNOWN, Request, count_when_dropped
from otel_rl.runtime import QUEUE_LIMIT, state
from otel_rl.watching import ending

SLACK_NS = 10_000_000
"""By so much may the wall clock have moved against the monotonic one since the anchor was measured."""

WHOLE = ("stop", "length", "repetition")
"""How a sequence finishes that was not cut."""
FIELDS = (
    "request_id", "prompt_len", "max_tokens_param", "stats", "num_cached_tokens", "external_req_id",
    "weight_version_starts",
)  # fmt: skip
"""What is read of a sequence that is over, in the order in which vLLM's versions came to have it: nobody changes it any
more."""
MISSING = (None, 0, None, None, UNKNOWN, None, None)
"""What stands for those that a version does not have."""
MOST_REFUSED = 4096
"""A refused request counts as so many sequences at most, whatever it asked for."""


class Batch:
    """What an ``LLM`` is handed by one call, while a trainer rolls out."""

    __slots__ = ("places", "sampling")

    def __init__(self, sampling: Any) -> None:
        self.sampling = sampling
        self.places: dict[str, int] = {}
        """By request id, how many were handed over before it."""

    def place(self, request_id: str, ranks: int) -> tuple[int, str, str]:
        """Say of a request that is over the version of the weights, its sample and its group."""
        index = self.places.get(request_id)
        if index is None:
            return UNKNOWN, "", ""
        return (self.sampling.policy, *self.sampling.place(index, len(self.places) // ranks))


class Engine:
    """One engine: how it was built, and what is inside."""

    __slots__ = (
        "arrivals", "batch", "fields", "has_refused", "is_copy", "is_shared", "missing", "model", "open", "parents",
        "processor", "ranks", "replica",
    )  # fmt: skip

    def __init__(self) -> None:
        self.processor: ref[Any] | None = None
        self.model = ""
        self.replica = ""
        """Index among the data-parallel engines; empty where there are several: then each output tells its own."""
        self.is_shared = True
        """Whether the engine core is on this host, so that its monotonic clock is ours."""
        self.is_copy = False
        """Whether another process counts all that is inside."""
        self.ranks = 1
        """So many ranks, one model among them, are each handed what all of them have to ask."""
        self.batch: Batch | None = None
        """What an ``LLM`` was handed last, if that is a trainer's."""
        self.has_refused = False
        """Whether it has refused a request since an ``LLM`` began to hand the last batch over."""
        # Plain dicts: an object for each of 100,000 requests costs as much again in the collector.
        self.open: dict[str, Any] = {}
        """The sequences inside (vLLM's ``RequestState``) by request id, oldest first."""
        self.parents: dict[str, Any] = {}
        """The callers' spans, by request id."""
        self.arrivals: dict[str, float] = {}
        """When the caller submitted a request (wall clock, s), by its id, where it has no statistics that tell."""
        self.missing: tuple[Any, ...] = ()
        self.fields: Callable[[Any], tuple[Any, ...]] = self._first

    @property
    def unfinished(self) -> int:
        """Requests that are inside, unless another process counts them."""
        return 0 if self.is_copy else len(self.open)

    def _first(self, sequence: Any) -> tuple[Any, ...]:
        """Read a sequence, and find out how all others are read in one go."""
        known = next((place for place, name in enumerate(FIELDS) if not hasattr(sequence, name)), len(FIELDS))
        self.fields, self.missing = attrgetter(*FIELDS[:known]), MISSING[known:]
        return self.fields(sequence)

    def read(self, sequence: Any) -> tuple[Any, ...]:
        """Read ``FIELDS``, and what the others say: small, while a sequence holds tokens and log-probabilities.

        Returns:
            The values of ``FIELDS``; whether it is one of several of a prompt; whether its caller waits for it alone;
            whether it is a session; whether that caller is shown its tokens as they come. Cost: 0.5 us.
        """
        is_streamed = sequence.queue is not None
        is_shown = is_streamed and sequence.output_kind.name != "FINAL_ONLY"
        signs = sequence.parent_req is not None, is_streamed, is_session(sequence), is_shown
        return self.fields(sequence) + self.missing + signs

    def describe(self, config: Any) -> None:
        """Read a ``VllmConfig``."""
        parallel, model = config.parallel_config, config.model_config
        # A model's folder is named by its last part only.
        self.model = os.path.basename(str(model.served_model_name or model.model).rstrip("/"))
        size = parallel.data_parallel_size
        has_lb = {kind: getattr(parallel, f"data_parallel_{kind}_lb", False) for kind in ("external", "hybrid")}
        is_alone = size <= 1 or parallel.data_parallel_rank_local is not None or has_lb["external"]
        if is_alone:
            self.replica = str(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank))
        self.is_shared = is_alone or has_lb["hybrid"] or getattr(parallel, "data_parallel_size_local", size) >= size
        if getattr(parallel, "distributed_executor_backend", None) == "external_launcher":
            # The launcher's ranks lie one model behind the other; the last of these sizes is not in every version.
            split = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
            self.ranks = split = split * getattr(parallel, "prefill_context_parallel_size", 1)
            self.is_copy = int(os.environ.get("RANK", "0")) % split != 0

    def take(self, request_id: str, sequence: Any, arrival: float, parent: Any) -> None:
        """Remember a sequence until it is over; of too many the oldest is forgotten."""
        if len(self.open) >= QUEUE_LIMIT:
            errors["keep more than 200,000 open requests of vLLM"] += 1
            self.give(next(iter(self.open)))
        self.open[request_id] = sequence
        self.parents[request_id] = parent
        if sequence.stats is None:
            self.arrivals[request_id] = arrival

    def give(self, request_id: str) -> tuple[Any, float]:
        """Forget a sequence; returns its parent and its arrival."""
        self.open.pop(request_id, None)
        arrival = self.arrivals.pop(request_id, 0.0) if self.arrivals else 0.0
        return self.parents.pop(request_id, None), arrival


Iteration = tuple[Engine, int, int, str, Batch | None]
"""What sequences have in common that ended together: their engine; index of the one that gave the last outputs (-1:
unknown); when the frontend was through with them, monotonic ns; class of the exception by which they failed; what its
``LLM`` was handed last."""


class Load:
    """What an engine told of its load since it was last recorded."""

    __slots__ = ("kv_usage", "preemptions", "recorded")

    def __init__(self) -> None:
        self.recorded = 0
        """Monotonic ns."""
        self.kv_usage = 0.0
        """Highest since then."""
        self.preemptions = 0


class Shown:
    """A streaming request as its caller sees it: monotonic ns."""

    __slots__ = ("first", "last", "submitted")

    def __init__(self, arrival: float) -> None:
        """Begin with when the caller submitted it, by the wall clock, s, which may be set while the request runs."""
        self.submitted = monotonic_ns() - round((time() - arrival) * 1e9)
        self.first = self.last = 0
        """When the first and the last output came, 0 before; the first may have been one without a token."""

    def wake(self, is_first: bool) -> None:
        """Right behind this call the event loop lets the caller go on with an output."""
        now = monotonic_ns()
        if is_first:
            self.first = now
        self.last = now


class Remembered:
    """What concerns vLLM in this process."""

    __slots__ = ("cache_bytes", "engines", "is_copy", "loads", "pool_bytes", "replica", "shown")

    def __init__(self) -> None:
        self.engines: dict[int, Engine] = {}
        """By the id of their output processor, as long as that lives."""
        self.shown: dict[Any, Shown] = {}
        """By the queue of a streaming request."""
        self.loads: dict[str, Load] = {}
        """By replica."""
        self.replica = ""
        """Of the engine that was built last; load that names none is an ``LLM``'s, of which a process has one."""
        self.is_copy = False
        """Likewise."""
        self.cache_bytes = 0
        """Of the KV cache of the worker that was made last in this process, until its engine is built."""
        self.pool_bytes = 0
        """Of the KV cache behind the engine that was built last; 0 where its workers are other processes."""

    def engine(self, processor: Any) -> Engine:
        """Return the engine of an output processor."""
        key = id(processor)
        engine = self.engines.get(key)
        if engine is None:
            engine = self.engines[key] = Engine()
            engine.processor = ref(processor, lambda gone: self.engines.pop(key, None))
            count_when_dropped(processor, engine)
        return engine

    def look_at(self, queue: Any, arrival: float) -> None:
        """Time what comes through a queue; of too many the oldest is forgotten."""
        if len(self.shown) >= QUEUE_LIMIT:
            self.shown.pop(next(iter(self.shown)))
        self.shown[queue] = Shown(arrival)


def remembered() -> Remembered:
    """Return what is remembered in this process."""
    if state.training.vllm is None:
        state.training.vllm = Remembered()
    known: Remembered = state.training.vllm
    return known


def is_session(sequence: Any) -> bool:
    """Tell a session by its queue of further input: its last request is not ``resumable``, and may end it unseen."""
    return getattr(sequence, "input_chunk_queue", None) is not None


def is_inside(processor: Any, request_id: Any) -> bool:
    """Tell by the caller's id whether a processor has a request; since 0.14 its sequences have ids of their own."""
    inside = getattr(processor, "external_req_ids", {}).get(request_id, (request_id,))
    return request_id in processor.parent_requests or any(one in processor.request_states for one in inside)


def refused(
    engine: Engine,
    wanted: Sequence[Any],
    error: BaseException,
    request_id: str = "",
    *,
    submitted: int = 0,
    is_streamed: bool = False,
) -> list[Request]:
    """Make the rows of a prompt that was not taken: one for every sequence it asked for, none if nothing generates.

    Args:
        engine: the one that refused it.
        wanted: vLLM's ``SamplingParams`` of the prompt, or of all among which it is.
        error: what its caller gets.
        request_id: the caller's, where there was one yet.
        submitted: when its caller did, monotonic ns; 0 where he does not say.
        is_streamed: whether its caller waits for it alone.
    """
    if not all(hasattr(one, "n") for one in wanted):
        return []  # embeddings and the like
    counts, limits = {one.n for one in wanted}, {one.max_tokens for one in wanted}
    n, limit = (values.pop() if len(values) == 1 else None for values in (counts, limits))
    finish, name = ending(error)
    identity = request_id or f"{random_bits(64):016x}"
    row = Request(
        engine="vllm",
        submitted=submitted,
        ended=monotonic_ns(),
        finish=finish,
        error=name,
        streamed=is_streamed,
        model=engine.model,
        id=identity,
        sample=identity,
        replica=engine.replica,
        limit=UNKNOWN if limit is None else limit,
    )
    if n in (1, None):
        return [row]
    return [row._replace(id=f"{index}_{identity}") for index in range(min(n, MOST_REFUSED))]


# --- rows, on the flusher's thread ------------------------------------------------------------------------------------


def rows(
    iteration: Iteration, sequence: Any, tokens: int, arrival: float, shown: Shown | None, reason: Any
) -> list[Request]:
    """Make the row of a sequence that is over; of a session none.

    Args:
        iteration: the one that ended it.
        sequence: vLLM's ``RequestState``, or what ``Engine.read`` gives of it.
        tokens: of its output.
        arrival: when the caller submitted it (wall clock, s); 0 where its statistics tell.
        shown: when the caller got its outputs, where somebody looked.
        reason: vLLM's ``FinishReason``, or a word of ours.
    """
    engine, replica, ended, error, batch = iteration
    values = sequence if type(sequence) is tuple else engine.read(sequence)
    request_id, prompt, limit, stats, cached, external, versions, is_child, is_streamed, is_session, is_shown = values
    if is_session:
        return []
    request_id, finish = str(request_id), str(reason)
    arrival = arrival or getattr(stats, "arrival_time", 0.0)
    submitted = int(arrival * 1e9) - state.clock.anchor if arrival else 0
    if shown is not None:
        submitted, ended = shown.submitted, max(ended, shown.last)
    scheduled = first = last = 0
    if shown is not None and shown.first and tokens:
        scheduled, first, last = _as_shown(shown, stats, ended, finish)
    elif stats is not None:
        scheduled, first, last = _times(stats, submitted, ended, is_shared=engine.is_shared, is_shown=is_shown)
    if not tokens:
        first = last = 0  # what was taken for the first token was the word that it is over
    policy, sample, group = batch.place(request_id, engine.ranks) if batch is not None else (UNKNOWN, "", "")
    start, end = _policy(versions, policy) if versions else (policy, policy)
    if not sample:
        # A child is called `<index>_<its parent>`; since 0.14 the caller's id is kept beside vLLM's own.
        sample = str(external or (is_child and request_id.partition("_")[2]) or request_id)
    row = Request(  # by position, since names cost as much again; the turn is not known
        "vllm", submitted, ended, scheduled, first, last, prompt, tokens, cached, finish, error,
        getattr(stats, "num_preemptions", UNKNOWN), is_streamed, "generate_content", engine.model, request_id, sample,
        group, UNKNOWN, start, end, str(replica) if replica >= 0 else engine.replica,
        UNKNOWN if limit is None else limit,
    )  # fmt: skip
    return [row]


def _as_shown(shown: Shown, stats: Any, ended: int, finish: str) -> tuple[int, int, int]:
    """Say when it was scheduled, its first and its last token, as its caller saw them: monotonic ns, 0 where unknown.

    Prefill is the engine core's, if there are statistics, and the way between the processes is in the queue. The last
    token came with the last output, unless that said that the sequence was cut.
    """
    scheduled, first, last = _read(stats) if stats is not None else (0, 0, 0)
    way = shown.first - first
    whole = ended if finish in WHOLE else 0
    if not first:
        return 0, shown.first, whole
    return scheduled + way if scheduled else 0, shown.first, whole or min(max(last, first) + way, ended)


def _read(stats: Any) -> tuple[int, int, int]:
    """Read when it was scheduled, its first and its last token, by the engine core's clock, ns."""
    scheduled, first, last = stats.scheduled_ts, stats.first_token_ts, stats.last_token_ts
    return (
        round(scheduled * 1e9) if scheduled > 0 else 0,
        round(first * 1e9) if first > 0 else 0,
        round(last * 1e9) if last > 0 else 0,
    )


def _times(stats: Any, submitted: int, ended: int, *, is_shared: bool, is_shown: bool) -> tuple[int, int, int]:
    """Read when it was scheduled, its first and its last token: monotonic ns of this host, 0 where unknown.

    The engine core's clock is ours if it runs on this host. If it does not, which shows in readings that cannot be, or
    in how the engine was built, only durations are taken: the last token is placed where the frontend had it.

    Who streams several sequences is shown the first token a little later, when the frontend has it: there it is placed
    then. Prefill and TPOT stay the engine core's, and the way between the processes is in the queue. Who waits for the
    whole answer is shown no token, and a frontend that is busy with submitting takes outputs long after they were made.
    """
    scheduled, first, last = _read(stats)
    if first and is_shown:
        way = submitted + round(getattr(stats, "first_token_latency", 0.0) * 1e9) - first
        shift = min(way, ended - (last or first))
        is_possible = way >= -SLACK_NS if is_shared else submitted < first + way
        if is_possible and way - shift <= SLACK_NS:
            return scheduled and scheduled + shift, first + shift, last and last + shift
    earliest, latest = submitted - SLACK_NS, ended + SLACK_NS
    if (
        is_shared
        and (not scheduled or earliest <= scheduled <= latest)
        and (not first or earliest <= first <= latest)
        and (not last or earliest <= last <= latest)
    ):
        return scheduled, first, last
    if not last:
        return 0, 0, 0
    shift = ended - last
    return scheduled and scheduled + shift, first and first + shift, ended


def _policy(starts: Sequence[tuple[str, int]], otherwise: int) -> tuple[int, int]:
    """Read the weights' versions of the first and last token, where the user numbers them."""
    told = starts[0][0], starts[-1][0]
    if not any(version.isdecimal() for version in told):
        return otherwise, otherwise
    first, last = (int(version) if version.isdecimal() else UNKNOWN for version in told)
    return first, last
