"""Tables made by hand: of spans as arithmetic sees them, and of the calls of ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import Kind, kind_of
from otel_rl.analysis.stages import Comm, Path, StageTimes
from otel_rl.runs.symmetric import shows_waits
from otel_rl.tables.calls import Calls, Met
from otel_rl.tables.forest import grow, parents_of
from otel_rl.tables.peers import CallKey, Compared, PeerWork, RankSteps, compare, own_times
from otel_rl.tables.stages import StageTable, Within

MEETINGS = [("", "", 0), ("a", "all_reduce", 2), ("", "send", 0)]


class Span(NamedTuple):
    """One span of a rank as arithmetic sees it."""

    key: bytes
    parent: bytes
    label: str
    begin_ns: int
    end_ns: int
    is_comm: bool = False
    comm: Comm | None = None
    """Collectives directly inside, if its writer summed them up."""
    is_hidden: bool = False
    is_host_clock: bool = False
    device_ns: int | None = None


def attributes_of(span: Span) -> dict[str, Any]:
    """Return the attributes of a collective: every third shows no waits."""
    number = int.from_bytes(span.key, "big")
    if not span.is_comm:
        return {}
    if number % 3 == 0:
        return {v.COMM_OPERATION: "send", v.COMM_SEQUENCE: 4}
    return {v.COMM_OPERATION: "all_reduce", v.COMM_GROUP: "a", v.COMM_GROUP_SIZE: 2, v.COMM_SEQUENCE: number}


def _meeting(span: Span) -> tuple[str, str, int]:
    attributes = attributes_of(span)
    return attributes.get(v.COMM_GROUP, ""), attributes.get(v.COMM_OPERATION, ""), attributes.get(v.COMM_GROUP_SIZE, 0)


def ints(values: Iterable[int]) -> Any:
    return np.array(list(values), np.int64)


def stage_table(spans: Sequence[tuple[int, Span]]) -> StageTable:
    """Make a table of spans, each with the number of its trace."""
    ids: dict[bytes, int] = {b"": 0}
    own, parent = (
        np.array([ids.setdefault(key, len(ids)) for key in keys], np.uint64)
        for keys in ([span.key for _, span in spans], [span.parent for _, span in spans])
    )
    parents = parents_of(np.array([trace for trace, _ in spans], np.uint64), own, parent)
    forest = grow(parents, ints(span.begin_ns for _, span in spans))
    rows = [spans[place][1] for place in forest.order.tolist()]
    labels = sorted({span.label for span in rows})
    return StageTable(
        forest=forest,
        label=ints(labels.index(span.label) for span in rows),
        labels=labels,
        begin=ints(span.begin_ns for span in rows),
        end=ints(span.end_ns for span in rows),
        is_comm=np.array([span.is_comm for span in rows], bool),
        comm_ns=ints(-1 if span.comm is None else span.comm.time_ns for span in rows),
        comm_count=ints(0 if span.comm is None else span.comm.count for span in rows),
        is_hidden=np.array([span.is_hidden for span in rows], bool),
        is_host_clock=np.array([span.is_host_clock for span in rows], bool),
        device_ns=ints(-1 if span.device_ns is None else span.device_ns for span in rows),
        is_met=np.array([attributes_of(span).get(v.COMM_OPERATION) == "all_reduce" for span in rows], bool),
        shows_waits=np.array([span.is_comm and shows_waits(attributes_of(span)) for span in rows], bool),
        met=ints(MEETINGS.index(_meeting(span)) for span in rows),
        meetings=MEETINGS,
        sequence=ints(int(attributes_of(span).get(v.COMM_SEQUENCE, 0)) for span in rows),
    )


def within(traces: Sequence[Sequence[Span]]) -> Within:
    """Return what is inside the containers of some traces, which are their first spans, in the order of the traces."""
    table = stage_table([(number, span) for number, spans in enumerate(traces) for span in spans])
    firsts = np.cumsum([0, *map(len, traces[:-1])])
    return Within(table, table.forest.place[firsts])


def stage_times(spans: Sequence[Span]) -> dict[Path, StageTimes]:
    """Return the times of the stages in a container, which is the first span; the durations of calls ascend."""
    return {path: in_order(times) for _, path, times in within([spans]).stage_times()}


def in_order(times: StageTimes) -> StageTimes:
    return times._replace(durations_ns=tuple(sorted(times.durations_ns)))


# --- calls ------------------------------------------------------------------------------------------------------------


class MetRow(NamedTuple):
    """One collective of a call that ranks leave together."""

    group: str
    operation: str
    size: int
    sequence: int
    """Equal on every rank of the group, from 1; 0 if unknown, then it is matched within its call only."""
    duration_ns: int


@dataclass(frozen=True, slots=True)
class StageCall:
    """One call of a stage on one rank. The calls of a rank come in order of time; those of one stage do not overlap."""

    step: int
    rank: int
    stage: str
    duration_ns: int
    comm_ns: int = 0
    hidden_ns: int | None = 0
    """Time in collectives that Python cannot see, as a probe bounds it (DDP: end of the backward - last local
    gradient); None if there are such collectives and their time is unknown."""
    apart_ns: int = 0
    """The part of ``comm_ns`` in collectives that ranks do not leave together: broadcast, p2p, asynchronous ones."""
    device_ns: int | None = None
    """Own time as a device measured it, if the host only launches the work and no collective is inside."""
    count: int = 0
    omitted: int = 0
    """Collectives that were not seen one by one: the shortest ones of many."""
    rows: tuple[MetRow, ...] = ()
    """Collectives that were seen one by one and show who waited."""
    waiting_ns: int = 0
    """Time in collectives inside of an `rl.idle` inside of it: idle time already."""
    idle_ns: int = 0
    """Time in `rl.idle` inside of it, without the collectives there."""
    loading_ns: int = 0
    """The part of ``idle_ns`` that waits for data; it is own time, since the rank's own loader is slow."""

    @property
    def inside_ns(self) -> int:
        return self.comm_ns + (self.hidden_ns or 0)

    @property
    def met_ns(self) -> int:
        return min(self.duration_ns, max(0, self.inside_ns - self.waiting_ns - self.apart_ns))

    @property
    def own_ns(self) -> int | None:
        """Stage - collectives - waits other than for data, or the device's time; None if it cannot be separated."""
        if self.device_ns is not None:
            return self.device_ns
        return None if self.hidden_ns is None else self.active_ns + self.loading_ns

    @property
    def active_ns(self) -> int:
        """Stage - known collectives - waits, by the host's clock."""
        return max(0, self.duration_ns - self.inside_ns - self.idle_ns)


