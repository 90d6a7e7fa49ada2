"""Records of the samples of a driver's batch: padded on both sides, with turns, cut, rejected, or without lengths."""

from __future__ import annotations

from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.single_controller.batch_records import BatchNames, record_batch
from tests.fixtures import Recording
from tests.layers.records import records

torch: Any = pytest.importorskip("torch")
NAMES = BatchNames(["a_0", "a_1", "b_0", "b_1"], ["a", "a", "b", "b"], [4, 5, None, 5])


def batch() -> dict[str, Any]:
    """Four samples of at most four tokens: with a tool, cut at the limit, rejected, aborted."""
    return {
        "response_mask": torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]),
        "token_level_scores": torch.tensor([[0, 0, 0.5, 0], [0, 0, 0, 1.0], [0, 0.25, 0, 0], [0.0] * 4]),
        "advantages": torch.tensor([[1.0, 9.0, 3.0, 9.0], [-1.0] * 4, [5.0] * 4, [5.0] * 4]),
    }


LENGTHS = {
    "prompt_length": torch.tensor([2.0, 1.0, 2.0, 2.0]), "response_length": torch.tensor([3.0, 4.0, 2.0, 0.0]),
}  # fmt: skip
MASKS = {
    "responses": torch.zeros(4, 4),
    "attention_mask": torch.tensor(
        [[1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]]
    ),
}  # fmt: skip


@pytest.mark.parametrize("lengths", [LENGTHS, MASKS], ids=["lengths", "masks"])
def test_every_sample_has_its_record(recording: Recording, lengths: dict[str, Any]) -> None:
    """In the step that is open, with the mean of the advantages of its own tokens."""
    with otel_rl.step(7):
        recording.tick(5)
        record_batch(NAMES, {**batch(), **lengths}, 4)
    rows = zip(
        NAMES.ids, NAMES.groups, NAMES.versions, (2, 1, 2, 2), (2, 4, 0, 0), (1, 0, 2, 0), (2, 1, 0, 0),
        (0.5, 1.0, 0.25, 0.0), (2.0, -1.0, 0.0, 0.0), ("", "length", "", "abort"), strict=True,
    )  # fmt: skip
    keys = (
        v.SAMPLE_ID, v.GROUP_ID, v.POLICY_VERSION, v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.TOKENS_ENVIRONMENT,
        v.SAMPLE_TURNS, v.SAMPLE_REWARD, v.SAMPLE_ADVANTAGE, v.SAMPLE_FINISH,
    )  # fmt: skip
    expected = [
        {key: value for key, value in zip(keys, row, strict=True) if value not in ("", None)}
        | {v.LOOP_NAME: "train", v.ITERATION: 7, v.SAMPLE_USED: number < 2}
        | ({} if number < 2 else {v.SAMPLE_DISCARDED: ("rejected", "failed")[number - 2]})
        for number, row in enumerate(rows)
    ]
    run = recording.stop()
    found = records(run, v.SAMPLE_RECORD)
    assert expected == [one.attributes for one in found]
    (rollout,) = records(run, v.ROLLOUT_LINE)
    assert (4, 0.4375, 1) == tuple(
        rollout.attributes[key] for key in (v.SAMPLE_BATCH_SIZE, v.REWARD_SCORE, v.REQUESTS_ABORTED)
    )


def test_a_device_is_not_waited_for(recording: Recording) -> None:
    """A batch that is not on the host has no records."""
    with otel_rl.step(7):
        record_batch(NAMES, {key: value.to("meta") for key, value in batch().items()}, 4)
    assert [] == records(recording.stop(), v.SAMPLE_RECORD)
