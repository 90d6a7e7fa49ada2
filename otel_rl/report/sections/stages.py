"""The stage table: what share of the step time each stage takes."""

from __future__ import annotations

from array import array

from otel_rl import vocabulary as v
from otel_rl.analysis.stages import Path
from otel_rl.analysis.summary import summarize
from otel_rl.report.data.report import StageRow
from otel_rl.report.read.average import Averaged
from otel_rl.report.read.collect import StepRecord


def stage_rows(averaged: Averaged) -> list[StageRow]:
    """Make one row per stage, largest share first, the stages inside it right below it, `rl.other` at the end."""
    paths = {path for record in averaged.steady for path in record.slices}
    rows = {path: _row(averaged, path) for path in paths}
    ordered = sorted(paths, key=lambda path: _order(rows, path))
    return [rows[path] for path in ordered] + ([_other(averaged)] if averaged.time_ns else [])


def _order(rows: dict[Path, StageRow], path: Path) -> tuple[tuple[float, str], ...]:
    return tuple((-rows[path[: depth + 1]].share, path[depth]) for depth in range(len(path)))


def _row(averaged: Averaged, path: Path) -> StageRow:
    times = array("d")
    busy_ns = comm_ns = 0
    per_rank_ns = 0.0
    is_hidden = is_host = False
    is_device = True
    for record, part in averaged.slices(path):
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
        share=_share(busy_ns, averaged),
        median_s=durations.median,
        p95_s=durations.p95,
        total_s=per_rank_ns / 1e9,
        comm_share=comm_ns / 1e9 / durations.total if durations.total else 0.0,
        is_comm_hidden=is_hidden,
        is_host_clock=is_host,
        is_device_clock=is_device and durations.count > 0,
    )


def _other(averaged: Averaged) -> StageRow:
    times = [other_ns(record) for record in averaged.steady]
    summary = summarize([ns / 1e9 for ns in times])
    return StageRow(
        stage=v.OTHER,
        inside=None,
        calls=summary.count,
        share=_share(sum(times), averaged),
        median_s=summary.median,
        p95_s=summary.p95,
        total_s=averaged.per_rank_s(other_ns),
        comm_share=0.0,
        is_comm_hidden=False,
        is_host_clock=False,
        is_device_clock=False,
    )


def other_ns(record: StepRecord) -> int:
    """Say how much time of a step lies under no stage."""
    return max(0, record.step.time_ns - record.covered_ns)


def _share(time_ns: int, averaged: Averaged) -> float:
    return time_ns / averaged.time_ns if averaged.time_ns else 0.0
