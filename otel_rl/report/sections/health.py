"""What is open, what was lost, what is damaged: how far the numbers of a report can be trusted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from otel_rl import vocabulary as v
from otel_rl.journal.read import Journal, OpenView, PointView
from otel_rl.report.data.open_stages import OpenCollective, OpenStage
from otel_rl.report.data.report import DamagedFile, Loss
from otel_rl.report.read.attributes import begun_ns, call_of, integer, is_container, iteration_of, label, rank_of, text

HANG_S: Final = 10.0
"""A stage hangs at the earliest after this time: the journal is late by up to a second, a machine may pause."""
COUNTED: Final[Mapping[str, Literal["dropped", "changed", "error"]]] = {
    v.SELF_DROPPED: "dropped",
    v.SELF_CHANGED: "changed",
    v.SELF_ERRORS: "error",
}
"""What each counter of losses counts."""
HANG_RATIO: Final = 3.0
"""A stage hangs when it is open for this multiple of its longest call that ended."""


def open_rows(views: Iterable[OpenView], now_ns: int, longest_ns: Mapping[str, int]) -> list[OpenStage]:
    """Name the innermost open stage of each rank and what is around it.

    Args:
        views: open stages of all writers.
        now_ns: the present, ns since 1970; a dead writer's stages end at its last record instead.
        longest_ns: longest finished call by ``call_of``, ns.
    """
    by_writer: defaultdict[str, list[OpenView]] = defaultdict(list)
    for view in views:
        by_writer[view.journal.identity.writer].append(view)
    innermost = [pair for group in by_writer.values() for pair in _innermost(_not_over(group))]
    rows = [_open_row(view, around, now_ns, longest_ns) for view, around in innermost]
    return sorted(rows, key=lambda row: (row.role, row.rank, row.since_ns))


def _not_over(views: list[OpenView]) -> list[OpenView]:
    """Leave out the steps of a process before its last one, with what is in them.

    A process has one step, set-up or tear-down at a time. That another is open is journaled before the spans that ended
    until then; who reads in between, or after a kill there, finds both open.
    """
    containers = sorted((view for view in views if is_container(view.name)), key=begun_ns)
    over = {view.trace_id for view in containers} - {view.trace_id for view in containers[-1:]}
    return [view for view in views if view.trace_id not in over]


def _innermost(views: list[OpenView]) -> list[tuple[OpenView, list[OpenView]]]:
    known = {view.span_id: view for view in views}
    parents = {view.parent_id for view in views}
    return [(view, _around(view, known)) for view in views if view.span_id not in parents]


def _around(view: OpenView, known: dict[bytes, OpenView]) -> list[OpenView]:
    around: list[OpenView] = []
    while view.parent_id in known and len(around) < len(known):
        view = known[view.parent_id]
        around.insert(0, view)
    return around


def _open_row(view: OpenView, around: list[OpenView], now_ns: int, longest_ns: Mapping[str, int]) -> OpenStage:
    rank = rank_of(view.resource)
    end_ns = now_ns if view.alive else view.last_ns
    open_s = max(0, end_ns - view.start_ns) / 1e9
    call = call_of(view.name, view.attributes)
    longest_s = longest_ns[call] / 1e9 if call in longest_ns else None
    numbers = [number for one in (view, *around) if (number := iteration_of(one.attributes)) is not None]
    return OpenStage(
        attempt=text(view.resource, v.ATTEMPT_ID),
        role=rank.role,
        rank=rank.rank,
        stage=label(view.name, view.attributes),
        inside=[label(one.name, one.attributes) for one in around if not is_container(one.name) and one.name != v.LOOP],
        since_ns=view.start_ns,
        open_s=open_s,
        longest_s=longest_s,
        calls_known=bool(view.trace_id),
        is_alive=view.alive,
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


def totals(points: Iterable[PointView]) -> Counter[tuple[str, str, str]]:
    """Add up counters of otel_rl itself: of each cumulative stream the point journaled last, over all processes.

    Returns:
        Sums by metric, signal and reason.
    """
    last: dict[tuple[str, str, str, str], PointView] = {}
    for point in points:
        writer, attributes = point.journal.identity.writer, point.attributes
        key = (writer, point.name, text(attributes, v.SIGNAL), text(attributes, v.REASON))
        last[key] = point
    sums: Counter[tuple[str, str, str]] = Counter()
    for (_, name, signal, reason), point in last.items():
        sums[name, signal, reason] += int(point.value)
    return sums


def loss_rows(points: Iterable[PointView]) -> list[Loss]:
    """List what the processes counted as given up, changed or failed."""
    return [
        Loss(what=COUNTED[name], signal=signal, reason=reason, count=number)
        for (name, signal, reason), number in sorted(totals(points).items())
        if number
    ]


def damage_rows(journals: Iterable[Journal]) -> list[DamagedFile]:
    """Sum up the damaged places of each journal."""
    return [
        DamagedFile(
            writer=journal.identity.writer,
            places=len(journal.damage),
            bytes=sum(place.length for place in journal.damage),
            reason=journal.damage[0].reason,
        )
        for journal in journals
        if journal.damage
    ]
