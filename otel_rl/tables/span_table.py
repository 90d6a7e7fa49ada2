"""The spans of a writer as one table: what readers know of each, a column each, with texts as numbers of one list."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.journal.columns.decode import KEYS, TYPES, SpanColumns
from otel_rl.runs.spans import LONGEST_S, label
from otel_rl.runs.symmetric import is_met, shows_waits
from otel_rl.tables.forest import MISSING, NONE, combinations, grow, parents_of
from otel_rl.tables.stages import StageTable, Within

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_rl.journal.views import SpanView
    from otel_rl.tables.forest import Flags, Ints

TYPE_OF: Final = dict(KEYS)
TEXTS: Final = (TYPES["string"],)
MASK: Final = (1 << 64) - 1
ID_BYTES: Final = 8


@dataclass
class Texts:
    """Texts by number."""

    listed: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        number = self.numbers.setdefault(text, len(self.listed))
        if number == len(self.listed):
            self.listed.append(text)
        return number

    def of(self, texts: Iterable[str]) -> Ints:
        return np.array([self.number(text) for text in texts], np.int64)


class SpanTable:
    """Spans of one writer: ids and times, and a column for each attribute that readers ask for."""

    def __init__(self, texts: Texts, columns: dict[str, NDArray[Any]]) -> None:
        """Make a table of columns of equal length; ``trace``, ``id`` and ``parent`` are ids."""
        self.texts = texts
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["begin"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column: NaN or ``MISSING`` where a span does not have an attribute; texts are numbers."""
        return self.columns[name]

    def take(self, kept: Any) -> SpanTable:
        """Return some of the rows."""
        return SpanTable(self.texts, {name: column[kept] for name, column in self.columns.items()})

    def integers(self, key: str) -> Ints:
        """Return a column of whole numbers, 0 where a span has none."""
        column = self.columns[key]
        return np.where(column == MISSING, 0, column)

    def has(self, key: str) -> NDArray[np.bool_]:
        """Return which spans have an attribute."""
        column = self.columns[key]
        return ~np.isnan(column) if column.dtype == np.float64 else column != MISSING

    def is_text(self, key: str, text: str) -> NDArray[np.bool_]:
        """Return where a column has a text."""
        return self.columns[key] == self.texts.number(text)


def join(tables: Sequence[SpanTable]) -> SpanTable:
    """Put tables after each other; where they do not share their texts, only those that are used are kept."""
    names, texts = tables[0].columns, tables[0].texts
    if any(one.texts is not texts for one in tables):
        texts = Texts()
        tables = [_with_texts(one, texts) for one in tables]
    return SpanTable(texts, {name: np.concatenate([one[name] for one in tables]) for name in names})


def _with_texts(table: SpanTable, texts: Texts) -> SpanTable:
    columns = dict(table.columns)
    for name, column in columns.items():
        if name == "name" or TYPE_OF.get(name) in TEXTS:
            used, at = np.unique(column, return_inverse=True)
            codes = [texts.number(table.texts.listed[code]) if code >= 0 else code for code in used.tolist()]
            columns[name] = np.array(codes, np.int64)[at]
    return SpanTable(texts, columns)


def table_of_columns(
    batch: SpanColumns, texts: Texts, keys: Collection[str], resource: Ints, number: int = 0
) -> SpanTable:
    """Make a table of what was read at once.

    Args:
        batch: the spans.
        texts: those of the writer.
        keys: the attributes that get a column.
        resource: a column of numbers of resources.
        number: that of the batch; a span is its ``row`` in there, where its ``view`` can be had. None has one yet.
    """
    rows, known = batch.rows, [batch.known[key][1] for key in keys if TYPE_OF[key] in TEXTS and key in batch.known]
    of = np.full(len(batch.texts), NONE)
    used = np.unique(np.concatenate([rows["name"], *known]))
    of[used] = texts.of(batch.texts[code] for code in used.tolist())
    halves = np.ascontiguousarray(rows["trace"]).view(">u8").astype(np.uint64).reshape(-1, 2)
    with np.errstate(over="ignore"):
        trace = halves[:, 0] * np.uint64(31) + halves[:, 1]
    columns: dict[str, NDArray[Any]] = {
        "trace": trace,
        "id": np.ascontiguousarray(rows["id"]).view(">u8").astype(np.uint64),
        "parent": np.ascontiguousarray(rows["parent"]).view(">u8").astype(np.uint64),
        "begin": rows["start"].astype(np.int64),
        "end": rows["end"].astype(np.int64),
        "status": rows["status"].astype(np.int64),
        "is_own": rows["is_own"] != 0,
        "name": of[rows["name"]] if len(rows) else np.zeros(0, np.int64),
        "resource": resource,
        "batch": np.full(len(rows), number),
        "row": np.arange(len(rows)),
        "view": np.full(len(rows), None, object),
    }
    for key in keys:
        columns[key] = _column(key, batch, of)
    return SpanTable(texts, columns)


