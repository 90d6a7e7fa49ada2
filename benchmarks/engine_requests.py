"""What a finished request costs an engine's own thread or event loop through our hooks, beyond the plain call.

    python benchmarks/engine_requests.py

On objects shaped as vLLM 0.32 and SGLang 0.5.23 have them: neither engine need be there. CPU time of the thread; the
flusher reads between the rounds, as it does every half second.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

os.environ.update(OTEL_RL_DIR=tempfile.mkdtemp(prefix="otel_rl_benchmark_"), OTEL_RL_SIDECAR="false")

import otel_rl
from otel_rl.integrations import sglang, vllm
from otel_rl.patching import wrap

COUNT = 1_900
"""Requests of a round: what a busy engine finishes until the flusher comes."""
VLLM = {hook.target.rpartition(".")[2]: hook for hook in vllm.HOOKS if "OutputProcessor" in hook.target}
META = {"finish_reason": {"type": "stop"}, "prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 4,
        "e2e_latency": 0.25, "weight_version": "7", "num_retractions": 2, "dp_rank": 1}  # fmt: skip


class Processor:
    """vLLM's OutputProcessor, as far as a request passes through it."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def add_request(self, request: Any, prompt: Any, parent: Any, index: int, queue: Any) -> None:
        now = time.monotonic()
        self.request_states[request.request_id] = SimpleNamespace(
            request_id=request.request_id, external_req_id=request.request_id, parent_req=parent, queue=queue,
            prompt_len=12, num_cached_tokens=0, max_tokens_param=32, weight_version_starts=[], input_chunk_queue=None,
            output_kind=SimpleNamespace(name="FINAL_ONLY"), detokenizer=SimpleNamespace(output_token_ids=[1] * 20),
            stats=SimpleNamespace(arrival_time=time.time(), scheduled_ts=now, first_token_ts=now, last_token_ts=now),
        )  # fmt: skip

    def _update_stats_from_finished(self, sequence: Any, reason: str, iteration: Any) -> None:
        pass

    def process_outputs(self, finished: Sequence[str]) -> None:
        for request_id in finished:
            self._update_stats_from_finished(self.request_states.pop(request_id), "stop", None)


class Hooked(Processor):
    """The same, recorded."""

    add_request = wrap(VLLM["add_request"], Processor.add_request)
    process_outputs = wrap(VLLM["process_outputs"], Processor.process_outputs)
    _update_stats_from_finished = wrap(VLLM["_update_stats_from_finished"], Processor._update_stats_from_finished)


class Manager:
    """SGLang's TokenizerManager, without streaming."""

    served_model_name = "tiny"

    async def generate_request(self, obj: Any) -> AsyncGenerator[Any, None]:
        yield {"text": "a", "meta_info": {**META, "id": obj.rid}}


class Watched(Manager):
    """The same, recorded."""

    generate_request = wrap(sglang.HOOKS[0], Manager.generate_request)


def iterate(processor: Processor, at_once: int) -> float:
    """Finish requests, so many in each iteration; us of CPU time each."""
    ids = [f"request-{number}" for number in range(COUNT)]
    for request_id in ids:
        request = SimpleNamespace(request_id=request_id, arrival_time=time.time(), trace_headers=None)
        processor.add_request(request, None, None, 0, None)
    iterations = [ids[first : first + at_once] for first in range(0, COUNT, at_once)]
    gc.collect()
    began = time.thread_time()
    for finished in iterations:
        processor.process_outputs(finished)
    return (time.thread_time() - began) / COUNT * 1e6


def wait(manager: Manager) -> float:
    """Wait for requests one after the other; us of CPU time each."""
    asked = [
        SimpleNamespace(rid=str(number), stream=False, sampling_params={}, batch_size=1, parallel_sample_num=1)
        for number in range(COUNT)
    ]

    async def all_of_them() -> None:
        for obj in asked:
            async for _ in manager.generate_request(obj):
                pass

    gc.collect()
    began = time.thread_time()
    asyncio.run(all_of_them())
    return (time.thread_time() - began) / COUNT * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    ways: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        f"vLLM, {at_once} in an iteration": (
            lambda at_once=at_once: iterate(Processor(), at_once),  # type: ignore[misc]
            lambda at_once=at_once: iterate(Hooked(), at_once),  # type: ignore[misc]
        )
        for at_once in (1, 8, 64)
    }
    ways["SGLang"] = (lambda: wait(Manager()), lambda: wait(Watched()))
    otel_rl.instrument(())
    with otel_rl.step(1), otel_rl.stage("sample"):
        for name, (plain, recorded) in ways.items():
            found = []
            for _ in range(rounds):
                found.append(-plain() + recorded())
                otel_rl.flush(60)
            low, median, high = statistics.quantiles(found, n=4)
            print(f"{name:28s} {median:6.2f} us a request ({low:.2f}-{high:.2f})")
    otel_rl.uninstrument()


if __name__ == "__main__":
    main()
