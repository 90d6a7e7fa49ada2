"""What goes wrong with data, updates, requests and what was recorded: rules of HEALTH."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from math import inf
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.analysis.ledger import Fault
from otel_rl.journal.write import MOVED
from otel_rl.report.data.details import LedgerMismatch, RequestRow
from otel_rl.report.data.finding import Value
from otel_rl.report.data.health_rows import HealthRows
from otel_rl.report.data.ranks import Rank
from otel_rl.report.findings.rule import Found, rank_name, rule, table, whole
from otel_rl.runs.format import RECORDS, count, plural

ROW: Final = 8
"""No update is made if the last so many steps skipped theirs: a loss scale has settled by then."""
SKIPPED: Final = 0.05
FAILED: Final = 0.01
"""Shares from which on skipped updates and failed requests are a warning."""
HALF: Final = 0.5
FEW: Final = 3
"""Fewer skipped updates or failed requests say nothing."""
PREEMPTED: Final = 0.05
"""So many of the requests are computed a second time."""
BEFORE: Final = 16
"""Steps that show what is usual: of batches of one sample whose lengths differ widely, fewer do not."""
JUMP: Final = 3.0
"""Answers become longer by some percent a step; three times the most of all steps before is another batch."""
REASONS: Final = {
    "name_taken": "their name is reserved",
    "too_many_names": "there are too many names",
    MOVED: "their files were moved or removed",
}
"""Reasons in plain words; docs/failures.md has the others."""
CHECKED: Final = "the steps that the ledger checked"
FAULT: Final = (
    "({boundary}), {who}[, {sample}][ and {samples:plural more sample}], in {steps:plural step}, first in step {first}."
)
REQUESTS_FAIL: Final[dict[str, Any]] = {
    "reads": (v.REQUESTS, v.REQUEST_ERRORS, v.TIMED_OUT),
    "window": "all steps",
    "sentence": "{bad:count} of {count:count} requests of {engine} failed ({share:percent}), {timed_out:count} of them "
    "timed out.",
    "advice": "Read the log of the engine.",
}


@rule(
    "alarm",
    reads=(v.LEDGER,),
    condition="tokens, masks or logprobs change between rollout and training",
    window=CHECKED,
    sentence=f"Training does not use what was sampled: {{fault}} {FAULT}",
    advice="Compare the batch at both ends; otel-rl report --json lists the steps.",
)
def other_data(rows: HealthRows) -> Found | None:
    return _fault(rows, lambda fault: fault not in (Fault.OTHER_LOGPROBS.value, Fault.NONFINITE.value))


@rule(
    "warning",
    reads=(v.LEDGER,),
    condition="rollout and training differ in numbers of the same tokens",
    window=CHECKED,
    sentence=f"{{fault:Text}} {FAULT}",
    advice="Compare precision and kernels of engine and trainer, and the age of the engine's weights.",
)
def logprobs_apart(rows: HealthRows) -> Found | None:
    return _fault(rows, lambda fault: fault == Fault.OTHER_LOGPROBS.value)


@rule(
    "warning",
    reads=(v.LEDGER,),
    condition="log-probabilities, rewards, advantages or losses are NaN or infinite",
    window=CHECKED,
    sentence=f"{{fault:Text}} {FAULT}",
    advice="Look at the batch of that step there, and at what computed the numbers.",
)
def numbers_nonfinite(rows: HealthRows) -> Found | None:
    return _fault(rows, lambda fault: fault == Fault.NONFINITE.value)


def _fault(rows: HealthRows, is_wanted: Callable[[str], bool]) -> Found | None:
    """Return the fault of most steps, with the ranks that have it."""
    groups: defaultdict[tuple[str, str, tuple[Rank, ...]], list[LedgerMismatch]] = defaultdict(list)
    for one in rows.ledger.mismatches:
        if is_wanted(one.fault):
            groups[one.fault, one.boundary, tuple(one.ranks)].append(one)
    if not groups:
        return None
    (fault, boundary, ranks), mismatches = max(groups.items(), key=lambda item: len(item[1]))
    sample = next((sample for one in mismatches for sample in one.samples), None)
    samples = sum(one.num_samples for one in mismatches) - 1
    first = min(one.step for one in mismatches)
    values: dict[str, Value | None] = {
        "fault": fault,
        "boundary": boundary,
        "who": [rank_name(rank, rows.ranks) for rank in ranks],
        "sample": sample,
        "samples": samples if sample and samples > 0 else None,
        "first": first,
        "steps": len({one.step for one in mismatches}),
    }
    return Found(values, weight=len(mismatches), step=first, rank=next(iter(ranks), None))


@rule(
    "alarm",
    reads=(v.OPTIMIZER_SKIPPED,),
    condition=f"the optimizer skipped its updates in the last {ROW} steps or more",
    window="the last steps",
    sentence="The optimizer has skipped every update since step {since} ({row:plural step}): nothing is learned.",
    advice="Look for infinite or NaN gradients; a loss scale that falls to 0 has the same cause.",
)
def no_update(rows: HealthRows) -> Found | None:
    updates = rows.updates
    if updates is None or updates.last_row < ROW:
        return None
    return Found({"row": updates.last_row, "since": updates.since}, weight=updates.last_row, since=updates.since)


@rule(
    "warning",
    reads=(v.OPTIMIZER_SKIPPED,),
    condition=f"the optimizer skipped {whole(SKIPPED)} of the updates, and {FEW} or more",
    window="all steps of the last attempt",
    sentence="The optimizer skipped its update in {skipped} of {steps:plural step}, first in step {since}.",
    advice="Look for infinite or NaN gradients.",
)
def updates_skipped(rows: HealthRows, *, limit: float = SKIPPED) -> Found | None:
    updates = rows.updates
    if updates is None or updates.last_row >= ROW or updates.skipped < max(FEW, limit * updates.steps):
        return None
    values = {"skipped": updates.skipped, "steps": updates.steps, "since": updates.since}
    return Found(values, step=updates.since)


@rule("alarm", condition=f"{whole(HALF)} of the requests of an engine fail or time out", **REQUESTS_FAIL)
def requests_fail(rows: HealthRows) -> Found | None:
    return _failing(rows, HALF, inf)


@rule(
    "warning",
    condition=f"{whole(FAILED)} of the requests of an engine fail or time out, and {FEW} or more",
    **REQUESTS_FAIL,
)
def some_requests_fail(rows: HealthRows, *, limit: float = FAILED) -> Found | None:
    return _failing(rows, limit, HALF)


def _failing(rows: HealthRows, low: float, high: float) -> Found | None:
    """Return the engine of which most requests fail, as a share between these limits."""
    counts = [(row, row.errors + row.timed_out) for row in _of_training(rows)]
    bad = [(row, number) for row, number in counts if number >= FEW and low <= number / row.count < high]
    if not bad:
        return None
    row, number = max(bad, key=lambda pair: pair[1] / pair[0].count)
    share = number / row.count
    return Found(
        {"engine": _engine(row), "bad": number, "count": row.count, "share": share, "timed_out": row.timed_out}, share
    )


@rule(
    "warning",
    reads=(v.REQUESTS, v.ABORTED, v.SAMPLE_LAG),
    condition=f"{whole(FAILED)} of the requests of an engine are aborted, and {FEW} or more; not where rollouts "
    "outlive their step",
    window="all steps",
    sentence="{aborted:count} of {count:count} requests of {engine} were aborted ({share:percent}).",
    advice="Find who aborts them, and what training makes of answers that are cut.",
)
def requests_aborted(rows: HealthRows, *, limit: float = FAILED) -> Found | None:
    many = [row for row in _of_training(rows) if row.aborted >= max(FEW, limit * row.count)]
    if rows.is_ahead or not many:
        return None
    row = max(many, key=lambda row: row.aborted / row.count)
    share = row.aborted / row.count
    return Found({"engine": _engine(row), "aborted": row.aborted, "count": row.count, "share": share}, share)


@rule(
    "warning",
    reads=(v.PREEMPTIONS, v.ENGINE_PREEMPTIONS, v.REQUESTS, v.KV_PEAK),
    condition=f"an engine preempts {whole(PREEMPTED)} of its requests, and {FEW} or more: they are computed again",
    window="all steps",
    sentence="{preempted:plural preemption} in {count:plural request} of {engine}: their tokens are computed again[; "
    "its KV cache was up to {peak:percent} full].",
    advice="Give the engine more memory for its KV cache, or let fewer requests run at once.",
)
def engine_full(rows: HealthRows, *, limit: float = PREEMPTED) -> Found | None:
    """Find the engine that preempts the largest share of its requests."""
    counts: Counter[str] = Counter()
    preempted = Counter(rows.preempted)
    for row in rows.requests:
        counts[row.engine] += row.count
        preempted[row.engine] += row.preemptions or 0
    full = [name for name, number in preempted.items() if number >= max(FEW, limit * counts[name]) and counts[name]]
    if not full:
        return None
    engine = max(full, key=lambda name: preempted[name] / counts[name])
    share = preempted[engine] / counts[engine]
    peak = rows.kv_cache_peak if len(counts) == 1 else None
    values: dict[str, Value | None] = {
        "engine": engine or "the engine",
        "preempted": preempted[engine],
        "count": counts[engine],
    }
    return Found({**values, "share": share, "peak": peak}, share)


@rule(
    "warning",
    reads=(v.TOKENS, v.TOKENS_PADDING),
    condition=f"a step trains {JUMP:.0f} times the tokens of any step before, with their padding, on one rank",
    window=f"all steps of the last attempt but the first {BEFORE}",
    sentence="Step {step} trains {tokens:count} tokens on {who}[, and {others:plural further step} likewise]: no step "
    "before had more than {before:count}.",
    advice="Check the limits of packing and of dynamic batches, and the lengths of its samples: memory follows them.",
)
def tokens_jump(rows: HealthRows, *, times: float = JUMP) -> Found | None:
    """Find a batch that is far larger than all before it."""
    most, jumped = 0, None
    for place, one in enumerate(rows.step_tokens):
        if place >= BEFORE and one.tokens >= times * most:
            jumped = one
            break
        most = max(most, one.tokens)
    if jumped is None or not most:
        return None
    others = sum(one.step > jumped.step and one.tokens >= times * most for one in rows.step_tokens)
    who = rank_name(jumped.rank, rows.ranks)
    values: dict[str, Value | None] = {"step": jumped.step, "tokens": jumped.tokens, "before": most, "who": who}
    values["others"] = others or None
    return Found(values, jumped.tokens / most, step=jumped.step, rank=jumped.rank)


def _of_training(rows: HealthRows) -> list[RequestRow]:
    return [row for row in rows.requests if row.count and not row.is_evaluation]


def _engine(row: RequestRow) -> str:
    return row.engine or "the engine"


@rule(
    "warning",
    reads=(v.SELF_DROPPED, v.SELF_ERRORS),
    condition="records were dropped, errors happened inside otel_rl, or a journal is damaged",
    window="all steps",
    sentence="Lost: {lost}. What depends on them may be too low.",
    advice="`otel-rl doctor RUN` says more, and docs/failures.md names the causes.",
)
def telemetry_lost(rows: HealthRows) -> Found | None:
    lost = list(_lost(rows))
    return Found({"lost": lost}) if lost else None


def _lost(rows: HealthRows) -> Iterator[str]:
    for loss in rows.losses:
        if loss.what == "dropped":
            reason = REASONS.get(loss.reason, loss.reason)
            yield f"{plural(loss.count, RECORDS.get(loss.signal, 'record'))} ({reason})"
        elif loss.what == "error":
            yield f"what {plural(loss.count, 'error')} inside otel_rl cost ({loss.reason})"
    if rows.unwritten:
        who = "the process" if rows.unwritten == 1 else f"{rows.unwritten} processes"
        yield f"what {who} recorded last, which ended before all was written"
    if rows.damage:
        size = sum(row.bytes for row in rows.damage)
        yield f"{count(size)} unreadable bytes of {plural(len(rows.damage), 'journal')}"
    for signal, number in sorted(rows.refused.items()):
        yield f"{plural(number, RECORDS.get(signal, 'record'))} that the server refused"


MISHAPS: Final = table(
    no_update,
    other_data,
    requests_fail,
    logprobs_apart,
    numbers_nonfinite,
    updates_skipped,
    some_requests_fail,
    requests_aborted,
    engine_full,
    tokens_jump,
    telemetry_lost,
)
