"""A batch as it was shown becomes the part that the ledger compares, and the lengths that FLOPs are counted from.

B rows, T columns; of a batch with responses T are those of the responses. What does not fit is left out and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Array = Any
FLOATS: Final = (
    "logprobs", "rollout_logprobs", "old_logprobs", "ref_logprobs", "advantages", "returns", "rewards", "values",
    "loss",
)  # fmt: skip
"""Keys whose values must be finite where the mask is true."""
INTEGERS: Final = (
    "input_ids", "attention_mask", "prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "lengths",
    "sample_ids",
)  # fmt: skip
KEYS: Final = frozenset(FLOATS + INTEGERS)


@dataclass(slots=True)
class BatchPart:
    """What the ledger compares of a batch."""

    rows: int = 0
    ids_BT: Array | None = None
    mask_BT: Array | None = None
    numbers_B: Array | None = None
    floats: dict[str, tuple[Array, Array | None]] = field(default_factory=dict)
    """Each with its own mask."""
    misfit: list[str] = field(default_factory=list)
    """Keys whose shape does not fit the others'."""
    lengths: list[int] | None = None
    """Real tokens of each whole sequence; None where the batch does not say."""
    responses: int | None = None
    """Real tokens of the responses; None where the batch does not separate them from prompts."""
    samples: int = 0
    """As many as there are lengths, where those were given; else rows."""

    @property
    def is_packed(self) -> bool:
        return bool(self.rows) and self.samples != self.rows


@dataclass(frozen=True, slots=True)
class BatchArray:
    """An array, and where a list of rows of different lengths has something."""

    array: Array
    has_BT: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.array.shape
        return shape

    def everywhere(self) -> Array:
        import numpy as np

        return np.ones(self.shape, bool) if self.has_BT is None else self.has_BT


def read(values: Mapping[str, Any]) -> BatchPart:
    part = BatchPart()
    tables = {key: table for key, value in values.items() if (table := _table(key, value, part)) is not None}
    whole = _whole(tables, part)
    _response(tables, part, whole)
    if part.ids_BT is not None:
        part.rows = part.ids_BT.shape[0]
    elif part.mask_BT is not None:
        part.rows = part.mask_BT.shape[0]
    _numbers(tables, part)
    if whole is not None and getattr(values["input_ids"], "ndim", 2) == 1:
        _lift(tables, whole.shape[1])
    width = None if whole is None else whole.shape[1]
    for key in FLOATS:
        if key in tables:
            _float(key, tables[key], part, width)
    return part


def lengths_of(masks: Mapping[str, Array], kept: int | None) -> tuple[list[int], int | None]:
    """Find what ``read`` does of a batch of which only masks (B, T) are shown: its lengths, and its responses' tokens.

    Args:
        masks: ``attention_mask``, or ``prompt_mask`` and ``completion_mask``.
        kept: so many of the last columns of ``attention_mask`` are the responses; None: it does not say.
    """
    if "attention_mask" in masks:
        true_BT = masks["attention_mask"] != 0
        responses = None if kept is None else int(true_BT[:, true_BT.shape[1] - kept :].sum())
        return true_BT.sum(1).tolist(), responses
    responses_B = (masks["completion_mask"] != 0).sum(1)
    lengths_B = responses_B + (masks["prompt_mask"] != 0).sum(1)
    return lengths_B.tolist(), int(responses_B.sum())


def _table(key: str, value: Any, part: BatchPart) -> BatchArray | None:
    """Make an array of anything; rows of different lengths are padded to the right."""
    import numpy as np

    if not isinstance(value, tuple):
        array = np.asarray(value)
        ids = key.endswith(("_ids", "_mask")) and key != "sample_ids"
        table = BatchArray(array[None] if array.ndim == 1 and ids else array)
    elif value and all(isinstance(row, (tuple, np.ndarray)) for row in value):
        rows = [np.asarray(row) for row in value]
        if all(row.ndim == 0 for row in rows):  # tensors of one number each
            return _table(key, np.array(rows), part)
        table = padded(rows)
    else:
        return _table(key, np.asarray(value), part)
    if table.array.dtype.kind not in "iubf" or table.array.ndim > 2:
        part.misfit.append(key)
        return None
    return table


def padded(rows: Sequence[Array]) -> BatchArray:
    """Lay rows of different lengths side by side, from the left."""
    import numpy as np

    if any(row.ndim != 1 for row in rows):
        return BatchArray(np.empty((0, 0, 0)))  # which fits nothing
    has_BT: Array = np.zeros((len(rows), max(map(len, rows))), bool)
    array = np.zeros(has_BT.shape, np.result_type(*(row for row in rows if row.size), np.int8))
    for number, row in enumerate(rows):
        has_BT[number, : len(row)] = True
        array[number, : len(row)] = row
    return BatchArray(array, None if has_BT.all() else has_BT)


