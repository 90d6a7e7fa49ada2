"""SGLang: what every request says of itself in ``meta_info``, where its caller waits for it.

Runs in the process of the tokenizer manager: the HTTP server's, the rollout worker's that holds an ``Engine``. Source:
sglang 0.4.10 to 0.5.23, ``srt/managers/tokenizer_manager.py`` (``generate_request`` is below ``Engine.generate`` and
every HTTP route), ``srt/observability/req_time_stats.py``. Not run here: it needs a GPU.

When the first token came is known where the caller streams, and where the server was started with ``enable_metrics``
from 0.5.10 on (the scheduler's ``prefill_finished_time``). ``first_token_latency`` and a framework's own ``ttft`` are
never read: without streaming the scheduler reports every 50 tokens (``SGLANG_FORCE_STREAM_INTERVAL``), so the former
may be the time of the 50th token; AReaL's ``ttft`` is the latency of the whole request.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from otel_rl.clock import monotonic_ns
from otel_rl.hooks import GeneratorCall, GeneratorHook, Integration, Verified
from otel_rl.hooks.generators import Ending, ending
from otel_rl.ids import random_bits
from otel_rl.process.state import state
from otel_rl.requests.memory import generation
from otel_rl.requests.queue import UNKNOWN, Values, record_requests
from otel_rl.trace import context

PACKAGE = "sglang"
SUPPORTS = ">=0.4.10,<0.6"

HEALTH_CHECK = "HEALTH_CHECK"
"""The id of a request that only asks whether the server lives begins with this."""
TIMES = "sglang.srt.observability.req_time_stats"
"""Since 0.5.10 it turns ``time.perf_counter()``, which is the monotonic clock here, into wall time."""
CLOCKED = ("request_received_ts", "forward_entry_time", "prefill_finished_time")
Meta = dict[str, Any]
"""A sequence's ``meta_info``."""
Times = tuple[int, int, int]
"""Monotonic ns, 0 where unknown."""
MAX_LEFT = 4096
"""A batch that fails counts as so many sequences at most."""


class GenerateRequest:
    """One ``generate_request``: one prompt or a batch, each with n sequences."""

    __slots__ = ("finished", "model", "obj", "parent", "recording", "sample", "seen", "submitted")

    def __init__(self, manager: Any, obj: Any, submitted: int, parent: Any = None, recording: object = None) -> None:
        self.submitted = submitted
        self.parent = parent
        self.recording = recording
        self.obj = obj
        self.model = getattr(manager, "served_model_name", None) or getattr(manager, "model_path", None)
        self.sample = 0
        self.seen: dict[Any, tuple[int, Any, int | None]] | None = {} if obj.stream else None
        """When each streamed sequence that goes on had its first token (0 before), its last output, and the place of
        that output among those that came with it; by id."""
        self.finished = 0
        """How many of its sequences are over."""

    def item(self, value: Any) -> bool:
        """Read one output: of one sequence that goes on or is over, or of all sequences of a batch."""
        now = monotonic_ns()
        if isinstance(value, list):
            for place, output in enumerate(value):
                self._read_sequence(output, place, now)
        else:
            self._read_sequence(value, None, now)
        return self.seen is None and self.finished > 0  # what is not streamed comes at once

    def _read_sequence(self, output: Any, place: int | None, now: int) -> None:
        """Read the output of one sequence; if it goes on, keep that output until the next one comes."""
        meta, seen, first = output["meta_info"], self.seen, 0
        if seen is not None:
            before = seen.get(meta["id"])
            first = before[0] if before is not None else 0
            if not first and meta.get("completion_tokens"):
                first = now
            seen[meta["id"]] = first, output, place
        if meta.get("finish_reason"):
            if seen is not None:
                del seen[meta["id"]]
            self.finished += 1
            record_requests(_finished, self, meta.copy(), first, now, output.get("index", place), parent=self.parent)

    def end(self, result: Any, error: BaseException | None) -> None:
        """Record the sequences that did not finish, because the caller left or an error came."""
        if error is not None and self.recording is generation.recording:
            left = [
                (output["meta_info"].copy(), first, output.get("index", place))
                for first, output, place in (self.seen or {}).values()
            ]
            record_requests(_unfinished, self, left, self.finished, ending(error), monotonic_ns(), parent=self.parent)


