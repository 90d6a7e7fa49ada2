"""The ledger's numbers on arrays equal their definitions on lists, whatever the batch and however it is cut."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import pytest

pytest.importorskip("numpy")

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.checksums import LogprobSums, MaskSums, Moments, Pairs, TokenSums
from otel_rl.observing import arrays
from tests import ledger_sums

SIZES = st.tuples(st.integers(0, 5), st.integers(0, 7))


@st.composite
def masked(draw: Any, elements: Any) -> tuple[list[list[Any]], list[list[bool]]]:
    """Draw a table and a mask of its shape; no rows and no columns among them."""
    rows, columns = draw(SIZES)
    row = st.lists(elements, min_size=columns, max_size=columns)
    mask = st.lists(st.booleans(), min_size=columns, max_size=columns)
    many = {"min_size": rows, "max_size": rows}
    return draw(st.lists(row, **many)), draw(st.lists(mask, **many))


def table(values: list[list[Any]], dtype: Any) -> Any:
    """Make an array that has two dimensions even when it is empty."""
    return np.array(values, dtype=dtype).reshape(len(values), -1 if values and values[0] else 0)


WIDE = st.integers(-(2**63), 2**63 - 1)


@given(masked(WIDE), st.lists(WIDE, min_size=5, max_size=5))
def test_token_sums_are_their_definition(drawn: Any, numbers: list[int]) -> None:
    """With holes in the mask, with sums that leave int64, with rows in place and by their own number."""
    ids, mask = drawn
    found = arrays.token_sums(table(ids, np.int64), table(mask, bool))
    assert ledger_sums.token_sums(ids, mask) == found
    by_number = arrays.token_sums(table(ids, np.int64), table(mask, bool), np.array(numbers[: len(ids)], np.int64))
    assert ledger_sums.token_sums(ids, mask, numbers) == by_number


@given(masked(WIDE), st.integers(0, 5))
def test_parts_of_a_batch_join_to_the_whole(drawn: Any, cut: int) -> None:
    """Wherever it is cut into micro-batches."""
    ids, mask = drawn
    parts = [(ids[:cut], mask[:cut]), (ids[cut:], mask[cut:])]
    tokens = [ledger_sums.token_sums(*part) for part in parts]
    masks = [ledger_sums.mask_sums(part[1]) for part in parts]
    assert ledger_sums.token_sums(ids, mask) == tokens[0].joined(tokens[1], len(parts[0][0]))
    assert ledger_sums.mask_sums(mask) == masks[0].joined(masks[1])


@given(masked(st.booleans()))
def test_mask_sums_are_their_definition(drawn: Any) -> None:
    """Rows without a true position among them."""
    _, mask = drawn
    assert ledger_sums.mask_sums(mask) == arrays.mask_sums(table(mask, bool))


@given(masked(st.sampled_from([0.5, math.nan, math.inf, -math.inf])))
def test_nonfinite_counts_are_their_definition(drawn: Any) -> None:
    """With the mask and without."""
    values, mask = drawn
    assert ledger_sums.nonfinite(values, mask) == arrays.nonfinite(table(values, float), table(mask, bool))
    assert ledger_sums.nonfinite(values) == arrays.nonfinite(table(values, float))


LOGPROBS = st.one_of(st.just(0.0), st.just(math.nan), st.floats(-20, -0.001).map(lambda value: round(value, 3)))


def close(expected: LogprobSums, found: LogprobSums) -> None:
    """Compare but for rounding."""
    assert (expected.count, expected.zeros) == (found.count, found.zeros)
    assert [pytest.approx(value, rel=1e-9, abs=1e-12) for value in (expected.mean_abs, expected.mean)] == [
        found.mean_abs,
        found.mean,
    ]
    assert expected.max_abs == found.max_abs
    for before, after in zip(expected.correlations, found.correlations, strict=True):
        if before is None or after is None:  # a variance that is rounding alone may be one to the other
            assert before is None or after is None
        else:
            assert pytest.approx(before, rel=1e-6, abs=1e-6) == after


@given(masked(st.tuples(LOGPROBS, LOGPROBS)), st.integers(0, 5))
def test_logprob_sums_are_their_definition(drawn: Any, cut: int) -> None:
    """Zeros, NaN and holes among them, in one piece and in two."""
    both, mask = drawn
    rollout, train = ([[pair[side] for pair in row] for row in both] for side in (0, 1))
    expected = ledger_sums.logprob_sums(rollout, train, mask)
    parts = [
        arrays.pairs(table(rollout[rows], float), table(train[rows], float), table(mask[rows], bool))
        for rows in (slice(0, cut), slice(cut, None))
    ]
    close(expected, arrays.pairs(table(rollout, float), table(train, float), table(mask, bool)).sums)
    close(expected, reduce(Pairs.joined, parts).sums)


def test_correlations_of_a_larger_batch() -> None:
    """Of a shifted one the lag is named, joined from micro-batches of two rows each."""
    draw = np.random.default_rng(0)
    rollout = -draw.random((8, 64)) * 4 - 0.1
    train = np.roll(rollout, 1, axis=1) + draw.normal(0, 0.01, rollout.shape)
    mask = np.ones(rollout.shape, bool)
    mask[:, 60:] = False
    parts = [arrays.pairs(rollout[at : at + 2], train[at : at + 2], mask[at : at + 2]) for at in range(0, 8, 2)]
    found = reduce(Pairs.joined, parts).sums
    close(ledger_sums.logprob_sums(rollout.tolist(), train.tolist(), mask.tolist()), found)
    assert (1, True) == (found.lag, found.correlations[2] > 0.99)


def test_equal_values_have_no_correlation() -> None:
    """Their variance is rounding alone."""
    same = np.full((2, 20), -0.1)
    found = arrays.pairs(same, same - 0.5, np.ones(same.shape, bool)).sums
    assert ((None, None, None), None) == (found.correlations, found.lag)
    assert (None, None) == (Moments().correlation, Pairs().sums.lag)


def test_ids_of_other_types() -> None:
    """int32 is as good as int64, floats are whole numbers, and what is none warns nobody."""
    ids, mask = [[5, 7, 0], [9, 2, 3]], [[True, True, False], [False, True, True]]
    for dtype in (np.int32, np.uint8, np.float32):
        assert TokenSums(17, 27, 20, 35) == arrays.token_sums(np.array(ids, dtype), np.array(mask))
    assert ["integer", "integer", "float", "boolean", "complex64"] == [
        arrays.kind_of(np.zeros(1, dtype)) for dtype in (np.int32, np.uint8, np.float16, bool, np.complex64)
    ]
    assert 1 == arrays.token_sums(np.array([[math.nan, 1.0]]), np.array([[False, True]])).plain
    arrays.token_sums(np.array([[math.nan, math.inf]]), np.ones((1, 2), bool))
    assert MaskSums(0, 0, 0, 0, 0) == arrays.mask_sums(np.ones((3, 0), bool))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_sample_sums(numbers: list[int]) -> None:
    """The same in another order; of as many other samples with the same sum they differ."""
    expected = ledger_sums.sample_sums(numbers)
    assert [expected] * 2 == [arrays.sample_sums(np.array(one, np.int64)) for one in (numbers, numbers[::-1])]
    assert ledger_sums.sample_sums([1, 5, 6])[1] != ledger_sums.sample_sums([2, 3, 7])[1]
