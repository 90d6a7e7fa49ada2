"""What is read out of a batch: the part that is compared, its mask, lengths, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("numpy")

import numpy as np

from otel_rl.observing.batch import BatchPart, lengths_of, read

IDS = np.arange(1, 13).reshape(2, 6)
LEFT = np.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])


def shown(part: BatchPart) -> dict[str, Any]:
    """Say what was found, as plain values."""
    found = {
        "rows": part.rows,
        "ids": None if part.ids_BT is None else part.ids_BT.tolist(),
        "mask": None if part.mask_BT is None else part.mask_BT.astype(int).tolist(),
        "lengths": part.lengths,
        "responses": part.responses,
        "misfit": part.misfit,
    }
    return {key: value for key, value in found.items() if value not in (None, [])}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(
            {"input_ids": IDS, "attention_mask": LEFT},
            {"rows": 2, "ids": IDS.tolist(), "mask": LEFT.tolist(), "lengths": [4, 5]},
            id="whole sequences",
        ),
        pytest.param(
            {"input_ids": IDS},
            {"rows": 2, "ids": IDS.tolist(), "mask": [[1] * 6] * 2, "lengths": [6, 6]},
            id="without padding",
        ),
        pytest.param(
            {"input_ids": IDS, "attention_mask": LEFT, "completion_mask": LEFT[:, 3:]},
            {
                "rows": 2,
                "ids": IDS[:, 3:].tolist(),
                "mask": LEFT[:, 3:].tolist(),
                "lengths": [4, 5],
                "responses": 5,
            },
            id="responses at the end of whole sequences",
        ),
        pytest.param(
            {"prompt_mask": LEFT[:, :2], "completion_ids": IDS[:, 2:], "completion_mask": LEFT[:, 2:]},
            {"rows": 2, "ids": IDS[:, 2:].tolist(), "mask": LEFT[:, 2:].tolist(), "lengths": [4, 5], "responses": 7},
            id="prompts and responses",
        ),
        pytest.param(
            {"prompt_ids": ((1,), (1, 2, 3)), "completion_ids": ((4, 5), ())},
            {"rows": 2, "ids": [[4, 5], [0, 0]], "mask": [[1, 1], [0, 0]], "lengths": [3, 3], "responses": 2},
            id="lists of different lengths, one of them empty",
        ),
        pytest.param(
            {"input_ids": IDS[0]},
            {"rows": 1, "ids": IDS[:1].tolist(), "mask": [[1] * 6], "lengths": [6]},
            id="one sequence",
        ),
        pytest.param(
            {"attention_mask": LEFT}, {"rows": 2, "mask": LEFT.tolist(), "lengths": [4, 5]}, id="a mask alone"
        ),
        pytest.param({"lengths": np.array([3, -1])}, {"rows": 0, "lengths": [3, 0]}, id="lengths alone"),
        pytest.param({"input_ids": np.empty((0, 6), int)}, {"rows": 0}, id="no rows"),
        pytest.param(
            {"input_ids": np.empty((2, 0), int)}, {"rows": 2, "ids": [[], []], "mask": [[], []], "lengths": [0, 0]},
            id="sequences of length 0",
        ),
        pytest.param(
            {"input_ids": IDS, "attention_mask": LEFT * 0},
            {"rows": 2, "ids": IDS.tolist(), "mask": [[0] * 6] * 2, "lengths": [0, 0]},
            id="everything masked out",
        ),
        pytest.param(
            {"input_ids": IDS, "attention_mask": LEFT[:, 1:]},
            {"misfit": ["attention_mask"]},
            id="a mask of other columns",
        ),
        pytest.param(
            {"input_ids": IDS, "lengths": np.array([4, 5])},
            {"rows": 0, "lengths": [4, 5]},
            id="padding somewhere",
        ),
        pytest.param(
            {"input_ids": IDS[:1], "lengths": np.array([4, 2])},
            {"rows": 1, "ids": IDS[:1].tolist(), "mask": [[1] * 6], "lengths": [4, 2]},
            id="two sequences in a row",
        ),
        pytest.param(
            {"completion_ids": IDS, "completion_mask": LEFT[:1]},
            {"misfit": ["completion_mask"]},
            id="a mask of fewer rows",
        ),
        pytest.param({"input_ids": np.array("text")}, {"rows": 0, "misfit": ["input_ids"]}, id="text"),
        pytest.param({"input_ids": np.zeros((2, 2, 2))}, {"rows": 0, "misfit": ["input_ids"]}, id="three dimensions"),
        pytest.param({"input_ids": np.float64(1)}, {"rows": 0, "misfit": ["input_ids"]}, id="one number"),
        pytest.param(
            {"prompt_mask": LEFT[:1], "completion_ids": IDS},
            {"rows": 2, "ids": IDS.tolist(), "mask": [[1] * 6] * 2, "responses": 12, "misfit": ["prompt_ids"]},
            id="fewer prompts than responses",
        ),
    ],
)  # fmt: skip
def test_a_batch_is_read(values: dict[str, Any], expected: dict[str, Any]) -> None:
    """Whatever of it is there."""
    assert {"rows": 0, **expected} == {"rows": 0, **shown(read(values))}


MASK = np.array([[1, 1, 0], [1, 1, 1]])


@pytest.mark.parametrize(
    ("value", "columns"),
    [
        pytest.param(np.zeros((2, 3)), 3, id="a column for each"),
        pytest.param(np.zeros((2, 2)), 2, id="one less: the first token has no logprob"),
        pytest.param(np.zeros((2, 6)), 3, id="of whole sequences"),
        pytest.param(np.zeros((2, 5)), 3, id="of whole sequences, one less"),
        pytest.param(((0.0, 0.0), (0.0, 0.0, 0.0)), 3, id="a list as ragged as the responses"),
    ],
)
def test_logprobs_are_laid_on_the_responses(value: Any, columns: int) -> None:
    """Their ends are the same."""
    part = read({"input_ids": IDS, "completion_mask": MASK, "logprobs": value})
    values, mask_BT = part.floats["logprobs"]
    assert ([], (2, columns), MASK[:, -columns:].astype(bool).tolist()) == (part.misfit, values.shape, mask_BT.tolist())


def test_one_column_less_of_two_is_no_number_of_each_sample() -> None:
    """Of logprobs; of advantages it is."""
    column = np.zeros((2, 1))
    part = read(
        {"completion_ids": IDS[:, :2], "completion_mask": MASK[:, 1:], "logprobs": column, "advantages": column}
    )
    masks = [None if mask is None else mask.tolist() for _, mask in part.floats.values()]
    assert ([], {"logprobs": [[False], [True]], "advantages": None}) == (
        part.misfit,
        dict(zip(part.floats, masks, strict=True)),
    )


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(np.zeros((2, 4)), id="longer than the responses"),
        pytest.param(np.zeros((1, 3)), id="fewer rows"),
        pytest.param(np.zeros(5), id="neither a number for each sample nor one"),
        pytest.param(((0.0,), (0.0, 0.0, 0.0)), id="a list with too few for a response"),
        pytest.param(((0.0, 0.0), (0.0, 0.0, 0.0), (0.0,)), id="a list of more rows"),
    ],
)
def test_what_does_not_fit_is_named(value: Any) -> None:
    """And the rest is read."""
    part = read({"completion_ids": IDS[:, :3], "completion_mask": MASK, "logprobs": value, "loss": np.array(1.0)})
    assert (["logprobs"], 5, ["loss"]) == (
        part.misfit,
        part.responses,
        [key for key in part.floats if key != "logprobs"],
    )


def test_numbers_of_samples() -> None:
    """One for each row, whole numbers; otherwise they do not fit."""
    for numbers, expected in (([7, 3], [7, 3]), ([[7], [3]], [7, 3]), ([7], None), ([0.5, 1.5], None)):
        part = read({"input_ids": IDS, "sample_ids": np.array(numbers)})
        found = None if part.numbers_B is None else part.numbers_B.tolist()
        assert (expected, ["sample_ids"] if expected is None else []) == (found, part.misfit)


def test_numbers_without_samples_beside_them_may_be_right() -> None:
    """A call that shows what is of each sample, and neither ids nor a mask, says nothing wrong."""
    part = read({"advantages": np.zeros(2), "sample_ids": np.array([7, 8])})
    assert ([], None) == (part.misfit, part.numbers_B)


def test_values_of_samples_and_of_the_batch() -> None:
    """Advantages of each sample, rewards in a column, a loss."""
    part = read(
        {
            "completion_ids": IDS,
            "advantages": np.zeros(2),
            "rewards": np.zeros((2, 1)),
            "loss": np.array(0.5),
            "values": np.zeros((2, 6)),
        }
    )
    has_mask = {key: mask_BT is not None for key, (_, mask_BT) in part.floats.items()}
    assert ([], {"values": True, "advantages": False, "rewards": False, "loss": False}) == (part.misfit, has_mask)


@pytest.mark.parametrize("width", [5, 6])
def test_one_sequence_may_come_without_a_dimension_of_the_batch(width: int) -> None:
    """So may numbers of its tokens."""
    part = read({"input_ids": IDS[0], "logprobs": np.arange(width), "advantages": np.zeros(1)})
    assert ([], [list(range(width))], (1,)) == (
        part.misfit,
        part.floats["logprobs"][0].tolist(),
        part.floats["advantages"][0].shape,
    )


def test_samples_of_a_packed_row_have_numbers_and_values() -> None:
    """As many as there are lengths."""
    packed = {"input_ids": IDS[:1], "lengths": np.array([4, 2])}
    part = read({**packed, "sample_ids": np.array([7, 8]), "rewards": np.zeros(2)})
    assert ([], 2, True) == (part.misfit, part.samples, part.is_packed)


@pytest.mark.parametrize("kind", [int, bool, float])
@pytest.mark.parametrize("kept", [None, 0, 2, 6])
def test_masks_alone_say_how_long_sequences_are(kind: type, kept: int | None) -> None:
    """What they say is what is read of a batch that has nothing else."""
    mask = (LEFT * 3).astype(kind)
    part = read({"attention_mask": mask} | ({} if kept is None else {"completion_mask": mask[:, 6 - kept :]}))
    assert (part.lengths, part.responses) == lengths_of({"attention_mask": mask}, kept)
    parts = {"prompt_mask": mask[:, :3], "completion_mask": mask[:, 3:]}
    part = read(parts)
    assert ([4, 5], part.responses) == (part.lengths, 5) == lengths_of(parts, None)
