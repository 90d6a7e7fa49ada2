"""The stalls that a sidecar told of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from otel_rl import vocabulary as v
from otel_rl.journal.views import LogView
from otel_rl.report.data.details import StallRow
from otel_rl.runs.spans import integer, number, text


def told_stalls(path: Path, logs: Iterable[LogView], begin_ns: int) -> list[StallRow]:
    """Return the stalls of a run that were found since a time (ns since 1970), from its log records of them."""
    rows: dict[str, StallRow] = {}
    for log in sorted(logs, key=lambda one: one.time_ns):
        if log.time_ns >= begin_ns:
            row = _row(log)
            found, state = rows.get(row.id), text(log.attributes, v.STALL_STATE)
            if state == "found":
                rows[row.id] = row
            elif state == "died" and found is not None:
                rows[row.id] = replace(found, age_s=row.age_s)
            elif found is not None:
                rows[row.id] = replace(found, is_over=True, age_s=row.age_s, chain=row.chain)
    if any(not row.is_over for row in rows.values()):
        _bring_up_to_date(path, rows)
    return list(rows.values())


def _row(log: LogView) -> StallRow:
    chain, _, evidence = log.body.partition("\n\n")
    attributes = log.attributes
    return StallRow(
        id=text(attributes, v.STALL_ID),
        cause=text(attributes, v.STALL_CAUSE),
        stage=text(attributes, v.STAGE),
        role=text(attributes, v.STALL_ROLE),
        rank=integer(attributes, v.STALL_RANK),
        step=integer(attributes, v.STALL_STEP) if v.STALL_STEP in attributes else None,
        chain=chain,
        found_ns=log.time_ns,
        age_s=number(attributes, v.STALL_AGE) or 0.0,
        normal_s=number(attributes, v.STALL_NORMAL),
        is_over=text(attributes, v.STALL_STATE) == "ended",
        waiting=integer(attributes, v.STALL_WAITING),
        evidence=evidence,
    )


def _bring_up_to_date(path: Path, rows: dict[str, StallRow]) -> None:
    """Show the stalls that go on as they are now, where the processes run on this machine."""
    from otel_rl.stalls.bounds import StallBounds  # a report of a run that does not stall starts without them
    from otel_rl.stalls.chain import Situation
    from otel_rl.stalls.finder import newest_attempt
    from otel_rl.stalls.members import find_here
    from otel_rl.stalls.sentences import chain_of
    from otel_rl.stalls.tell import stall_id

    processes = newest_attempt(find_here(path))
    for stall in Situation(processes, StallBounds.for_readers()).stalls():
        found = rows.get(stall_id(stall.last))
        if found is not None and not found.is_over:
            rows[found.id] = replace(found, chain=chain_of(stall), age_s=stall.last.age_s, waiting=len(stall.waiting))
