"""The calls of steps, for the comparison of ranks: what is directly in a step, in turn, with the collectives in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import Kind, kind_of

if TYPE_CHECKING:
    from otel_rl.tables.forest import Flags, Ints
    from otel_rl.tables.stages import Within

Meeting = tuple[str, str, int]
"""Group, operation and size of the group of a collective."""


@dataclass(frozen=True, eq=False)
class Met:
    """Collectives that were seen one by one and show who waited."""

    call: Ints
    """The call that it is in."""
    meeting: Ints
    sequence: Ints
    """Equal on every rank of the group, from 1; 0 if unknown, then it is matched within its call only."""
    duration: Ints


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls of stages in some steps of ranks, in order of the steps and of time; ns. Cost: 100 bytes a call."""

    stages: Sequence[str]
    meetings: Sequence[Meeting]
    rank_step: Ints
    """Which of the steps that were given it is in, each that of one rank."""
    stage: Ints
    """Number in ``stages``."""
    duration: Ints
    comm: Ints
    """Time in collectives."""
    is_hidden: Flags
    """It cannot be separated from other time: no hook saw some of them, or the duration is that of a launch."""
    apart: Ints
    """The part of ``comm`` that shows no wait: a broadcast's source leaves early, and a sender needs nobody."""
    device: Ints
    """Own time by the device's clock; -1 if that is not known. It has waits for collectives in it, if there are any."""
    count: Ints
    """Number of collectives."""
    omitted: Ints
    """Those without a span: only the longest of a stage have one."""
    waiting: Ints
    """The part of ``comm`` in `rl.idle` inside of it, which is idle time already."""
    idle: Ints
    """Time in `rl.idle` inside of it, without the collectives there."""
    loading: Ints
    """The part of ``idle`` that waits for data; it is own time, since the rank's own loader is slow."""
    met: Met

    @property
    def met_ns(self) -> Ints:
        return np.minimum(self.duration, np.maximum(0, self.comm - self.waiting - self.apart))

    @property
    def is_idle(self) -> Flags:
        return np.array([kind_of(one) is Kind.IDLE for one in self.stages] or [False], bool)[self.stage]

    @property
    def is_separable(self) -> Flags:
        return ~self.is_hidden | (self.device >= 0)

    @property
    def own_ns(self) -> Ints:
        """Stage - collectives - waits other than for data, or the device's time; 0 if it cannot be separated."""
        active = np.maximum(0, self.duration - self.comm - self.idle) + self.loading
        own_ns: Ints = np.where(self.device >= 0, self.device, np.where(self.is_hidden, 0, active))
        return own_ns

    @cached_property
    def met_size(self) -> Ints:
        """Size of the group of each collective in ``met``."""
        return np.array([size for *_, size in self.meetings] or [0], np.int64)[self.met.meeting]

    @property
    def has_others(self) -> Flags:
        """Return whether other ranks may be in its collectives; a rank alone in the longest ones is alone in all."""
        has_met, is_alone = np.zeros(len(self.stage), bool), np.ones(len(self.stage), bool)
        has_met[self.met.call] = True
        is_alone[self.met.call[self.met_size != 1]] = False
        return (self.count > 0) & ~(has_met & is_alone)

    def take(self, kept: Flags, rank_step: Ints) -> Calls:
        """Return some of the calls, with the steps that all calls are in then."""
        is_met = kept[self.met.call]
        place = np.cumsum(kept) - 1
        call, others = self.met.call[is_met], (self.met.meeting, self.met.sequence, self.met.duration)
        met = Met(place[call], *(column[is_met] for column in others))
        taken = {name: getattr(self, name)[kept] for name in COLUMNS}
        return replace(self, **{**taken, "rank_step": rank_step[kept], "met": met})


COLUMNS: Final = tuple(one.name for one in fields(Calls) if one.name not in ("stages", "meetings", "met"))
_NONE: Final = np.zeros(0, np.int64)
NO_CALLS: Final = Calls(
    stages=(), meetings=(), met=Met(_NONE, _NONE, _NONE, _NONE),
    **{name: np.zeros(0, bool if name == "is_hidden" else np.int64) for name in COLUMNS},
)  # fmt: skip


def join(tables: Sequence[Calls]) -> Calls:
    """Return the calls of all, in order; the numbers of their steps stay."""
    stages: dict[str, int] = {}
    meetings: dict[Meeting, int] = {}
    columns: list[dict[str, Ints]] = []
    met: list[tuple[Ints, ...]] = []
    first = 0
    for table in tables or [NO_CALLS]:
        stage, meeting, seen = _numbers(stages, table.stages), _numbers(meetings, table.meetings), table.met
        columns.append({name: getattr(table, name) for name in COLUMNS} | {"stage": stage[table.stage]})
        met.append((seen.call + first, meeting[seen.meeting], seen.sequence, seen.duration))
        first += len(table.stage)
    if not tables:
        columns, met = (
            [{name: np.zeros(0, bool if name == "is_hidden" else np.int64) for name in COLUMNS}],
            [(_NONE,) * 4],
        )
    return Calls(
        stages=list(stages),
        meetings=list(meetings),
        met=Met(*map(np.concatenate, zip(*met, strict=True))),
        **{name: np.concatenate([one[name] for one in columns]) for name in COLUMNS},
    )


