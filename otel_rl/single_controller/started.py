"""Programs that the driver starts, such as the servers of its workers: what they inherit tells them whose they are."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from otel_rl.hooks import Args, Kwargs, Memory
from otel_rl.process.state import state


@dataclass(eq=False)
class Environment(Memory):
    """What a start changes in the environment of this process."""

    before: dict[str, str | None] = field(default_factory=dict)
    """The values of before, by variable; None: it was not set."""


environment = Environment.keep("environment")


def lend_environment(args: Args, kwargs: Kwargs) -> None:
    """Let what the call starts be workers of this attempt."""
    if state.identity.known and not environment.before:
        ours = {
            "OTEL_RL_PROCESS_KIND": "worker",
            "OTEL_RL_RUN_ID": state.identity.run_id,
            "OTEL_RL_ATTEMPT_ID": state.identity.attempt_id,
        }
        environment.before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)


def restore_environment(args: Args, kwargs: Kwargs, outcome: object) -> None:
    """Take back what was lent: the call has returned, or raised."""
    before, environment.before = environment.before, {}
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
