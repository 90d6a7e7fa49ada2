"""What a step is spent on, in plain words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.time_rows import StageShare, TimeRows
from otel_rl.report.findings.rollout_rules import generating_share

GENERATING: Final = "generating"
WAITING: Final = "waiting"
UPDATE: Final = "the update"
WORDS: Final = {
    "sampling": (v.SAMPLE, f"{v.SAMPLE}.generate"),
    "handing out prompts": (v.SAMPLE_SUBMIT,),
    "preparing responses": (v.SAMPLE_PROCESS,),
    "log-probabilities": (v.LOGPROB,),
    "values": (v.VALUE,),
    "rewards": (v.REWARD,),
    UPDATE: (v.TRAIN, v.FORWARD, v.BACKWARD, v.CLIP, v.OPTIMIZER),
    "evaluation": (v.EVALUATE,),
    "checkpoints": (v.CHECKPOINT,),
    "logging": (v.LOG,),
    "handing over new weights": (v.SYNC,),
    "communication under no stage": (v.COMM,),
    "waiting for data": (f"{v.IDLE} data",),
    WAITING: (v.IDLE,),
    "time under no stage": (v.OTHER,),
}
LEAST_PART: Final = 0.005
"""A smaller part of the update is not named."""


@dataclass(frozen=True, slots=True)
class Use:
    """A part of the step time."""

    name: str
    """In plain words, as in "sampling takes"."""
    share: float
    communication: float = 0.0
    """The part of the share in collectives, most of which may be waits for a slow rank."""


def uses(rows: TimeRows) -> list[Use]:
    """Return the parts of the step, the largest first; a driver's waits for rollouts that go on are generating."""
    groups: defaultdict[str, list[StageShare]] = defaultdict(list)
    for one in rows.shares:
        groups[_word(one.stage)].append(one)
    parts = {word: _use(word, of) for word, of in groups.items()}
    generating = generating_share(rows)
    for name, share in ((WAITING, -generating), (GENERATING, generating)):
        use = parts.get(name, Use(name, 0.0))
        parts[name] = replace(use, share=use.share + share)
    return sorted((use for use in parts.values() if use.share > 0), key=lambda use: -use.share)


def _word(stage: str) -> str:
    kind = next(iter(stage.split(maxsplit=1)), "")
    words = (word for name in (stage, kind) for word, stages in WORDS.items() if name in stages)
    return next(words, stage or "a stage without a name")


def _use(word: str, of: Sequence[StageShare]) -> Use:
    """Add up the stages of a word; those of an update are named if the table has several apart."""
    large = {one.stage for one in of if one.share >= LEAST_PART}
    parts = [stage.rpartition(".")[2] for stage in WORDS.get(word, ()) if stage in large]
    name = f"{UPDATE} ({', '.join(parts)})" if word == UPDATE and len(parts) > 1 else word
    return Use(name, sum(one.share for one in of), sum(one.communication for one in of))
