"""The ledger of single samples: for frameworks whose processes hand parts of a batch to each other under ids.

The thread of the program only names the place; tensors of the host are read by the flusher, and none of a device. They
must not be changed in place meanwhile. ``analysis/ledger.py`` says what is noted and how it is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from otel_rl import vocabulary as v
from otel_rl.analysis.checksums import MaskSums, TokenSums, wrap
from otel_rl.analysis.ledger import Fault, Passage, SampleSums, inspect
from otel_rl.observing import arrays
from otel_rl.observing.batch import padded
from otel_rl.observing.ledger import INFO, WARN, attributes, points
from otel_rl.observing.passes import LedgerRow
from otel_rl.probes.host_arrays import of_host
from otel_rl.process.state import state
from otel_rl.records import Count, Deferred, Log, Point, Value
from otel_rl.trace.stage import current_stage

MOST_ROWS: Final = 64
"""Samples of one call whose tokens, masks and log-probabilities are read; those whose ids have the lowest checksums."""
MOST_IDS: Final = 16
"""Samples that one fault names."""
Array = Any
Made = Iterator[Log | Count | Point]


@dataclass(frozen=True, slots=True)
class LedgerPlace:
    """Where and when something passes a boundary."""

    boundary: str
    time_ns: int
    attributes: Mapping[str, Value]
    span: tuple[int, int]
    """Ids of the trace and of the stage; zeros if the trace is not recorded."""


def place_of(boundary: str = "") -> LedgerPlace | None:
    """Return the place of the current stage, which is the boundary unless another one is named; None without a stage.

    A rollout may be made in no step, before those that train on it.
    """
    stage = current_stage()
    trace = None if stage is None else stage.trace
    if stage is None or trace is None or not (boundary or stage.name):
        return None
    where: dict[str, Value] = {}
    if trace.is_step:
        loop, _, number = trace.step.rpartition(" ")
        where = {v.LOOP_NAME: loop, v.ITERATION: int(number)}
    span = (trace.trace_id, stage.span_id) if trace.sampled and trace.known else (0, 0)
    return LedgerPlace(boundary or stage.name, state.now(), where, span)


def later(function: Any, *arguments: Any) -> None:
    """Let the flusher call a function that makes records."""
    state.add(Deferred(function, arguments))


# --- rows of a tensor, without a copy of it ---------------------------------------------------------------------------


def is_readable(tensor: Any) -> bool:
    """Return whether a tensor is on the host and of this process alone."""
    return getattr(getattr(tensor, "device", None), "type", "") == "cpu" and not hasattr(tensor, "placements")


class Rows:
    """The rows of a tensor of the host: of one that is padded, or of a nested one with the layout ``jagged``."""

    def __init__(self, tensor: Any) -> None:
        self.offsets: list[int] | None = None
        if tensor.is_nested:
            self.offsets, tensor = tensor.offsets().tolist(), tensor.values()
        self.is_half = str(tensor.dtype) == "torch.bfloat16"  # which numpy does not have
        self.flat: Array = of_host(_bits(tensor.detach()) if self.is_half else tensor)

    @property
    def lengths(self) -> object:
        """Return what is equal of tensors that fit each other."""
        return self.flat.shape if self.offsets is None else self.offsets

    def __getitem__(self, row: int) -> Array:
        found = self.flat[row] if self.offsets is None else self.flat[self.offsets[row] : self.offsets[row + 1]]
        return _of_half(found) if self.is_half else found

    def nonfinite(self) -> list[int]:
        """Return the rows that have a value that is NaN or infinite."""
        import numpy as np

        if self.is_half:
            is_bad = (self.flat & 0x7F80) == 0x7F80
        elif self.flat.dtype.kind != "f" or np.isfinite(_sum(self.flat)):  # a sum takes a tenth of the time
            return []
        else:
            is_bad = ~np.isfinite(self.flat)
        if not is_bad.any():
            return []
        rows = np.unique(np.nonzero(is_bad)[0])
        if self.offsets is not None:
            rows = np.unique(np.searchsorted(self.offsets, rows, "right") - 1)
        return [int(row) for row in rows]


def _bits(tensor: Any) -> Any:
    import torch

    return tensor.view(torch.int16)


def _of_half(bits: Array) -> Array:
    import numpy as np

    return (bits.astype(np.int32) << 16).view(np.float32)


def _sum(values: Array) -> Any:
    import numpy as np

    with np.errstate(all="ignore"):
        return values.sum()


def sums_of(prompt: int, response: int, ids: Array, mask: Array) -> SampleSums:
    """Add up one sample: the ids of its prompt and response, and the mask of the response, which may be padded."""
    import numpy as np

    ids = np.asarray(ids, np.int64)
    with np.errstate(all="ignore"):
        weighted, tail = int(ids @ np.arange(1, len(ids) + 1)), int(ids[-1]) * len(ids) if len(ids) else 0
    true = np.flatnonzero(mask)
    first, last = (int(true[0]), int(true[-1])) if len(true) else (0, 0)
    tokens = TokenSums(wrap(int(ids.sum())), wrap(weighted), wrap(tail), wrap(weighted))
    return SampleSums(
        prompt, response, tokens, MaskSums(response, len(true), int(len(true) > 0), first, last), int(true.sum())
    )


def chosen(ids: Sequence[str]) -> list[int]:
    """Return the rows of which tokens are read: of the same samples the same ones, wherever they pass."""
    rows = range(len(ids))
    if len(ids) <= MOST_ROWS:
        return list(rows)
    return sorted(sorted(rows, key=lambda row: crc32(ids[row].encode()))[:MOST_ROWS])


# --- records ----------------------------------------------------------------------------------------------------------


def samples(place: LedgerPlace, ids: Sequence[str], sums: Iterable[SampleSums]) -> Made:
    """Record what single samples are at a boundary."""
    numbers = [number for one in sums for number in one.packed()]
    if numbers:
        said = {**place.attributes, v.LEDGER_BOUNDARY: place.boundary, v.LEDGER_IDS: list(ids), v.LEDGER_SUMS: numbers}
        yield Log(v.LEDGER_SAMPLES, place.time_ns, said, place.boundary, INFO, *place.span)


def remasked(place: LedgerPlace) -> Made:
    """Record that this run changes masks on purpose, so that nothing is said of it."""
    said = {**place.attributes, v.LEDGER_BOUNDARY: place.boundary}
    yield Log(v.LEDGER_SAMPLES, place.time_ns, said, f"{place.boundary}: masks change on purpose", INFO, *place.span)


def mismatch(place: LedgerPlace, fault: Fault, ids: Sequence[str]) -> Made:
    """Record a fault that some samples have, if there are any."""
    named = sorted(set(ids))
    if named:
        more = f" and {len(named) - MOST_IDS} more" if len(named) > MOST_IDS else ""
        body = f"{place.boundary}: {fault.value}: {', '.join(named[:MOST_IDS])}{more}"
        yield from _mismatch(place, fault, body, {v.LEDGER_IDS: named[:MOST_IDS]})


def _mismatch(place: LedgerPlace, fault: Fault, body: str, named: Mapping[str, Value]) -> Made:
    said = {**place.attributes, v.LEDGER_BOUNDARY: place.boundary, v.LEDGER_FAULT: fault.value, **named}
    yield Log(v.LEDGER_MISMATCH, place.time_ns, said, body, WARN, *place.span)
    yield Count(v.LEDGER_FAULTS, 1, ((v.LEDGER_FAULT, fault.value),))


def passage(place: LedgerPlace, rows: int, **found: Any) -> Made:
    """Record what a process found in a batch as a whole, its faults, and its gauges."""
    number = place.attributes.get(v.ITERATION, 0)
    row = Passage(step=number if isinstance(number, int) else 0, rank=0, boundary=place.boundary, **found)
    yield from points(row, place.time_ns)
    if row.nonfinite or row.misfit or row.logprobs is not None:
        said = {**place.attributes, **attributes(LedgerRow(row, rows))}
        said.pop(v.LEDGER_MASK, None)  # ranks have other samples each time: only single ones are compared
        yield Log(v.LEDGER, place.time_ns, said, place.boundary, INFO, *place.span)
    for fault in inspect(row):
        yield from _mismatch(place, fault, f"{place.boundary}: {fault.value}", {})


def pairs_of(rolled: Rows, trained: Rows, mask: Rows, rows: Sequence[int]) -> Any:
    """Compare log-probabilities of some rows; None where the two do not fit."""
    tables = [padded([one[row] for row in rows]) for one in (rolled, trained, mask)]
    left, right, true = (table.array for table in tables)
    return arrays.pairs(left, right, true != 0) if left.shape == right.shape == true.shape and left.size else None
