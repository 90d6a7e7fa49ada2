"""A driver whose rollouts outlive their step, made of what integrations of single controllers share.

It stands in for the asynchronous trainers of verl: its engine and its training only sleep.
"""

from __future__ import annotations

import argparse
import threading
import time
from queue import Queue

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.process.carrier import Carrier
from otel_rl.single_controller.driver import become_driver, begin_loop, begin_step, end_loop
from otel_rl.single_controller.sample_groups import QUEUE, lags_of, link_groups, show_groups
from otel_rl.trace.apart import open_apart
from otel_rl.trace.stage import Stage

GROUPS, AHEAD = 2, 4
"""Groups that a step takes, and those that may wait or run."""
TIMES_S = {"training_starves": (0.06, 0.01), "rollouts_starve": (0.005, 0.06), "clean": (0.02, 0.04)}
"""Of a group, and of an update."""


class Trainer:
    """The object whose loop is open."""


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted.driver_loop")
    parser.add_argument("problem", choices=TIMES_S)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    otel_rl.instrument()
    become_driver("verl", "0.9.1", {"algorithm": "GRPO", "model_name": "tiny"})
    begin_loop(Trainer(), "output", {v.SETTINGS_STEPS: options.steps})
    train(options.steps, *TIMES_S[options.problem])
    end_loop((), {}, None)


def train(steps: int, group_s: float, update_s: float) -> None:
    """Make steps, each of the oldest groups that are finished."""
    room, finished = threading.Semaphore(AHEAD), Queue[tuple[int, int]]()
    version, submitted = [0], list[Carrier | None]([None])

    def roll_out(number: int) -> None:
        stage = Stage(v.SAMPLE_GROUP, {v.GROUP_ID: str(number), v.MODE: "train"}, coarse=True)
        open_apart(stage, str(number), submitted[0])
        began = version[0]
        with otel_rl.stage(
            "sample.trajectory", **{v.GROUP_ID: str(number), v.SAMPLE_ID: f"{number}-0", v.MODE: "train"}
        ):
            time.sleep(group_s)
        stage.__exit__(None, None, None)
        finished.put((number, began))

    def produce() -> None:
        for number in range(steps * GROUPS):
            room.acquire()
            roll_out(number)

    threading.Thread(target=produce, daemon=True).start()
    for number in range(1, steps + 1):
        begin_step(number)
        submitted[0], version[0] = Carrier.current(), number
        with Stage(v.IDLE, dict((QUEUE,)), coarse=True) as wait:
            show_groups({"running": 1, "finished": finished.qsize()}, "train")
            taken = [finished.get() for _ in range(GROUPS)]
            for key, value in lags_of([number - began for _, began in taken], number).items():
                wait.set_attribute(key, value)
        link_groups((str(group), number - began) for group, began in taken)
        room.release(GROUPS)
        with otel_rl.stage("train"):
            time.sleep(update_s)


if __name__ == "__main__":
    main()
