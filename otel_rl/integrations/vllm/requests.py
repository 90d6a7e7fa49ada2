"""What is recorded of a sequence of vLLM that is over, and the request that the flusher makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Final

from opentelemetry.trace import INVALID_SPAN

from otel_rl.clock import monotonic_ns
from otel_rl.hooks.generators import ending
from otel_rl.ids import random_bits
from otel_rl.integrations.vllm.memory import HandedBatch, OpenSequence, StreamTimes, VllmEngine, vllm
from otel_rl.process.state import state
from otel_rl.requests.queue import UNKNOWN, Request, Values, add_finished, find_parent
from otel_rl.trace.memory import tracing

SLACK_NS = 10_000_000
"""The wall clock may have moved this far against the monotonic one since the anchor was measured."""
WHOLE = ("stop", "length", "repetition")
"""How a sequence finishes that was not cut."""
MOST_REFUSED = 4096
"""A refused request counts as so many sequences at most, whatever it asked for."""
UNSEEN: OpenSequence = None, None, 0.0
"""A sequence that was submitted before ``instrument()``."""
REPLICA: ContextVar[int] = ContextVar("otel_rl.vllm.replica", default=-1)
"""Which engine gave the outputs that this task handles: each frontend has a task for that."""
Times = tuple[int, int, int]
"""When a sequence was scheduled, its first and its last token: ns, 0 where unknown."""


def record_end(args: Sequence[Any], error: str = "") -> None:
    """Record a sequence that is over; keep only what is small, since it holds tokens and log-probabilities.

    The list of tokens is the caller's as well, who may change it. Cost: 1 us (``benchmarks/engine_requests.py``).

    Args:
        args: vLLM's ``OutputProcessor``, its ``RequestState``, and ``FinishReason`` or a word of ours.
        error: class of the exception by which it failed.
    """
    processor, sequence, reason = args[0], args[1], args[2]
    engine = vllm.engines.get(id(processor)) or vllm.engine(processor)
    _, parent, arrival = engine.open.pop(sequence.request_id, UNSEEN)
    detokenizer, queue = sequence.detokenizer, sequence.queue
    times = vllm.streams.pop(queue, None) if vllm.streams else None
    if detokenizer is None or engine.is_copy:  # without a detokenizer nothing was generated
        return
    if getattr(sequence, "input_chunk_queue", None) is not None:  # ``is_session``
        return
    if parent is None:
        # Never what is current where a queue is: the first of all callers began the task that handles outputs.
        parent = find_parent() if queue is None else tracing.container or INVALID_SPAN
    add_finished((
        _read, parent, GIVEN, engine, engine.batch, REPLICA.get(), reason, error, monotonic_ns(), arrival, times,
        sequence.request_id, getattr(sequence, "external_req_id", None), sequence.parent_req is not None,
        sequence.prompt_len, len(detokenizer.output_token_ids), getattr(sequence, "num_cached_tokens", UNKNOWN),
        sequence.max_tokens_param, sequence.stats, getattr(sequence, "weight_version_starts", None),
        None if queue is None else sequence.output_kind,
    ))  # fmt: skip


def is_session(sequence: Any) -> bool:
    """Return whether it is a session, by its queue of further input: its last request is not ``resumable``."""
    return getattr(sequence, "input_chunk_queue", None) is not None


def _read(  # noqa: PLR0913, PLR0917
    engine: VllmEngine, batch: HandedBatch | None, server: int, reason: Any, error: str, ended: int, arrival: float,
    seen: StreamTimes | None, name: Any, outer: Any, is_child: bool, input_tokens: int, output_tokens: int,
    cached_tokens: int, most: int | None, stats: Any, versions: Any, kind: Any,
) -> tuple[Values]:  # fmt: skip
    id, finish, preemptions = str(name), str(reason), UNKNOWN
    # A child is called `<index>_<its parent>`; since 0.14 the caller's id is kept beside vLLM's own.
    sample = str(outer or (id.partition("_")[2] if is_child else "") or id)
    streamed = kind is not None
    is_shown = streamed and kind.name != "FINAL_ONLY"
    arrived = stats.arrival_time if stats is not None else arrival
    submitted = int(arrived * 1e9) - state.clock.anchor if arrived else 0
    times: Times = 0, 0, 0
    if seen is not None:
        submitted, ended = seen.submitted, max(ended, seen.last)
    if stats is not None:
        preemptions = getattr(stats, "num_preemptions", UNKNOWN)
        times = tuple(round(one * 1e9) for one in (stats.scheduled_ts, stats.first_token_ts, stats.last_token_ts))
    if seen is not None and seen.first and output_tokens:
        times = _as_seen(seen, times, ended, finish)
    elif stats is not None:
        times = _times(stats, times, submitted, ended, is_shared=engine.is_shared, is_shown=is_shown)
    scheduled, first_token, last_token = times
    if not output_tokens:
        first_token = last_token = 0  # what was taken for the first token was the word that it is over
    policy, group = UNKNOWN, ""
    if batch is not None:
        policy, sample, group = batch.place(id, sample, engine.ranks)
    policy_start, policy_end = _policy(versions, policy) if versions else (policy, policy)
    replica, limit, turn = str(server) if server >= 0 else engine.replica, UNKNOWN if most is None else most, UNKNOWN
    model, operation = engine.model, "generate_content"
    values = (
        "vllm", submitted, ended, scheduled, first_token, last_token, input_tokens, output_tokens, cached_tokens,
        finish, error, preemptions, streamed, operation, model, id, sample, group, turn, policy_start, policy_end,
        replica, limit,
    )  # fmt: skip
    return (values,)


GIVEN: Final = _read.__code__.co_argcount
"""The arguments that ``record_end`` hands over."""


def _as_seen(seen: StreamTimes, core: Times, ended: int, finish: str) -> Times:
    """Return when it was scheduled, its first and its last token, as its caller saw them: monotonic ns.

    Prefill is the engine core's, if known, and the way between the processes is in the queue. The last token came
    with the last output, unless that said that the sequence was cut.
    """
    scheduled, first, last = core
    way = seen.first - first
    whole = ended if finish in WHOLE else 0
    if not first:
        return 0, seen.first, whole
    return scheduled + way if scheduled else 0, seen.first, whole or min(max(last, first) + way, ended)


def _times(stats: Any, core: Times, submitted: int, ended: int, *, is_shared: bool, is_shown: bool) -> Times:
    """Return when it was scheduled, its first and its last token: monotonic ns of this host, 0 where unknown.

    The engine core's clock is ours if it runs on this host. If it does not, which shows in readings that cannot be, or
    in how the engine was built, only durations are taken: the last token is placed where the frontend had it.

    A caller that streams several sequences is shown the first token a little later, when the frontend has it: it is
    placed there. Prefill and TPOT stay the engine core's, and the way between the processes is in the queue. A caller
    that waits for the whole answer is shown no token, and a frontend that is busy with submitting takes outputs long
    after they were made.
    """
    scheduled, first, last = core
    if first and is_shown:
        way = submitted + round(getattr(stats, "first_token_latency", 0.0) * 1e9) - first
        shift = min(way, ended - (last or first))
        is_possible = way >= -SLACK_NS if is_shared else submitted < first + way
        if is_possible and way - shift <= SLACK_NS:
            return scheduled and scheduled + shift, first + shift, last and last + shift
    earliest, latest = submitted - SLACK_NS, ended + SLACK_NS
    if is_shared and all(not time or earliest <= time <= latest for time in core):
        return core
    if not last:
        return 0, 0, 0
    shift = ended - last
    return scheduled and scheduled + shift, first and first + shift, ended


def _policy(starts: Sequence[tuple[str, int]], otherwise: int) -> tuple[int, int]:
    """Read the weights' versions of the first and last token, where the user numbers them."""
    versions = starts[0][0], starts[-1][0]
    if not any(version.isdecimal() for version in versions):
        return otherwise, otherwise
    first, last = (int(version) if version.isdecimal() else UNKNOWN for version in versions)
    return first, last


def is_inside(processor: Any, request_id: Any) -> bool:
    """Return whether a processor has a request of this id; since 0.14 its sequences have ids of their own."""
    inside = getattr(processor, "external_req_ids", {}).get(request_id, (request_id,))
    return request_id in processor.parent_requests or any(one in processor.request_states for one in inside)


def refused(
    engine: VllmEngine,
    wanted: Sequence[Any],
    error: BaseException,
    request_id: str = "",
    *,
    submitted: int = 0,
    is_streamed: bool = False,
) -> list[Request]:
    """Make the requests of a prompt that was refused: one for every sequence it asked for, none if nothing generates.

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
    request = Request(
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
        return [request]
    return [request._replace(id=f"{index}_{identity}") for index in range(min(n, MOST_REFUSED))]
