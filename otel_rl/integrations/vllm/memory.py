"""What is remembered of vLLM's engines and of the requests inside them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ref

from otel_rl.clock import monotonic_ns, time
from otel_rl.guard import errors
from otel_rl.process.memory import Memory
from otel_rl.process.state import QUEUE_LIMIT
from otel_rl.requests.queue import UNKNOWN, count_when_dropped

if TYPE_CHECKING:
    from otel_rl.integrations.trl.rollouts import Sampling

OpenSequence = tuple[Any, Any, float]
"""The ``RequestState``; the span of its caller; when that submitted it (wall clock, s)."""


@dataclass(slots=True)
class HandedBatch:
    """What an ``LLM`` is handed by one call, while a trainer rolls out."""

    sampling: Sampling
    places: dict[str, int] = field(default_factory=dict)
    """How many requests were handed over before each one, by request id."""

    def place(self, request_id: str, sample: str, ranks: int) -> tuple[int, str, str]:
        """Return the version of a request's weights, its sample (else the given one), and its group."""
        index = self.places.get(request_id)
        if index is None:
            return UNKNOWN, sample, ""
        placed, group = self.sampling.place(index, len(self.places) // ranks)
        return self.sampling.policy, placed or sample, group


@dataclass(eq=False, slots=True)
class VllmEngine:
    """One engine: how it was built, and what is inside."""

    processor: ref[Any]
    model: str = ""
    replica: str = ""
    """Index among the data-parallel engines; empty where there are several: then each output names its own."""
    is_shared: bool = True
    """Whether the engine core is on this host, so that its monotonic clock is ours."""
    is_copy: bool = False
    """Whether another process counts all that is inside."""
    ranks: int = 1
    """How many ranks share one model; each of them is handed the requests of all."""
    batch: HandedBatch | None = None
    """What an ``LLM`` was handed last, if that is a trainer's."""
    has_refused: bool = False
    """Whether it has refused a request since an ``LLM`` began to hand the last batch over."""
    open: dict[str, OpenSequence] = field(default_factory=dict)
    """Sequences that are not over, by request id, the oldest first."""

    @property
    def unfinished(self) -> int:
        """Requests that are inside, unless another process counts them."""
        return 0 if self.is_copy else len(self.open)

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
            # The launcher's ranks lie one model after the other; the last of these sizes is not in every version.
            split = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
            self.ranks = split = split * getattr(parallel, "prefill_context_parallel_size", 1)
            self.is_copy = int(os.environ.get("RANK", "0")) % split != 0

    def add(self, sequence: Any, parent: Any, arrival: float) -> None:
        """Remember a sequence until it is over; of too many the oldest is forgotten."""
        if len(self.open) >= QUEUE_LIMIT:
            errors["keep more than 200,000 open requests of vLLM"] += 1
            del self.open[next(iter(self.open))]
        self.open[sequence.request_id] = sequence, parent, arrival


@dataclass(slots=True)
class LoadPeak:
    """What an engine said of its load since it was last recorded."""

    recorded: int = 0
    """Monotonic ns."""
    kv_usage: float = 0.0
    """The highest."""
    preemptions: int = 0


class StreamTimes:
    """A streaming request as its caller sees it: monotonic ns."""

    __slots__ = ("first", "last", "submitted")

    def __init__(self, arrival: float) -> None:
        """Begin with when the caller submitted it, by the wall clock, s, which may be set while the request runs."""
        self.submitted = monotonic_ns() - round((time() - arrival) * 1e9)
        self.first = self.last = 0
        """When the first and the last output came, 0 before; the first may have been one without a token."""

    def wake(self, is_first: bool) -> None:
        """Record the time; right after this call the event loop lets the caller go on with an output."""
        now = monotonic_ns()
        if is_first:
            self.first = now
        self.last = now


@dataclass(eq=False)
class VllmMemory(Memory):
    """What concerns vLLM in this process."""

    engines: dict[int, VllmEngine] = field(default_factory=dict)
    """Keys are the ``id()`` of their output processors, as long as these live."""
    streams: dict[Any, StreamTimes] = field(default_factory=dict)
    """Keys are the queues of streaming requests."""
    loads: dict[str, LoadPeak] = field(default_factory=dict)
    """Keys are the replicas."""
    replica: str = ""
    """Replica of the engine that was built last; load that names none is an ``LLM``'s, of which a process has one."""
    is_copy: bool = False
    """Whether another process counts what is in the engine that was built last."""
    cache_bytes: int = 0
    """Size of the KV cache of the worker that was made last in this process, until its engine is built."""
    pool_bytes: int = 0
    """Size of the KV cache of the engine that was built last; 0 where its workers are other processes."""

    def engine(self, processor: Any) -> VllmEngine:
        """Return the engine of an output processor."""
        key = id(processor)
        engine = self.engines.get(key)
        if engine is None:
            made = VllmEngine(ref(processor, lambda gone: self.engines.pop(key, None)))
            engine = self.engines.setdefault(key, made)
            if engine is made:  # not another thread's
                count_when_dropped(processor, engine)
        return engine

    def time_stream(self, queue: Any, arrival: float) -> None:
        """Time what comes through a queue; of too many the oldest is forgotten."""
        if len(self.streams) >= QUEUE_LIMIT:
            self.streams.pop(next(iter(self.streams)))
        self.streams[queue] = StreamTimes(arrival)


vllm = VllmMemory.keep("vllm")
