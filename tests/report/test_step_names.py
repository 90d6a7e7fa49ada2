"""Ranks that call their steps by different numbers, and when nothing can be said of that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run, open_run
from otel_rl.report.data.report import Loss, RankStep, StepDisagreement
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.rows.losses import disagreements
from tests.fixtures import folded_run
from tests.made_runs import Plan, write_run

Off = tuple[Run, list[StepRecord]]


@pytest.fixture
def off(tmp_path: Path) -> Off:
    """Three steps of three ranks, of which the last one is one ahead."""
    run = open_run(write_run(tmp_path, Plan(steps=3, ranks=3)))
    records = folded_run(run).steps
    return run, [
        record._replace(step=record.step._replace(iteration=record.step.iteration + (record.rank.rank == 2)))
        for record in records
    ]


def test_the_first_step_with_two_names_is_given(off: Off) -> None:
    """And how many there are."""
    run, records = off
    first = [RankStep(0, "train", 1), RankStep(1, "train", 1), RankStep(2, "train", 2)]
    expected = StepDisagreement(attempt="a" * 32, role="trainer", steps=3, compared=3, first=first)
    assert [expected] == disagreements(records, run.journals, [])


def test_ranks_that_agree(off: Off) -> None:
    """Nothing is said."""
    run, _ = off
    assert [] == disagreements(folded_run(run).steps, run.journals, [])


def test_lost_spans_leave_it_open(off: Off) -> None:
    """The k-th step that is there may not be the k-th that was; lost metrics do not matter."""
    run, records = off
    dropped = Loss(what="dropped", signal="traces", reason="journal_full", count=1)
    assert [] == disagreements(records, run.journals, [dropped])
    assert [] != disagreements(records, run.journals, [replace(dropped, signal="metrics")])


def test_damage_leaves_it_open(off: Off) -> None:
    """So does a file of which a part cannot be read."""
    run, records = off
    file = next(run.path.glob("trainer-2-*.traces.*"))
    file.write_bytes(file.read_bytes()[:-1])
    assert [] == disagreements(records, open_run(run.path).journals, [])


def test_the_step_in_which_a_rank_died_has_no_place(tmp_path: Path) -> None:
    """Steps before it may have ended without a span: here that of rank 0 is the eighth, though two are there."""
    run = open_run(write_run(tmp_path, Plan(steps=3, killed_in=v.SAMPLE)))
    records = [
        record._replace(step=record.step._replace(iteration=8))
        if record.is_truncated and record.rank.rank == 0
        else record._replace(is_truncated=False, is_open=False)  # the span of rank 1 is there
        for record in folded_run(run).steps
    ]
    assert [1, 1, 2, 2, 3, 8] == sorted(record.step.iteration for record in records)
    assert [] == disagreements(records, run.journals, [])


def test_a_step_that_an_error_ended_has_its_place(off: Off) -> None:
    """Its span is there, so the order has no hole."""
    run, records = off
    failed = [record._replace(is_truncated=True) for record in records]
    assert disagreements(records, run.journals, []) == disagreements(failed, run.journals, [])
