"""The numbers of the ledger on numpy arrays; ``analysis/checksums.py`` defines them, and tests compare the two.

B rows, T columns. Runs in the flusher; numpy lets go of the interpreter's lock in large arrays.
"""

from __future__ import annotations

from typing import Any, Final

from otel_rl.analysis.checksums import HASH, LAGS, ZERO_GAP, MaskSums, Moments, Pairs, TokenSums, wrap

Array = Any
KINDS: Final = {"i": "integer", "u": "integer", "b": "boolean", "f": "float"}
"""What numpy calls a type, and what the ledger does: int32 or int64 makes no difference to a token."""


def kind_of(array: Array) -> str:
    return KINDS.get(array.dtype.kind) or str(array.dtype)


def token_sums(ids_BT: Array, mask_BT: Array, numbers_B: Array | None = None) -> TokenSums:
    import numpy as np

    rows, columns = ids_BT.shape
    if not rows or not columns:
        return TokenSums(0, 0, 0, 0)
    with np.errstate(all="ignore"):  # wrapping, and ids that are no numbers, are not the host's to be warned of
        id_BT = np.where(mask_BT, ids_BT, 0).astype(np.int64)
        first_B = mask_BT.argmax(1)
        column_BT = np.arange(1, columns + 1) - first_B[:, None]
        weighted_BT = id_BT * column_BT
        last_B = columns - 1 - mask_BT[:, ::-1].argmax(1)
        number_B = np.arange(1, rows + 1) if numbers_B is None else numbers_B.astype(np.int64)
        sums_B = weighted_BT.sum(1)
        tail = weighted_BT[np.arange(rows), last_B].sum()  # of a row without a true position that is 0
        return TokenSums(
            wrap(int(id_BT.sum())), wrap(int(sums_B.sum())), wrap(int(tail)), wrap(int((sums_B * number_B).sum()))
        )


def sample_sums(numbers_B: Array) -> tuple[int, int]:
    """Add up numbers of samples, and a hash of each."""
    import numpy as np

    with np.errstate(all="ignore"):
        mixed_B = numbers_B.astype(np.int64).astype(np.uint64)
        total = int(mixed_B.sum())
        for shift, factor in HASH:
            mixed_B = (mixed_B ^ (mixed_B >> np.uint64(shift))) * np.uint64(factor)
        return wrap(total), wrap(int((mixed_B ^ (mixed_B >> np.uint64(31))).sum()))


def mask_sums(mask_BT: Array) -> MaskSums:
    rows, columns = mask_BT.shape
    if not rows or not columns:
        return MaskSums(0, 0, 0, 0, 0)
    some_B = mask_BT.any(1)
    last_B = columns - 1 - mask_BT[:, ::-1].argmax(1)
    return MaskSums(
        size=mask_BT.size,
        true=int(mask_BT.sum()),
        rows=int(some_B.sum()),
        first=int(mask_BT.argmax(1)[some_B].sum()),
        last=int(last_B[some_B].sum()),
    )


def nonfinite(values: Array, mask_BT: Array | None = None) -> int:
    import numpy as np

    bad = ~np.isfinite(values)
    return int((bad if mask_BT is None else bad & mask_BT).sum())


def pairs(rollout_BT: Array, train_BT: Array, mask_BT: Array) -> Pairs:
    """Compare the logprobs of the rollout engine with those of training."""
    import numpy as np

    rolled, trained = (values.astype(np.float64) for values in (rollout_BT, train_BT))
    is_one = np.isfinite(rolled) & mask_BT, np.isfinite(trained) & mask_BT
    both = is_one[0] & is_one[1]
    left = rolled[both]
    difference = trained[both] - left
    size = np.abs(difference)
    return Pairs(
        count=int(both.sum()),
        absolute=float(size.sum()),
        difference=float(difference.sum()),
        largest=float(size.max(initial=0.0)),
        zeros=int(((left == 0) & (difference < -ZERO_GAP)).sum()),
        moments=tuple(_moments(rolled, trained, is_one, lag) for lag in LAGS),
    )


def _moments(rolled: Array, trained: Array, is_one: tuple[Array, Array], lag: int) -> Moments:
    """Pair rollout at t with training at t + lag; zeros of the rollout are left out."""
    begin, end = max(0, -lag), max(0, rolled.shape[1] - max(0, lag))
    at, moved = (slice(None), slice(begin, end)), (slice(None), slice(begin + lag, max(0, end + lag)))
    both = is_one[0][at] & is_one[1][moved] & (rolled[at] != 0)
    left, right = rolled[at][both], trained[moved][both]
    if not left.size:
        return Moments()
    centre = float(left.mean()), float(right.mean())
    left, right = left - centre[0], right - centre[1]
    return Moments(
        int(left.size), *centre, float((left * left).sum()), float((right * right).sum()), float((left * right).sum())
    )
