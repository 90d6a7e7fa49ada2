"""The calls of every stage by role, of a run with a single controller."""

from __future__ import annotations

from array import array
from collections import defaultdict

from otel_rl import vocabulary as v
from otel_rl.analysis.summary import summarize
from otel_rl.journal.read import SpanView
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.roles import RoleRow, RoleStage
from otel_rl.report.read.single_controller.guest_steps import DRIVER
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import is_container, label, text


class RoleTimes:
    """Eight bytes of each call."""

    def __init__(self) -> None:
        self._times: defaultdict[str, defaultdict[str, array[float]]] = defaultdict(lambda: defaultdict(_no_times))
        """By role and stage, s."""

    def add(self, span: SpanView) -> None:
        is_counted = span.name != v.COMM and not is_container(span.name) and v.TRUNCATED not in span.attributes
        if is_counted and text(span.attributes, v.MODE) != "eval":
            times = self._times[rank_of(span.resource).role]
            times[label(span.name, span.attributes)].append(max(0, span.end_ns - span.start_ns) / 1e9)

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
        rows = [_row(stage, times) for stage, times in self._times[role].items()]
        return sorted(rows, key=lambda row: (-row.total_s, row.stage))


def _no_times() -> array[float]:
    return array("d")


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
