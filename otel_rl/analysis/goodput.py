"""Goodput: what part of the wall time of a rank was of use. Five kinds of time that add up to wall time exactly.

One moment has one kind, the first that claims it:

1. wasted: redone after a restart, skipped updates; whatever ran then, nothing is left of it;
2. idle: a wait counts as a wait, also inside a stage of another kind;
3. overhead: weight sync, checkpoint, evaluation, log, set-up; rollouts and rewards of an evaluation belong to it;
4. productive: rollout, logprobs, values, reward, advantage, update;
5. other: the remainder, a user's own stages among it.

The intervals are those of the thread that the steps run on, by one rank's clock. What goes on in the background (the
writing part of an asynchronous checkpoint) holds nobody up and is not among them. That samples were discarded
no span says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from otel_rl import vocabulary
from otel_rl.analysis.intervals import Interval, partition
from otel_rl.analysis.steps import Step


class Kind(Enum):
    """A kind of time; in order of priority."""

    WASTED = "wasted"
    IDLE = "idle"
    OVERHEAD = "overhead"
    PRODUCTIVE = "productive"
    OTHER = "other"


KIND_OF_STAGE: Final[Mapping[str, Kind]] = {
    vocabulary.IDLE: Kind.IDLE,
    **dict.fromkeys(
        (
            vocabulary.SYNC,
            vocabulary.CHECKPOINT,
            vocabulary.CHECKPOINT_STAGING,
            vocabulary.EVALUATE,
            vocabulary.LOG,
            vocabulary.SETUP,
            vocabulary.TEARDOWN,
        ),
        Kind.OVERHEAD,
    ),
    **dict.fromkeys(
        (
            vocabulary.SAMPLE,
            vocabulary.SAMPLE_PROCESS,
            vocabulary.ENVIRONMENT_RESET,
            vocabulary.EXECUTE_TOOL,
            vocabulary.LOGPROB,
            vocabulary.VALUE,
            vocabulary.REWARD,
            vocabulary.ADVANTAGE,
            vocabulary.TRAIN,
            vocabulary.FORWARD,
            vocabulary.BACKWARD,
            vocabulary.CLIP,
            vocabulary.OPTIMIZER,
        ),
        Kind.PRODUCTIVE,
    ),
}
"""A collective has the kind of the stage around it; one under no stage is other."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """The wall time of one rank by kind, ns."""

    productive_ns: int
    overhead_ns: int
    idle_ns: int
    wasted_ns: int
    other_ns: int

    @property
    def wall_ns(self) -> int:
        """The sum of the parts."""
        return self.productive_ns + self.overhead_ns + self.idle_ns + self.wasted_ns + self.other_ns


def kind_of(stage: str) -> Kind:
    """Say which kind of time a stage is by its span's name; `rl.reward accuracy` is a reward."""
    return KIND_OF_STAGE.get(stage) or KIND_OF_STAGE.get(stage.partition(" ")[0], Kind.OTHER)


def is_background(stage: str, attributes: Mapping[str, object]) -> bool:
    """Say whether a stage holds nobody up: an asynchronous checkpoint, of which only the staging does."""
    return stage == vocabulary.CHECKPOINT and attributes.get(vocabulary.CHECKPOINT_ASYNC) is True


def goodput(spent: Iterable[tuple[Kind, Interval]], begin: int, end: int) -> Goodput:
    """Split a window of one rank by kind.

    Args:
        spent: kind and interval, ns; they may overlap and nest, and reach out of the window.
        begin: of the window, by the same clock.
        end: of the window.
    """
    layers: dict[Kind, list[Interval]] = {kind: [] for kind in Kind if kind is not Kind.OTHER}
    for kind, interval in spent:
        if kind is not Kind.OTHER:
            layers[kind].append(interval)
    wasted, idle, overhead, productive, other = partition(list(layers.values()), begin, end)
    return Goodput(productive, overhead, idle, wasted, other)


def total(parts: Iterable[Goodput]) -> Goodput:
    """Add up ranks, or windows that do not overlap."""
    listed = list(parts)
    return Goodput(
        productive_ns=sum(part.productive_ns for part in listed),
        overhead_ns=sum(part.overhead_ns for part in listed),
        idle_ns=sum(part.idle_ns for part in listed),
        wasted_ns=sum(part.wasted_ns for part in listed),
        other_ns=sum(part.other_ns for part in listed),
    )


def redone(attempts: Sequence[Sequence[Step]]) -> list[Interval]:
    """List the steps of earlier attempts that a later one did again.

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
