"""Parts of vLLM as its versions have them: what a frontend knows of a sequence, and how it takes, ends and aborts one.

Read in the wheels of 0.8.5, 0.10.2, 0.11.2, 0.14.1, 0.32.0 and 0.33.0, ``v1/engine/output_processor.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from otel_rl.hooks.install import wrap
from otel_rl.integrations.vllm import hooks
from tests.fixtures import WALL_NS, Recording

S = 1_000_000_000
HOOKS = {hook.target.rpartition(":")[2]: hook for hook in hooks.HOOKS}
VERSIONS = {
    "0.8.5": (0, 8),
    "0.10.2": (0, 10),
    "0.11.2": (0, 11),
    "0.14.1": (0, 14),
    "0.32.0": (0, 32),
    "0.33.0": (0, 33),
}
every_version = pytest.mark.parametrize("version", VERSIONS)


class FinishReason(IntEnum):
    """Its words, since 0.20; 0.8.5 has the first three."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4

    def __str__(self) -> str:
        return self.name.lower()


class Kind(Enum):
    """What a caller wants to get: RequestOutputKind."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class Stats:
    """RequestStateStats: arrival by the wall clock, the others by the engine core's monotonic one, s."""

    def __init__(self, version: tuple[int, int], arrival: float) -> None:
        self.num_generation_tokens = 0
        self.arrival_time = arrival
        self.queued_ts = self.scheduled_ts = self.first_token_ts = self.last_token_ts = 0.0
        if version >= (0, 30):
            self.num_preemptions = 0
        if version >= (0, 10):
            self.first_token_latency = 0.0
            """From its arrival until the frontend had the first token, by the wall clock, s."""

    def tell(self, scheduled: float, first: float, last: float) -> None:
        """Put in what events and outputs of the engine core tell."""
        self.queued_ts = self.scheduled_ts = scheduled
        self.first_token_ts, self.last_token_ts = first, last


class Detokenizer:
    """IncrementalDetokenizer."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []

    @property
    def output_token_ids(self) -> list[int]:
        """The response."""
        return self.token_ids


class Parent:
    """ParentRequest: of the n sequences of one prompt."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.child_requests: set[str] = set()


class Request:
    """EngineCoreRequest."""

    def __init__(self, version: tuple[int, int], request_id: str, arrival: float) -> None:
        self.request_id = request_id
        self.arrival_time = arrival
        if version >= (0, 10):
            self.trace_headers: dict[str, str] | None = None
        if version >= (0, 14):
            self.external_req_id = request_id.partition("-")[0].rpartition("_")[2]


@dataclass
class Output:
    """RequestOutput."""

    tokens: list[int]
    finished: bool