@dataclass(frozen=True)
class Waits:
    """How long ranks waited in the calls of one step, and where that is a lower bound."""

    ns: Mapping[CallKey, Mapping[int, int]]
    least: set[tuple[CallKey, int]] = field(default_factory=set)

    def by_stage(self) -> dict[int, Counter[str]]:
        """Add up by rank and stage, ns; a wait in an idle call is idle time already."""
        found: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for (stage, _), waited in self.ns.items():
            if kind_of(stage) is not Kind.IDLE:
                for rank, wait in waited.items():
                    found[rank][stage] += wait
        return dict(found)


def calls_of_steps(steps: Sequence[Sequence[StageCall]]) -> Calls:
    """Make the calls of steps, each that of one rank."""
    listed = [(step, call) for step, calls in enumerate(steps) for call in calls]
    stages = list(dict.fromkeys(call.stage for _, call in listed))
    met = [(number, row) for number, (_, call) in enumerate(listed) for row in call.rows]
    meetings = list(dict.fromkeys((row.group, row.operation, row.size) for _, row in met))
    return Calls(
        stages=stages,
        meetings=meetings,
        rank_step=ints(step for step, _ in listed),
        stage=ints(stages.index(call.stage) for _, call in listed),
        duration=ints(call.duration_ns for _, call in listed),
        comm=ints(call.inside_ns for _, call in listed),
        is_hidden=np.array([call.hidden_ns is None for _, call in listed], bool),
        apart=ints(call.apart_ns for _, call in listed),
        device=ints(-1 if call.device_ns is None else call.device_ns for _, call in listed),
        count=ints(call.count for _, call in listed),
        omitted=ints(call.omitted for _, call in listed),
        waiting=ints(call.waiting_ns for _, call in listed),
        idle=ints(call.idle_ns for _, call in listed),
        loading=ints(call.loading_ns for _, call in listed),
        met=Met(
            call=ints(number for number, _ in met),
            meeting=ints(meetings.index((row.group, row.operation, row.size)) for _, row in met),
            sequence=ints(row.sequence for _, row in met),
            duration=ints(row.duration_ns for _, row in met),
        ),
    )


