"""The calls of one rank in one step: kept small, and made ready for the arithmetic over ranks."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import Kind, kind_of
from otel_rl.analysis.stages import Piece, Tree
from otel_rl.analysis.stragglers import StageCall, is_symmetric
from otel_rl.journal.views import SpanView

OF_ALL_RANKS: Final = ("gather", "gather_object", "gather_for_metrics", "reduce", "wait_for_everyone")
"""accelerate's collectives, which all ranks leave together. torch's own of these names are rooted: what the root spends
in them is waiting, too."""
DATA: Final = f"{v.IDLE} data"
"""The one wait that a rank may be slow in: its own loader is."""
Labels = tuple[str, ...]
RankT = TypeVar("RankT", bound=Hashable)
NUMBERS: Final = 5
"""Of each call: duration, in collectives, of it apart, whether they cannot be separated, own time of a device or -1."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The top-level calls of one rank in one step, in order of time, those under no stage among them.

    Cost: 40 bytes a call; the labels are shared by all steps that have the same.
    """

    labels: Labels
    numbers: array[int]

    def of(self, rank: RankT) -> Iterator[StageCall[RankT]]:
        """Give them as the arithmetic takes them."""
        for place, stage in enumerate(self.labels):
            numbers = self.numbers[NUMBERS * place : NUMBERS * (place + 1)]
            duration_ns, comm_ns, apart_ns, is_hidden, device_ns = numbers
            hidden_ns, device = None if is_hidden else 0, None if device_ns < 0 else device_ns
            yield StageCall(0, rank, stage, duration_ns, comm_ns, hidden_ns, apart_ns, device)


def calls_in(container: Piece, tree: Tree, spans: Iterable[SpanView], known: dict[Labels, Labels]) -> Calls:
    """Reduce a step to its calls.

    Args:
        container: of the step.
        tree: of its trace.
        spans: of its trace.
        known: labels of other steps, to be shared.
    """
    comm = [span for span in spans if span.name == v.COMM]
    apart_ns = {span.span_id: span.end_ns - span.start_ns for span in comm if not is_met(span.attributes)}
    labels: list[str] = []
    numbers = array("q")
    top = tree.directly(container.key)
    direct = tree.direct_comm(container)
    is_whole = direct.count == sum(piece.is_comm for piece in top)
    for piece in top:
        if not piece.is_comm or is_whole:
            labels.append(piece.label)
            numbers.extend(_numbers(piece, tree, apart_ns))
    if not is_whole:  # only the longest of them are spans: one call stands for all
        few_ns = sum(apart_ns.get(piece.key, 0) for piece in top)
        labels.append(v.COMM)
        numbers.extend((direct.time_ns, direct.time_ns, few_ns, False, -1))
    shared = tuple(labels)
    return Calls(known.setdefault(shared, shared), numbers)


def is_met(attributes: Mapping[str, object]) -> bool:
    """Say whether ranks leave a collective together; from their waits for an asynchronous one they go one by one."""
    operation = str(attributes.get(v.COMM_OPERATION, ""))
    if attributes.get(v.COMM_ASYNC) is True:
        return operation == v.DDP_ALL_REDUCE
    return operation in OF_ALL_RANKS or is_symmetric(operation)


def _numbers(piece: Piece, tree: Tree, apart_ns: Mapping[bytes, int]) -> tuple[int, int, int, bool, int]:
    inside = [piece, *tree.below(piece.key)]
    apart = sum(apart_ns.get(one.key, 0) for one in inside) if apart_ns else 0
    is_hidden = any(one.is_hidden for one in inside)
    is_inseparable = is_hidden or any(one.is_host_clock for one in inside)
    comm = tree.comm(piece)
    is_timed = piece.is_host_clock and not (is_hidden or comm.count)  # of collectives the device's time has the waits
    device_ns = piece.device_ns if is_timed and piece.device_ns is not None else -1
    return piece.duration_ns, comm.time_ns, apart, is_inseparable, device_ns


# --- over ranks -------------------------------------------------------------------------------------------------------


def matched(calls: Mapping[RankT, Calls]) -> list[StageCall[RankT]]:
    """Give the calls of one step of all ranks.

    Where the ranks have not equally many collectives under no stage, those of a rank become one call behind the others:
    the k-th of one would not be the k-th of another.
    """
    listed = {rank: list(one.of(rank)) for rank, one in calls.items()}
    if len({sum(call.stage == v.COMM for call in one) for one in listed.values()}) > 1:
        listed = {rank: _joined(rank, one) for rank, one in listed.items()}
    return [call for one in listed.values() for call in one]


def _joined(rank: RankT, calls: list[StageCall[RankT]]) -> list[StageCall[RankT]]:
    comm = [call for call in calls if call.stage == v.COMM]
    time_ns = sum(call.duration_ns for call in comm)
    whole = StageCall(0, rank, v.COMM, time_ns, time_ns, apart_ns=sum(call.apart_ns for call in comm))
    return [*(call for call in calls if call.stage != v.COMM), whole]


def is_idle(call: StageCall[RankT]) -> bool:
    """Whether a rank waits in a call."""
    return kind_of(call.stage) is Kind.IDLE


def is_work(call: StageCall[RankT]) -> bool:
    """Whether a rank may be slow in a call: in work, or in loading its data; never in waiting for others."""
    return not is_idle(call) or call.stage == DATA