def _mask(tables: Mapping[str, BatchArray], key: str, of: BatchArray | None, part: BatchPart) -> Array | None:
    """Return a mask as booleans: the one that was given, else where there is something; None where neither is known."""
    given = tables.get(key)
    if given is not None and (of is None or given.shape == of.shape) and given.array.ndim == 2:
        true_BT = given.array if given.array.dtype.kind == "b" else given.array != 0
        return true_BT if given.has_BT is None else true_BT & given.has_BT
    if given is not None:
        part.misfit.append(key)
    if of is None or given is not None:
        return None
    lengths = tables.get("lengths")
    is_known = lengths is None or of.has_BT is not None or lengths.array.sum() == of.array.size
    return of.everywhere() if is_known else None  # there is padding, and where is unknown


def _whole(tables: Mapping[str, BatchArray], part: BatchPart) -> BatchArray | None:
    ids = tables.get("input_ids")
    if ids is not None and ids.array.ndim != 2:
        part.misfit.append("input_ids")
        ids = None
    mask_BT = _mask(tables, "attention_mask", ids, part)
    if mask_BT is not None:
        part.lengths = mask_BT.sum(1).tolist()
    if ids is not None and mask_BT is not None:
        part.ids_BT = ids.array
    part.mask_BT = mask_BT
    return ids


def _response(tables: Mapping[str, BatchArray], part: BatchPart, whole: BatchArray | None) -> None:
    ids = tables.get("completion_ids")
    if ids is None and whole is not None and "completion_mask" in tables:
        width = tables["completion_mask"].shape[-1]
        ids = BatchArray(whole.array[:, max(0, whole.shape[1] - width) :])
    is_given = "completion_ids" in tables or "completion_mask" in tables
    mask_BT = _mask(tables, "completion_mask", ids, part) if is_given else None
    if is_given:
        part.ids_BT, part.mask_BT = (None if ids is None or mask_BT is None else ids.array), mask_BT
    if mask_BT is not None:
        part.responses = int(mask_BT.sum())
    if part.lengths is None and mask_BT is not None:
        prompt_BT = _mask(tables, "prompt_mask", tables.get("prompt_ids"), part)
        if prompt_BT is None or len(prompt_BT) == len(mask_BT):
            prompts = 0 if prompt_BT is None else prompt_BT.sum(1)
            part.lengths = (mask_BT.sum(1) + prompts).tolist()
        else:
            part.misfit.append("prompt_ids")


def _numbers(tables: Mapping[str, BatchArray], part: BatchPart) -> None:
    lengths, numbers = tables.get("lengths"), tables.get("sample_ids")
    if lengths is not None:
        part.lengths = [max(0, int(length)) for length in lengths.array.ravel()]
    part.samples = part.rows if lengths is None else lengths.array.size
    if numbers is not None and numbers.array.size == part.samples and numbers.array.dtype.kind in "iu":
        part.numbers_B = numbers.array.ravel()
    elif numbers is not None and not (lengths is None and part.ids_BT is None and part.mask_BT is None):
        part.misfit.append("sample_ids")  # where nothing else says how many samples there are, they may be right


def _lift(tables: dict[str, BatchArray], width: int) -> None:
    """Beside one sequence without a dimension of the batch, numbers of its tokens have none either."""
    for key in FLOATS:
        table = tables.get(key)
        if table is not None and table.array.ndim == 1 and table.array.size in (width, width - 1) and width > 1:
            tables[key] = BatchArray(table.array[None])


def _float(key: str, table: BatchArray, part: BatchPart, whole: int | None) -> None:
    """Lay an array of numbers on the part: the ends of the rows are the same; per sample and alone it is as it is."""
    values, mask_BT = table.array, part.mask_BT
    if mask_BT is None or values.ndim < 2:
        part.floats[key] = values, table.has_BT
        is_sample = values.ndim == 0 or values.size in (1, part.rows, part.samples) or mask_BT is None
        part.misfit += [] if is_sample else [key]
        return
    columns, width = mask_BT.shape[1], values.shape[1]
    is_token = key.endswith("logprobs") and columns == 2  # one column less, not one of each sample
    if values.shape[0] == part.rows and width == 1 < columns and not is_token:  # one of each sample
        part.floats[key] = values, None
    elif values.shape[0] != part.rows or width not in (columns, columns - 1, whole, whole and whole - 1):
        part.misfit.append(key)
    elif table.has_BT is not None and width == columns and (table.has_BT < mask_BT).any():
        part.misfit.append(key)  # a list of rows that are shorter than the responses
    else:
        least = min(columns, width)
        part.floats[key] = values[:, width - least :], mask_BT[:, columns - least :]
