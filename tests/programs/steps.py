"""A training program without a framework: steps with stages, then one of several ends.

    python steps.py STEPS END [SECONDS_PER_STEP]

END is ``return``, ``_exit``, ``kill`` (SIGKILL to itself, inside a stage) or ``raise``; none comes before the file
``ENOUGH`` is there, and the second half of the steps not before the file ``HALF``, where the environment names them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import otel_rl


def wait_for(name: str) -> None:
    """Wait for the file that a variable names, if it names one."""
    while os.environ.get(name) and not Path(os.environ[name]).exists():
        time.sleep(0.02)


def main() -> None:
    """Record and end."""
    steps, end, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 0.01
    otel_rl.instrument()
    for number in range(1, steps + 1):
        if number > steps // 2:
            wait_for("HALF")
        with otel_rl.step(number):
            for name in ("sample", "reward", "train.forward", "train.backward", "train.optimizer"):
                with otel_rl.stage(name, tokens=number):
                    time.sleep(seconds / 5)
            otel_rl.record("my.metric", number)
    wait_for("ENOUGH")
    if end == "return":
        return
    with otel_rl.step(steps + 1), otel_rl.stage("sample"):
        time.sleep(1.5)
        otel_rl.flush(60)  # so that it is journaled as open
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "_exit":
            os._exit(0)
        raise RuntimeError("as the test wants")


if __name__ == "__main__":
    main()
