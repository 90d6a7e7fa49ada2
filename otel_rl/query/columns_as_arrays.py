"""Columns as the engine takes them: arrays of one length, texts as objects, and lists of keys and values for a map."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, Any]
"""By name: an array, masked where it has no value."""
KEYS, VALUES, KNOWN = "_keys", "_values", "_known"
"""What is appended to the name of a map for the arrays that it is made of, and to that of an array for its mask."""


def objects(values: Iterable[Any]) -> NDArray[np.object_]:
    """Return an array of objects, also of lists of the same length."""
    listed = list(values)
    array = np.empty(len(listed), object)
    array[:] = listed
    return array


def numbers(values: Iterable[float | None], dtype: type = float) -> Any:
    """Return an array of numbers, masked where there is none."""
    listed = list(values)
    return np.ma.array([0 if one is None else one for one in listed], dtype, mask=[one is None for one in listed])


def maps(name: str, values: Sequence[Mapping[str, object]]) -> Arrays:
    """Return the arrays of a map; equal objects are turned into texts once."""
    known: dict[int, tuple[list[str], list[str]]] = {}
    for one in values:
        if id(one) not in known:
            known[id(one)] = list(one), list(map(text_of, one.values()))
    pairs = [known[id(one)] for one in values]
    return {f"{name}{KEYS}": objects(pair[0] for pair in pairs), f"{name}{VALUES}": objects(pair[1] for pair in pairs)}


def unmasked(columns: Arrays) -> Arrays:
    """Return the arrays without masks, which not every version of the engine heeds, and what is known of each."""
    masked = {name: column for name, column in columns.items() if isinstance(column, np.ma.MaskedArray)}
    plain = {name: column.data for name, column in masked.items()}
    return columns | plain | {f"{name}{KNOWN}": ~np.ma.getmaskarray(column) for name, column in masked.items()}


def text_of(value: object) -> str:
    """Return an attribute as the text that it is in a map."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(list(value), ensure_ascii=False) if isinstance(value, tuple | list) else str(value)
