"""How ranks on gloo end.

A thread of Gloo that frees a tensor while Python exits aborts the process ("terminate called without an active
exception", https://github.com/pytorch/pytorch/issues/190489). It frees what it has sent or received just after the rank
was told so, at times much later on a busy machine. torch joins these threads once nothing refers to the group; a
model's mesh does so for good.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path

import torch.distributed as dist


def leave() -> None:
    """Destroy the process group and wait until its threads sleep; delete models and trainers before."""
    gc.collect()
    dist.destroy_process_group()
    time.sleep(0.05)  # they need the interpreter to free a tensor
    while any(name.startswith("pt_gloo") and state == "R" for name, state in _threads()):
        time.sleep(0.05)


def _threads() -> list[tuple[str, str]]:
    """Return the name and state of each thread of this process."""
    stats = [thread.joinpath("stat").read_text() for thread in Path("/proc/self/task").iterdir()]
    return [(stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2]) for stat in stats]
