"""The stages of one rank in one step: who is inside whom, own time, coverage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import KIND_OF_STAGE

Path = tuple[str, ...]
"""Labels from the outermost stage to this one."""


@dataclass(frozen=True, slots=True)
class Comm:
    """Collectives: how many, and the time in them."""

    count: int
    time_ns: int


NO_COMM: Final = Comm(0, 0)
LOADING: Final = f"{v.IDLE} data"
"""The one wait that counts as own time: the rank's own loader is slow."""


class StageTimes(NamedTuple):
    """One stage on one rank in one step; a tuple, since a run has millions of them."""

    durations_ns: tuple[int, ...]
    busy_ns: int
    """The union of its calls inside the step: overlapping calls count once."""
    own_ns: int
    """The same without collectives and waits, except waits for data."""
    comm: Comm
    is_hidden: bool
    is_host_clock: bool
    is_device_clock: bool = False
    """The device timed every call, and these are its times; waits for collectives are a part of them."""


@lru_cache(maxsize=4096)
def is_apart(outer: str, inner: str) -> bool:
    """Return whether a stage is of another kind than the one around it, as an evaluation inside a log is."""
    around, name = (stage.partition(" ")[0] for stage in (outer, inner))
    is_known = name in KIND_OF_STAGE and name.split(".")[:2] != around.split(".")[:2]
    is_around = around in (v.LOG, v.REWARD) or around not in KIND_OF_STAGE
    return is_known and around != v.EVALUATE and (is_around or name in (v.EVALUATE, v.CHECKPOINT, v.SYNC))
