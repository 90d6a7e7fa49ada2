"""Two Ray actors that record, and are killed inside a stage: one by ``ray.kill``, one by SIGKILL.

    python ray_actors.py STEPS

Prints what each of them had recorded, as JSON: by actor the number of finished stages.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import ray

from otel_rl.journal.read import JournalNotFound, open_run


@ray.remote(max_restarts=0)
class Trainer:
    """Records steps, then stays in one for ever."""

    def __init__(self) -> None:
        import otel_rl

        otel_rl.instrument(())

    def work(self, steps: int) -> tuple[int, int]:
        """Record; give the process and how many stages ended."""
        import otel_rl

        ended = 0
        for number in range(1, steps + 1):
            with otel_rl.step(number):
                for name in ("sample", "reward"):
                    with otel_rl.stage(name, tokens=number):
                        time.sleep(0.001)
                    ended += 1
        assert otel_rl.flush(60)
        return os.getpid(), ended

    def hang(self, number: int) -> None:
        """Stay in a stage."""
        import otel_rl

        with otel_rl.step(number), otel_rl.stage("sample"):
            time.sleep(600)


def wait_until_both_hang(directory: Path) -> None:
    """Wait until each actor has journaled the step that it stays in."""
    hanging: set[int] = set()
    while len(hanging) < 2:
        time.sleep(0.2)
        with suppress(JournalNotFound):
            open_stages = open_run(directory).open_stages()
            hanging = {stage.journal.identity.pid for stage in open_stages if stage.name == "rl.sample"}


def main() -> None:
    """Let them work, and kill them."""
    steps = int(sys.argv[1])
    folder = tempfile.mkdtemp(prefix="ray")  # a short one: sockets lie below it
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1", _temp_dir=folder)
    try:
        actors = [Trainer.remote() for _ in range(2)]
        told = ray.get([actor.work.remote(steps) for actor in actors])
        for actor in actors:
            actor.hang.remote(steps + 1)
        wait_until_both_hang(Path(os.environ["OTEL_RL_DIR"]) / os.environ["OTEL_RL_RUN_ID"])
        ray.kill(actors[0])
        os.kill(told[1][0], signal.SIGKILL)
        print(json.dumps(dict(told)), flush=True)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