def _column(key: str, batch: SpanColumns, of: Ints) -> NDArray[Any]:
    column = _empty(key, len(batch.rows))
    if key in batch.known:
        rows, values = batch.known[key]
        column[rows] = of[values] if TYPE_OF[key] in TEXTS else values
    return column


def table_of_views(
    views: Sequence[SpanView], texts: Texts, keys: Iterable[str], resource: Sequence[int] | None = None
) -> SpanTable:
    """Make a table as ``table_of_columns`` does, of spans that were read one by one."""
    size = len(views)
    trace = [int.from_bytes(one.trace_id, "big") for one in views]
    columns: dict[str, NDArray[Any]] = {
        "trace": np.array([((one >> 64) * 31 + one) & MASK for one in trace], np.uint64),
        "id": np.array([_number(one.span_id) for one in views], np.uint64),
        "parent": np.array([_number(one.parent_id) for one in views], np.uint64),
        "begin": np.array([one.start_ns for one in views], np.int64),
        "end": np.array([one.end_ns for one in views], np.int64),
        "status": np.array([one.status_code for one in views], np.int64),
        "is_own": np.array([one.is_own for one in views], bool),
        "name": texts.of(one.name for one in views),
        "resource": np.zeros(size, np.int64) if resource is None else np.array(resource, np.int64),
        "batch": np.full(size, NONE),
        "row": np.zeros(size, np.int64),
        "view": np.empty(size, object),
    }
    columns["view"][:] = views
    cells: dict[str, tuple[list[int], list[Any]]] = {key: ([], []) for key in keys}
    for row, view in enumerate(views):
        for key, value in view.attributes.items():
            if key in cells:
                rows, values = cells[key]
                rows.append(row)
                values.append(value)
    for key, (rows, values) in cells.items():
        columns[key] = _empty(key, size)
        columns[key][rows] = [texts.number(str(value)) for value in values] if TYPE_OF[key] in TEXTS else values
    return SpanTable(texts, columns)


def _empty(key: str, size: int) -> NDArray[Any]:
    """Return the column of an attribute that no span has."""
    is_double = TYPE_OF[key] == TYPES["double"]
    return np.full(size, np.nan if is_double else MISSING, np.float64 if is_double else np.int64)


def _number(id: bytes) -> int:
    """Return an id as a number; those that readers make are longer."""
    return int.from_bytes(id if len(id) <= ID_BYTES else blake2b(id, digest_size=ID_BYTES).digest(), "big")


STAGE_KEYS: Final = (
    v.CHECKPOINT_ASYNC,
    v.LOGPROB_KIND, v.IDLE_REASON, v.CHECKPOINT_LOAD, v.COMM_TIME, v.COMM_COUNT, v.COMM_HIDDEN, v.CLOCK, v.DEVICE_TIME,
    v.COMM_OPERATION, v.COMM_GROUP, v.COMM_GROUP_SIZE, v.COMM_SEQUENCE, v.COMM_BYTES, v.COMM_ASYNC,
)  # fmt: skip


def parents_in(table: SpanTable) -> Ints:
    """Return the row of each span's parent, or ``NONE``.

    Spans of other libraries are left out: what is inside one gets the nearest stage as its parent.
    """
    parents, is_other = parents_of(table["trace"], table["id"], table["parent"]), ~table["is_own"]
    for _ in range(len(parents) if is_other.any() else 0):
        hit = np.flatnonzero((parents != NONE) & is_other[parents])
        if not len(hit):
            break
        parents[hit] = parents[parents[hit]]
    return np.where(is_other, NONE, parents)


def is_background(table: SpanTable) -> Flags:
    """Return the asynchronous checkpoints."""
    return table.is_text("name", v.CHECKPOINT) & (table[v.CHECKPOINT_ASYNC] == 1)


def in_front(table: SpanTable, parents: Ints) -> Ints:
    """Leave out asynchronous checkpoints and their collectives, but not the staging that delays a step."""
    background = is_background(table)
    if not background.any():
        return parents
    is_staging = table.is_text("name", v.CHECKPOINT_STAGING)
    inside = np.flatnonzero((parents != NONE) & background[parents])
    moved = np.where(is_staging[inside], parents[parents[inside]], NONE)
    parents = parents.copy()
    parents[inside] = moved
    parents[background] = NONE
    return parents


