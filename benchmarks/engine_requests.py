"""What a finished request costs an engine's own thread or event loop, through our hooks beyond the plain call.

    python benchmarks/engine_requests.py

On objects shaped as vLLM 0.32 and SGLang 0.5.23 have them: neither engine need be there. CPU time of the thread; the
flusher reads between the rounds, as it does every half second, and what that takes is told, too. The floors are what
Python takes for standing there and doing nothing: less no hook of these functions can cost. SGLang's own callers ask
its generator for one item.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from measure import make_folder

os.environ.update(OTEL_RL_DIR=make_folder(), OTEL_RL_SIDECAR="false")

import otel_rl
from otel_rl.hooks import ReturnHook
from otel_rl.hooks.hook import wrap
from otel_rl.integrations import sglang
from otel_rl.integrations.vllm import hooks
from otel_rl.process.state import state

COUNT = 1_900
"""Requests of a round: what a busy engine finishes until the flusher comes."""
VLLM = {hook.target.rpartition(".")[2]: hook for hook in hooks.HOOKS if "OutputProcessor" in hook.target}
META = {"finish_reason": {"type": "stop"}, "prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 4,
        "e2e_latency": 0.25, "weight_version": "7", "num_retractions": 2, "dp_rank": 1}  # fmt: skip


class Processor:
    """vLLM's OutputProcessor, as far as a request passes through it."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}
        self.over: list[Any] = []
        """Nothing is freed while it is measured: recorded sequences live until the flusher has read them."""

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
            sequence = self.request_states.pop(request_id)
            sequence.detokenizer.output_token_ids += [1]  # as the detokenizer takes them
            self.over.append(sequence)
            self._update_stats_from_finished(sequence, "stop", None)


class Hooked(Processor):
    """The same, recorded."""

    add_request = wrap(VLLM["add_request"], Processor.add_request)
    _update_stats_from_finished = wrap(VLLM["_update_stats_from_finished"], Processor._update_stats_from_finished)


class Manager:
    """SGLang's TokenizerManager, without streaming."""

    served_model_name = "tiny"
    enable_trace = False

    async def generate_request(self, obj: Any) -> AsyncGenerator[Any, None]:
        yield {"text": "a", "meta_info": {**META, "id": obj.rid}}


class Watched(Manager):
    """The same, recorded."""

    generate_request = wrap(sglang.HOOKS[0], Manager.generate_request)


class Between:
    """An object and a coroutine between a caller and a generator."""

    __slots__ = ("_has_answered", "_items")

    def __init__(self, items: Any) -> None:
        self._items, self._has_answered = items, False

    def __aiter__(self) -> Between:
        return self

    def __anext__(self) -> Any:
        return self._items.__anext__() if self._has_answered else self._answer()

    async def _answer(self) -> Any:
        value = await self._items.__anext__()
        self._has_answered = True
        return value


class Stood(Manager):
    """The same with nothing but that."""

    def generate_request(self, *args: Any, **kwargs: Any) -> Any:
        return Between(Manager.generate_request(self, *args, **kwargs))


class Idle(Processor):
    """vLLM's processor with a hook that does nothing."""

    _update_stats_from_finished = wrap(
        ReturnHook(target="benchmark:finish", after=lambda *_: None), Processor._update_stats_from_finished
    )


def iterate(kind: type[Processor], at_once: int) -> float:
    """Finish requests, so many in each iteration; us of CPU time each."""
    processor = kind()
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


def wait(manager: Manager, *, is_one: bool) -> float:
    """Wait for requests one after the other, of which each is asked for its answer alone or to the end; us each."""
    asked = [
        SimpleNamespace(rid=str(number), stream=False, sampling_params={}, batch_size=1, parallel_sample_num=1)
        for number in range(COUNT)
    ]

    async def all_of_them() -> float:
        left = []  # the event loop closes them, at a cost of its own
        began = time.thread_time()
        for obj in asked:
            answers = manager.generate_request(obj)
            if is_one:
                await answers.__anext__()
                left.append(answers)
            else:
                async for _ in answers:
                    pass
        return time.thread_time() - began

    gc.collect()
    return asyncio.run(all_of_them()) / COUNT * 1e6


def say(*, is_much: bool) -> float:
    """Say of requests what an engine of one's own knows of them: 8 things, or 17; us of CPU time each."""
    ids = [str(number) for number in range(COUNT)]
    gc.collect()
    began = time.thread_time()
    for one in ids:
        if is_much:
            otel_rl.request(
                "mine", submitted=1.0, ended=2.0, scheduled=1.1, first_token=1.2, last_token=1.9, input_tokens=10,
                output_tokens=30, cached_tokens=0, finish="stop", model="m", id=one, sample=one, group="g",
                policy_start=3, policy_end=3, limit=32,
            )  # fmt: skip
        else:
            otel_rl.request(
                "mine", submitted=1.0, ended=2.0, first_token=1.2, input_tokens=10, output_tokens=30, finish="stop",
                id=one,
            )  # fmt: skip
    return (time.thread_time() - began) / COUNT * 1e6


def unrecorded(*, is_much: bool) -> float:
    """The same while nothing is recorded: what Python takes to call a function with so many arguments."""
    state.on = False
    try:
        return say(is_much=is_much)
    finally:
        state.on = True


def ways() -> Iterator[tuple[str, Callable[[], float], Callable[[], float]]]:
    """Give what is measured: its name, the plain call, and the one with what is ours."""
    for at_once in (1, 8, 64):
        name, plain = f"vLLM, {at_once} in an iteration", functools.partial(iterate, Processor, at_once)
        yield name, plain, functools.partial(iterate, Hooked, at_once)
        yield f"{name}: floor", plain, functools.partial(iterate, Idle, at_once)
    for is_one, name in ((True, "SGLang, one item"), (False, "SGLang, to the end")):
        plain = functools.partial(wait, Manager(), is_one=is_one)
        yield name, plain, functools.partial(wait, Watched(), is_one=is_one)
        yield f"{name}: floor", plain, functools.partial(wait, Stood(), is_one=is_one)
    for is_much, name in ((False, "request, 8 arguments"), (True, "request, 17 arguments")):
        yield name, float, functools.partial(say, is_much=is_much)
        yield f"{name}: floor", float, functools.partial(unrecorded, is_much=is_much)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    found: dict[str, list[float]] = defaultdict(list)
    behind: dict[str, list[float]] = defaultdict(list)
    otel_rl.instrument(())
    with otel_rl.step(1), otel_rl.stage("sample"):
        otel_rl.flush(60)
        flusher = next(one for one in threading.enumerate() if one.name == "otel_rl-flusher")
        clock = time.pthread_getcpuclockid(flusher.ident or 0)
        for _ in range(rounds):
            for name, plain, recorded in ways():
                bare, before = plain(), time.clock_gettime(clock)
                found[name].append(recorded() - bare)
                otel_rl.flush(60)
                behind[name].append((time.clock_gettime(clock) - before) / COUNT * 1e6)
    otel_rl.uninstrument()
    for name, costs in found.items():
        low, median, high = statistics.quantiles(costs, n=4)
        more = "" if "floor" in name else f"; {statistics.median(behind[name]):6.2f} us on the flusher's thread"
        print(f"{name:32s} {median:6.2f} us a request ({low:.2f}-{high:.2f}){more}")


if __name__ == "__main__":
    main()
