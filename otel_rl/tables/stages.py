"""The stages of a writer as arrays, and what they say of each container: coverage, activities, times by stage.

``StageTable`` is made of spans; ``Within`` is what is inside some containers, such as steps, all at once. A stage's
time is a union: calls that overlap count once, and its own time is what no collective and no wait in it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import ACTIVE, ACTIVITIES, COMM, IDLE, INSEPARABLE, NO_STAGE, Kind, kind_of
from otel_rl.analysis.stages import LOADING, Comm, Path, StageTimes, is_apart
from otel_rl.tables.forest import NONE, Forest, Inside, inside, ramp, union

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_rl.tables.forest import Flags, Ints

EVALUATE: Final = v.EVALUATE
_EMPTY: Final = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class StageTable:
    """Spans of a writer, in the order of their forest; times in ns."""

    forest: Forest
    label: Ints
    """Number of the label in ``labels``."""
    labels: Sequence[str]
    begin: Ints
    end: Ints
    is_comm: Flags
    comm_ns: Ints
    """Time in collectives directly inside, if the writer has summed it up, else ``NONE``."""
    comm_count: Ints
    is_hidden: Flags
    """There are collectives inside that no hook saw."""
    is_host_clock: Flags
    """The duration is that of a launch."""
    device_ns: Ints
    """Time on the device, or ``NONE``."""
    is_met: Flags
    """A collective that its ranks leave together (``runs.symmetric.is_met``)."""
    shows_waits: Flags
    """A collective whose durations on its ranks show which of them waited."""
    met: Ints
    """Number of group, operation and size of the group in ``meetings``."""
    meetings: Sequence[tuple[str, str, int]]
    sequence: Ints

    @cached_property
    def is_idle(self) -> Flags:
        return self._by_label([kind_of(label) is Kind.IDLE for label in self.labels])

    @cached_property
    def is_loading(self) -> Flags:
        return self._by_label([label == LOADING for label in self.labels])

    @cached_property
    def seen(self) -> tuple[Ints, Ints]:
        """Collectives directly inside that are spans: how many, and the union of their times."""
        rows = np.flatnonzero(self.is_comm & (self.forest.parent != NONE))
        parent, size = self.forest.parent[rows], len(self.begin)
        return np.bincount(parent, minlength=size), union(parent, self.begin[rows], self.end[rows], size)

    @cached_property
    def direct(self) -> tuple[Ints, Ints]:
        """Collectives directly inside, as the writer has summed them up, else those that are spans."""
        count, time_ns = self.seen
        is_summed = self.comm_ns != NONE
        return np.where(is_summed, self.comm_count, count), np.where(is_summed, self.comm_ns, time_ns)

    @cached_property
    def unplaced_ns(self) -> Ints:
        """Time in collectives directly inside that are no spans: it is known in which stage, and not when."""
        return np.where(self.comm_ns > 0, np.maximum(0, self.comm_ns - self.seen[1]), 0)

    @cached_property
    def total(self) -> tuple[Ints, Ints]:
        """Collectives inside, directly or not: how many, and the sum of their times; for a collective 1 and its own."""
        count, time_ns = (np.where(self.is_comm, 0, one) for one in self.direct)
        count, time_ns = count + self.forest.below_sum(count), time_ns + self.forest.below_sum(time_ns)
        return np.where(self.is_comm, 1, count), np.where(self.is_comm, np.maximum(0, self.end - self.begin), time_ns)

    def _by_label(self, flags: list[bool]) -> Flags:
        return np.array(flags, bool)[self.label]


class StageGroups(NamedTuple):
    """Spans that are folded together: of one container, with one path of labels."""

    root: Ints
    outer: Ints
    """Label of the stage at the top."""
    inner: Ints
    """Label of the stage inside it, or ``NONE``."""
    group: Ints
    """For each span that is in a group or inside one that is: the group."""
    index: Ints
    """Its index in ``Within.inside``."""
    head: Ints
    """The index of the span of the group that it is, or is inside."""


class Within:
    """What is inside some containers."""

    def __init__(self, table: StageTable, roots: Ints) -> None:
        self.table = table
        self.roots = roots
        self.begin = table.begin[roots]
        self.end = table.end[roots]
        self.inside: Inside = inside(table.forest, roots)
        self.size = table.forest.size[self.inside.place]
        window = self.begin[self.inside.root], self.end[self.inside.root]
        self.part = np.maximum(window[0], self.column(table.begin)), np.minimum(window[1], self.column(table.end))
        """Begin and end of each span, as far as it is in its container; the end may be before the begin."""

    def column(self, column: NDArray[Any]) -> NDArray[Any]:
        values: NDArray[Any] = column[self.inside.place]
        return values

    def union(self, kept: Flags) -> Ints:
        """Return how much time of each container some of the spans take."""
        begin, end = self.part
        return union(self.inside.root[kept], begin[kept], end[kept], len(self.roots))

    def partition(self, place: Ints, layers: int, more: Sequence[tuple[int, int, int, int]] = ()) -> Ints:
        """Assign each moment of each container to the first layer that has it.

        Args:
            place: the layer of each span; one that is no layer counts nowhere.
            layers: how many there are.
            more: further intervals: container, layer, begin and end.

        Returns:
            An array (layers + 1, containers) of ns; the last row is the time in none.
        """
        root, layer, begin, end = (np.array(one, np.int64) for one in zip(*more, strict=True)) if more else [_EMPTY] * 4
        root = np.concatenate((self.inside.root, root))
        layer = np.concatenate((place, layer))
        begin = np.maximum(np.concatenate((self.part[0], begin)), self.begin[root])
        end = np.minimum(np.concatenate((self.part[1], end)), self.end[root])
        reached = []
        for number in range(layers):
            kept = layer <= number
            reached.append(union(root[kept], begin[kept], end[kept], len(self.roots)))
        whole = np.maximum(0, self.end - self.begin)
        parts: Ints = np.diff(np.stack([0 * whole, *reached, whole]), axis=0)
        return parts

    def around(self, flags: Flags) -> Ints:
        """Return for each span how many of those around it, inside the container, have a flag."""
        marks = np.zeros(len(flags) + 1, np.int64)
        index = np.flatnonzero(flags)
        np.add.at(marks, index + 1, 1)
        np.add.at(marks, index + self.size[index], -1)
        return np.cumsum(marks)[:-1]

    def covered_ns(self) -> Ints:
        """Return how much time of each container is under a stage or a collective."""
        return self.union(np.ones(len(self.size), bool))

    def activities(self) -> Ints:
        """Return what a rank does in each container: an array (containers, ``ACTIVITIES``), ns."""
        table = self.table
        is_comm, is_idle = self.column(table.is_comm), self.column(table.is_idle)
        place = np.where(
            is_comm, COMM, np.where(is_idle, IDLE, np.where(self.column(table.is_hidden), INSEPARABLE, ACTIVE))
        )
        parts = self.partition(place, NO_STAGE)
        unplaced = np.zeros_like(parts)
        of = np.where(self.around(is_idle & ~is_comm) > 0, IDLE, place)
        np.add.at(unplaced, (of, self.inside.root), np.where(is_comm, 0, self.column(table.unplaced_ns)))
        unplaced[NO_STAGE] += table.unplaced_ns[self.roots]
        for layer in (INSEPARABLE, ACTIVE, NO_STAGE):  # in a wait a collective is idle time already
            moved = np.minimum(parts[layer], unplaced[layer])
            parts[layer] -= moved
            parts[COMM] += moved
        assert len(parts) == len(ACTIVITIES)
        return parts.T

    # --- by stage -----------------------------------------------------------------------------------------------------

    @cached_property
    def groups(self) -> StageGroups:
        """By the labels' path, two levels deep: stages at the top with collectives, and the stages inside them.

        What is of another kind than the stage at the top has a path right below that, however deep it is.
        """
        label, is_comm = self.column(self.table.label), self.column(self.table.is_comm)
        top, second, level = self.inside.top, self.inside.second, self.inside.level
        index = np.arange(len(label))
        in_second = np.flatnonzero((level >= 2) & ~is_comm[top] & ~is_comm[second])
        apart, apart_head = self._apart(label, is_comm)
        index = np.concatenate((index, in_second, apart))
        head = np.concatenate((top, second[in_second], apart_head))
        inner = np.concatenate((np.full(len(top), NONE), label[second[in_second]], label[apart_head]))
        root, outer, count = self.inside.root[index], label[top[index]], len(self.table.labels)
        keys, group = np.unique((root * count + outer) * (count + 1) + inner + 1, return_inverse=True)
        outer_of, inner_of = keys // (count + 1), keys % (count + 1) - 1
        return StageGroups(outer_of // max(1, count), outer_of % max(1, count), inner_of, group, index, head)

    def _apart(self, label: Ints, is_comm: Flags) -> tuple[Ints, Ints]:
        """Find stages deeper than level 2 that are of another kind than the top one: what is inside, and of which."""
        top, level = self.inside.top, self.inside.level
        count = max(1, len(self.table.labels))
        pairs, of = np.unique(label[top] * count + label, return_inverse=True)
        labels = self.table.labels
        outer = [labels[pair // count] for pair in pairs.tolist()]
        known = [is_apart(one, labels[pair % count]) for one, pair in zip(outer, pairs.tolist(), strict=True)]
        is_other = np.array(known, bool)[of] & (level >= 2) & ~is_comm if len(of) else is_comm
        is_evaluation = np.array([one == EVALUATE for one in outer], bool)[of] if len(of) else is_comm
        is_head = is_other & (level >= 3) & ~is_evaluation
        is_head &= (self.around(is_other) == 0) & (self.around(is_comm) == 0)
        heads = np.flatnonzero(is_head)
        sizes = self.size[heads]
        return np.repeat(heads, sizes) + ramp(sizes), np.repeat(heads, sizes)

    def stage_times(self) -> Iterator[tuple[int, Path, StageTimes]]:
        """Return the times of each stage in each container: the container's index, the labels' path, the times."""
        table, groups = self.table, self.groups
        size, index, group = len(groups.root), groups.index, groups.group
        is_head = index == groups.head
        is_comm, is_idle = (self.column(one)[index] for one in (table.is_comm, table.is_idle))
        in_wait = self.column(table.is_idle)[groups.head]
        flags = self.column(table.is_idle) & ~self.column(table.is_loading)
        is_wait = is_idle & flags[index] & ~is_head & ~in_wait & ~is_comm
        around = self.around(flags)
        is_in_wait = (around[index] - around[groups.head] > 0) & ~in_wait
        begin, end = (one[index] for one in self.part)

        def of(kept: Flags) -> Ints:
            return union(group[kept], begin[kept], end[kept], size)

        busy = of(is_head)
        comm_ns = of(is_comm) + busy - of(is_comm | is_head)
        waiting = is_comm | is_wait
        taken = of(waiting) + busy - of(waiting | is_head)
        waiting_ns, own_ns = taken - comm_ns, busy - taken
        unplaced = np.where(is_comm, 0, self.column(table.unplaced_ns)[index])
        idle_unplaced, own_unplaced = np.zeros(size, np.int64), np.zeros(size, np.int64)
        of_idle = is_wait | is_in_wait
        np.add.at(idle_unplaced, group[of_idle], unplaced[of_idle])
        np.add.at(own_unplaced, group[~of_idle], unplaced[~of_idle])
        in_own = np.minimum(own_ns, own_unplaced)
        counts = np.where(is_comm, is_head, self.column(table.direct[0])[index])
        comm_count = np.zeros(size, np.int64)
        np.add.at(comm_count, group, counts)
        hidden, host = np.zeros(size, bool), np.zeros(size, bool)
        np.logical_or.at(hidden, group, self.column(table.is_hidden)[index])
        np.logical_or.at(host, group, self.column(table.is_host_clock)[index])
        timed, durations = self._durations()
        comm_time = comm_ns + np.minimum(waiting_ns, idle_unplaced) + in_own
        rows = zip(
            groups.root.tolist(), groups.outer.tolist(), groups.inner.tolist(), durations, busy.tolist(),
            (own_ns - in_own).tolist(), comm_count.tolist(), comm_time.tolist(), hidden.tolist(), host.tolist(),
            timed.tolist(), strict=True,
        )  # fmt: skip
        labels = table.labels
        for root, outer, inner, times, busy_ns, own, count, time_ns, is_hidden, is_host, is_timed in rows:
            path = (labels[outer],) if inner == NONE else (labels[outer], labels[inner])
            comm = Comm(count, time_ns)
            if is_timed:
                sums = int(times.sum())
                yield (
                    root,
                    path,
                    StageTimes(tuple(times.tolist()), sums, sums, comm, is_hidden or count > 0, False, True),
                )
            else:
                yield root, path, StageTimes(tuple(times.tolist()), busy_ns, own, comm, is_hidden, is_host)

    def _durations(self) -> tuple[Flags, list[Ints]]:
        """Return whether the device timed all spans of a group, and the duration of each, by the device if it did."""
        table, groups = self.table, self.groups
        size, is_head = len(groups.root), groups.index == groups.head
        index, group = groups.index[is_head], groups.group[is_head]
        device_ns = self.column(table.device_ns)[index]
        timed = np.ones(size, bool)
        np.logical_and.at(timed, group, self.column(table.is_host_clock)[index] & (device_ns != NONE))
        duration = np.maximum(0, self.column(table.end) - self.column(table.begin))[index]
        duration = np.where(timed[group], device_ns, duration)[np.argsort(group, kind="stable")]
        ends = np.cumsum(np.bincount(group, minlength=size))
        return timed, np.split(duration, ends[:-1])[:size]