def stage_table(spans: SpanTable, parents: Ints) -> StageTable:
    """Make the forest of some spans.

    Args:
        spans: their table.
        parents: the row of each span's parent, or ``NONE``.
    """
    forest = grow(parents, spans["begin"])
    order = forest.order
    texts = spans.texts.listed
    label_of, labels = _combined(
        [spans["name"], spans[v.LOGPROB_KIND], spans[v.IDLE_REASON], spans[v.CHECKPOINT_LOAD]],
        lambda name, kind, reason, load: label(texts[name], _some(texts, load, kind=kind, reason=reason)),
    )
    is_comm = spans["name"] == spans.texts.number(v.COMM)
    met, meetings = _combined(
        [spans[v.COMM_GROUP], spans[v.COMM_OPERATION], spans[v.COMM_GROUP_SIZE]],
        lambda group, operation, size: (_text(texts, group), _text(texts, operation), max(0, size)),
    )
    size = spans[v.COMM_BYTES]
    shows, said = _combined(
        [spans[v.COMM_OPERATION], spans[v.COMM_ASYNC], spans[v.CLOCK], np.clip(size, -1, 1 << 17),
         np.clip(spans[v.COMM_SEQUENCE], 0, 1), spans[v.COMM_GROUP]],
        lambda operation, async_, clock, bytes, sequence, group: _flags(
            {v.COMM_OPERATION: _text(texts, operation), v.COMM_ASYNC: async_ == 1, v.CLOCK: _text(texts, clock),
             v.COMM_BYTES: bytes, v.COMM_SEQUENCE: sequence, v.COMM_GROUP: _text(texts, group)}
        ),
    )  # fmt: skip
    flags = np.array(said, bool).reshape(-1, 2)[shows]
    host = spans.texts.number("host")
    return StageTable(
        forest=forest,
        label=label_of[order],
        labels=labels,
        begin=spans["begin"][order],
        end=spans["end"][order],
        is_comm=is_comm[order],
        comm_ns=_nanoseconds(spans[v.COMM_TIME])[order],
        comm_count=np.maximum(0, spans[v.COMM_COUNT])[order],
        is_hidden=(spans[v.COMM_HIDDEN] == 1)[order],
        is_host_clock=(spans[v.CLOCK] == host)[order],
        device_ns=_nanoseconds(spans[v.DEVICE_TIME])[order],
        is_met=flags[order, 0],
        shows_waits=flags[order, 1] & is_comm[order],
        met=met[order],
        meetings=meetings,
        sequence=np.maximum(0, spans[v.COMM_SEQUENCE])[order],
    )


def _combined(columns: list[Any], make: Any) -> tuple[Ints, list[Any]]:
    """Compute a value once for each combination of columns; return its number for each row, and the values."""
    first, number_of = combinations(*columns)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    values = [make(*row) for row in rows]
    known = {value: place for place, value in reversed(list(enumerate(values)))}
    places = sorted(set(known.values()))
    at = {place: index for index, place in enumerate(places)}
    shared = np.array([at[known[value]] for value in values], np.int64)
    return shared[number_of], [values[place] for place in places]


def _some(texts: list[str], load: int, **codes: int) -> dict[str, Any]:
    keys = {"kind": v.LOGPROB_KIND, "reason": v.IDLE_REASON}
    found: dict[str, Any] = {keys[name]: texts[code] for name, code in codes.items() if code >= 0}
    return found | {v.CHECKPOINT_LOAD: load == 1}


def _text(texts: list[str], code: int) -> str:
    return texts[code] if code >= 0 else ""


def _flags(attributes: dict[str, Any]) -> tuple[bool, bool]:
    return is_met(attributes), shows_waits(attributes)


def _nanoseconds(time_s: NDArray[np.float64]) -> Ints:
    is_time = (time_s >= 0) & (time_s < LONGEST_S)
    return np.where(is_time, np.rint(np.where(is_time, time_s, 0) * 1e9), NONE).astype(np.int64)


@dataclass(frozen=True, eq=False)
class StepTable:
    """Steps of ranks: what is inside the container of each."""

    stages: StageTable
    within: Within
    is_behind: Flags
    """The spans that delay no step, by place."""


def table_of_steps(steps: Sequence[tuple[SpanView, Sequence[SpanView]]]) -> StepTable:
    """Make a table of steps that were read span by span: the container of each, and other spans of its trace."""
    spans = [span for container, inside in steps for span in (container, *inside)]
    sizes = np.array([1 + len(inside) for _, inside in steps], np.int64)
    return steps_of(table_of_views(spans, Texts(), STAGE_KEYS), np.repeat(np.arange(len(steps)), sizes))


def steps_of(table: SpanTable, step: Ints) -> StepTable:
    """Make a table of steps of ranks. Cost: 2 ms, and 3 us a span.

    Args:
        table: their spans; the first of each step is its container.
        step: the number of the step of each span.
    """
    table.columns["trace"] = step.astype(np.uint64)  # ranks share the ids of traces
    parents = parents_in(table)
    front = in_front(table, parents)
    stages = stage_table(table, front)
    _, first = np.unique(step, return_index=True)
    return StepTable(stages, Within(stages, stages.forest.place[first]), (parents != front)[stages.forest.order])
