"""The entry point ``verl.plugins``: verl imports this module in every process that imports verl, and calls nothing.

It does nothing unless you set ``OTEL_RL_ENABLED=true``. Then verl is recorded without ``otel-rl run``.
"""

from __future__ import annotations

import multiprocessing
import os
import shlex

from otel_rl.guard import guard, say


def load() -> None:
    """Record this process, and say once a command where; where it is recorded already, do nothing."""
    if not os.environ.get("OTEL_RL_ENABLED", "").strip():
        return
    from otel_rl import entry
    from otel_rl.process.identity import is_ray_worker
    from otel_rl.process.state import state

    was_on = state.on
    entry.autoload()
    is_command = not is_ray_worker() and multiprocessing.parent_process() is None
    if state.on and not was_on and is_command:
        directory = shlex.quote(str(state.config.directory))
        say("otel_rl: records below %s; to look at it: OTEL_RL_DIR=%s otel-rl report", directory, directory)


with guard("start with verl"):
    load()
