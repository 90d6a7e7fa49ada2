"""Planted faults are found and named, whatever the batch; clean batches raise nothing."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.checksums import LogprobSums, MaskSums, shape_checksum
from otel_rl.analysis.ledger import Fault, Limits, Mismatch, Passage, check, inspect
from tests.ledger_sums import logprob_sums, mask_sums, nonfinite, token_sums

WIDTH = 24


class Batch:
    """A random batch of responses, padded to the right, with the logprobs of the engine and of training."""

    def __init__(self, random: Random, rows: int = 4) -> None:
        lengths = [random.randint(12, WIDTH - 2) for _ in range(rows)]
        self.mask = [[column < length for column in range(WIDTH)] for length in lengths]
        self.ids = [[random.randrange(1, 150_000) if true else 0 for true in row] for row in self.mask]
        self.rollout = [[random.uniform(-4, -0.3) if true else 0.0 for true in row] for row in self.mask]
        self.train = [[value + random.uniform(-0.04, 0.04) for value in row] for row in self.rollout]

    def row(self, boundary: str, step: int = 0, rank: int = 0) -> Passage[int]:
        """Note the batch as it is now."""
        has_train = boundary == "train"
        return Passage(
            step=step,
            rank=rank,
            boundary=boundary,
            shape=shape_checksum((len(self.ids), WIDTH), "torch.int64"),
            tokens=token_sums(self.ids, self.mask),
            mask=mask_sums(self.mask),
            nonfinite=nonfinite(self.train if has_train else self.rollout, self.mask),
            logprobs=logprob_sums(self.rollout, self.train, self.mask) if has_train else None,
        )


batches = st.integers(0, 2**32).map(lambda seed: Batch(Random(seed)))


def faults(batch: Batch, before: Passage[int]) -> list[tuple[str, Fault]]:
    """Check a batch that was noted before."""
    return [(found.boundary, found.fault) for found in check([before, batch.row("train")])]


@given(batches)
def test_a_clean_batch_raises_nothing(batch: Batch) -> None:
    """Rounding and other kernels are no fault."""
    assert [] == faults(batch, batch.row("rollout"))


def test_a_thousand_clean_steps_raise_nothing() -> None:
    """On two ranks with different batches."""
    random = Random(1)
    rows = []
    for step in range(1000):
        for rank in (0, 1):
            batch = Batch(random, rows=2)
            rows += [batch.row("rollout", step, rank), batch.row("train", step, rank)]
    assert [] == check(rows)


@given(batches, st.integers(0, 150_000), st.sampled_from([-1, 1]))
def test_tokens_shifted_by_one(batch: Batch, moved_in: int, side: int) -> None:
    """To the left or to the right, whatever takes the free place."""
    before = batch.row("rollout")
    for row, mask in zip(batch.ids, batch.mask, strict=True):
        length = sum(mask)
        true = row[:length]
        row[:length] = [*true[1:], moved_in] if side < 0 else [moved_in, *true[:-1]]
    assert [("rollout -> train", Fault.SHIFTED_TOKENS)] == faults(batch, before)


@given(batches)
def test_the_first_token_dropped(batch: Batch) -> None:
    """Each row one shorter: the mask has lost its last position, and without masks the tokens have moved by one."""
    before = batch.row("rollout")
    for name in ("ids", "rollout", "train", "mask"):
        setattr(batch, name, [[*row[1:], type(row[0])(0)] for row in getattr(batch, name)])
    assert [("rollout -> train", Fault.SHIFTED_MASK)] == faults(batch, before)
    without_mask = [
        Passage(step=0, rank=0, boundary=row.boundary, tokens=row.tokens) for row in (before, batch.row("train"))
    ]
    assert [Fault.SHIFTED_TOKENS] == [found.fault for found in check(without_mask)]


@given(batches, st.sampled_from([-1, 1]))
def test_logprobs_shifted_by_one(batch: Batch, side: int) -> None:
    """The correlation is at another lag."""
    before = batch.row("rollout")
    batch.train = [row[1:] + row[:1] if side < 0 else row[-1:] + row[:-1] for row in batch.rollout]
    assert [("train", Fault.SHIFTED_LOGPROBS)] == faults(batch, before)


@given(batches)
def test_logprobs_shifted_by_one_with_a_zero_moved_in(batch: Batch) -> None:
    """Both are said: the shift, and that each row has a logprob that is none."""
    before = batch.row("rollout")
    batch.train = batch.rollout
    batch.rollout = [
        [0.0 if column == sum(mask) - 1 else value for column, value in enumerate([*row[1:], 0.0])]
        for row, mask in zip(batch.rollout, batch.mask, strict=True)
    ]
    assert [("train", Fault.ZERO_LOGPROBS), ("train", Fault.SHIFTED_LOGPROBS)] == faults(batch, before)


@given(batches, st.integers(1, 4))
def test_logprobs_padded_with_zeros(batch: Batch, every: int) -> None:
    """A zero is a probability of 1, which training does not confirm."""
    before = batch.row("rollout")
    batch.rollout = [
        [0.0 if column % every == 0 else value for column, value in enumerate(row)] for row in batch.rollout
    ]
    assert [("train", Fault.ZERO_LOGPROBS)] == faults(batch, before)


@given(batches, st.sampled_from([-1, 1]))
def test_a_mask_off_by_one(batch: Batch, side: int) -> None:
    """It has as many true positions as before; shifted to the left it loses its first token."""
    if side < 0:  # give each row a free place at its begin
        batch.mask = [[False, *row[:-1]] for row in batch.mask]
        batch.train = batch.rollout = [[-1.0, *row[:-1]] for row in batch.rollout]
        batch.ids = [[7, *row[:-1]] for row in batch.ids]
    before = batch.row("rollout")
    batch.mask = [[*row[1:], False] if side < 0 else [False, *row[:-1]] for row in batch.mask]
    batch.train = batch.rollout
    assert [("rollout -> train", Fault.SHIFTED_MASK)] == faults(batch, before)


@given(batches)
def test_a_mask_that_loses_one_end(batch: Batch) -> None:
    """The first answer token dropped from the loss: only the first true positions move."""
    before = batch.row("rollout")
    batch.mask = [[False, *row[1:]] for row in batch.mask]
    assert [("rollout -> train", Fault.SHIFTED_MASK)] == faults(batch, before)


@given(batches, st.integers(0, 3))
def test_another_mask(batch: Batch, row: int) -> None:
    """One row masked out as a whole."""
    before = batch.row("rollout")
    batch.mask[row] = [False] * WIDTH
    assert [("rollout -> train", Fault.OTHER_MASK)] == faults(batch, before)


@given(batches, st.permutations(range(4)))
def test_a_permuted_batch(batch: Batch, order: list[int]) -> None:
    """Rows in another order, although every one of them is right."""
    before = batch.row("rollout")
    for name in ("ids", "rollout", "train", "mask"):
        setattr(batch, name, [getattr(batch, name)[row] for row in order])
    expected = [] if order == sorted(order) else [("rollout -> train", Fault.PERMUTED_BATCH)]
    assert expected == faults(batch, before)


def test_a_permuted_batch_of_rows_of_one_token() -> None:
    """Its sums by column are those of a shift, too: nothing is left of a row."""
    before, after = (
        Passage(step=1, rank=0, boundary=name, tokens=token_sums([[token] for token in tokens]))
        for name, tokens in (("a", (5, 7, 9)), ("b", (9, 5, 7)))
    )
    assert [Fault.PERMUTED_BATCH] == [one.fault for one in check([before, after])]


@given(batches)
def test_tokens_in_another_order_and_other_tokens(batch: Batch) -> None:
    """A reversed row, then another id."""
    before = batch.row("rollout")
    length = sum(batch.mask[0])
    batch.ids[0][:length] = sorted(batch.ids[0][:length], key=lambda token: -token)
    if batch.row("rollout") != before:
        assert [("rollout -> train", Fault.REORDERED_TOKENS)] == faults(batch, before)
    batch.ids[0][3] += 1_000_000
    assert [("rollout -> train", Fault.OTHER_TOKENS)] == faults(batch, before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_on_one_rank(value: float) -> None:
    """Named with the rank and the number of ranks; the others' batches are clean, and its finite logprobs too."""
    rows = []
    for rank in range(4):
        batch = Batch(Random(rank))
        rows.append(batch.row("rollout", 7, rank))
        if rank == 2:
            batch.train[1][3] = value
        rows.append(batch.row("train", 7, rank))
    assert [Mismatch(7, "train", Fault.NONFINITE, (2,), 4)] == check(rows)


