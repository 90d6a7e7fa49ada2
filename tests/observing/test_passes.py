"""Micro-batches become rows: joined while they are parts of one batch, and compared only where they can be."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.ledger import Fault, check
from otel_rl.observing.passes import BatchCall, SharedBatch
from tests.ledger_sums import mask_sums, token_sums

IDS = [[5, 7, 2], [9, 2, 3], [1, 1, 8], [6, 4, 4]]
MASK = [[True, True, True], [True, True, False], [True, True, True], [True, False, False]]


def call(boundary: str, rows: list[int], numbering: str = "place", **fields: Any) -> BatchCall:
    """Show some rows of the batch, in this order."""
    ids, mask = [IDS[row] for row in rows], [MASK[row] for row in rows]
    numbers = rows if numbering == "number" else None
    sums = {"tokens": token_sums(ids, mask, numbers), "mask": mask_sums(mask), "kind": "integer", "is_response": True}
    return BatchCall(boundary, len(rows), numbering=numbering, **{**sums, **fields})


def faults(*calls: BatchCall, is_over: bool = True) -> list[tuple[str, Fault]]:
    """Check the rows of a step."""
    group = SharedBatch(7, "train")
    for one in calls:
        group.add(one)
    return [(found.boundary, found.fault) for found in check(one.row for one in group.rows(0, is_over=is_over))]


@given(st.lists(st.integers(1, 3), max_size=3))
def test_micro_batches_are_the_batch(cuts: list[int]) -> None:
    """However it is cut; so is a second pass over it, cut otherwise."""
    edges = sorted({0, 4, *cuts})
    parts = [call("train", list(range(a, b))) for a, b in pairwise(edges)]
    again = [call("train", [0]), call("train", [1, 2, 3])]
    assert [] == faults(call("rollout", [0, 1, 2, 3]), *parts, *again)


def test_a_batch_in_another_order_is_named() -> None:
    """Also where it is cut, and in the second pass alone."""
    parts = [call("train", [0, 1]), call("train", [3, 2])]
    permuted = [("rollout -> train", Fault.PERMUTED_BATCH)]
    assert permuted == faults(call("rollout", [0, 1, 2, 3]), *parts)
    whole = call("train", [0, 1, 2, 3])
    assert [("train -> train", Fault.PERMUTED_BATCH)] == faults(call("rollout", [0, 1, 2, 3]), whole, *parts)


def test_samples_with_numbers_may_be_shuffled() -> None:
    """What belongs to another number is still found."""
    rollout = call("rollout", [0, 1, 2, 3], "number")
    parts = [call("train", [3, 1], "number"), call("train", [0, 2], "number")]
    assert [] == faults(rollout, *parts)
    mixed = call("train", [3, 1], "number", tokens=token_sums([IDS[1], IDS[3]], [MASK[1], MASK[3]], [3, 1]))
    assert [("rollout -> train", Fault.PERMUTED_BATCH)] == faults(rollout, mixed, parts[1])


@pytest.mark.parametrize("numbering", ["number", "none"])
def test_an_order_that_only_one_side_has_is_no_order(numbering: str) -> None:
    """Numbers on one side, or a framework that shuffles: in any order, but the same tokens."""
    rollout = call("rollout", [0, 1, 2, 3])
    assert [] == faults(rollout, call("train", [2, 0, 3, 1], numbering))
    other = call("train", [2, 0, 3, 3], numbering)
    assert [Fault.OTHER_MASK] == [fault for _, fault in faults(rollout, other)]


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([call("train", [0, 1])], id="a part of it"),
        pytest.param([call("train", [0, 1, 2]), call("train", [3, 0])], id="parts that do not add up to it"),
        pytest.param([call("train", [2, 1, 0, 3], is_response=False)], id="whole sequences against responses"),
        pytest.param([BatchCall("train", 4)], id="no tokens"),
        pytest.param([call("train", [0, 1]), call("train", [3, 2], tokens=None, mask=None)], id="tokens of a part"),
    ],
)
def test_what_cannot_be_compared_is_not(calls: list[BatchCall]) -> None:
    """A loop may train on a part of what it has."""
    assert [] == faults(call("rollout", [0, 1, 2, 3]), *calls)


def test_faults_of_single_calls_are_kept_whatever_is_compared() -> None:
    """Of all micro-batches together, once for each boundary."""
    calls = [call("train", [0, 1], nonfinite=2), call("train", [2], misfit=1)]
    found = faults(call("rollout", [0, 1, 2, 3]), *calls)
    assert [("train", Fault.SHAPE), ("train", Fault.NONFINITE)] == found


@pytest.mark.parametrize("values", [BatchCall("train"), BatchCall("train", is_response=False, nonfinite=1)])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_call_without_samples_is_in_no_pass(values: BatchCall, at: int) -> None:
    """A loss, advantages: before the batch, between two parts of it or after it; they are judged all the same."""
    rollout, parts = call("rollout", [0, 1, 2, 3]), [call("train", [0, 1]), call("train", [3, 2])]
    parts.insert(at, values)
    judged = [("train", Fault.NONFINITE)] * values.nonfinite
    assert [*judged, ("rollout -> train", Fault.PERMUTED_BATCH)] == faults(rollout, *parts)
    assert judged == faults(rollout, values)


def test_a_call_without_samples_hides_no_numbers() -> None:
    """Rewards beside a rollout: other samples than its own are still none of it."""
    rollout = call("rollout", [0, 1, 2, 3], "number", samples=(6, 60))
    halves = [call("train", [0, 1], "number", samples=(1, 10)) for _ in range(2)]
    assert [] == faults(rollout, BatchCall("rollout"), *halves)


def test_a_batch_that_outlasts_steps_is_compared_pass_by_pass() -> None:
    """Rows come when a pass is whole."""
    group = SharedBatch(7, "train")
    group.add(call("rollout", [0, 1, 2, 3], "none"))
    known = []
    for part in ([2, 0], [1, 3], [0], [3, 1, 2]):
        group.add(call("train", part, "none"))
        known.append([one.row.boundary for one in group.rows(0, is_over=False)])
    assert [["rollout"], ["rollout", "train"], ["rollout", "train"], ["rollout", "train", "train"]] == known
    assert [4, 4, 4] == [one.samples for one in group.rows(0, is_over=False)]


@pytest.mark.parametrize("field", ["model", "logprobs"])
def test_two_models_at_one_boundary_are_not_joined(field: str) -> None:
    """Actor and critic, old and reference log-probabilities, micro-batch by micro-batch."""
    one, other = ({field: frozenset({name})} for name in "ab")
    parts = [call("train", rows, **who) for rows in ([0, 1], [2, 3]) for who in (one, other)]
    assert [] == faults(call("rollout", [0, 1, 2, 3]), *parts)
    parts[-1] = call("train", [3, 2], **other)
    assert [("train -> train", Fault.PERMUTED_BATCH)] == faults(call("rollout", [0, 1, 2, 3]), *parts)


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("epochs", [1, 2])
def test_micro_batches_that_are_shown_again_at_once_are_passes_of_their_own(times: int, epochs: int) -> None:
    """Two models of one configuration, a loop that updates several times by each micro-batch."""

    def passes(*parts: list[int]) -> list[BatchCall]:
        return [call("train", rows) for _ in range(epochs) for rows in parts for _ in range(times)]

    rollout = call("rollout", [0, 1, 2, 3])
    assert [] == faults(rollout, *passes([0, 1], [2, 3]))
    assert [("rollout -> train", Fault.PERMUTED_BATCH)] == faults(rollout, *passes([0, 1], [3, 2]))
    assert [] == faults(call("rollout", [0, 0, 1, 1]), *passes([0], [0], [1], [1]))
    assert [] == faults(rollout, *passes([0, 1, 2], [3]))


@pytest.mark.parametrize("parts", [[[0, 1]], [[0, 1], [0, 1]], [[0], [1]]])
def test_micro_batches_in_the_place_of_others_are_a_fault(parts: list[list[int]]) -> None:
    """Each twice, and so many that they could be the batch."""
    rollout = call("rollout", [0, 1, 2, 3])
    shown = [call("train", rows) for rows in parts for _ in range(2)]
    assert [("rollout -> train", Fault.OTHER_MASK)] == faults(rollout, *shown)[:1]


def test_other_samples_are_not_compared() -> None:
    """As many, but other numbers: half of them twice, a rollout of another step; values are judged all the same."""
    rollout = call("rollout", [0, 1, 2, 3], "number", samples=(6, 60))
    halves = [call("train", [0, 1], "number", samples=(1, 10), nonfinite=1) for _ in range(2)]
    assert [("train", Fault.NONFINITE)] == faults(rollout, *halves)
    same = [call("train", [0, 1], "number", samples=(1, 10)), call("train", [2, 2], "number", samples=(5, 50))]
    assert [("rollout -> train", Fault.OTHER_MASK)] == faults(rollout, *same)
