"""The rows that the rules of HEALTH read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.report.data.details import OpenStageRow
from otel_rl.report.data.health_rows import (
    EndedEarly,
    FailedRank,
    HealthRows,
    LateLoop,
    RankMemory,
    StepTokens,
    Updates,
)
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Attempt, Failure
from otel_rl.report.findings.causes import by_cause, called_error
from otel_rl.report.fold.folded_spans import StepRecord, sums_of
from otel_rl.report.read.average import stages_of_step
from otel_rl.report.read.single_controller.guest_steps import DRIVER
from otel_rl.runs.spans import text

if TYPE_CHECKING:
    from otel_rl.report.source import Source

PLANNED: Final = v.SETTINGS_STEPS.removeprefix(v.SETTINGS)
ENDED: Final = ("failed", "killed", "unwritten")
"""States of attempts that an exception may have ended."""
NOT_TAKEN: Final = ("rejected", "refused")


def health_rows(source: Source) -> HealthRows:
    last = source.attempts[-1].id if source.attempts else ""
    failures = _failures(source, last)
    return HealthRows(
        attempt=source.attempts[-1] if source.attempts else None,
        planned=int(source.settings.get(PLANNED, 0)),
        ranks=source.ranks,
        missing_ranks=source.missing_ranks,
        memory=list(_memory(source, last)),
        stalls=source.stalls,
        actions=source.actions,
        open_stages=source.open_stages,
        failures=failures,
        died=_died(source, failures),
        ended_early=[_ended_early(source, one) for one in source.attempts[:-1] if one.state in ("failed", "killed")],
        disagreements=[row for row in source.disagreements if row.attempt == last],
        ledger=source.ledger,
        losses=source.losses,
        damage=source.damage,
        unwritten=len(source.unwritten),
        refused=_refused(source),
        updates=_updates(source, last),
        requests=source.requests.rows,
        is_ahead=source.is_ahead,
        preempted={one.engine: one.count for one in source.requests.engine_preemptions},
        kv_cache_peak=source.requests.kv_cache_peak,
        step_tokens=_step_tokens(source, last),
        devices=source.devices,
        late_loops=[LateLoop(*late) for late in source.points.loops.latest(last, source.found.steps)],
    )


def _memory(source: Source, attempt: str) -> Iterable[RankMemory]:
    """Return the memory of the processes of an attempt."""
    devices = {
        text(point.attributes, v.HW_ID): round(point.value)
        for point in source.points.machine.points()
        if point.name == v.GPU_MEMORY_LIMIT
    }
    for (of, rank, kind), known in source.found.growth.ranks.items():
        if of != attempt or not known.bytes:
            continue
        rows, (stage, share) = known.over_steps(), known.stage()
        host, is_host = source.found.hosts[attempt, rank], kind == "host rss"
        yield RankMemory(
            rank=rank,
            kind=kind,
            place=host.name if is_host else host.device or f"{rank.role} {rank.rank}",
            limit=host.memory_limit if is_host else devices.get(host.device, 0),
            steps=[step for step, _ in rows],
            bytes=[size for _, size in rows],
            stage=stage,
            share=share,
            is_rank=(attempt, rank) in source.found.guests if attempt in source.found.led else rank in source.ranks,
        )


def _failures(source: Source, last: str) -> list[FailedRank]:
    """Return the failures that were survived, and those that ended the last attempt."""
    ends = {one.id: _ends(source, one.id) for one in source.attempts if one.state in ENDED}
    earlier = [failure for attempt, of_attempt in ends.items() if attempt != last for failure in of_attempt]
    failures = [
        _failed(source, one, is_end=one in ends.get(last, ())) for one in source.found.failures if one not in earlier
    ]
    return failures + (_outside(source, last, ends[last]) if last in ends else [])


def _is_called(source: Source, one: Failure) -> bool:
    """Return whether it ended a call, or a rollout of a driver, and no step."""
    if one.attempt not in source.found.led:
        return one.rank not in source.ranks
    return one.rank.role != DRIVER or one in source.found.failed_calls


def _failed(source: Source, one: Failure, *, is_end: bool) -> FailedRank:
    return FailedRank(
        rank=one.rank,
        step=one.step,
        stage=one.stage,
        error=one.error,
        is_end=is_end,
        is_called=_is_called(source, one),
        follows=one.follows,
        host=source.found.hosts[one.attempt, one.rank].name,
    )


def _outside(source: Source, attempt: str, ends: Sequence[Failure]) -> list[FailedRank]:
    """Return the failures that ended an attempt for ranks that were in no step."""
    ranks = {one.rank for one in ends}
    return [
        FailedRank(
            rank=one.rank,
            step=None,
            stage=one.stage,
            error=one.error,
            is_end=True,
            follows=one.follows,
            phase=one.phase,
            host=source.found.hosts[one.attempt, one.rank].name,
        )
        for one in source.found.ended_outside(attempt)
        if one.rank not in ranks
    ]


def _ended_early(source: Source, attempt: Attempt) -> EndedEarly:
    """Return how an attempt ended, with the exception that was the cause."""
    ends = _ends(source, attempt.id)
    failures = [_failed(source, one, is_end=True) for one in ends] + _outside(source, attempt.id, ends)
    causes = by_cause(failures) if attempt.state == "failed" else []
    return EndedEarly(attempt, next(iter(causes), None))


def _ends(source: Source, attempt: str) -> list[Failure]:
    """Return the failures that ended an attempt: in the last step of each rank, and in calls in it."""
    records = stages_of_step(source.found.steps)
    steps = {record.rank: record.key for record in records if record.attempt == attempt}
    found = source.found
    of_attempt = [one for one in found.failures if one.attempt == attempt]
    failures = [one for one in of_attempt if one not in found.survived]
    ends = [one for one in failures if (one.attempt, one.loop, one.step) == steps.get(one.rank)]
    passed_on = {(one.loop, one.step, called_error(one.error)) for one in ends if one.follows}
    called = {(one.loop, one.step) for one in ends if one.follows == "failure" and not called_error(one.error)}
    lost = {(one.loop, one.step) for one in ends if one.follows == "loss"}
    last = {(one.loop, one.step) for one in ends}
    chosen = {
        one
        for one in failures
        if one in ends
        or (one in found.passed_on and (one.loop, one.step) in last)
        or (one.loop, one.step, one.error) in passed_on
        or ((one.loop, one.step) in called and (attempt, one.rank) in found.guests)
        or (one.follows == "loss" and (one.loop, one.step) in lost)
    }
    chosen |= {one for end in ends for one in _of_step_before(end, of_attempt)}
    return [one for one in of_attempt if one in chosen]


def _of_step_before(end: Failure, failures: Sequence[Failure]) -> list[Failure]:
    """Return the last failure of a rollout that a driver hears of only in the step after it, as it may run ahead."""
    error = called_error(end.error)
    alike = [one for one in failures if one.error == error and one.loop == end.loop and one.rank != end.rank]
    is_known = any(one.step == end.step for one in alike)
    return [] if is_known else [one for one in alike if one.step == end.step - 1][-1:]


def _died(source: Source, failures: Sequence[FailedRank]) -> list[OpenStageRow]:
    """Return the processes that died; without an open stage that says where, nothing is known of the place."""
    last = source.attempts[-1] if source.attempts else None
    if last is None or last.state not in ("failed", "killed"):
        return []
    ends = [one for one in failures if one.is_end]
    rows = [row for row in source.open_stages if not row.is_alive and row.attempt == last.id]
    if ends and all(one.follows == "loss" for one in ends):
        rows = _before(source, _ends(source, last.id), rows)
    elif ends:  # what is called is ended with its driver
        ranks = {record.rank for record in source.found.steps if record.attempt == last.id and not record.is_guest}
        rows = [row for row in rows if Rank(row.role, row.rank) in ranks]
    rows.sort(key=lambda row: row.role != DRIVER)
    rows.sort(key=lambda row: row.collective is not None)  # whose peer is gone waits for it until it is killed, too
    failed = {one.rank for one in ends}
    return [row for row in rows if Rank(row.role, row.rank) not in failed]


def _before(source: Source, ends: Sequence[Failure], rows: Sequence[OpenStageRow]) -> list[OpenStageRow]:
    """Leave out who gave a sign of life after an exception had ended a step on its host: it was ended after that."""
    hosts = defaultdict(str, {key: host.name for key, host in source.found.hosts.items()})
    failed = {(one.attempt, one.rank, one.loop, one.step) for one in ends}
    ended_ns: defaultdict[str, float] = defaultdict(lambda: inf)
    for record in source.found.steps:
        host = hosts[record.attempt, record.rank]
        if (record.attempt, record.rank, record.step.loop, record.step.iteration) in failed:
            ended_ns[host] = min(ended_ns[host], record.step.end_ns)
    return [row for row in rows if _seen_ns(row) <= ended_ns[hosts[row.attempt, Rank(row.role, row.rank)]]]


def _seen_ns(row: OpenStageRow) -> float:
    """Return the last sign of life of a process that died."""
    return row.since_ns + row.open_s * 1e9


def _refused(source: Source) -> dict[str, int]:
    """Return what the server did not take of what was sent; what was left out for room is still in the journal."""
    counts: Counter[str] = Counter()
    for point in source.points.machine.points():
        if point.name == v.SELF_SHIPPED and text(point.attributes, v.OUTCOME) in NOT_TAKEN:
            counts[text(point.attributes, v.SIGNAL)] += round(point.value)
    return {signal: number for signal, number in counts.items() if number}


def _updates(source: Source, attempt: str) -> Updates | None:
    """Return the rank of an attempt that skipped most updates; ranks skip them together, as a rule."""
    ranks: defaultdict[Rank, list[StepRecord]] = defaultdict(list)
    for record in source.of_ranks.finished:
        if record.attempt == attempt:
            ranks[record.rank].append(record)
    found = [_updates_of(sorted(records, key=attrgetter("step"))) for records in ranks.values()]
    return max(found, key=lambda one: (one.last_row, one.skipped), default=None)


def _step_tokens(source: Source, attempt: str) -> list[StepTokens]:
    """Return the tokens of the training forwards of each step, of the rank that has most; of the loop of most steps."""
    loops: defaultdict[str, dict[int, StepTokens]] = defaultdict(dict)
    work = sums_of(source.of_ranks.finished).work
    rows = np.array([work.forward_tokens, work.padding_tokens]).T.tolist()
    for record, (forward, padding) in zip(source.of_ranks.finished, rows, strict=True):
        if record.attempt == attempt and forward:
            tokens = forward + padding
            known = loops[record.step.loop].get(record.step.iteration)
            if known is None or tokens > known.tokens:
                step = record.step.iteration
                loops[record.step.loop][step] = StepTokens(step, tokens, record.rank)
    steps = max(loops.values(), key=len, default={})
    return [steps[step] for step in sorted(steps)]


def _updates_of(records: list[StepRecord]) -> Updates:
    skipped = [record for record in records if record.skipped]
    row = list(takewhile(lambda record: record.skipped, reversed(records)))
    first = row[-1:] or skipped[:1]
    return Updates(
        steps=len(records),
        skipped=len(skipped),
        last_row=len(row),
        since=first[0].step.iteration if first else 0,
    )