def test_another_shape() -> None:
    """Between two boundaries of a rank, with a boundary between them that does not say its shape."""
    shapes = {"rollout": 1, "reward": None, "train": 2}
    rows = [Passage(step=1, rank="a", boundary=name, shape=shape) for name, shape in shapes.items()]
    assert [Mismatch(1, "rollout -> train", Fault.SHAPE, ("a",), 1)] == check(rows)


def test_ranks_and_steps_are_never_compared_with_each_other() -> None:
    """Each has a batch of its own."""
    rows = [
        Passage(step=step, rank=rank, boundary="train", shape=step * 10 + rank) for step in (1, 2) for rank in (0, 1)
    ]
    assert [] == check(rows)


def test_logprobs_far_apart_for_no_known_reason() -> None:
    """No shift, no zeros; a handful of tokens is not judged, and the limit is the user's."""
    found = LogprobSums(100, 0.5, 0.5, 0.6, 0, (0.1, 0.99, 0.1))
    assert [Fault.OTHER_LOGPROBS] == inspect(Passage(step=0, rank=0, boundary="train", logprobs=found))
    assert [] == inspect(Passage(step=0, rank=0, boundary="train", logprobs=found), Limits(logprob_mean_abs=0.6))
    assert [] == inspect(Passage(step=0, rank=0, boundary="train", logprobs=found), Limits(logprob_mean_abs=0.5))
    few = LogprobSums(16, 0.5, 0.5, 0.6, 0, (None, None, None))
    assert [Fault.OTHER_LOGPROBS] == inspect(Passage(step=0, rank=0, boundary="train", logprobs=few))
    few = LogprobSums(15, 9.0, 9.0, 9.0, 15, (None, None, None))
    assert [] == inspect(Passage(step=0, rank=0, boundary="train", logprobs=few))
    without = LogprobSums(100, 0.5, 0.5, 0.6, 0, (None, None, None))
    assert [Fault.OTHER_LOGPROBS] == inspect(Passage(step=0, rank=0, boundary="train", logprobs=without))


