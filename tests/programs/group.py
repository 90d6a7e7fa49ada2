"""How ranks on gloo end.

A thread of Gloo that frees a tensor while Python exits aborts the process ("terminate called without an active
exception", https://github.com/pytorch/pytorch/issues/190489). It frees what it has sent or received just after the rank
was told so, at times much later on a busy machine. torch joins these threads once nothing refers to the group; a
model's mesh does so for good.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist


def leave() -> None:
    """Destroy the process group and wait until its threads sleep; delete models and trainers before."""
    gc.collect()
    dist.destroy_process_group()
    time.sleep(0.05)  # they need the interpreter to free a tensor
    while any(name.startswith("pt_gloo") and state == "R" for name, state in _threads()):
        time.sleep(0.05)


def _threads() -> Iterator[tuple[str, str]]:
    """Yield the name and state of each thread of this process."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            name, _, rest = (thread / "stat").read_text().partition("(")[2].rpartition(")")
            yield name, rest.split()[0]
