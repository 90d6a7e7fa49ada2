"""What a generator gets, and its interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

TRAINING_PHASE_TRAIN, TRAINING_PHASE_EVAL = "train", "eval"


@dataclass
class TrajectoryID:
    instance_id: str
    repetition_id: int


@dataclass
class BatchMetadata:
    global_step: int
    training_phase: str


def prepare_generator_input(uids: list[str], samples: int, phase: str, step: int) -> dict[str, Any]:
    names = [TrajectoryID(uid, number) for uid in uids for number in range(samples)]
    return {
        "prompts": [[1, 2, 3] for _ in names],
        "trajectory_ids": names,
        "batch_metadata": BatchMetadata(step, phase),
    }


class GeneratorInterface(ABC):
    @abstractmethod
    async def generate(self, input_batch: dict) -> dict: ...
