"""The calls of one rank in one step, kept small, for the comparison of ranks."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import Kind, kind_of
from otel_rl.analysis.stage_calls import Met, StageCall
from otel_rl.analysis.stages import LOADING, Idle, RankSpan, SpanTree
from otel_rl.analysis.waits import is_symmetric
from otel_rl.journal.views import SpanView
from otel_rl.records import Value
from otel_rl.runs.spans import integer, text

OF_ALL_RANKS: Final = (
    "gather", "gather_object", "gather_for_metrics", "reduce", "wait_for_everyone", *v.MAKING_A_GROUP,
)  # fmt: skip
"""Accelerate's collectives, which all ranks leave together, and those that make a group. Torch's own of these names
have a root, whose time in them is waiting, too."""
SMALL_BROADCAST: Final = 64 << 10
"""A broadcast of at most these bytes takes no time, so a rank that is in it for longer waits, as in that of DDP's
buffers. Each rank leaves a larger one when it has received or sent it."""
Labels = tuple[str, ...]
Names = tuple[tuple[int, str, str, int], ...]
"""The index of the call, group, operation and size of the group of each kind of collective that has a span."""
RankT = TypeVar("RankT", bound=Hashable)
PLAIN: Final = (0, 0, False, -1, 0, 0, 0, 0, 0)
"""The numbers of a call after its duration. A call with these values is plain: only its duration is kept.

