"""One way of recording finished requests, measured in a process of its own; ``requests.py`` starts it.

It needs nothing of otel_rl unless that is the way that is measured: rl-insight has an environment of its own.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # requests.py beside this file would hide the package of that name

import json
import os
import random
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

KEYS = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.id", "rl.submission",
        "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.response.finish_reasons", "rl.request.queue", "rl.request.prefill", "rl.request.ttft",
        "rl.request.tpot", "rl.request.preempted", "rl.policy.version")  # fmt: skip
LONGEST_NS = 500_000_000
"""So long ago were all requests of a burst submitted: in this process, or otel_rl takes no time of theirs."""


class Output:
    """What an engine knows of a finished request, in attributes as engines have them."""

    __slots__ = (
        "cached", "ended", "finish", "first", "id", "input", "last", "output", "preemptions", "scheduled", "submitted",
    )  # fmt: skip


def outputs(count: int) -> list[Output]:
    """Make requests of a bulk submission that have just ended."""
    draw = random.Random(5)
    begin = time.monotonic_ns() - LONGEST_NS
    made = []
    for number in range(count):
        one = Output()
        one.id, one.finish, one.cached, one.preemptions = f"request-{number}", "stop", 0, 0
        one.input, one.output = draw.randrange(16, 512), draw.randrange(2, 2048)
        one.submitted, one.scheduled = begin, begin + draw.randrange(LONGEST_NS // 5)
        one.first = one.scheduled + draw.randrange(LONGEST_NS // 100)
        one.last = one.first + one.output * draw.randrange(1_000, 200_000)
        one.last = one.ended = min(one.last, begin + LONGEST_NS)
        made.append(one)
    return made


class Path_(NamedTuple):
    """One way of recording."""

    emit: Callable[[Iterable[Output]], None]
    """Records requests one by one, as an event loop finishes them."""
    is_idle: Callable[[], bool]
    """Whether everything behind the call is done."""
    size: Callable[[], int]
    """Bytes that were written or sent."""
    close: Callable[[], None]


def values(one: Output, anchor: int) -> tuple[int, int, dict[str, Any]]:
    """Give begin, end and 15 attributes of a span."""
    told = ("generate_content", "vllm", "m", one.id, "bulk", one.input, one.output, one.cached, one.finish)
    times = (one.scheduled - one.submitted, one.first - one.scheduled, one.first - one.submitted)
    tpot = (one.last - one.first) / (one.output - 1) / 1e9
    attributes = dict(zip(KEYS, (*told, *(time / 1e9 for time in times), tpot, one.preemptions, 3), strict=True))
    return one.submitted + anchor, one.ended + anchor, attributes


def ours(*, is_bulk: bool) -> Path_:
    """Record through otel_rl: metrics of all, spans of those that the policy keeps.

    Args:
        is_bulk: the engine gives all of them at once, as after ``LLM.generate``.
    """
    folder = Path(tempfile.mkdtemp())
    os.environ.update(OTEL_RL_DIR=str(folder), OTEL_RL_RUN_ID="benchmark", OTEL_RL_SIDECAR="false")
    import otel_rl
    from otel_rl import entry
    from otel_rl.process.state import state
    from otel_rl.requests.queue import Values, record_requests

    def read(*some: Output) -> Iterator[Values]:
        for one in some:
            yield (
                "vllm", one.submitted, one.ended, one.scheduled, one.first, one.last, one.input, one.output,
                one.cached, one.finish, "", one.preemptions, False, "generate_content", "m", one.id, "", "", -1, -1, -1,
                "", -1,
            )  # fmt: skip

    otel_rl.instrument(())
    steps = iter(range(1_000_000))

    def emit(made: Iterable[Output]) -> None:
        with otel_rl.step(next(steps)), otel_rl.stage("sample"):
            if is_bulk:
                record_requests(read, *made)
            else:
                for one in made:
                    record_requests(read, one)

    def is_idle() -> bool:
        flusher = entry._parts.flusher
        if state.queue or flusher is None or not flusher.lock.acquire(blocking=False):
            return False
        flusher.lock.release()
        return not state.queue

    return Path_(
        emit, is_idle, lambda: sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()), otel_rl.uninstrument
    )


def stock(endpoint: str) -> Path_:
    """Record spans of all through tracer, batch processor and OTLP exporter, with a queue that loses none."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    processor = BatchSpanProcessor(
        OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces"), max_queue_size=1 << 18, schedule_delay_millis=500
    )
    provider = TracerProvider()
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("benchmark")
    anchor = time.time_ns() - time.monotonic_ns()

    def emit(made: Iterable[Output]) -> None:
        with tracer.start_as_current_span("rl.sample"):
            for one in made:
                begin, end, attributes = values(one, anchor)
                tracer.start_span("generate_content m", start_time=begin, attributes=attributes).end(end)

    queue = processor._batch_processor._queue
    return Path_(emit, lambda: not queue, lambda: _received(endpoint), provider.shutdown)