def _numbers(known: dict[Any, int], names: Sequence[Any]) -> Ints:
    return np.array([known.setdefault(name, len(known)) for name in names] or [0], np.int64)


def split(calls: Calls, steps: int) -> list[Calls]:
    """Return the calls of each step by themselves. Cost: 20 us a step."""
    bounds = np.searchsorted(calls.rank_step, np.arange(steps + 1)).tolist()
    order = np.argsort(calls.met.call, kind="stable")
    met = [getattr(calls.met, one.name)[order] for one in fields(Met)]
    met_bounds = np.searchsorted(met[0], bounds).tolist()
    found = []
    for step, ((first, last), (begin, end)) in enumerate(zip(pairwise(bounds), pairwise(met_bounds), strict=True)):
        columns = {name: getattr(calls, name)[first:last] for name in COLUMNS}
        call, *others = (column[begin:end] for column in met)
        columns["rank_step"] = columns["rank_step"] - step
        found.append(replace(calls, **columns, met=Met(call - first, *others)))
    return found


def with_collectives_joined(calls: Calls, steps: Flags) -> Calls:
    """Make the calls under no stage of some steps one call at the end of each; a step without any has an empty one."""
    stages = list(calls.stages) if v.COMM in calls.stages else [*calls.stages, v.COMM]
    comm = stages.index(v.COMM)
    is_part = (calls.stage == comm) & steps[calls.rank_step]
    made = np.flatnonzero(steps)
    number = np.cumsum(steps) - 1
    sums = {name: np.zeros(len(made), np.int64) for name in ("duration", "apart", "count", "omitted")}
    for name, column in sums.items():
        np.add.at(column, number[calls.rank_step[is_part]], getattr(calls, name)[is_part])
    new = {"rank_step": made, "stage": np.full(len(made), comm), "comm": sums["duration"], **sums}
    empty = {"is_hidden": np.zeros(len(made), bool), "device": np.full(len(made), -1)}
    nothing = np.zeros(len(made), np.int64)
    columns = {
        name: np.concatenate((getattr(calls, name)[~is_part], new.get(name, empty.get(name, nothing))))
        for name in COLUMNS
    }
    order = np.argsort(columns["rank_step"], kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    kept = np.cumsum(~is_part) - 1
    row = np.where(is_part, np.count_nonzero(~is_part) + number[calls.rank_step], kept)
    met = replace(calls.met, call=place[row[calls.met.call]])
    return replace(calls, stages=stages, met=met, **{name: column[order] for name, column in columns.items()})


def calls_of(within: Within) -> Calls:
    """Return the calls of each container, in order of time; those of a stage do not overlap. Cost: 1 us a call."""
    return _Calls(within).table()


class _Calls:
    """Calls as arrays; ``heads`` are the indexes of the spans at level 1."""

    def __init__(self, within: Within) -> None:
        self.within = within
        table, inside = within.table, within.inside
        self.heads: Ints = np.flatnonzero(inside.level == 1)
        self.root: Ints = inside.root[self.heads]
        self.call: Ints = np.cumsum(inside.level == 1)[inside.top] - 1
        """The call that each span is, or is inside."""
        self.is_comm = within.column(table.is_comm)
        self.is_idle = within.column(table.is_idle)
        self.begin, self.end = self._in_turn()
        self.duration = np.maximum(0, self.end - self.begin)
        of_wait = self.is_idle[self.heads][self.call]
        around = within.around(self.is_idle & ~of_wait)
        self.is_wait: Flags = self.is_idle & ~of_wait & (around == 0)
        """The outermost waits in a call that is none itself."""
        self.is_in_wait: Flags = ~of_wait & (around > 0)

    def _in_turn(self) -> tuple[Ints, Ints]:
        """Return begin and end of calls in their container; each begins after those of its stage that began before."""
        within, heads = self.within, self.heads
        first, last = within.begin[self.root], within.end[self.root]
        begin = np.maximum(within.column(within.table.begin)[heads], first)
        end = np.maximum(begin, np.minimum(within.column(within.table.end)[heads], last))
        stage = self.root * max(1, len(within.table.labels)) + within.column(within.table.label)[heads]
        turn = np.argsort(stage, kind="stable")
        stage, ends = stage[turn], end[turn]
        if len(turn):
            known, rank = np.unique(ends, return_inverse=True)
            _, group = np.unique(stage, return_inverse=True)
            reached = known[np.maximum.accumulate(rank + group * len(known)) - group * len(known)]
            is_first = np.concatenate(([True], stage[1:] != stage[:-1]))
            before = np.where(is_first, 0, np.concatenate(([0], reached[:-1])))
            begin[turn] = np.maximum(begin[turn], np.minimum(ends, before))
        return begin, end

    def _sum(self, values: Ints) -> Ints:
        """Add up a number of each span by call."""
        total = np.zeros(len(self.heads), np.int64)
        np.add.at(total, self.call, values)
        return total

    def numbers(self) -> tuple[Ints, ...]:
        """Return the columns of ``Calls`` from ``duration`` on."""
        within, table, heads = self.within, self.within.table, self.heads
        is_hidden, is_host = (self._sum(within.column(one)) > 0 for one in (table.is_hidden, table.is_host_clock))
        count, time_ns = (within.column(one)[heads] for one in table.total)
        comm_ns = np.where(self.is_comm[heads], self.duration, np.minimum(self.duration, time_ns))
        device_ns = within.column(table.device_ns)[heads]
        is_timed = within.column(table.is_host_clock)[heads] & ~is_hidden & (count == 0)
        omitted = np.maximum(0, count - self._sum(self.is_comm))
        idle = self._idle(np.maximum(0, self.duration - comm_ns))
        inseparable = (is_hidden | is_host).astype(np.int64)
        apart_ns = self._sum(np.where(self.is_in_wait, 0, self._apart_ns()))
        return (
            self.duration, comm_ns, apart_ns, inseparable, np.where(is_timed, device_ns, -1), count, omitted, *idle,
        )  # fmt: skip

    def _apart_ns(self) -> Ints:
        """Return the time of each collective that its ranks do not leave together."""
        within, table = self.within, self.within.table
        time_ns = within.column(table.end) - within.column(table.begin)
        return np.where(self.is_comm & ~within.column(table.is_met), time_ns, 0)

    def _idle(self, most: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the waits in each call: collectives in them, and their time without those, of all and for data."""
        within, table = self.within, self.within.table
        first, last = within.begin[within.inside.root], within.end[within.inside.root]
        begin = np.maximum(within.column(table.begin), first)
        time_ns = np.maximum(0, np.maximum(begin, np.minimum(within.column(table.end), last)) - begin)
        comm_ns = np.where(self.is_wait, np.minimum(time_ns, within.column(table.total[1])), 0)
        alone_ns = np.where(self.is_wait, time_ns - comm_ns, 0)
        loading_ns = np.where(within.column(table.is_loading), alone_ns, 0)
        return self._sum(comm_ns), np.minimum(self._sum(alone_ns), most), np.minimum(self._sum(loading_ns), most)

    def table(self) -> Calls:
        """Return the calls; of a step whose collectives under no stage are not all spans these are one."""
        within, table = self.within, self.within.table
        count, time_ns = (one[within.roots] for one in table.direct)
        is_comm = self.is_comm[self.heads]
        omitted = count - np.bincount(self.root[is_comm], minlength=len(within.roots))
        is_cut = omitted != 0
        duration, comm, apart, hidden, device, comm_count, call_omitted, waiting, idle, loading = self.numbers()
        calls = Calls(
            stages=table.labels, meetings=table.meetings, rank_step=self.root,
            stage=within.column(table.label)[self.heads],
            duration=duration, comm=comm, apart=apart, is_hidden=hidden != 0, device=device, count=comm_count,
            omitted=call_omitted, waiting=waiting, idle=idle, loading=loading,
            met=self._met(is_comm & is_cut[self.root]),
        )  # fmt: skip
        if not is_cut.any():
            return calls
        calls = with_collectives_joined(calls, is_cut)
        is_whole = is_cut[calls.rank_step] & (calls.stage == calls.stages.index(v.COMM))
        known = {"duration": time_ns, "comm": time_ns, "count": count, "omitted": np.maximum(0, omitted)}
        return replace(
            calls, **{name: np.where(is_whole, of[calls.rank_step], getattr(calls, name)) for name, of in known.items()}
        )

    def _met(self, is_alone: Flags) -> Met:
        """Return the collectives that show who waited; of some calls only those that they are themselves."""
        within, table = self.within, self.within.table
        is_met = self.is_comm & within.column(table.shows_waits) & ~self.is_in_wait
        if len(is_met):
            is_met &= (within.inside.level == 1) | ~is_alone[self.call]
        place = within.inside.place[is_met]
        duration = np.maximum(0, table.end[place] - table.begin[place])
        return Met(self.call[is_met], table.met[place], table.sequence[place], duration)