Time in collectives; the part of it that is apart; whether collectives cannot be separated; own time of the device, or
-1; number of collectives; number of those without a span; time in collectives inside `rl.idle`; time in `rl.idle`
without them, of all kinds, and of waits for data.
"""
SEEN: Final = 3
"""Numbers of each collective that has a span: index of its name, sequence, duration."""


@dataclass(slots=True)
class Known:
    """What steps with the same calls and collectives share."""

    labels: dict[Labels, Labels] = field(default_factory=dict)
    full: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    names: dict[Names, Names] = field(default_factory=dict)

    def clear(self, most: int) -> None:
        for known in (self.labels, self.full, self.names):
            if len(known) > most:
                known.clear()


@dataclass(frozen=True, slots=True)
class Calls:
    """The top-level calls of one rank in one step, in order of time, with those under no stage.

    Cost: 8 bytes a plain call, 80 another one, and 24 for each collective in it that has a span; steps share equal
    labels and names.
    """

    labels: Labels
    full: tuple[int, ...]
    numbers: array[int]
    """Durations of all calls, then the other numbers of those that are not plain."""
    names: Names
    seen: array[int]

    def of(self, rank: RankT) -> Iterator[StageCall[RankT]]:
        met: list[list[Met]] = [[] for _ in self.labels]
        for first in range(0, len(self.seen), SEEN):
            name, sequence, duration_ns = self.seen[first : first + SEEN]
            place, group, operation, size = self.names[name]
            met[place].append(Met(group, operation, size, sequence, duration_ns))
        size = len(self.labels)
        firsts = {place: size + number * len(PLAIN) for number, place in enumerate(self.full)}
        for place, stage in enumerate(self.labels):
            duration_ns, first = self.numbers[place], firsts.get(place, 0)
            comm_ns, apart_ns, is_hidden, device_ns, count, omitted, *idle_ns = (
                self.numbers[first : first + len(PLAIN)] if first else PLAIN
            )
            hidden_ns, device = None if is_hidden else 0, None if device_ns < 0 else device_ns
            yield StageCall(
                0, rank, stage, duration_ns, comm_ns, hidden_ns, apart_ns, device, count, omitted, tuple(met[place]),
                *idle_ns,
            )  # fmt: skip


def calls_in(container: RankSpan, tree: SpanTree, spans: Iterable[SpanView], known: Known) -> Calls:
    """Reduce a step to its calls; tree and spans are those of its trace."""
    comm = [span for span in spans if span.name == v.COMM]
    apart_ns = {span.span_id: span.end_ns - span.start_ns for span in comm if not is_met(span.attributes)}
    timed = {span.span_id: span for span in comm if shows_waits(span.attributes)}
    labels: list[str] = []
    numbers: list[tuple[int, int, int, bool, int, int, int, int, int, int]] = []
    rows: list[tuple[int, SpanView]] = []
    top = list(_in_turn(span.within(container) for span in tree.directly(container.key)))
    direct = tree.direct_comm(container)
    omitted = direct.count - sum(span.is_comm for span in top)
    for span in top:
        if not span.is_comm or not omitted:
            inside = [span, *tree.below(span.key)]
            waits = [one.within(container) for one in tree.waits(span, inside)]
            idle_keys = {child.key for one in waits for child in tree.below(one.key)} if waits else ()
            rows += [(len(labels), timed[one.key]) for one in inside if one.key in timed and one.key not in idle_keys]
            labels.append(span.label)
            few_ns = sum(apart_ns.get(one.key, 0) for one in inside if one.key not in idle_keys) if apart_ns else 0
            numbers.append(_numbers(span, inside, tree, few_ns, tree.idle(span, waits)))
    if omitted:  # only the longest of them are spans: one call stands for all
        few_ns = sum(apart_ns.get(span.key, 0) for span in top)
        rows += [(len(labels), timed[span.key]) for span in top if span.key in timed]
        labels.append(v.COMM)
        numbers.append((direct.time_ns, direct.time_ns, few_ns, False, -1, direct.count, max(0, omitted), 0, 0, 0))
    shared, full = tuple(labels), tuple(place for place, row in enumerate(numbers) if row[1:] != PLAIN)
    kept = array("q", [row[0] for row in numbers] + [one for place in full for one in numbers[place][1:]])
    return Calls(known.labels.setdefault(shared, shared), known.full.setdefault(full, full), kept, *_seen(rows, known))


def _in_turn(spans: Iterable[RankSpan]) -> Iterator[RankSpan]:
    """Let the calls of a stage in several tasks or threads not overlap: each begins after those that began before."""
    reached_ns: dict[str, int] = {}
    for span in spans:
        begin_ns = max(span.begin_ns, min(span.end_ns, reached_ns.get(span.label, 0)))
        reached_ns[span.label] = max(span.end_ns, reached_ns.get(span.label, 0))
        yield span if begin_ns == span.begin_ns else span._replace(begin_ns=begin_ns)


def is_met(attributes: Mapping[str, object]) -> bool:
    """Return whether ranks leave a collective together; they leave the wait for an asynchronous one one by one."""
    operation = str(attributes.get(v.COMM_OPERATION, ""))
    if attributes.get(v.COMM_ASYNC) is True:
        return operation == v.DDP_ALL_REDUCE
    return operation in OF_ALL_RANKS or is_symmetric(operation) or _is_small_broadcast(operation, attributes)


def _is_small_broadcast(operation: str, attributes: Mapping[str, object]) -> bool:
    size = attributes.get(v.COMM_BYTES)
    return "broadcast" in operation and isinstance(size, int) and 0 < size <= SMALL_BROADCAST


def shows_waits(attributes: Mapping[str, Value]) -> bool:
    """Return whether the durations of a collective on its ranks show which of them waited.

    It must be known which of the other ranks' collectives it is, and the host must not only launch it. A group is made
    once, and a rank that is not in it has no peers there.
    """
    operation = text(attributes, v.COMM_OPERATION)
    is_matched = bool(integer(attributes, v.COMM_SEQUENCE)) or operation == v.DDP_ALL_REDUCE
    is_matched |= operation in v.MAKING_A_GROUP and bool(text(attributes, v.COMM_GROUP))
    return is_matched and is_met(attributes) and attributes.get(v.CLOCK) != "host"


def _seen(rows: Iterable[tuple[int, SpanView]], known: Known) -> tuple[Names, array[int]]:
    """Pack the collectives that have a span, each with the index of its call."""
    named = [(_name(place, span.attributes), span) for place, span in rows]
    names = tuple(sorted({name for name, _ in named}))
    places = {name: place for place, name in enumerate(names)}
    if not named:
        return known.names.setdefault(names, names), array("q")
    numbers = array("q")
    for name, span in named:
        sequence = integer(span.attributes, v.COMM_SEQUENCE)
        numbers.extend((places[name], sequence, max(0, span.end_ns - span.start_ns)))
    return known.names.setdefault(names, names), numbers


def _name(place: int, attributes: Mapping[str, Value]) -> tuple[int, str, str, int]:
    group, operation = text(attributes, v.COMM_GROUP), text(attributes, v.COMM_OPERATION)
    return place, group, operation, integer(attributes, v.COMM_GROUP_SIZE)


def _numbers(
    span: RankSpan, inside: Iterable[RankSpan], tree: SpanTree, apart_ns: int, idle: Idle
) -> tuple[int, int, int, bool, int, int, int, int, int, int]:
    is_hidden = any(one.is_hidden for one in inside)
    is_inseparable = is_hidden or any(one.is_host_clock for one in inside)
    comm = tree.comm(span)
    is_timed = span.is_host_clock and not (is_hidden or comm.count)  # of collectives the device's time has the waits
    device_ns = span.device_ns if is_timed and span.device_ns is not None else -1
    omitted = max(0, comm.count - sum(one.is_comm for one in inside))
    alone = idle.comm_ns, idle.time_ns, idle.loading_ns
    return span.duration_ns, comm.time_ns, apart_ns, is_inseparable, device_ns, comm.count, omitted, *alone


# --- over ranks -------------------------------------------------------------------------------------------------------


def matched(calls: Mapping[RankT, Calls]) -> list[StageCall[RankT]]:
    """Return the calls of one step of all ranks.

    If the ranks have different numbers of collectives under no stage, those of each rank become one call at its end:
    the k-th of one rank would not be the k-th of another.
    """
    listed = {rank: list(one.of(rank)) for rank, one in calls.items()}
    if len({sum(call.stage == v.COMM for call in one) for one in listed.values()}) > 1:
        listed = {rank: _joined(rank, one) for rank, one in listed.items()}
    return [call for one in listed.values() for call in one]


def matched_peers(calls: Mapping[RankT, Calls], pipeline: Mapping[RankT, int]) -> dict[int, list[StageCall[RankT]]]:
    """Return the calls of one step of the ranks of a role by pipeline stage; the ranks of one are peers."""
    by_stage: defaultdict[int, dict[RankT, Calls]] = defaultdict(dict)
    for rank, one in calls.items():
        by_stage[pipeline[rank]][rank] = one
    return {stage: matched(of_peers) for stage, of_peers in by_stage.items()}


def _joined(rank: RankT, calls: list[StageCall[RankT]]) -> list[StageCall[RankT]]:
    comm = [call for call in calls if call.stage == v.COMM]
    time_ns = sum(call.duration_ns for call in comm)
    whole = StageCall(
        step=0,
        rank=rank,
        stage=v.COMM,
        duration_ns=time_ns,
        comm_ns=time_ns,
        apart_ns=sum(call.apart_ns for call in comm),
        count=sum(call.count for call in comm),
        omitted=sum(call.omitted for call in comm),
        rows=tuple(row for call in comm for row in call.rows),
    )
    return [*(call for call in calls if call.stage != v.COMM), whole]


def is_work(call: StageCall[RankT]) -> bool:
    """Return whether a rank may be slow in a call: in work or in loading data, not in waiting for others."""
    return kind_of(call.stage) is not Kind.IDLE or call.stage == LOADING
