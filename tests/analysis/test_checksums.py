"""The definitions of the ledger's numbers: what they add up, and which fault changes which of them."""

from __future__ import annotations

import math
import zlib
from statistics import correlation

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.checksums import LogprobSums, MaskSums, TokenSums, shape_checksum, wrap
from tests.ledger_sums import logprob_sums, mask_sums, nonfinite, token_sums


def test_token_sums_by_hand() -> None:
    """Two rows of which the second begins with padding: columns count from the first true one."""
    ids = [[5, 7, 0], [9, 2, 3]]
    mask = [[True, True, False], [False, True, True]]
    assert TokenSums(17, 5 + 14 + 2 + 6, 14 + 6, 19 + 2 * 8) == token_sums(ids, mask)
    assert TokenSums(26, 5 + 14 + 9 + 4 + 9, 0 + 9, 19 + 2 * 22) == token_sums(ids)
    assert TokenSums(0, 0, 0, 0) == token_sums([]) == token_sums([[]]) == token_sums([[5]], [[False]])


@given(st.lists(st.lists(st.integers(0, 2**17), max_size=6), max_size=4), st.integers(0, 3), st.integers(0, 3))
def test_padding_does_not_change_token_sums(rows: list[list[int]], left: int, right: int) -> None:
    """Neither left nor right, whatever ids stand there."""
    padded = [[1] * left + row + [2] * right for row in rows]
    mask = [[False] * left + [True] * len(row) + [False] * right for row in rows]
    assert token_sums(rows) == token_sums(padded, mask)


@given(st.integers(-(2**70), 2**70))
def test_sums_wrap_as_int64_does(value: int) -> None:
    """Into its range, by multiples of 2^64."""
    assert -(2**63) <= wrap(value) < 2**63
    assert 0 == (value - wrap(value)) % 2**64
    assert [-(2**63), 2**63 - 1, 5] == [wrap(2**63), wrap(-(2**63) - 1), wrap(3 * 2**64 + 5)]


def test_mask_sums_by_hand() -> None:
    """A row without any true position is counted in size only; an empty mask has no ratio."""
    mask = [[False, True, True, False], [False] * 4, [True, False, True, True]]
    found = mask_sums(mask)
    assert MaskSums(size=12, true=5, rows=2, first=1, last=5) == found
    assert 5 / 12 == found.ratio
    assert 0.0 == mask_sums([[False]]).ratio
    assert None is mask_sums([]).ratio


def test_shapes_and_types_differ() -> None:
    """The same in every process, whatever kind of sequence the shape is."""
    assert (
        shape_checksum([2, 3], "torch.int64")
        == shape_checksum((2, 3), "torch.int64")
        == zlib.crc32(b"((2, 3), 'torch.int64')")
    )
    others = {
        shape_checksum(shape, dtype) for shape in ((2, 3), (3, 2), (6,)) for dtype in ("torch.int64", "torch.int32")
    }
    assert 6 == len(others)


def test_nonfinite_values_are_counted_where_they_count() -> None:
    """NaN and both infinities; what is masked out may be anything."""
    values = [[math.nan, 1.0], [math.inf, -math.inf]]
    assert 3 == nonfinite(values)
    assert 1 == nonfinite(values, [[False, True], [True, False]])


def test_logprob_sums_by_hand() -> None:
    """Differences are training - rollout; a zero is missing where training is far from it."""
    rollout = [[-1.0, 0.0, 0.0, -9.0]]
    train = [[-1.5, -2.0, -0.05, -9.0]]
    found = logprob_sums(rollout, train, [[True, True, True, False]])
    assert (3, 2.0, 1) == (found.count, found.max_abs, found.zeros)
    assert [pytest.approx(2.55 / 3), pytest.approx(-2.55 / 3)] == [found.mean_abs, found.mean]
    alone = logprob_sums([[-1.0]], [[-1.5]], [[True]])
    assert (1, 0.5, -0.5, 0.5) == (alone.count, alone.mean_abs, alone.mean, alone.max_abs)


def test_a_zero_is_missing_where_training_is_far_from_it() -> None:
    """From a probability of 0.9 down; a certain token's logprob is 0 by right."""
    found = logprob_sums([[0.0, 0.0, 0.0, -0.5]], [[-0.09, -0.11, 0.0, -0.5]], [[True] * 4])
    assert 1 == found.zeros


def test_logprobs_of_nothing() -> None:
    """No rows, all masked out, NaN everywhere, no variance: nothing to compare and no error."""
    nothing = LogprobSums(0, 0.0, 0.0, 0.0, 0, (None, None, None))
    assert nothing == logprob_sums([], [], [])
    assert nothing == logprob_sums([[-1.0]], [[-1.0]], [[False]])
    assert nothing == logprob_sums([[math.nan] * 3], [[-1.0] * 3], [[True] * 3])
    assert None is nothing.lag
    assert None is logprob_sums([[-1.0] * 5], [[-1.0] * 5], [[True] * 5]).lag


@given(st.lists(st.tuples(st.floats(-20, -0.01), st.floats(-20, -0.01)), min_size=18, max_size=30))
def test_correlations_are_pearsons(pairs: list[tuple[float, float]]) -> None:
    """At each lag over the positions that both have."""
    rollout, train = [rolled for rolled, _ in pairs], [trained for _, trained in pairs]
    found = logprob_sums([rollout], [train], [[True] * len(pairs)]).correlations
    slices = ((rollout[1:], train[:-1]), (rollout, train), (rollout[:-1], train[1:]))
    for (left, right), value in zip(slices, found, strict=True):
        if value is not None and max(left) - min(left) > 1e-3 and max(right) - min(right) > 1e-3:
            assert correlation(left, right) == pytest.approx(value, abs=1e-6)


VALUES = [-1.0, -5.0, -2.0, -8.0, -3.0, -3.5, -7.0, -0.5, -4.0, -6.0] * 2


@pytest.mark.parametrize(
    ("lag", "train"), [(0, VALUES), (-1, [*VALUES[1:], -9.0]), (1, [-9.0, *VALUES[:-1]])], ids=["0", "-1", "1"]
)
def test_the_lag_says_which_way_training_is_shifted(lag: int, train: list[float]) -> None:
    """-1: training at t - 1 belongs to the rollout's t."""
    mask = [[True] * len(VALUES)]
    assert lag == logprob_sums([VALUES], [train], mask).lag
    padded = [0.0 if column in {2, 9} else value for column, value in enumerate(VALUES)]
    assert 1.0 == pytest.approx(max(filter(None, logprob_sums([padded], [train], mask).correlations)))


def test_what_is_masked_out_correlates_with_nothing() -> None:
    """Neither side of a pair may be masked out, whatever stands there."""
    rollout, train = [[1e6, *VALUES, 1e6]], [[*VALUES, 1e6, -1e6]]
    mask = [[False] + [True] * len(VALUES) + [False]]
    found = logprob_sums(rollout, train, mask)
    assert (-1, pytest.approx(1.0)) == (found.lag, found.correlations[0])


def test_a_handful_of_logprobs_has_no_correlation() -> None:
    """Two random pairs would always correlate."""
    pairs = [[value + 0.1 for value in VALUES[:15]]]
    assert (None, None, None) == logprob_sums([VALUES[:15]], pairs, [[True] * 15]).correlations
    enough = logprob_sums([VALUES[:16]], [VALUES[:16]], [[True] * 16]).correlations
    assert (None, 1.0, None) == (enough[0], pytest.approx(enough[1]), enough[2])
