"""What recording costs a real TRL run of about 30 ms a step: on against off in turn, in one run.

    python benchmarks/overhead_trl.py --steps 6000 --layers 5
    torchrun --nproc_per_node=2 benchmarks/overhead_trl.py --steps 3000     # look at the CPU time only
    python benchmarks/overhead_trl.py --steps 3600 --layers 5 --least       # what no recorder in Python can go below

The cost has two parts, each measured against steps right beside, because a shared machine changes its speed from second
to second.

The training thread: steps run with recording off, on, and off again (the control), in an order drawn anew for each
triple, in one training run with a learning rate of almost zero.

The flusher: in the second half of the run every step records, and in each block of about a second the steps in which
the flusher worked are compared with those in which it did not: it works while torch computes without the interpreter's
lock, so its CPU time holds up training by a part of itself only.

"Off" leaves the patches in place; what a patched call costs then is measured by ``hotpath.py``. Intervals are bootstrap
95 % intervals, over the triples and over the blocks.

``--least`` puts the least in place of what is recorded: the same functions are hooked, a call is a name and two clock
readings, and the flusher's thread writes them to a file as they are. It has no stages, no attributes and no metrics.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import marshal
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from measure import make_folder

os.environ.setdefault("OTEL_RL_DIR", make_folder())

import otel_rl
from otel_rl.flusher.thread import Flusher
from otel_rl.hooks import Hook, install
from otel_rl.process.state import state

KINDS = ("off", "on", "control")
DRAWS = 4000
BLOCK = 40
"""Steps among which those with the flusher's work are compared with those without."""
WORK_S = 50e-6
"""CPU time in a step from which on it counts as one with work."""


class Steps:
    """Switches recording at the begin of steps and times them."""

    def __init__(self, warm_up: int, alternating: int) -> None:
        self.to_come = warm_up
        self.alternating = alternating
        """Steps left of the first half."""
        self.order: list[str] = []
        self.kind = ""
        self.began = self.cpu_began = self.flusher_began = 0.0
        self.seconds: dict[str, list[float]] = {kind: [] for kind in (*KINDS, "always")}
        self.cpu: dict[str, list[float]] = {kind: [] for kind in (*KINDS, "always")}
        self.flusher_in: list[float] = []
        """CPU time of the flusher in each step of the second half."""
        self.flusher_clock = 0
        """Of its thread's CPU time."""
        self.random = random.Random(7)

    def step_begins(self) -> None:
        """Called before each step."""
        self.finish()
        self.to_come -= 1
        if self.to_come >= 0:
            return
        self.alternating -= 1
        if self.alternating < 0:
            self.kind = "always"
        else:
            if not self.order:
                self.order = self.random.sample(KINDS, len(KINDS))
            self.kind = self.order.pop()
        state.on = self.kind in ("on", "always")
        self.flusher_began = self.flusher()
        self.began, self.cpu_began = time.perf_counter(), time.thread_time()

    def finish(self) -> None:
        """End the step that runs."""
        if self.kind:
            self.seconds[self.kind].append(time.perf_counter() - self.began)
            self.cpu[self.kind].append(time.thread_time() - self.cpu_began)
            if self.kind == "always":
                self.flusher_in.append(self.flusher() - self.flusher_began)

    def flusher(self) -> float:
        """Read the CPU time of the flusher's thread."""
        if not self.flusher_clock:
            thread = next(one for one in threading.enumerate() if one.name == "otel_rl-flusher")
            self.flusher_clock = time.pthread_getcpuclockid(thread.ident or 0)
        return time.clock_gettime(self.flusher_clock)


