"""A driver whose rollouts outlive their step, made of what integrations of single controllers share.

It stands in for the asynchronous trainers of verl: its engine and its training only sleep.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from typing import Any

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.process.carrier import Carrier
from otel_rl.process.state import state
from otel_rl.single_controller.driver import become_driver, begin_loop, begin_step, end_loop
from otel_rl.single_controller.sample_groups import QUEUE, lags_of, link_groups, show_groups
from otel_rl.trace.apart import open_apart
from otel_rl.trace.stage import Stage

GROUPS, AHEAD = 2, 4
"""Groups that a step takes, and those that are begun before the first one is taken."""
TIMES_S = {"training_starves": (0.06, 0.01), "rollouts_starve": (0.005, 0.06), "clean": (0.028, 0.05)}
"""Of a group, and of an update."""
CONTEXT = multiprocessing.get_context("fork")


class Trainer:
    """The object whose loop is open."""


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted.driver_loop")
    parser.add_argument("problem", choices=TIMES_S)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    group_s, update_s = TIMES_S[options.problem]
    asked, finished = CONTEXT.Queue(), CONTEXT.Queue()
    agent = CONTEXT.Process(target=roll_out, args=(asked, finished, group_s))
    agent.start()
    otel_rl.instrument()
    become_driver("verl", "0.9.1", {"algorithm": "GRPO", "model_name": "tiny"})
    begin_loop(Trainer(), "output", {v.SETTINGS_STEPS: options.steps})
    train(options.steps, update_s, asked, finished)
    end_loop((), {}, None)
    asked.put(None)
    agent.join()


def roll_out(asked: Any, finished: Any, group_s: float) -> None:
    """Be an agent loop: make a trajectory for each group that is asked for."""
    os.environ["OTEL_RL_PROCESS_KIND"] = "worker"
    otel_rl.instrument()
    state.identify(role="agent_loop")
    for number, version, carrier in iter(asked.get, None):
        with carrier.use():
            said = {v.GROUP_ID: str(number), v.MODE: "train"}
            group = Stage(v.SAMPLE_GROUP, dict(said), coarse=True)
            open_apart(group, str(number), carrier)
            with otel_rl.stage("sample.trajectory", **said, **{v.SAMPLE_ID: f"{number}-0"}):
                time.sleep(group_s)
            group.__exit__(None, None, None)
        finished.put((number, version))
    otel_rl.uninstrument()


def train(steps: int, update_s: float, asked: Any, finished: Any) -> None:
    """Make steps, each of the oldest groups that are finished."""
    begun = 0
    for number in range(1, steps + 1):
        begin_step(number)
        with Stage(v.SAMPLE_SUBMIT, {}, coarse=True):
            while begun < min((number - 1) * GROUPS + AHEAD, steps * GROUPS):
                asked.put((begun, number, Carrier.current()))
                begun += 1
        with Stage(v.IDLE, dict((QUEUE,)), coarse=True) as wait:
            show_groups({"running": 1, "finished": finished.qsize()}, "train")
            taken = [finished.get() for _ in range(GROUPS)]
            for key, value in lags_of([number - version for _, version in taken], number).items():
                wait.set_attribute(key, value)
        link_groups((str(group), number - version) for group, version in taken)
        with otel_rl.stage("train"):
            time.sleep(update_s)


if __name__ == "__main__":
    main()