def rl_insight(endpoint: str) -> Path_:
    """Record spans of all through rl-insight's ``trace_span``: an event each to its actor in Ray."""
    os.environ.update(RL_INSIGHT_SERVER_URL=endpoint, RAY_AUTH_MODE="disabled")
    import ray
    import rl_insight

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    rl_insight.init("benchmark", "requests")
    from rl_insight import api

    actor = api._STATE.client._actor
    anchor = time.time_ns() - time.monotonic_ns()
    last: list[Any] = []

    def emit(made: Iterable[Output]) -> None:
        for one in made:
            begin, end, attributes = values(one, anchor)
            rl_insight.trace_span(
                name="generate_content m", start_time_ns=begin, end_time_ns=end, attributes=attributes
            )
        last[:] = [actor.get_status.remote()]  # answered behind all events: the actor takes one after the other

    def is_idle() -> bool:
        done, _ = ray.wait(last, timeout=0)
        return bool(done)

    return Path_(emit, is_idle, lambda: _received(endpoint), ray.shutdown)


def _received(endpoint: str) -> int:
    from urllib.request import urlopen

    return int(urlopen(f"{endpoint}/received").read())


def busy() -> Callable[[int], None]:
    """Make the main thread's work: matrix products that let go of the interpreter, 0.1 ms each."""
    import numpy as np

    matrix = np.random.default_rng(1).random((160, 160), dtype=np.float32)
    out = np.empty_like(matrix)

    def work(count: int) -> None:
        for _ in range(count):
            np.matmul(matrix, matrix, out=out)

    return work


def measure(path: Path_, count: int, work: Callable[[int], object]) -> dict[str, float]:
    """Record a burst, then work until everything behind it is done; say what both cost the main thread.

    What holds it up is the time in which it neither runs nor waits for a core of a machine that others use, too: it
    waits for the interpreter then.
    """
    made = outputs(count)
    before = _memory()
    cpu = time.thread_time()
    path.emit(made)
    emitted = time.thread_time() - cpu
    peak = _memory()
    cpu, began, delay = time.thread_time(), time.perf_counter(), _delay()
    while True:
        work(100)
        peak = max(peak, _memory())
        if path.is_idle():
            break
    held = time.perf_counter() - began - (time.thread_time() - cpu) - (_delay() - delay)
    return {
        "event_loop_us": emitted / count * 1e6,
        "slow_down_ms": held * 1e3,
        "total_ms": (emitted + held) * 1e3,
        "memory_mib": (peak - before) / 2**20,
    }


def _delay() -> float:
    """Say how long this thread has waited for a core, s."""
    with open("/proc/thread-self/schedstat") as schedstat:
        return int(schedstat.read().split()[1]) / 1e9


def _memory() -> int:
    """Read the resident bytes of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def main() -> None:
    """Measure one way; print what it cost as JSON."""
    name, count, rounds, endpoint = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    others = {"stock": stock, "rl-insight": rl_insight}
    path = others[name](endpoint) if name in others else ours(is_bulk=name == "otel_rl bulk")
    work = busy()
    time.sleep(LONGEST_NS / 1e9)
    path.emit(outputs(100))
    time.sleep(1.5)
    size = path.size()
    found = [measure(path, count, work) for _ in range(rounds)]
    time.sleep(1.5)
    path.close()
    total = path.size() - size
    print(json.dumps({"rounds": found, "bytes": total / count / rounds, "threads": threading.active_count()}))


if __name__ == "__main__":
    main()