def listed_calls(calls: Calls, rank: int = 0) -> list[StageCall]:
    """Return calls one by one."""
    rows: list[list[MetRow]] = [[] for _ in calls.stage]
    for call, meeting, sequence, duration_ns in zip(
        *(one.tolist() for one in (calls.met.call, calls.met.meeting, calls.met.sequence, calls.met.duration)),
        strict=True,
    ):
        rows[call].append(MetRow(*calls.meetings[meeting], sequence, duration_ns))
    columns = (
        calls.stage, calls.duration, calls.comm, calls.is_hidden, calls.apart, calls.device, calls.count, calls.omitted,
        calls.waiting, calls.idle, calls.loading,
    )  # fmt: skip
    return [
        StageCall(
            0, rank, calls.stages[stage], duration_ns, comm_ns, None if is_hidden else 0, apart_ns,
            None if device_ns < 0 else device_ns, count, omitted, tuple(met), waiting_ns, idle_ns, loading_ns,
        )
        for (stage, duration_ns, comm_ns, is_hidden, apart_ns, device_ns, count, omitted, waiting_ns, idle_ns,
             loading_ns), met in zip(zip(*(one.tolist() for one in columns), strict=True), rows, strict=True)
    ]  # fmt: skip


def compared(*steps: Sequence[StageCall], pipeline: int = 1) -> Compared:
    """Compare the ranks of steps; they are in pipeline stages by turns."""
    listed = [(step, rank) for step, calls in enumerate(steps) for rank in dict.fromkeys(call.rank for call in calls)]
    of_ranks = [[call for call in steps[step] if call.rank == rank] for step, rank in listed]
    columns = (
        ints(step for step, _ in listed),
        ints(rank % pipeline for _, rank in listed),
        ints(rank for _, rank in listed),
    )
    return compare(calls_of_steps(of_ranks), RankSteps(*columns))


def waits_of(calls: Iterable[StageCall]) -> Waits:
    """Return the waits of peers in one step; calls with inseparable collectives have none."""
    found = compared(list(calls))
    table = found.table
    ns: dict[CallKey, dict[int, int]] = {}
    least: set[tuple[CallKey, int]] = set()
    columns = table.stage, table.turn, table.rank, found.waits.ns, found.waits.is_least, table.is_separable
    for stage, turn, rank, wait, is_least, is_separable in zip(*(one.tolist() for one in columns), strict=True):
        key = table.stages[stage], turn
        if is_separable:
            ns.setdefault(key, {})[rank] = wait
        if is_least:
            least.add((key, rank))
    return Waits(ns, least)


class Part(NamedTuple):
    """What the peers of one step did."""

    own_s: dict[str, dict[int, float]]
    """By stage and rank."""
    transfers_ns: dict[str, int]
    what_if: tuple[float, float, dict[int, float]] | None
    """The time of the step, with ideal ranks, and with one rank as it is and the others ideal, s."""


def part_of(calls: Iterable[StageCall]) -> Part:
    """Sum up the calls of peers in one step."""
    found = compared(list(calls))
    work = PeerWork(found)
    _, stages, transfers = (one.tolist() for one in work.transfers)
    actual_s, ideal_s, _, ranks, alone_s = (one.tolist() for one in work.what_if)
    return Part(
        own_times(found).get((0, 0), {}),
        {work.stages[stage]: ns for stage, ns in zip(stages, transfers, strict=True)},
        (*actual_s, *ideal_s, dict(zip(ranks, alone_s, strict=True))) if ranks else None,
    )


def keyed(calls: Iterable[StageCall]) -> dict[CallKey, dict[int, StageCall]]:
    """Match the calls of one step over the ranks: the k-th call of a stage on each."""
    counts: Counter[tuple[int, str]] = Counter()
    matched: dict[CallKey, dict[int, StageCall]] = {}
    for call in calls:
        matched.setdefault((call.stage, counts[call.rank, call.stage]), {})[call.rank] = call
        counts[call.rank, call.stage] += 1
    return matched
