"""Which ROLL this is, and who a process of it is.

ROLL is no distribution: its users run a checkout, ``setup.py`` tells the same version for several, and ``roll`` on the
package index is another project. So its version is told by what its tree holds. What lies between two tags is taken for
the older one: a hook whose function was renamed is left out, with one line.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from otel_rl.process.state import state
from otel_rl.vocabulary import ACTOR_NAME

TREE = "distributed/executor/cluster.py"
"""Tells ROLL from every other package of its name."""
SINCE = (
    ("utils/telemetry.py", "0.3.0"),
    ("distributed/scheduler/router.py", "0.2.1"),
    ("distributed/scheduler/generate_scheduler.py", "0.2.0"),
)
"""A file of the tree and the version that brought it, the newest first."""
ROLES = {"RolloutScheduler": "scheduler", "DynamicSamplingScheduler": "scheduler", "RouterManager": "router",
         "GroupQueueManager": "group_queue"}  # fmt: skip
VALIDATION = "val"


def version_of_tree() -> str | None:
    """Return the version of the ROLL that this process would import, or None. It is not imported. Cost: 0.1 ms."""
    spec = find_spec("roll")
    for place in () if spec is None else spec.submodule_search_locations or ():
        root = Path(place)
        if (root / TREE).is_file():
            return next((version for file, version in SINCE if (root / file).is_file()), "0.1.0")
    return None


def role_of_actor(kind: type, name: str) -> str | None:
    """Return the role of an actor: its cluster, of which several may have one class, else what its class does.

    Args:
        kind: class of the actor.
        name: that Ray knows it by; of two schedulers or queues one may be validation's.
    """
    if {"CLUSTER_NAME", "WORKER_NAME", "RANK"} <= os.environ.keys():
        return os.environ["CLUSTER_NAME"]
    role = next((ROLES[base.__name__] for base in kind.__mro__ if base.__name__ in ROLES), None)
    return f"{role}_{VALIDATION}" if role and VALIDATION in name.split("-") else role


def mode_of_process() -> str:
    """Return whether this scheduler, queue or environment serves the training or its validation."""
    name = str(state.identity.extra.get(ACTOR_NAME, ""))
    is_validation = VALIDATION in name.split("-") or os.environ.get("CLUSTER_NAME", "").startswith(f"{VALIDATION}_")
    return "eval" if is_validation else "train"