class Queue:
    """RequestOutputCollector of an AsyncLLM."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []

    def _put(self, output: Any) -> None:
        self.outputs.append(output)

    put = wrap(HOOKS["RequestOutputCollector.put"], _put)


class Sequence:
    """RequestState."""

    def __init__(self, version: tuple[int, int], request: Request, parent: Parent | None, queue: Queue | None) -> None:
        self.request_id = request.request_id
        self.parent_req = parent
        self.output_kind = Kind.FINAL_ONLY
        self.prompt_len = 12
        self.detokenizer: Detokenizer | None = Detokenizer()
        self.max_tokens_param: int | None = 32
        self.queue = queue
        self.stats: Stats | None = None
        if version >= (0, 10):
            self.num_cached_tokens = 0
        if version >= (0, 14):
            self.external_req_id = request.external_req_id
        if version >= (0, 32):
            self.weight_version_starts: list[tuple[str, int]] = []


class Processor:
    """OutputProcessor."""

    def __init__(self, version: str, *, log_stats: bool = True) -> None:
        self.version = VERSIONS[version]
        self.log_stats = log_stats
        self.request_states: dict[str, Sequence] = {}
        self.parent_requests: dict[str, Parent] = {}
        if self.version >= (0, 14):
            self.external_req_ids: dict[str, list[str]] = {}
        self.requests: dict[str, Request] = {}
        """All that were submitted, for tests to look at."""

    def submit(self, request_id: str, arrival: float, *, kind: Kind = Kind.FINAL_ONLY, **more: Any) -> Sequence:
        """Do what LLMEngine and AsyncLLM do for a new sequence; since 0.14 ids get a random end."""
        request = Request(self.version, request_id + ("-5eed" if self.version >= (0, 14) else ""), arrival)
        for name in tuple(more):
            if name not in ("parent", "queue"):
                setattr(request, name, more.pop(name))
        self.requests[request.request_id.partition("-")[0]] = request
        self.kind = kind
        self.add_request(request, None, more.get("parent"), 0, more.get("queue"))
        return self.request_states[request.request_id]

    def _add_request(
        self, request: Request, prompt: Any, parent: Parent | None = None, index: int = 0, queue: Queue | None = None
    ) -> None:
        if request.request_id in self.request_states:
            raise ValueError(request.request_id)
        state = Sequence(self.version, request, parent, queue)
        state.output_kind = self.kind
        state.stats = Stats(self.version, request.arrival_time) if self.log_stats else None
        self.request_states[request.request_id] = state
        if parent is not None:
            self.parent_requests[parent.request_id] = parent
            parent.child_requests.add(request.request_id)
        if self.version >= (0, 14):
            self.external_req_ids.setdefault(request.external_req_id, []).append(request.request_id)

    def _update_stats_from_finished(self, state: Sequence, reason: FinishReason, iteration: Any) -> None:
        pass

    def process_outputs(self, outputs: Iterable[tuple[str, list[int], FinishReason | None]]) -> None:
        """Each output: request id, new tokens, reason."""
        for request_id, tokens, reason in outputs:
            state = self.request_states.get(request_id)
            if state is None:
                continue
            if state.detokenizer is not None:
                state.detokenizer.token_ids += tokens
            if state.queue is not None and (reason is not None or state.output_kind is not Kind.FINAL_ONLY):
                state.queue.put(Output(list(tokens), finished=reason is not None))
            if reason is not None:
                self.request_states.pop(request_id)
                self._update_stats_from_finished(state, reason, None)

    def _abort_requests(self, request_ids: Iterable[str], internal: bool = True) -> list[str]:
        aborted, found = [], []
        for request_id in request_ids:
            found += [request_id] if internal else self.external_req_ids.pop(request_id, [])
        for request_id in found:
            state = self.request_states.pop(request_id, None)
            if state is not None:
                aborted.append(request_id)
                if state.queue is not None and self.version >= (0, 11):
                    state.queue.put(Output([], finished=True))
            elif parent := self.parent_requests.pop(request_id, None):
                children = list(parent.child_requests)
                aborted += (
                    self.abort_requests(children) if self.version < (0, 14) else self.abort_requests(children, True)
                )
        return aborted

    def _propagate_error(self, error: Exception) -> None:
        for state in self.request_states.values():
            assert state.queue is not None
            state.queue.put(error)

    def refuse(self, request_id: str, error: Exception) -> None:
        """End a request as 0.33 does where a paused engine rejects it."""
        state = self.request_states.pop(request_id)
        assert state.queue is not None
        state.queue.put(error)

    add_request = wrap(HOOKS["OutputProcessor.add_request"], _add_request)
    abort_requests = wrap(HOOKS["OutputProcessor.abort_requests"], _abort_requests)
    propagate_error = wrap(HOOKS["OutputProcessor.propagate_error"], _propagate_error)
    _update_stats_from_finished = wrap(
        HOOKS["OutputProcessor._update_stats_from_finished"], _update_stats_from_finished
    )


# --- frontends --------------------------------------------------------------------------------------------------------


def wall(monotonic_s: float) -> float:
    """Give the wall clock's time, s, at one of the monotonic clock."""
    return (WALL_NS + monotonic_s * S) / S


def monotonic(wall_s: float) -> int:
    """Give the monotonic time, ns, of one of the wall clock, which is rounded to a quarter of a microsecond."""
    return int(wall_s * 1e9) - WALL_NS


def at(recording: Recording, seconds: float) -> None:
    """Set the monotonic clock."""
    recording.clock.ns = round(seconds * S)


def config(**parallel: Any) -> Any:
    """Make what is read of a VllmConfig; 0.8.5 has no more of it than this."""
    settings = {"data_parallel_size": 1, "data_parallel_rank": 0, "data_parallel_rank_local": None, **parallel}
    model = SimpleNamespace(served_model_name="/models/tiny", model="/models/tiny")
    return SimpleNamespace(model_config=model, parallel_config=SimpleNamespace(**settings))


class Frontend:
    """What is used of an LLMEngine or AsyncLLM."""

    def __init__(self, vllm_config: Any, processor: Processor) -> None:
        self.output_processor = processor

    __init__ = wrap(HOOKS["LLMEngine.__init__"], __init__)  # type: ignore[misc]

    def step(self, error: BaseException) -> None:
        """Fail."""
        raise error

    step = wrap(HOOKS["LLMEngine.step"], step)
