"""The spans of a run as arrays, in parts of equal attributes: a part has a column for each of them.

So the engine makes the map of a span's attributes where a query asks for it, and many at once. What few spans have in
common is in the last part, as lists.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.journal.columns.decode import KEYS, TYPES, WIDE, SpanColumns
from otel_rl.journal.columns.messages import list_of
from otel_rl.journal.files import Journal
from otel_rl.journal.read import Run, span_columns
from otel_rl.query.columns_as_arrays import Arrays, objects, text_of
from otel_rl.query.record_tables import processes
from otel_rl.records import Attributes
from otel_rl.runs.spans import NAMELESS, QUALIFIERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_rl.tables.forest import Ints

MOST_PARTS: Final = 64
STATUS: Final = objects(("unset", "ok", "error"))
NO_STEP: Final = ("", -1)
TYPE_OF: Final = dict(KEYS)
Cells = tuple["Ints", "NDArray[Any]"]
"""The rows that have an attribute, and its values."""


@dataclass(frozen=True)
class SpanPart:
    """Spans with the same attributes; of the last part they are lists."""

    columns: Arrays
    keys: tuple[str, ...] | None
    """The attributes, each the column ``a<place>``; None for lists of keys and values."""


def span_parts(run: Run) -> list[SpanPart]:
    """Return the spans of a run. Cost: 2 us a span and 700 bytes."""
    batches = _Batches()
    for journal in run.journals:
        for columns in span_columns(journal):
            batches.add(columns, journal)
    return batches.parts() if batches.size else []


class _Batches:
    """Spans of all writers as they are read."""

    def __init__(self) -> None:
        self.size = 0
        self._columns: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
        self._cells: defaultdict[str, list[Cells]] = defaultdict(list)
        self._resources: dict[int, tuple[int, Attributes]] = {}
        """By identity of the object: its number, and the object itself, so that none other takes its place."""

    def add(self, batch: SpanColumns, journal: Journal) -> None:
        """Add what was read at once."""
        rows, texts = batch.rows, objects(batch.texts)
        cells = _cells(batch, texts)
        halves = np.ascontiguousarray(rows["trace"]).view(">u8").astype(np.uint64).reshape(-1, 2)
        columns: Arrays = {
            "high": halves[:, 0],
            "low": halves[:, 1],
            "id": np.ascontiguousarray(rows["id"]).view(">u8").astype(np.uint64),
            "parent": np.ascontiguousarray(rows["parent"]).view(">u8").astype(np.uint64),
            "begin_time": rows["start"].astype(np.int64),
            "end_time": rows["end"].astype(np.int64),
            "status": STATUS[np.clip(rows["status"], 0, len(STATUS) - 1)],
            "name": texts[rows["name"]],
            "stage": _stages(rows["name"], texts, cells),
            "process": self._processes(batch, journal),
        }
        for name, column in columns.items():
            self._columns[name].append(column)
        for key, (of, values) in cells.items():
            self._cells[key].append((of + self.size, values))
        self.size += len(rows)

    def _processes(self, batch: SpanColumns, journal: Journal) -> Ints:
        codes, of = np.unique(batch.rows["resource"], return_inverse=True)
        number = []
        for code in codes.tolist():
            resource = journal.resource(batch.blobs[code])
            number.append(self._resources.setdefault(id(resource), (len(self._resources), resource))[0])
        return np.array(number, np.int64)[of]

    def parts(self) -> list[SpanPart]:
        """Return all spans."""
        columns = {name: np.concatenate(column) for name, column in self._columns.items()}
        cells = {key: _joined(parts) for key, parts in self._cells.items()}
        process = columns.pop("process")
        known = processes([resource for _, resource in self._resources.values()])
        columns |= {name: column[process] for name, column in known.items()}
        columns |= _steps(columns, cells)
        return _parted(columns, cells, self.size)


def _cells(batch: SpanColumns, texts: NDArray[np.object_]) -> dict[str, Cells]:
    """Return the attributes of a batch, as numbers, flags and texts."""
    found: defaultdict[str, list[Cells]] = defaultdict(list)
    for key, (rows, values) in batch.known.items():
        found[key].append((rows, _values(TYPE_OF[key], values, batch, texts)))
    others = batch.others
    if len(others):
        kinds, of = np.unique(others[["key", "type"]], return_inverse=True)
        for number, (code, type) in enumerate(kinds.tolist()):
            own = others[of == number]
            values = np.ascontiguousarray(own["value"]).view(WIDE[type])
            found[batch.texts[code]].append((own["row"], _values(type, values, batch, texts)))
    return {key: _joined(parts) for key, parts in found.items()}


def _values(type: int, values: NDArray[Any], batch: SpanColumns, texts: NDArray[np.object_]) -> NDArray[Any]:
    if type == TYPES["string"]:
        return texts[values]
    if type == TYPES["string[]"]:
        codes, of = np.unique(values, return_inverse=True)
        return objects(text_of(list_of(batch.blobs[code])) for code in codes.tolist())[of]
    return values.astype(bool) if type == TYPES["boolean"] else values


def _joined(parts: list[Cells]) -> Cells:
    """Return all values of an attribute; they are texts if some are of another type than the others."""
    rows = np.concatenate([rows for rows, _ in parts]).astype(np.int64)
    if len({values.dtype for _, values in parts}) == 1:
        return rows, np.concatenate([values for _, values in parts])
    return rows, np.concatenate([objects(map(text_of, values.tolist())) for _, values in parts])


def _stages(names: NDArray[np.uint32], texts: NDArray[np.object_], cells: dict[str, Cells]) -> NDArray[np.object_]:
    """Return the label of each span, as ``runs.spans.label`` does."""
    labels = objects(text if text.strip() else NAMELESS for text in texts)[names]
    for name, key in QUALIFIERS.items():
        rows, values = cells.get(key, (np.zeros(0, np.int64), objects(())))
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            if labels[row] == name and value != "":
                labels[row] = f"{name} {text_of(value)}"
    rows, is_load = cells.get(v.CHECKPOINT_LOAD, (np.zeros(0, np.int64), np.zeros(0, bool)))
    loads = rows[is_load == True]  # noqa: E712  it may be an array of texts
    labels[loads[labels[loads] == v.CHECKPOINT]] = f"{v.CHECKPOINT} load"
    return labels


def _steps(columns: Arrays, cells: dict[str, Cells]) -> Arrays:
    """Return loop and step of each span: those that a root or a container of its trace says."""
    loops, names = cells.get(v.LOOP_NAME, (np.zeros(0, np.int64), objects(())))
    loop = np.full(len(columns["low"]), "", object)
    loop[loops] = names
    rows, steps = cells.get(v.ITERATION, (np.zeros(0, np.int64), np.zeros(0, np.int64)))
    named = np.argsort(loop[rows] == "", kind="stable")
    rows, steps = rows[named], steps[named]
    with np.errstate(over="ignore"):
        trace = columns["high"] * np.uint64(31) + columns["low"]
    traces, first = np.unique(trace[rows], return_index=True)
    if not len(traces):
        size = len(trace)
        return {"loop": loop, "step": np.ma.array(np.zeros(size, np.int64), mask=np.ones(size, bool))}
    place = np.minimum(np.searchsorted(traces, trace), len(traces) - 1)
    is_known = traces[place] == trace
    return {
        "loop": np.where(is_known, loop[rows[first]][place], ""),
        "step": np.ma.array(steps[first].astype(np.int64)[place], mask=~is_known),
    }


def _parted(columns: Arrays, cells: dict[str, Cells], size: int) -> list[SpanPart]:
    """Order the spans by the set of their attributes, and split them where that changes."""
    shape = np.zeros(size, np.uint64)
    marks = np.random.default_rng(0).integers(1, 1 << 63, len(cells), np.uint64)
    for mark, (rows, _) in zip(marks, cells.values(), strict=True):
        shape[rows] ^= mark
    _, of, counts = np.unique(shape, return_inverse=True, return_counts=True)
    turn = np.empty(len(counts), np.int64)
    turn[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    number = np.minimum(turn[of], MOST_PARTS).astype(np.uint8)  # which sorts in one pass
    order = np.argsort(number, kind="stable")
    place = np.empty(size, np.int64)
    place[order] = np.arange(size)
    columns = {name: column[order] for name, column in columns.items()}
    ends = np.cumsum(np.bincount(number))
    sorted_cells = {key: _placed(place, *of_key) for key, of_key in cells.items()}
    bounds = [0, *ends.tolist()]
    return [
        _part(columns, sorted_cells, begin, end, is_last=index == MOST_PARTS)
        for index, (begin, end) in enumerate(pairwise(bounds))
    ]


def _placed(place: Ints, rows: Ints, values: NDArray[Any]) -> Cells:
    """Return an attribute in the new order of the spans; of one that a span has twice the last."""
    has, dense = np.zeros(len(place), bool), np.empty(len(place), values.dtype)
    has[place[rows]] = True
    dense[place[rows]] = values
    return np.flatnonzero(has), dense[has]


def _part(columns: Arrays, cells: dict[str, Cells], begin: int, end: int, *, is_last: bool) -> SpanPart:
    own = {name: column[begin:end] for name, column in columns.items()}
    found: dict[str, Cells] = {}
    for key, (rows, values) in cells.items():
        first, last = np.searchsorted(rows, (begin, end)).tolist()
        if first < last:
            found[key] = rows[first:last] - begin, values[first:last]
    if not is_last:
        return SpanPart(own | {f"a{place}": values for place, (_, values) in enumerate(found.values())}, tuple(found))
    keys: list[list[str]] = [[] for _ in range(end - begin)]
    texts: list[list[str]] = [[] for _ in range(end - begin)]
    for key, (rows, values) in found.items():
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            keys[row].append(key)
            texts[row].append(text_of(value))
    return SpanPart(own | {"attributes_keys": objects(keys), "attributes_values": objects(texts)}, None)
