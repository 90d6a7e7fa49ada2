"""verl's synchronous trainer, two ranks, two steps: the same result with otel_rl, and what is seen of it."""

from __future__ import annotations

import pytest

from tests.verl.training import Trained

pytestmark = pytest.mark.verl

RANKS, STEPS, MINI_BATCHES = 2, 2, 2


def test_ends_well(bare: Trained, watched: Trained) -> None:
    """Both trainings succeed, and only one is recorded."""
    assert [0, 0] == [bare.code, watched.code], f"{bare.output[-4000:]}\n{watched.output[-8000:]}"
    assert not bare.root.exists()


def test_same_result(bare: Trained, watched: Trained) -> None:
    """No metric of verl that is no measurement differs by a bit, and they say that something was learnt from."""
    first, second = bare.metrics()
    assert [first, second] == watched.metrics()
    assert len(first) > 70 and second["actor/grad_norm"] > 0 and first["critic/score/max"] > first["critic/score/min"]
    assert first["response_length/max"] > first["response_length/min"], "every answer has the same length"


def test_ranks_are_recorded(watched: Trained) -> None:
    """Each rank's backwards and optimizer steps are there. Nothing knows verl yet: they lie in no step."""
    expected = RANKS * STEPS * MINI_BATCHES
    stages = watched.stages()
    assert (expected, expected, 0) == tuple(
        stages[f"rl.{name}"] for name in ("train.backward", "train.optimizer", "loop")
    )


def test_ranks_share_a_run(watched: Trained) -> None:
    """One run holds all that both ranks did. The driver, and whatever else records, is not in it."""
    ranks = [
        {span.resource["rl.rank"] for span in run.spans() if span.name == "rl.train.backward"}
        for run in watched.recorded()
    ]
    assert [set(range(RANKS))] == [found for found in ranks if found]
    assert len(ranks) > 1
