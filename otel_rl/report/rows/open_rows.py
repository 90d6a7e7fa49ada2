"""The stages that are open now, and other runs that wait."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.page import PageView, find_pages
from otel_rl.journal.read import JournalNotFound, OpenView, Run, SpanView, open_run
from otel_rl.process.identity import is_made_up
from otel_rl.report.data.details import OpenCollective, OpenStageRow, PendingRun
from otel_rl.report.data.report import Attempt
from otel_rl.report.fold.run_fold import fold
from otel_rl.report.read.single_controller.guest_steps import is_driver
from otel_rl.report.read.span_attributes import begun_ns, rank_of
from otel_rl.runs.locate import PENDING as PENDING_RUNS
from otel_rl.runs.locate import recorded_below
from otel_rl.runs.spans import call_of, integer, is_container, iteration_of, label, text

HANG_S: Final = 10.0
"""A stage hangs at the earliest after this time: the journal is late by up to a second, a machine may pause."""
HANG_RATIO: Final = 3.0
"""A stage hangs when it is open for this multiple of its longest call that ended."""
START_NS: Final = 60_000_000_000
"""The ranks of a launcher begin within this time, in any order: one may be there before the run is."""
LATE_NS: Final = 5_000_000_000
"""The flusher of a process beats every half second; when it is so late, the journal says nothing new."""
SLACK_NS: Final = 1_000_000
"""How far clocks of one process may be apart."""


def open_rows(
    views: Iterable[OpenView],
    now_ns: int,
    longest_ns: Mapping[str, int],
    pages: Mapping[str, PageView],
    died: Container[str] = (),
    drivers: Mapping[bytes, SpanView] = MappingProxyType({}),
) -> list[OpenStageRow]:
    """Return the innermost open stage of each rank; those of a dead writer end at its last record.

    The status page of a process that died, or whose interpreter is held, shows what it was in last.

    Args:
        views: the stages that are open as far as journals know.
        now_ns: wall clock.
        longest_ns: the longest call that ended, by ``call_of``.
        pages: by writer.
        died: writers whose page alone may show what they died in: it had just begun, and nothing was open around it.
        drivers: the containers of single controllers, by trace.
    """
    by_writer: defaultdict[str, list[OpenView]] = defaultdict(list)
    for view in views:
        by_writer[view.journal.identity.writer].append(view)
    rows: list[OpenStageRow] = []
    groups = list(map(_not_over, by_writer.values()))
    has_driver = any(is_driver(group[0]) for group in groups if group)
    callers = {view.parent_id for group in groups for view in group} if has_driver else set()  # of other processes
    for group in groups:
        known, parents = {view.span_id: view for view in group}, {view.parent_id for view in group} | callers
        innermost = [view for view in group if view.span_id not in parents]
        found = [
            _open_row(view, [*_outer(view, known), *_driver(view, drivers)], now_ns, longest_ns) for view in innermost
        ]
        page = pages.get(group[0].journal.identity.writer) if group else None
        rows += found if page is None or not found else _as_shown(page, found, now_ns)
    rows += [
        _died_in(page) for writer, page in pages.items() if writer in died and page.stage and not by_writer[writer]
    ]
    return sorted(rows, key=lambda row: (row.role, row.rank, row.since_ns))


def _driver(view: OpenView, drivers: Mapping[bytes, SpanView]) -> list[SpanView]:
    return [drivers[view.trace_id]] if view.trace_id in drivers else []


def _died_in(page: PageView) -> OpenStageRow:
    return OpenStageRow(
        attempt=page.attempt,
        role=page.role,
        rank=page.rank,
        stage=page.stage,
        inside=[],
        since_ns=page.began_ns + page.anchor_ns,
        open_s=max(0, page.heartbeat_ns - page.began_ns) / 1e9,
        longest_s=None,
        calls_known=False,
        is_alive=False,
        is_certain=True,
        is_hanging=False,
        iteration=page.step,
        collective=None,
    )


def _as_shown(page: PageView, rows: list[OpenStageRow], now_ns: int) -> list[OpenStageRow]:
    """Correct the open stages of a process by its page, if its flusher is gone or late."""
    last_ns, since_ns = page.heartbeat_ns + page.anchor_ns, page.began_ns + page.anchor_ns
    row = max(rows, key=lambda one: one.since_ns)
    if row.is_alive and now_ns - last_ns < LATE_NS:
        return rows
    if since_ns < row.since_ns + SLACK_NS:  # nothing began or ended after what the journal knows
        return [
            replace(
                one,
                is_certain=one.collective is None,
                open_s=one.open_s if one.is_alive else max(one.open_s, (last_ns - one.since_ns) / 1e9),
            )
            for one in rows
        ]
    end_ns = now_ns if row.is_alive else max(last_ns, since_ns)
    return [
        replace(
            row,
            stage=page.stage or v.RANK_SPAN,
            inside=[],
            since_ns=since_ns,
            open_s=max(0, end_ns - since_ns) / 1e9,
            longest_s=None,
            calls_known=False,
            is_certain=True,
            is_hanging=False,
            iteration=page.step,
            collective=None,
        )
    ]


def _not_over(views: list[OpenView]) -> list[OpenView]:
    """Leave out the steps of a process before its last one: the next is journaled as open before their spans are."""
    containers = sorted((view for view in views if is_container(view.name)), key=begun_ns)
    over = {view.trace_id for view in containers} - {view.trace_id for view in containers[-1:]}
    return [view for view in views if view.trace_id not in over]


def _outer(view: OpenView, known: dict[bytes, OpenView]) -> list[OpenView]:
    outer: list[OpenView] = []
    while view.parent_id in known and len(outer) < len(known):
        view = known[view.parent_id]
        outer.insert(0, view)
    return outer


def _open_row(
    view: OpenView, outer: Sequence[OpenView | SpanView], now_ns: int, longest_ns: Mapping[str, int]
) -> OpenStageRow:
    rank = rank_of(view.resource)
    end_ns = now_ns if view.alive else view.last_ns
    open_s = max(0, end_ns - view.start_ns) / 1e9
    call = call_of(view.name, view.attributes)
    longest_s = longest_ns[call] / 1e9 if call in longest_ns else None
    numbers = [number for one in (view, *outer) if (number := iteration_of(one.attributes)) is not None]
    return OpenStageRow(
        attempt=text(view.resource, v.ATTEMPT_ID),
        role=rank.role,
        rank=rank.rank,
        stage=label(view.name, view.attributes),
        inside=[label(one.name, one.attributes) for one in outer if not is_container(one.name) and one.name != v.LOOP],
        since_ns=view.start_ns,
        open_s=open_s,
        longest_s=longest_s,
        calls_known=bool(view.trace_id),
        is_alive=view.alive,
        is_certain=False,
        is_hanging=view.alive and longest_s is not None and open_s >= max(HANG_S, HANG_RATIO * longest_s),
        iteration=numbers[0] if numbers else None,
        collective=_collective(view) if view.name == v.COMM else None,
    )


def _collective(view: OpenView) -> OpenCollective:
    return OpenCollective(
        operation=text(view.attributes, v.COMM_OPERATION),
        group=text(view.attributes, v.COMM_GROUP) or None,
        group_size=integer(view.attributes, v.COMM_GROUP_SIZE) or None,
        sequence=integer(view.attributes, v.COMM_SEQUENCE) or None,
    )


def pending(run: Run, attempts: Iterable[Attempt], now_ns: int) -> list[PendingRun]:
    """Find the processes that may belong to a run that was given no name: on a host of it, begun while it ran."""
    path = Path(os.path.abspath(run.path))  # of "." neither the name nor the parent would be known
    times = [(one.begin_ns - START_NS, one.end_ns) for one in attempts if is_made_up(path.name)]
    hosts = _hosts(run)
    return [
        PendingRun(
            path=str(other.path),
            open_stages=open_rows(other.open_stages(), now_ns, fold(other, []).longest_ns, find_pages(other.path)),
        )
        for other in (_runs(path.parent / PENDING_RUNS) if times else ())
        if hosts & _hosts(other)
        and any(begin <= one.identity.created_ns <= end for one in other.journals for begin, end in times)
    ]


def _runs(root: Path) -> Iterator[Run]:
    for path in recorded_below(root):
        try:
            yield open_run(path)
        except JournalNotFound:  # it has become known since it was listed
            continue


def _hosts(run: Run) -> set[str]:
    return {journal.identity.boot_id or journal.identity.host for journal in run.journals} - {""}