def _first(asked: GeneratorCall, value: Any, error: BaseException | None) -> GenerateRequest | None:
    """Record the answer, or follow a stream; the only answer of one sequence is not read here."""
    if not state.on:
        return None
    args = asked.args
    obj = args[1]
    stream = getattr(obj, "stream", None)
    if stream is False and type(value) is dict:
        meta = value["meta_info"]
        if meta.get("finish_reason"):
            parent, now = asked.parent or _named(obj), monotonic_ns()
            index = value.get("index")
            record_requests(_answer, args[0], obj, asked.begun, meta.copy(), now, index, parent=parent)
            return None
    if stream is None or _is_probe(obj):
        return None  # embeddings are not streamed
    call = GenerateRequest(args[0], obj, asked.begun, asked.parent or _named(obj), asked.recording)
    if error is not None:
        call.end(None, error)
        return None
    return None if call.item(value) else call


def _hand_over(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Pass the parent of a request to an engine that exports spans of its own, and to no other.

    From 0.5.7 on, and not for a server's clients: their headers say it.
    """
    is_tracing = getattr(args[0], "enable_trace", None)
    if is_tracing is None:  # 0.5.10 to 0.5.15
        is_tracing = getattr(getattr(args[0], "server_args", None), "enable_trace", False)
    if not is_tracing:
        return
    obj, request = args[1], args[2] if len(args) > 2 else None
    if request is None and getattr(obj, "external_trace_header", "") is None:
        obj.external_trace_header = context.headers() or None


def _named(obj: Any) -> Any:
    """Return the parent that the caller's headers name; SGLang keeps them where it has tracing."""
    given = getattr(obj, "external_trace_header", None)
    return context.named(given) if given else None


def _is_probe(obj: Any) -> bool:
    return isinstance(obj.rid, str) and obj.rid.startswith(HEALTH_CHECK)


def _answer(manager: Any, obj: Any, begun: int, meta: Meta, now: int, index: int | None) -> tuple[Values, ...]:
    return () if _is_probe(obj) else _finished(GenerateRequest(manager, obj, begun), meta, 0, now, index)


def _finished(call: GenerateRequest, meta: Meta, first: int, now: int, index: int | None) -> tuple[Values, ...]:
    """Make the request of a sequence.

    Args:
        call: its caller's.
        meta: what it says of itself.
        first: when its caller saw its first token; 0 where it did not.
        now: when its caller had all of it.
        index: its place among those of a batch.
    """
    reason, latency, clocked = meta["finish_reason"], meta.get("e2e_latency"), _clocked(meta)
    ended = now
    if not first and isinstance(latency, float):  # a batch comes when its last sequence is over
        ended = min((clocked[0] or call.submitted) + round(latency * 1e9), now)
    last = ended if first or meta.get("prefill_finished_time") else 0
    finish = reason.get("type") if isinstance(reason, dict) else reason
    return (_values(call, meta, index, clocked, (first, last, ended), (str(finish), "")),)


def _unfinished(
    call: GenerateRequest, left: Sequence[tuple[Meta, int, int | None]], finished: int, how: Ending, now: int
) -> list[Values]:
    """Make the requests that are given up, first those that showed something."""
    made = [_values(call, meta, index, _clocked(meta), (first, 0, now), how) for meta, first, index in left]
    unseen = _values(call, {}, None, (0, 0, 0), (0, 0, now), how)
    return made + [unseen] * (min(_sequences(call.obj)[0], MAX_LEFT) - finished - len(left))


def _values(
    call: GenerateRequest,
    meta: Meta,
    index: int | None,
    clocked: Times,
    seen: Times,
    how: tuple[str, str],
) -> Values:
    """Make the request of a sequence.

    Args:
        call: of its caller.
        meta: what it says of itself; empty where nothing of it was seen.
        index: its place among those of a batch.
        clocked: when it came to SGLang, when it was scheduled, and its first token, by SGLang's own word.
        seen: its first token and its last one, as its caller got them, and when it was over.
        how: it ended, and the class of its error.
    """
    obj, (received, scheduled, prefilled), (first, last, ended), (finish, error) = call.obj, clocked, seen, how
    call.sample = call.sample or random_bits(64)
    sample = f"{call.sample:016x}"
    sequences, prompts = _sequences(obj)
    if prompts > 1 and index is not None:
        sample = f"{sample}/{index * prompts // sequences}"
    parameters = obj.sampling_params
    if isinstance(parameters, list):
        parameters = parameters[index or 0] if len(parameters) > (index or 0) else None
    limit = parameters.get("max_new_tokens") if isinstance(parameters, dict) else None
    name, rank = meta.get("id", obj.rid), meta.get("dp_rank")
    operation, model = "generate_content", str(call.model or "").rpartition("/")[2]
    submitted, first_token, last_token = min(received or call.submitted, call.submitted), prefilled or first, last
    input_tokens, output_tokens = _count(meta, "prompt_tokens"), _count(meta, "completion_tokens")
    cached_tokens, preemptions = _count(meta, "cached_tokens"), _count(meta, "num_retractions")
    id = str(name) if meta or isinstance(name, str) else ""
    streamed, group, turn, replica = sequences == 1, "", UNKNOWN, str(rank) if rank is not None else ""
    policy_start, policy_end = _versions(meta)
    limit = limit if type(limit) is int else UNKNOWN
    return (
        "sglang", submitted, ended, scheduled, first_token, last_token, input_tokens, output_tokens, cached_tokens,
        finish, error, preemptions, streamed, operation, model, id, sample, group, turn, policy_start, policy_end,
        replica, limit,
    )  # fmt: skip


def _sequences(obj: Any) -> tuple[int, int]:
    """Count sequences and prompts; SGLang does so first of all, unless it refuses the request."""
    prompts = getattr(obj, "batch_size", None) or 1
    return prompts * (getattr(obj, "parallel_sample_num", None) or 1), prompts


def _versions(meta: Meta) -> tuple[int, int]:
    """Read the policy's version where it is a number: at first and last token since 0.5.20, at the end before."""
    spans = meta.get("weight_versions")
    if spans:
        return _number(spans[0]["version"]), _number(spans[-1]["version"])
    return UNKNOWN, _number(meta.get("weight_version"))


def _number(version: Any) -> int:
    return int(version) if str(version).isdecimal() else UNKNOWN


def _count(meta: Meta, name: str) -> int:
    count = meta.get(name)
    return count if type(count) is int else UNKNOWN


def _clocked(meta: Meta) -> Times:
    """Turn SGLang's wall times back into the monotonic ones that they were made of; 0 where it makes none."""
    offset_s = getattr(sys.modules.get(TIMES), "global_diff_realtime_monotonic", None)
    if offset_s is None:
        return 0, 0, 0
    received, scheduled, prefilled = (
        round((wall_s - offset_s) * 1e9) if isinstance(wall_s, float) else 0 for wall_s in map(meta.get, CLOCKED)
    )
    return received, scheduled, prefilled


HOOKS = (
    GeneratorHook(
        target="sglang.srt.managers.tokenizer_manager:TokenizerManager.generate_request",
        before=_hand_over,
        first=_first,
    ),
)
INTEGRATION = Integration(
    name="sglang", package=PACKAGE, supports=SUPPORTS, records="requests", verified=Verified.PACKAGE, hooks=HOOKS
)