def main() -> None:
    """Run and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--layers", type=int, default=2, help="of the model: so many that a step takes 30 ms")
    parser.add_argument("--least", action="store_true", help="record names and times alone, and encode nothing")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()

    if options.least:
        record_the_least()
    otel_rl.instrument()
    state.ensure_awake()
    from otel_rl.demo import task, train

    steps = Steps(warm_up=60, alternating=options.steps // 2)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = train.parse(
            ["--steps", str(options.steps + 61), "--eval-every", "0", "--save-every", "0", "--batch-size", "4",
             "--num-generations", "4", "--iters", "1", "--log-every", "10"]
        )  # fmt: skip
        train.quiet()
        import torch

        torch.set_num_threads(1)
        model = task.model(Path(scratch) / "tiny", 0, options.layers)
        trainer = train.make_trainer(arguments, Path(scratch), model, [task.parity, task.judge])
        import transformers

        trainer.remove_callback(transformers.PrinterCallback)
        trainer.args.learning_rate = 1e-12
        switch_before_steps(type(trainer), steps)
        trainer.train()
        steps.finish()
    if os.environ.get("RANK", "0") == "0":
        otel_rl.flush(10.0)
        report(steps, options)


def record_the_least() -> None:
    """Have hooks and the flusher do the least that they can do."""
    written = Path(make_folder(), "least").open("wb", buffering=0)  # noqa: SIM115 - as long as the process

    def cycles(self: Flusher) -> None:
        records = [self._queue.popleft() for _ in range(len(self._queue))]
        written.write(marshal.dumps([record for record in records if type(record) is tuple]))

    install.wrap = wrap_least
    Flusher._cycles = cycles  # type: ignore[method-assign]


def wrap_least(hook: Hook, original: Any) -> Any:
    """Make a replacement that notes the call's name and its two times; what is no plain function stays as it is."""
    if isinstance(original, (staticmethod, classmethod)):
        return type(original)(wrap_least(hook, original.__func__))
    if inspect.iscoroutinefunction(original) or hook.watch or hook.asked or hook.made:
        return original
    target = hook.target

    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        if not state.on:
            return original(*args, **kwargs)
        begin = time.monotonic_ns()
        result = original(*args, **kwargs)
        state.queue.append((target, begin, time.monotonic_ns()))
        return result

    return around


def switch_before_steps(trainer: Any, steps: Steps) -> None:
    """Put the switch outside of otel_rl's own hook, so that it comes first."""
    inner = trainer.get_batch_samples

    def get_batch_samples(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.step_begins()
        return inner(self, *args, **kwargs)

    trainer.get_batch_samples = get_batch_samples


def report(steps: Steps, options: argparse.Namespace) -> None:
    """Print medians, ratios and bootstrap intervals."""
    count = min(len(steps.seconds[kind]) for kind in KINDS) - 1
    wall = {kind: steps.seconds[kind][:count] for kind in KINDS}
    cpu = {kind: steps.cpu[kind][:count] for kind in KINDS}
    figures: dict[str, Any] = {
        "steps": count * len(KINDS) + len(steps.flusher_in),
        "ms_per_step": {kind: 1e3 * statistics.median(values) for kind, values in steps.seconds.items()},
    }
    for kind in ("on", "control"):
        figures[kind] = {"wall": ratio(wall[kind], wall["off"]), "cpu": ratio(cpu[kind], cpu["off"])}
    figures["flusher"] = flusher_share(steps.seconds["always"], steps.flusher_in)
    figures["overhead"] = {
        name: figures["on"]["wall"][name] + figures["flusher"]["held_up"][name] for name in ("overhead", "low", "high")
    }
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    sys.stdout.flush()


def flusher_share(seconds: list[float], flusher_in: list[float]) -> dict[str, Any]:
    """Say which part of a step the flusher works, and by which part of a step it holds up training."""
    median = statistics.median(seconds)
    longer, working = [], 0
    for begin in range(0, len(seconds) - BLOCK + 1, BLOCK):
        pairs = list(zip(seconds[begin : begin + BLOCK], flusher_in[begin : begin + BLOCK], strict=True))
        with_work = [one for one, work in pairs if work > WORK_S]
        without = [one for one, work in pairs if work <= WORK_S]
        working += len(with_work)
        if with_work and without:
            difference = statistics.median(with_work) - statistics.median(without)
            longer.append(difference / median * len(with_work) / BLOCK)
    draw = random.Random(13)
    medians = sorted(statistics.median(draw.choices(longer, k=len(longer))) for _ in range(DRAWS))
    return {
        "cpu_share": sum(flusher_in) / len(seconds) / median,
        "us_per_step": 1e6 * sum(flusher_in) / len(seconds),
        "steps_with_work": working / len(seconds),
        "blocks": len(longer),
        "held_up": {
            "overhead": statistics.median(longer),
            "low": medians[DRAWS // 40],
            "high": medians[-DRAWS // 40],
        },
    }


def ratio(numerator: list[float], denominator: list[float]) -> dict[str, float]:
    """Say by how much the numerator's steps are longer, with the bootstrap 95 % interval over the triples.

    The statistic is the median of the ratios of neighbouring steps: a machine that does something else for a moment
    spoils one ratio, not the result.
    """
    draw = random.Random(11)
    pairs = [above / below - 1 for above, below in zip(numerator, denominator, strict=True)]
    medians = sorted(statistics.median(draw.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    return {"overhead": statistics.median(pairs), "low": medians[DRAWS // 40], "high": medians[-DRAWS // 40]}


if __name__ == "__main__":
    main()
