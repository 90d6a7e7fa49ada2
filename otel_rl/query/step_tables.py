"""The tables about steps and curves, from what a report is made of: their numbers are the report's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.stages import NO_COMM, Path, StageTimes
from otel_rl.query.columns_as_arrays import Arrays, maps, numbers, objects
from otel_rl.report.fold.folded_spans import StepRecord, sums_of
from otel_rl.report.read.rank_times import what_ranks_did
from otel_rl.report.rows.efficiency import compare_ranks
from otel_rl.report.source import Source
from otel_rl.tables.calls import join
from otel_rl.tables.forest import combinations
from otel_rl.tables.peers import Compared

if TYPE_CHECKING:
    from otel_rl.tables.forest import Ints


class StepTables:
    """The tables of the steps of a run that was read."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def makers(self) -> dict[str, Callable[[], Arrays]]:
        """Return what makes each table."""
        return {
            "steps": self._steps,
            "stages": self._stages,
            "waits": self._waits,
            "calls": self._calls,
            "curves": self._curves,
        }

    @cached_property
    def _records(self) -> list[StepRecord]:
        """Return all steps of ranks: whole ones last until the next begins, the others as far as they are recorded."""
        source = self._source
        guests = [record for record in source.of_ranks.finished if record.is_guest]
        broken = [record for record in source.found.steps if record.is_truncated]
        return [*source.averaged.finished, *guests, *broken]

    @cached_property
    def _averaged(self) -> set[int]:
        """Return the numbers of the steps that averages use."""
        source = self._source
        return {record.number for of in (source.averaged, source.of_ranks) for record in of.steady}

    @cached_property
    def _compared(self) -> tuple[list[StepRecord], Compared]:
        return compare_ranks(join(self._source.found.calls), self._source.of_ranks)

    def _keys(self, records: Sequence[StepRecord]) -> Arrays:
        return {
            "attempt": objects(record.attempt for record in records),
            "loop": objects(record.step.loop for record in records),
            "step": np.array([record.step.iteration for record in records], np.int64),
            "role": objects(record.rank.role for record in records),
            "rank": np.array([record.rank.rank for record in records], np.int64),
            "is_averaged": np.array([record.number in self._averaged for record in records], bool),
            "is_guest": np.array([record.is_guest for record in records], bool),
        }

    def _steps(self) -> Arrays:
        records = self._records
        compared, found = self._compared
        waits = found.by_rank_step([record.skipped for record in compared])
        place = {record.number: row for row, record in enumerate(compared)}
        rows = [place.get(record.number, -1) for record in records]  # of what is not compared: the last, which is none
        did = what_ranks_did(records, sums_of(records), np.append(waits.ns, 0)[rows])
        times = {"duration": did.pop("step"), **did}
        return self._keys(records) | {
            "begin_time": np.array([record.step.begin_ns for record in records], np.int64),
            "end_time": np.array([record.step.end_ns for record in records], np.int64),
            **{f"{name}_s": column / 1e9 for name, column in times.items()},
            "is_least": np.append(waits.is_least, False)[rows],
            **_work(records),
            "is_whole": np.array([not record.is_truncated for record in records], bool),
        }

    def _stages(self) -> Arrays:
        records, of, stages, inside, rows = self._records, list[int](), list[str](), list[str](), list[StageTimes]()
        for index, record in enumerate(records):
            for path, times in _all_stages(record):
                of.append(index)
                stages.append(path[-1])
                inside.append(path[-2] if len(path) > 1 else "")
                rows.append(times)
        return _take(self._keys(records), np.array(of, np.int64)) | {
            "stage": objects(stages),
            "inside": objects(inside),
            "calls": np.array([len(one.durations_ns) for one in rows], np.int64),
            "total_s": np.array([one.busy_ns for one in rows], np.int64) / 1e9,
            "own_s": np.array([one.own_ns for one in rows], np.int64) / 1e9,
            "collectives": np.array([one.comm.count for one in rows], np.int64),
            "comm_s": np.array([one.comm.time_ns for one in rows], np.int64) / 1e9,
            "is_comm_hidden": np.array([one.is_hidden for one in rows], bool),
            "is_host_clock": np.array([one.is_host_clock for one in rows], bool),
        }

    def _waits(self) -> Arrays:
        records, compared = self._compared
        table = compared.table
        kept = np.flatnonzero(~table.is_idle)
        first, group = combinations(table.rank_step[kept], table.stage[kept])
        sums, is_least = np.zeros(len(first), np.int64), np.zeros(len(first), bool)
        np.add.at(sums, group, compared.waits.ns[kept])
        is_least[group[compared.waits.is_least[kept]]] = True
        rows = kept[first]
        return self._of_calls(records, compared, rows) | {"wait_s": sums / 1e9, "is_least": is_least}

    def _calls(self) -> Arrays:
        records, compared = self._compared
        table = compared.table
        rows = np.arange(len(table.stage))
        return self._of_calls(records, compared, rows) | {
            "turn": table.turn,
            "duration_s": table.duration / 1e9,
            "own_s": table.own_ns / 1e9,
            "comm_s": table.comm / 1e9,
            "wait_s": compared.waits.ns / 1e9,
            "is_least": compared.waits.is_least,
        }

    def _of_calls(self, records: Sequence[StepRecord], compared: Compared, rows: Ints) -> Arrays:
        stages = objects(compared.table.stages)
        keys = _take(self._keys(records), compared.table.rank_step[rows])
        return keys | {"stage": stages[compared.table.stage[rows]]}

    def _curves(self) -> Arrays:
        series = self._source.series + self._source.numbers
        of = np.repeat(np.arange(len(series)), [len(one.values) for one in series])
        heads = {
            "metric": objects(one.name for one in series),
            "unit": objects(one.unit for one in series),
            **maps("labels", [one.qualifiers for one in series]),
        }
        return _take(heads, of) | {
            "step": numbers((step for one in series for step in one.steps), int),
            "value": numbers(value for one in series for value in one.values),
        }


def _take(columns: Arrays, rows: Any) -> Arrays:
    return {name: column[rows] for name, column in columns.items()}


def _all_stages(record: StepRecord) -> list[tuple[Path, StageTimes]]:
    """Return the stages of a step, and what lies under none."""
    time_ns = record.other_ns
    other = StageTimes((time_ns,), time_ns, time_ns, NO_COMM, is_hidden=False, is_host_clock=False)
    return [*record.stages.items(), ((v.OTHER,), other)]


def _work(records: Sequence[StepRecord]) -> Arrays:
    work = [record.work for record in records]
    return {
        "samples": numbers((one.samples if one.has_samples else None for one in work), int),
        "prompt_tokens": numbers((one.prompt_tokens if one.has_prompts else None for one in work), int),
        "response_tokens": numbers((one.response_tokens if one.has_responses else None for one in work), int),
        "environment_tokens": numbers((one.environment_tokens if one.has_environment else None for one in work), int),
        "padding_tokens": numbers((one.padding for one in work), int),
        "train_tokens": numbers((one.train_tokens if one.has_trained else None for one in work), int),
    }
