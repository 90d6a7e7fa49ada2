"""The ledger's records: a log record for each row, one for each fault, a counter and two gauges."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan

from otel_rl import vocabulary as v
from otel_rl.analysis.checksums import Pairs
from otel_rl.analysis.ledger import Passage, check
from otel_rl.observing import arrays
from otel_rl.observing.batch import BatchPart
from otel_rl.observing.passes import BatchCall, LedgerRow, SharedBatch
from otel_rl.process.state import Trace, state
from otel_rl.records import Attributes, Count, Log, Point, Value
from otel_rl.trace.stage import Stage

LOGPROBS = frozenset({"logprobs", "old_logprobs", "ref_logprobs"})
NOT_UPDATED = frozenset({v.SAMPLE, v.LOGPROB})
"""Stages in which the policy is that of the rollout."""
WARN = 13
INFO = 9


def call(
    part: BatchPart,
    boundary: str,
    parts: frozenset[str],
    *,
    model: object = None,
    lenient: frozenset[str] = frozenset(),
    numbering: str = "",
    stage: str = "",
) -> BatchCall:
    """Compute what one batch adds to the ledger."""
    ids, mask = part.ids_BT, part.mask_BT
    is_counted, is_compared = "numbers" in parts, "tokens" in parts and not part.is_packed
    has_ids = is_compared and ids is not None and mask is not None
    pairs = _pairs(part) if is_counted else None  # first: it may find that the two do not fit
    return BatchCall(
        boundary=boundary,
        rows=part.samples,
        model=model,
        logprobs=LOGPROBS.intersection(part.floats),
        samples=None if part.numbers_B is None else arrays.sample_sums(part.numbers_B),
        kind=arrays.kind_of(ids) if has_ids else "",
        is_response=part.responses is not None,
        tokens=arrays.token_sums(ids, mask, part.numbers_B) if has_ids else None,
        mask=arrays.mask_sums(mask) if is_compared and mask is not None else None,
        numbering=numbering or ("place" if part.numbers_B is None else "number"),
        nonfinite=_nonfinite(part, lenient) if is_counted else 0,
        misfit=len(part.misfit) if is_counted else 0,
        pairs=pairs,
        is_updated=pairs is not None and "logprobs" in part.floats and (stage or boundary) not in NOT_UPDATED,
    )


def _nonfinite(part: BatchPart, lenient: frozenset[str]) -> int:
    return sum(arrays.nonfinite(*one) for key, one in part.floats.items() if key not in lenient)


def _pairs(part: BatchPart) -> Pairs | None:
    """Compare the rollout's logprobs with those of training, or of the policy before it, where the batch has both."""
    rolled = part.floats.get("rollout_logprobs")
    trained = part.floats.get("logprobs") or part.floats.get("old_logprobs")
    if rolled is None or trained is None or rolled[1] is None or rolled[0].ndim != 2:
        return None
    widths = rolled[0].shape[1], trained[0].shape[-1]
    if trained[0].ndim != 2 or rolled[0].shape[0] != trained[0].shape[0] or max(widths) - min(widths) > 1:
        part.misfit.append("rollout_logprobs")
        return None
    cut = [slice(width - min(widths), None) for width in widths]  # the first token has no prediction
    return arrays.pairs(rolled[0][:, cut[0]], trained[0][:, cut[1]], rolled[1][:, cut[0]])


def records(
    group: SharedBatch, trace: Trace, container: Stage | None, time_ns: int, *, is_over: bool
) -> Iterator[Log | Count | Point]:
    """Return the rows of a batch with news that have not been given yet, and the faults that they show."""
    group.has_news = False
    rows = group.rows(state.identity.rank, is_over=is_over)
    place: dict[str, Value] = {v.ITERATION: group.step, v.LOOP_NAME: group.loop}
    where = (trace.trace_id, container.span_id) if trace.sampled and trace.known and container is not None else (0, 0)
    for one in rows[group.written :]:
        if one.row == Passage(step=one.row.step, rank=one.row.rank, boundary=one.row.boundary):
            continue  # nothing in it could be wrong
        yield Log(v.LEDGER, time_ns, {**place, **attributes(one)}, one.row.boundary, INFO, *where)
        yield from points(one.row, time_ns)
    if len(rows) == group.written:
        return
    group.written = len(rows)
    for found in check(one.row for one in rows):
        if (found.boundary, found.fault.value) in group.faults:
            continue
        group.faults.add((found.boundary, found.fault.value))
        body = f"step {group.step}, rank {state.identity.rank}, {found.boundary}: {found.fault.value}"
        said = {**place, v.LEDGER_BOUNDARY: found.boundary, v.LEDGER_FAULT: found.fault.value}
        yield Log(v.LEDGER_MISMATCH, time_ns, said, body, WARN, *where)
        yield Count(v.LEDGER_FAULTS, 1, ((v.LEDGER_FAULT, found.fault.value),))


def attributes(of: LedgerRow) -> Attributes:
    row = of.row
    found: dict[str, Value] = {
        v.LEDGER_BOUNDARY: row.boundary,
        v.LEDGER_ROWS: of.samples,
        v.LEDGER_NONFINITE: row.nonfinite,
    }
    if row.shape is not None:
        found[v.LEDGER_SHAPE] = row.shape
    if row.misfit:
        found[v.LEDGER_MISFIT] = row.misfit
    if row.tokens is not None:
        sums = row.tokens
        found[v.LEDGER_TOKENS] = [sums.plain, sums.weighted, sums.tail, sums.ordered]
    if row.mask is not None:
        mask = row.mask
        found[v.LEDGER_MASK] = [mask.size, mask.true, mask.rows, mask.first, mask.last]
    if row.is_updated:
        found[v.LEDGER_UPDATED] = True
    if row.logprobs is not None:
        one = row.logprobs
        correlations = [nan if value is None else value for value in one.correlations]
        found[v.LEDGER_LOGPROBS] = [
            float(one.count), one.mean_abs, one.mean, one.max_abs, float(one.zeros), *correlations
        ]  # fmt: skip
    return found


def points(row: Passage[int], time_ns: int) -> Iterator[Point]:
    """Return the gauges of a row."""
    where = (v.LEDGER_BOUNDARY, row.boundary)
    if row.logprobs is not None and row.logprobs.count:
        yield Point(v.LOGPROB_DIFFERENCE, row.logprobs.mean_abs, time_ns, (where,))
        yield Point(v.LOGPROB_MAX_DIFFERENCE, row.logprobs.max_abs, time_ns, (where,))
    if row.mask is not None and row.mask.ratio is not None:
        yield Point(v.MASK_RATIO, row.mask.ratio, time_ns, (where,))
