"""vLLM: what is remembered of its engines and of the requests inside them, and the rows of those that are refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import RLock
from time import monotonic_ns, time
from typing import Any
from weakref import ref

from otel_rl.guard import errors
from otel_rl.hooks.generators import ending
from otel_rl.ids import random_bits
from otel_rl.process.state import QUEUE_LIMIT, state
from otel_rl.records import Noted
from otel_rl.requests.queue import UNKNOWN, Request, count_when_dropped

MOST_REFUSED = 4096
"""A refused request counts as so many sequences at most, whatever it asked for."""


class Batch:
    """What an ``LLM`` is handed by one call, while a trainer rolls out."""

    __slots__ = ("places", "sampling")

    def __init__(self, sampling: Any) -> None:
        self.sampling = sampling
        self.places: dict[str, int] = {}
        """By request id, how many were handed over before it."""

    def place(self, request_id: str, sample: str, ranks: int) -> tuple[int, str, str]:
        """Say of a request that is over the version of the weights, its sample, or its own one, and its group."""
        index = self.places.get(request_id)
        if index is None:
            return UNKNOWN, sample, ""
        placed, group = self.sampling.place(index, len(self.places) // ranks)
        return self.sampling.policy, placed or sample, group


class Engine:
    """One engine: how it was built, and what is inside."""

    __slots__ = (
        "arrivals", "batch", "has_refused", "inside", "is_copy", "is_shared", "model", "parents", "processor",
        "ranks", "replica",
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
        self.inside: dict[str, Any] = {}
        """``open``, and sequences that are over where nobody has looked at them."""
        self.parents: dict[str, Any] = {}
        """The callers' spans, by request id."""
        self.arrivals: dict[str, float] = {}
        """When the caller submitted a request (wall clock, s), by its id, where it has no statistics that tell."""

    @property
    def open(self) -> dict[str, Any]:
        """The sequences inside (vLLM's ``RequestState``) by request id, oldest first."""
        if state.training.vllm is not None:
            state.training.vllm.settle(state.training.vllm)
        return self.inside

    @property
    def unfinished(self) -> int:
        """Requests that are inside, unless another process counts them."""
        return 0 if self.is_copy else len(self.open)

    def read(self, sequence: Any) -> tuple[Any, ...]:
        """Read what a row needs: small, while a sequence that is over holds tokens and log-probabilities.

        Returns:
            Its id; its sample's; tokens of its prompt, and of those the cached ones; how many it was allowed; its
            statistics; versions of the weights; whether its caller waits for it alone; whether that one is shown its
            tokens as they come; whether it is a session. Cost: 0.3 us.
        """
        request_id, is_streamed = str(sequence.request_id), sequence.queue is not None
        # A child is called `<index>_<its parent>`; since 0.14 the caller's id is kept beside vLLM's own.
        named = getattr(sequence, "external_req_id", None)
        if not named and sequence.parent_req is not None:
            named = request_id.partition("_")[2]
        return (
            request_id,
            str(named) if named else request_id,
            sequence.prompt_len,
            getattr(sequence, "num_cached_tokens", UNKNOWN),
            UNKNOWN if sequence.max_tokens_param is None else sequence.max_tokens_param,
            sequence.stats,
            getattr(sequence, "weight_version_starts", None),
            is_streamed,
            is_streamed and sequence.output_kind.name != "FINAL_ONLY",
            is_session(sequence),
        )

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
        if len(self.inside) >= QUEUE_LIMIT or request_id in self.inside:
            opened = self.open
            if len(opened) >= QUEUE_LIMIT:
                errors["keep more than 200,000 open requests of vLLM"] += 1
                self.give(next(iter(opened)))
        self.inside[request_id] = sequence
        self.parents[request_id] = parent
        if sequence.stats is None:
            self.arrivals[request_id] = arrival

    def give(self, request_id: str) -> tuple[Any, float]:
        """Forget a sequence; returns its parent and its arrival."""
        self.inside.pop(request_id, None)
        arrival = self.arrivals.pop(request_id, 0.0) if self.arrivals else 0.0
        return self.parents.pop(request_id, None), arrival


Ended = tuple[Engine, int, str, Batch | None]
"""How a sequence ended: its engine; index of the one that gave the last outputs (-1: unknown); class of the
exception by which it failed; what its ``LLM`` was handed last."""


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

    __slots__ = (
        "cache_bytes", "engines", "is_copy", "loads", "over", "pool_bytes", "replica", "settle", "settling", "shown",
        "strays", "told",
    )  # fmt: skip

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
        self.over: list[Any] = []
        """Sequences that are over, until somebody looks at them; see ``vllm_over``."""
        self.settle: Callable[[Remembered], object] = _nothing
        """Looks at them."""
        self.settling = RLock()
        """Held meanwhile: the collector may drop an engine that asks for it, too."""
        self.strays: dict[int, set[str]] = {}
        """Requests without a parent and a queue, which belong to what is open where they end: their ids, by that of
        their output processor; never empty."""
        self.told: Noted | None = None
        """What waited when the flusher was told last that something is over; None while there are strays."""

    def engine(self, processor: Any) -> Engine:
        """Return the engine of an output processor."""
        key = id(processor)
        engine = self.engines.get(key)
        if engine is None:
            made = Engine()
            made.processor = ref(processor, lambda gone: self._forget(key))
            engine = self.engines.setdefault(key, made)
            if engine is made:  # not another thread's
                count_when_dropped(processor, engine)
        return engine

    def _forget(self, key: int) -> None:
        self.engines.pop(key, None)
        self.strays.pop(key, None)

    def look_at(self, queue: Any, arrival: float) -> None:
        """Time what comes through a queue; of too many the oldest is forgotten."""
        if len(self.shown) >= QUEUE_LIMIT:
            self.shown.pop(next(iter(self.shown)))
        self.shown[queue] = Shown(arrival)


def _nothing(_: Remembered) -> None:
    """Look at nothing."""


def remembered() -> Remembered:
    """Return what is remembered in this process."""
    training = state.training
    if training.vllm is None:
        made = Remembered()
        training.vllm = training.vllm or made  # another thread may have been here
    known: Remembered = training.vllm
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