def test_what_is_not_enough_for_a_name() -> None:
    """A lag that is hardly better is no shift, and one zero of a hundred no padding."""
    found = LogprobSums(100, 0.5, 0.5, 0.6, 0, (0.6, 0.5, 0.1))
    assert [Fault.OTHER_LOGPROBS] == inspect(Passage(step=0, rank=0, boundary="train", logprobs=found))
    assert [Fault.SHIFTED_LOGPROBS] == inspect(
        Passage(step=0, rank=0, boundary="train", logprobs=found), Limits(lag_margin=0.05)
    )
    zero = [LogprobSums(100, 0.1, 0.1, 0.6, zeros, (0.1, 0.99, 0.1)) for zeros in (1, 2)]
    faults = [inspect(Passage(step=0, rank=0, boundary="train", logprobs=one)) for one in zero]
    assert [[], [Fault.ZERO_LOGPROBS]] == faults


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (8, 30, []),
        (6, 28, [Fault.SHIFTED_MASK]),
        (10, 32, [Fault.SHIFTED_MASK]),
        (8, 28, [Fault.SHIFTED_MASK]),
        (6, 30, [Fault.SHIFTED_MASK]),
        (7, 29, [Fault.OTHER_MASK]),
        (12, 34, [Fault.OTHER_MASK]),
        (8, 34, [Fault.OTHER_MASK]),
    ],
)
def test_masks_that_begin_and_end_elsewhere(first: int, last: int, expected: list[Fault]) -> None:
    """Two rows: off by one is a sum that is off by two; half of the rows, or two positions, are another fault."""
    masks = [MaskSums(40, 20, 2, 8, 30), MaskSums(40, 20, 2, first, last)]
    rows = [Passage(step=0, rank=0, boundary=name, mask=mask) for name, mask in zip("ab", masks, strict=True)]
    assert expected == [found.fault for found in check(rows)]


def test_empty_and_fully_masked_batches_raise_nothing() -> None:
    """They have no tokens to be wrong about."""
    empty = Batch(Random(0), rows=0)
    masked = Batch(Random(0))
    masked.mask = [[False] * WIDTH for _ in masked.mask]
    for batch in (empty, masked):
        assert [] == faults(batch, batch.row("rollout"))
    assert [] == check([])


def test_a_policy_that_was_updated_may_be_far_from_its_rollout() -> None:
    """What is shifted or missing is found all the same."""
    far = LogprobSums(100, 0.5, 0.0, 2.0, 0, (0.1, 0.6, 0.1))
    shifted = LogprobSums(100, 0.9, 0.0, 5.0, 0, (0.1, 0.1, 0.9))
    rows = [
        Passage(step=0, rank=0, boundary="train", logprobs=sums, is_updated=is_updated)
        for sums in (far, shifted)
        for is_updated in (False, True)
    ]
    expected = [[Fault.OTHER_LOGPROBS], [], [Fault.SHIFTED_LOGPROBS], [Fault.SHIFTED_LOGPROBS]]
    assert expected == [inspect(row) for row in rows]


def test_arrays_that_do_not_fit_each_other_are_a_fault_of_their_row() -> None:
    """Whatever the other boundaries say."""
    assert [Fault.SHAPE, Fault.NONFINITE] == inspect(Passage(step=0, rank=0, boundary="train", misfit=2, nonfinite=1))


def test_padding_on_the_other_side_is_no_other_mask() -> None:
    """The tokens are compared; where they differ, that is said of them."""
    ids, mask = [[5, 7, 2, 0, 0], [9, 2, 3, 4, 0]], [[True] * 3 + [False] * 2, [True] * 4 + [False]]
    left_ids, left = [[0, 0, 5, 7, 2], [0, 9, 2, 3, 4]], [row[::-1] for row in mask]
    before, after = (
        Passage(step=1, rank=0, boundary=name, tokens=token_sums(*one), mask=mask_sums(one[1]))
        for name, one in (("a", (ids, mask)), ("b", (left_ids, left)))
    )
    assert [] == check([before, after])
    exchanged = Passage(step=1, rank=0, boundary="b", tokens=token_sums(left_ids[::-1], left[::-1]), mask=after.mask)
    assert [("a -> b", Fault.PERMUTED_BATCH)] == [(one.boundary, one.fault) for one in check([before, exchanged])]
    without = Passage(step=1, rank=0, boundary="b", mask=after.mask)
    assert [Fault.OTHER_MASK] == [one.fault for one in check([before, without])]
