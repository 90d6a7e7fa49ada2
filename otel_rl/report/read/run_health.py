"""What the rules of health read, gathered from a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING, Final, Literal

from otel_rl import vocabulary as v
from otel_rl.analysis.ledger import Fault as Mismatch
from otel_rl.journal.write import MOVED
from otel_rl.report.data.details import LedgerMismatch, OpenStageRow, StallRow
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Attempt, Failure, Loss, MemoryKind
from otel_rl.report.findings.causes import Died, Failed, by_cause, called_error, place
from otel_rl.report.findings.memory import Of, RankMemory
from otel_rl.report.findings.mishaps import DataFault, Hang, Health, LateLoop, RequestsOf, Stalled, Updates
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.read.average import stages_of_step
from otel_rl.report.read.single_controller.guest_steps import DRIVER
from otel_rl.report.sections.caveats import other_numbers
from otel_rl.report.sections.ledger_faults import sample_names
from otel_rl.runs.format import count, listed, plural
from otel_rl.runs.role_words import role_in_words
from otel_rl.runs.spans import is_container, text

if TYPE_CHECKING:
    from otel_rl.report.source import Source

PLANNED: Final = v.SETTINGS_STEPS.removeprefix(v.SETTINGS)
RECORDS: Final = {"traces": "span", "metrics": "metric point", "logs": "log record"}
OF: Final[dict[MemoryKind, Of]] = {"host rss": "host", "device allocated": "device", "device reserved": "reserved"}
REASONS: Final = {
    "name_taken": "their name is reserved",
    "too_many_names": "there are too many names",
    MOVED: "their files were moved or removed",
}
"""Reasons in plain words; docs/failures.md has the others."""
ENDED: Final = ("failed", "killed", "unwritten")
"""States of attempts that an exception may have ended."""
CALLERS_WAITS: Final = (f"{v.IDLE} queue", f"{v.IDLE} controller")
"""Waits of a driver and of its ranks for what others do."""
NOT_TAKEN: Final = ("rejected", "refused")
KINDS: Final[dict[str, Literal["numbers", "nonfinite"]]] = {
    Mismatch.OTHER_LOGPROBS.value: "numbers",
    Mismatch.NONFINITE.value: "nonfinite",
}
"""Faults with which training still uses the tokens that were sampled."""


def health(source: Source) -> Health:
    last = source.attempts[-1] if source.attempts else None
    disagreeing = [row for row in source.disagreements if last is not None and row.attempt == last.id]
    failures = _failures(source)
    return Health(
        steps=last.steps if last is not None else 0,
        planned=int(source.settings.get(PLANNED, 0)),
        memory=list(_memory(source)),
        stalls=[_stalled(source, row) for row in source.stalls],
        hangs=[_hang(source, row) for row in source.open_stages if row.is_hanging],
        failures=failures,
        died=_died(source, failures),
        is_interrupted=last is not None and last.state == "interrupted",
        is_moved=last is not None and last.state == "moved",
        ended_early=[_ended_early(source, one) for one in source.attempts[:-1] if one.state in ("failed", "killed")],
        ranks=len(source.ranks),
        missing_ranks=source.missing_ranks,
        disagreeing=sum(row.steps for row in disagreeing),
        compared=sum(row.compared for row in disagreeing),
        other_numbers=other_numbers(disagreeing[0], lambda rank: _name(source, rank)) if disagreeing else "",
        faults=_faults(source),
        lost=[*_losses(source.losses), *_unwritten(source), *_damage(source), *_not_taken(source)],
        updates=_updates(source),
        requests=list(_requests(source)),
        late_loops=list(_late_loops(source)),
    )


def _late_loops(source: Source) -> Iterable[LateLoop]:
    last = source.attempts[-1].id if source.attempts else ""
    for rank, lag_s, step in source.points.loops.latest(last, source.found.steps):
        yield LateLoop(who=_name(source, rank), lag_s=lag_s, step=step)


def _requests(source: Source) -> Iterable[RequestsOf]:
    outlives = any(series.name == v.SAMPLE_LAG and series.high for series in source.series)
    for row in source.requests.rows:
        if not row.is_evaluation:
            yield RequestsOf(
                engine=row.engine,
                count=row.count,
                errors=row.errors,
                timed_out=row.timed_out,
                aborted=0 if outlives else row.aborted,
            )


def _name(source: Source, rank: Rank) -> str:
    role = "rank" if len({one.role for one in source.ranks}) < 2 else role_in_words(rank.role)
    return f"{role} {rank.rank}"


def _memory(source: Source) -> Iterable[RankMemory]:
    """Return the memory of the processes of the last attempt."""
    last = source.attempts[-1].id if source.attempts else ""
    devices = {
        text(point.attributes, v.HW_ID): round(point.value)
        for point in source.points.machine.points()
        if point.name == v.GPU_MEMORY_LIMIT
    }
    for (attempt, rank, kind), known in source.found.growth.ranks.items():
        if attempt != last or not known.bytes:
            continue
        rows, (stage, share) = known.over_steps(), known.stage()
        host, who = source.found.hosts[attempt, rank], _name(source, rank)
        is_host = kind == "host rss"
        yield RankMemory(
            who=who,
            of=OF[kind],
            place=host.name if is_host else host.device or who,
            limit=host.memory_limit if is_host else devices.get(host.device, 0),
            steps=[step for step, _ in rows],
            bytes=[size for _, size in rows],
            stage=stage,
            share=share,
            is_rank=(attempt, rank) in source.found.guests if attempt in source.found.led else True,
        )


def _hang(source: Source, row: OpenStageRow) -> Hang:
    return Hang(
        who=_name(source, Rank(row.role, row.rank)),
        where=_where(row),
        open_s=row.open_s,
        longest_s=row.longest_s or 0.0,
        is_comm=row.collective is not None or (row.attempt in source.found.led and row.stage in CALLERS_WAITS),
    )


def _stalled(source: Source, row: StallRow) -> Stalled:
    step = "" if row.step is None else f", step {row.step}"
    where = f"{row.stage} of {_name(source, Rank(row.role, row.rank))}{step}"
    return Stalled(chain=row.chain, where=where, age_s=row.age_s, is_over=row.is_over)


def _where(row: OpenStageRow) -> str:
    step = [f"step {row.iteration}"] if row.iteration is not None else []
    is_stage = not is_container(row.stage) and row.stage != v.LOOP
    outer = [f"in {row.inside[-1]}"] if is_stage and row.inside else []
    return ", ".join([*([row.stage] if is_stage else []), *outer, *step]) or "no step"


def _failures(source: Source) -> list[Failed]:
    """Return the failures that were survived, and those that ended the last attempt."""
    last = source.attempts[-1].id if source.attempts else ""
    ends = {one.id: _ends(source, one.id) for one in source.attempts if one.state in ENDED}
    earlier = [failure for attempt, of_attempt in ends.items() if attempt != last for failure in of_attempt]
    failures = [
        _failed(source, one, is_end=one in ends.get(last, ())) for one in source.found.failures if one not in earlier
    ]
    return failures + (_outside(source, last, ends[last]) if last in ends else [])


def _failed(source: Source, one: Failure, *, is_end: bool) -> Failed:
    return Failed(
        who=_name(source, one.rank),
        step=one.step,
        stage=one.stage,
        error=one.error,
        is_end=is_end,
        is_called=one.attempt in source.found.led and one.rank.role != DRIVER,
        follows=one.follows,
        host=source.found.hosts[one.attempt, one.rank].name,
    )


def _outside(source: Source, attempt: str, ends: Sequence[Failure]) -> list[Failed]:
    """Return the failures that ended an attempt for ranks that were in no step."""
    ranks = {one.rank for one in ends}
    return [
        Failed(
            who=_name(source, one.rank),
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


def _ended_early(source: Source, attempt: Attempt) -> str:
    """Write how an attempt ended, with the exception that was the cause."""
    ends = _ends(source, attempt.id)
    failures = [_failed(source, one, is_end=True) for one in ends] + _outside(source, attempt.id, ends)
    causes = by_cause(failures)[:1] if attempt.state == "failed" else []
    cause = "".join(f" ({one.who}: {one.error} {place(one.stage, one.step, one.phase)})" for one in causes)
    return f"{attempt.state} after {plural(attempt.steps, 'step')}{cause}"


def _ends(source: Source, attempt: str) -> list[Failure]:
    """Return the failures that ended an attempt: in the last step of each rank, and in calls in it."""
    records = stages_of_step(source.found.steps)
    steps = {record.rank: record.key for record in records if record.attempt == attempt}
    failures = [one for one in source.found.failures if one.attempt == attempt]
    ends = [one for one in failures if (one.attempt, one.loop, one.step) == steps.get(one.rank)]
    passed_on = {(one.loop, one.step, called_error(one.error)) for one in ends if one.follows}
    lost = {(one.loop, one.step) for one in ends if one.follows == "loss"}
    return [
        one
        for one in failures
        if one in ends
        or (one.loop, one.step, one.error) in passed_on
        or (one.follows == "loss" and (one.loop, one.step) in lost)
    ]


def _died(source: Source, failures: Sequence[Failed]) -> list[Died]:
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
    died = [Died(who=_name(source, Rank(row.role, row.rank)), where=_where(row)) for row in rows]
    return [one for one in died if one.who not in {failed.who for failed in ends}]


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


def _faults(source: Source) -> list[DataFault]:
    groups: defaultdict[tuple[str, str, tuple[Rank, ...]], list[LedgerMismatch]] = defaultdict(list)
    for one in source.ledger.mismatches:
        groups[one.fault, one.boundary, tuple(one.ranks)].append(one)
    return [
        DataFault(
            fault=fault,
            boundary=boundary,
            who=listed([_name(source, rank) for rank in ranks]) + sample_names(ones),
            steps=[one.step for one in ones],
            kind=KINDS.get(fault, "tokens"),
        )
        for (fault, boundary, ranks), ones in groups.items()
    ]


def _losses(losses: Iterable[Loss]) -> Iterable[str]:
    for loss in losses:
        if loss.what == "dropped":
            yield f"{plural(loss.count, RECORDS.get(loss.signal, 'record'))} ({REASONS.get(loss.reason, loss.reason)})"
        elif loss.what == "error":
            yield f"what {plural(loss.count, 'error')} inside otel_rl cost ({loss.reason})"


def _unwritten(source: Source) -> Iterable[str]:
    number = len(source.unwritten)
    if number:
        who = "the process" if number == 1 else f"{number} processes"
        yield f"what {who} recorded last, which ended before all was written"


def _damage(source: Source) -> Iterable[str]:
    if source.damage:
        size, files = sum(row.bytes for row in source.damage), len(source.damage)
        yield f"{count(size)} unreadable bytes of {plural(files, 'journal')}"


def _not_taken(source: Source) -> Iterable[str]:
    """Return what the server did not take of what was sent; what was left out for room is still in the journal."""
    counts: Counter[str] = Counter()
    for point in source.points.machine.points():
        if point.name == v.SELF_SHIPPED and text(point.attributes, v.OUTCOME) in NOT_TAKEN:
            counts[text(point.attributes, v.SIGNAL)] += round(point.value)
    for signal, number in sorted(counts.items()):
        if number:
            yield f"{plural(number, RECORDS.get(signal, 'record'))} that the server refused"


def _updates(source: Source) -> Updates | None:
    """Return the rank of the last attempt that skipped most updates; ranks skip them together, as a rule."""
    last = source.attempts[-1].id if source.attempts else ""
    ranks: defaultdict[Rank, list[StepRecord]] = defaultdict(list)
    for record in source.of_ranks.finished:
        if record.attempt == last:
            ranks[record.rank].append(record)
    found = [_updates_of(sorted(records, key=lambda record: record.step)) for records in ranks.values()]
    return max(found, key=lambda one: (one.last_row, one.skipped), default=None)


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
