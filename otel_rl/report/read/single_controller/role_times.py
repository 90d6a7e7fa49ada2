"""The calls of every stage by role, of a run with a single controller."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from typing import Final, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.analysis.summary import summarize
from otel_rl.journal.read import SpanView
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.roles import RoleRow, RoleStage
from otel_rl.report.read.single_controller.guest_steps import DRIVER
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import is_container, label, text

LEAST_CALLS: Final = 8
SLOW_RATIO: Final = 1.5


@dataclass(slots=True)
class CallTimes:
    """The calls of one stage in one process."""

    times_s: array[float] = field(default_factory=lambda: array("d"))
    busy_s: float = 0.0
    """In which one of them or more went on, at the least."""
    reached_ns: int = 0

    def add(self, begin_ns: int, end_ns: int) -> None:
        """Add a call; they come about in order of their ends."""
        self.times_s.append(max(0, end_ns - begin_ns) / 1e9)
        self.busy_s += max(0, end_ns - max(begin_ns, self.reached_ns)) / 1e9
        self.reached_ns = max(self.reached_ns, end_ns)

    def quartiles(self) -> tuple[float, float, float]:
        ordered, calls = sorted(self.times_s), len(self.times_s)
        return ordered[calls // 4], ordered[calls // 2], ordered[3 * calls // 4]


class SlowCallee(NamedTuple):
    """A process whose calls of a stage take longer than those of the others of its role."""

    rank: Rank
    stage: str
    own_s: float
    others_s: float
    """Medians; of several others their median."""
    cost_s: float
    """By how much less it would have been busy with calls as long as theirs."""


class RoleTimes:
    """Eight bytes of each call."""

    def __init__(self) -> None:
        self._calls: defaultdict[str, dict[Rank, CallTimes]] = defaultdict(dict)
        """By stage and process."""

    def add(self, span: SpanView) -> None:
        is_counted = span.name != v.COMM and not is_container(span.name) and v.TRUNCATED not in span.attributes
        if is_counted and text(span.attributes, v.MODE) != "eval":
            calls = self._calls[label(span.name, span.attributes)]
            calls.setdefault(rank_of(span.resource), CallTimes()).add(span.start_ns, span.end_ns)

    def slowest(self, ranks: set[Rank]) -> SlowCallee | None:
        """Return the process that costs most by slower calls than others of its role; ranks are compared elsewhere.

        Nearly all of its calls are longer than nearly all of theirs: quarters are left out.
        """
        found: list[SlowCallee] = []
        for stage, calls in self._calls.items():
            enough = {rank: one for rank, one in calls.items() if len(one.times_s) >= LEAST_CALLS and rank not in ranks}
            known = {rank: one.quartiles() for rank, one in enough.items()}
            for rank, (low_s, own_s, _) in known.items():
                peers = [one for peer, one in known.items() if peer.role == rank.role and peer != rank]
                others_s = median(one[1] for one in peers) if peers else 0.0
                if own_s >= SLOW_RATIO * others_s > 0 and low_s >= median(one[2] for one in peers):
                    cost_s = enough[rank].busy_s * (1 - others_s / own_s)
                    found.append(SlowCallee(rank, stage, own_s, others_s, cost_s))
        return max(found, key=lambda one: one.cost_s, default=None)

    def rows(self, processes: list[Rank], ranks: set[Rank]) -> list[RoleRow]:
        """Return a row of each role: the driver, those that hold devices, the others."""
        counts: defaultdict[str, int] = defaultdict(int)
        for one in processes:
            counts[one.role] += 1
        training = {rank.role for rank in ranks}
        order = sorted(counts, key=lambda role: (role != DRIVER, role not in training, role.lower()))
        return [
            RoleRow(
                role=role,
                processes=counts[role],
                is_driver=role == DRIVER,
                is_rank=role in training,
                stages=[] if role == DRIVER else self._stages(role),
            )
            for role in order
        ]

    def _stages(self, role: str) -> list[RoleStage]:
        times = {
            stage: array("d", chain.from_iterable(one.times_s for rank, one in calls.items() if rank.role == role))
            for stage, calls in self._calls.items()
        }
        rows = [_row(stage, known) for stage, known in times.items() if known]
        return sorted(rows, key=lambda row: (-row.total_s, row.stage))


def _row(stage: str, times: array[float]) -> RoleStage:
    found = summarize(times)
    return RoleStage(
        stage=stage,
        calls=found.count,
        median_s=found.median,
        p95_s=found.p95,
        longest_s=max(times),
        total_s=found.total,
    )
