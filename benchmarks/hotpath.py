"""What one stage, one collective and one number cost on the training thread, beside the SDK's span.

    python benchmarks/hotpath.py

CPU time of the thread; nothing is encoded meanwhile, the flusher is kept from running. ``overhead_trl.py`` measures the
whole.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns
from typing import Any

from measure import keep, make_folder, show, side_by_side

os.environ["OTEL_RL_DIR"] = make_folder()

from opentelemetry.sdk.trace import TracerProvider

import otel_rl
from otel_rl.comm.collectives import Collective
from otel_rl.guard import guard
from otel_rl.hooks import CallbackHook, StageHook
from otel_rl.hooks.hook import wrap
from otel_rl.metrics.record import gauge
from otel_rl.observing.book import book
from otel_rl.probes.memory import probes
from otel_rl.process.state import state
from otel_rl.trace.stage import Stage


def repeat(operation: Callable[[], object]) -> Callable[[int], None]:
    """Make a function that does an operation many times and forgets what was queued."""

    def run(count: int) -> None:
        for _ in range(count):
            operation()
        state.queue.clear()

    return run


def with_stage() -> None:
    """A stage as a user opens it."""
    with otel_rl.stage("reward"):
        pass


def with_stage_and_attributes() -> None:
    """One attribute at the begin, one later."""
    with otel_rl.stage("reward", batch_size=64) as span:
        span.set_attribute("rl.tokens", 4096)


def with_coarse_stage() -> None:
    """A stage as an integration opens it."""
    with Stage("rl.reward", coarse=True):
        pass


def with_collective() -> None:
    """One collective, without its call."""
    Collective("all_reduce", 4096).close()


def with_guard() -> None:
    """The guard around nothing."""
    with guard("measure"):
        pass


def observing(rows: int, columns: int) -> dict[str, Callable[[int], None]]:
    """Show a micro-batch of the host, and beside it copy its tensors, which is the least that can be done."""
    import torch

    ids = torch.ones(rows, columns, dtype=torch.long)
    logprobs = torch.zeros(rows, columns)
    batch = {"completion_ids": ids, "completion_mask": ids, "logprobs": logprobs, "rollout_logprobs": logprobs}
    model = torch.nn.Linear(2, 2)

    def observe() -> None:
        otel_rl.observe(model=model, batch=batch)
        state.queue.clear()  # as if the flusher had read it: its memory serves again
        book.done_bytes = book.copied_bytes

    shape = f"{rows} x {columns}"
    return {
        f"copies of four tensors, {shape}": repeat(lambda: [one.clone() for one in batch.values()]),
        f"otel_rl.observe of them, {shape}": repeat(observe),
    }


def host(value: Any = None) -> Any:
    """Stand for a function of the host."""
    return value


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--count", type=int, default=4000)
    options = parser.parse_args()
    otel_rl.instrument(())
    state.awake = True  # no flusher: only the hot path is measured
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("benchmark")
    hooked = wrap(StageHook(target="host:host", stage="rl.reward"), host)
    described = wrap(StageHook(target="host:host", stage="rl.reward", capture=lambda *_: {"rl.batch_size": 64}), host)
    passing = wrap(CallbackHook(target="host:host", before=lambda *_: None), host)

    def sdk() -> None:
        with tracer.start_as_current_span("rl.reward"):
            pass

    def sdk_with_attributes() -> None:
        with tracer.start_as_current_span("rl.reward", attributes={"rl.batch_size": 64}) as span:
            span.set_attribute("rl.tokens", 4096)

    def switched_off() -> None:
        state.on = False
        hooked()
        state.on = True

    with otel_rl.step(1):
        tables = {
            "a stage, beside the SDK's span": side_by_side(
                {
                    "SDK span": repeat(sdk),
                    "otel_rl stage": repeat(with_stage),
                    "SDK span, two attributes": repeat(sdk_with_attributes),
                    "otel_rl stage, two attributes": repeat(with_stage_and_attributes),
                    "otel_rl stage, memory read at both ends": repeat(with_coarse_stage),
                },
                options.count,
            ),
            "what is around it": side_by_side(
                {
                    "a call of the host": repeat(host),
                    "hooked: stage with memory": repeat(hooked),
                    "hooked: stage with memory and attributes": repeat(described),
                    "hooked: no stage, one function before": repeat(passing),
                    "the same, an argument by keyword": repeat(lambda: passing(value=None)),
                    "hooked, recording switched off": repeat(switched_off),
                    "a collective": repeat(with_collective),
                    "one reading of memory": repeat(probes.read_memory),
                    "one reading of CPU time, once a step": repeat(thread_time_ns),
                    "one number": repeat(lambda: gauge("rl.train.grad_norm", 0.5)),
                    "the guard": repeat(with_guard),
                },
                options.count,
            ),
            "a micro-batch that is observed": side_by_side(
                {**observing(4, 64), **observing(8, 1024)}, options.count // 4
            ),
        }
    for title, figures in tables.items():
        show(title, figures)
    keep(options.json, tables)


if __name__ == "__main__":
    main()
