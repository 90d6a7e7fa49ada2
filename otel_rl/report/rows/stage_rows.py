"""The stages of the mean step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.stages import Path
from otel_rl.report.data.report import StageRow
from otel_rl.report.read.average import Averaged, quantile_of
from otel_rl.report.read.step_stages import StageInSteps


def stage_rows(averaged: Averaged) -> list[StageRow]:
    """Make one row per stage, largest share first, the stages inside it right below it, `rl.other` at the end."""
    rows = {path: _row(averaged, path, part) for path, part in averaged.stages.items()}
    ordered = sorted(rows, key=lambda path: _order(rows, path))
    other = [_row(averaged, (v.OTHER,), averaged.other)] if averaged.time_ns else []
    return [rows[path] for path in ordered] + other


def explained(stages: Sequence[StageRow], of_ranks: Sequence[StageRow]) -> list[StageRow]:
    """Put what ranks do inside the stages of their driver below these: collectives, and stages of theirs."""
    known = {row.stage: row for row in of_ranks if row.inside is None}
    inside: dict[str, list[StageRow]] = {}
    for row in of_ranks:
        if row.inside is not None:
            inside.setdefault(row.inside, []).append(row)
    rows: list[StageRow] = []
    for row in stages:
        called = known.get(row.stage) if row.inside is None and row.stage != v.OTHER else None
        rows.append(row if called is None else _with_calls(row, called))
        if called is not None:
            rows += inside.get(row.stage, ())
    return rows


def _with_calls(row: StageRow, called: StageRow) -> StageRow:
    comm_share = called.comm_share * called.share / row.share if row.share else 0.0
    return replace(
        row,
        comm_share=min(1.0, comm_share),
        is_comm_hidden=called.is_comm_hidden,
        is_host_clock=called.is_host_clock,
        is_device_clock=False,
    )


def _order(rows: dict[Path, StageRow], path: Path) -> tuple[tuple[float, str], ...]:
    return tuple((-rows[path[: depth + 1]].share, path[depth]) for depth in range(len(path)))


def _row(averaged: Averaged, path: Path, part: StageInSteps) -> StageRow:
    durations_s = np.sort(part.durations_ns) / 1e9
    busy_ns, comm_ns = sum(part.busy_ns.tolist()), sum(part.comm_ns.tolist())  # of most stages there is one step
    return StageRow(
        stage=path[-1],
        inside=path[-2] if len(path) > 1 else None,
        calls=len(durations_s),
        share=busy_ns / averaged.time_ns if averaged.time_ns else 0.0,
        median_s=quantile_of(durations_s, 0.5),
        p95_s=quantile_of(durations_s, 0.95),
        total_s=sum((part.busy_ns / averaged.ranks_beside[part.step]).tolist()) / 1e9,
        comm_share=comm_ns / busy_ns if busy_ns else 0.0,
        is_comm_hidden=part.is_hidden,
        is_host_clock=part.is_host_clock,
        is_device_clock=part.is_device_clock and len(durations_s) > 0,
    )
