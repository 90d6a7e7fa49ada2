"""What the process of an actor or a task says where it cannot record: only there is known what its node has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

AUTOLOAD = str(Path(__file__).parents[2] / "autoload")
"""The folder on the path of each process of the job, the same on all nodes."""


class Missing:
    """Goes along with the call that creates an actor: unpickled without otel_rl, it says so and is None."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return say_missing(AUTOLOAD), ()


def say_missing(autoload: str) -> Callable[[], None]:
    """Return what logs why the process that it runs in does not record; nothing where that is as asked.

    It is pickled by value, since it must run without otel_rl. Ray shows the line in the driver, with the address.
    """

    def say() -> None:
        import logging
        import os
        import sys
        from importlib.util import find_spec

        if "otel_rl.integrations.ray.serving" in sys.modules:
            return
        if not os.path.isdir(autoload):
            why = f"there is no {autoload} on this node"
        elif find_spec("otel_rl") is None:
            why = f"{sys.executable} of this node has no otel_rl"
        else:
            return
        logging.getLogger("otel_rl").warning("otel_rl: what runs here is not recorded: %s", why)

    return say
