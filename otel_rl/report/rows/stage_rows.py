"""The stages of the mean step."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace

from otel_rl import vocabulary as v
from otel_rl.analysis.stages import Path, StageTimes
from otel_rl.analysis.summary import summarize
from otel_rl.report.data.report import StageRow
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.read.average import Averaged


def stage_rows(averaged: Averaged) -> list[StageRow]:
    """Make one row per stage, largest share first, the stages inside it right below it, `rl.other` at the end."""
    paths = {path for record in averaged.steady for path in record.stages}
    rows = {path: _row(averaged, path, averaged.steps_with(path)) for path in paths}
    ordered = sorted(paths, key=lambda path: _order(rows, path))
    other = [_row(averaged, (v.OTHER,), averaged.other())] if averaged.time_ns else []
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


def _row(averaged: Averaged, path: Path, steps: Iterable[tuple[StepRecord, StageTimes]]) -> StageRow:
    times = array("d")
    busy_ns = comm_ns = 0
    per_rank_ns = 0.0
    is_hidden = is_host = False
    is_device = True
    for record, part in steps:
        times.extend([ns / 1e9 for ns in part.durations_ns])
        busy_ns += part.busy_ns
        comm_ns += part.comm.time_ns
        per_rank_ns += part.busy_ns / averaged.num_ranks[record.attempt]
        is_hidden |= part.is_hidden
        is_host |= part.is_host_clock
        is_device &= part.is_device_clock
    durations = summarize(times)
    return StageRow(
        stage=path[-1],
        inside=path[-2] if len(path) > 1 else None,
        calls=durations.count,
        share=busy_ns / averaged.time_ns if averaged.time_ns else 0.0,
        median_s=durations.median,
        p95_s=durations.p95,
        total_s=per_rank_ns / 1e9,
        comm_share=comm_ns / busy_ns if busy_ns else 0.0,
        is_comm_hidden=is_hidden,
        is_host_clock=is_host,
        is_device_clock=is_device and durations.count > 0,
    )
