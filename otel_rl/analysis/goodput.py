"""Goodput: which part of a rank's wall time was of use; and its activity: what it did at each moment of a step.

Five kinds of time add up to wall time exactly, five activities to the time of a step.

One moment has one kind, the first that claims it. Time is wasted if it is redone after a restart, or if its update is
skipped. An evaluation is overhead with its rollouts and rewards. A user's own stages are other time.

The intervals are those of the thread that the steps run on, by one rank's clock. Background work, such as the writing
part of an asynchronous checkpoint, delays no step and is not among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.analysis.intervals import Interval, partition
from otel_rl.analysis.steps import Step


class Kind(Enum):
    """A kind of time; in order of priority."""

    WASTED = "wasted"
    IDLE = "idle"
    OVERHEAD = "overhead"
    PRODUCTIVE = "productive"
    OTHER = "other"


_OVERHEAD: Final = (
    *(v.SYNC, v.CHECKPOINT, v.CHECKPOINT_STAGING, v.ACTION, v.EVALUATE, v.LOG, v.LOG_GATHER),
    *(v.SETUP, v.SETUP_PROCESS, v.SETUP_MODEL, v.TEARDOWN),
)
_PRODUCTIVE: Final = (
    *(v.SAMPLE_TOKENIZE, v.SAMPLE_GENERATE, v.SAMPLE_DECODE, v.SAMPLE_SUBMIT, v.SAMPLE_GROUP, v.TRAJECTORY),
    *(v.SAMPLE_TURN, v.SAMPLE_SERVE, v.MINI_BATCH),
    *(v.SAMPLE, v.SAMPLE_PROCESS, v.ENVIRONMENT_RESET, v.EXECUTE_TOOL, v.LOGPROB, v.VALUE, v.REWARD, v.ADVANTAGE),
    *(v.LOGPROB_FORWARD, v.TRAIN, v.FORWARD, v.BACKWARD, v.CLIP, v.OPTIMIZER),
)
KIND_OF_STAGE: Final[Mapping[str, Kind]] = {
    v.IDLE: Kind.IDLE,
    **dict.fromkeys(_OVERHEAD, Kind.OVERHEAD),
    **dict.fromkeys(_PRODUCTIVE, Kind.PRODUCTIVE),
}
"""A collective has the kind of the stage that it is in; under no stage it is other."""


ACTIVITIES: Final = ("idle", "comm", "inseparable", "active", "other")
"""What a rank does, in order of priority: the layers by which ``partition`` assigns each moment of a step once."""
IDLE, COMM, INSEPARABLE, ACTIVE, NO_STAGE = range(len(ACTIVITIES))


class Goodput(NamedTuple):
    """The wall time of one rank by kind, ns."""

    productive_ns: int
    overhead_ns: int
    idle_ns: int
    wasted_ns: int
    other_ns: int

    @property
    def wall_ns(self) -> int:
        return self.productive_ns + self.overhead_ns + self.idle_ns + self.wasted_ns + self.other_ns


@lru_cache(maxsize=4096)
def kind_of(stage: str) -> Kind:
    """Return the kind of a stage by its span's name; `rl.reward accuracy` is a reward."""
    return KIND_OF_STAGE.get(stage) or KIND_OF_STAGE.get(stage.partition(" ")[0], Kind.OTHER)


def is_background(stage: str, attributes: Mapping[str, object]) -> bool:
    """Return whether a stage delays no step: an asynchronous checkpoint, of which only the staging does."""
    return stage == v.CHECKPOINT and attributes.get(v.CHECKPOINT_ASYNC) is True


def goodput(times: Iterable[tuple[Kind, Interval]], begin: int, end: int) -> Goodput:
    """Split a window of one rank by kind; intervals may overlap, nest, and reach out of the window."""
    layers: dict[Kind, list[Interval]] = {kind: [] for kind in Kind if kind is not Kind.OTHER}
    for kind, interval in times:
        if kind is not Kind.OTHER:
            layers[kind].append(interval)
    wasted, idle, overhead, productive, other = partition(list(layers.values()), begin, end)
    return Goodput(productive, overhead, idle, wasted, other)


def total(parts: Iterable[Goodput]) -> Goodput:
    """Add up ranks, or windows that do not overlap."""
    productive = overhead = idle = wasted = other = 0
    for part in parts:  # not ``astuple``, which copies: a run has a million steps
        productive += part.productive_ns
        overhead += part.overhead_ns
        idle += part.idle_ns
        wasted += part.wasted_ns
        other += part.other_ns
    return Goodput(productive, overhead, idle, wasted, other)


def redone(attempts: Sequence[Sequence[Step]]) -> list[Interval]:
    """Return the steps of earlier attempts that a later one did again.

    Args:
        attempts: steps of one rank in order of their attempts' start, all by one clock.
    """
    resumed: dict[str, int] = {}
    found: list[Interval] = []
    for attempt in reversed(attempts):
        found += [
            (step.begin_ns, step.end_ns)
            for step in attempt
            if step.loop in resumed and step.iteration >= resumed[step.loop]
        ]
        for step in attempt:
            resumed[step.loop] = min(step.iteration, resumed.get(step.loop, step.iteration))
    return sorted(found)
