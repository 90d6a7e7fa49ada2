"""What the rules of learning read of a run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.reading import read_run
from otel_rl.report.rows.evidence import learning
from otel_rl.report.section import Line, Table
from otel_rl.report.sections.learning_table import LEARNING
from otel_rl.report.source import Source
from tests.made_runs import BEGIN_NS, Plan, write_run


def source(root: Path, plan: Plan | None = None) -> Source:
    """Read a made run."""
    run = open_run(write_run(root, plan))
    return Source(run, BEGIN_NS, read_run(run))


def test_the_mean_of_the_ranks_and_each_rank_are_read(tmp_path: Path) -> None:
    """A step without a finite value is NaN; of ranks what was always finite is left out."""
    found = learning(source(tmp_path, Plan(nan_loss_step=7)))
    loss = next(one for one in found.series if one.name == v.LOSS)
    assert math.isnan(loss.values[6])
    assert [0, 1] == [one.rank for one in found.of_ranks]
    assert {v.LOSS} == {one.name for one in found.of_ranks}


def test_the_last_training_loop_is_judged(tmp_path: Path) -> None:
    """One that follows counts its steps from 1 again; a step without a number goes on."""
    made = source(tmp_path)
    loss = next(one for one in made.series if one.name == v.LOSS)
    loss.steps[:] = [1, 2, 3, 4, 5, 1, 2, None, 4, 5, 6, 7]
    read = next(one for one in learning(made).series if one.name == v.LOSS)
    assert [1, 2, None, 4, 5, 6, 7] == read.steps
    assert loss.values[5:] == read.values


def test_the_table_of_the_screen_begins_where_the_findings_do(tmp_path: Path) -> None:
    """Of a program that trains twice both have the second training, and the table says so."""
    made = build_report(open_run(write_run(tmp_path)), BEGIN_NS)
    loss = next(one for one in made.series if one.name == v.LOSS)
    again = replace(
        loss, steps=[1, 2, 3, 1, 2, 3], values=[9.0, 8.0, 7.0, 3.0, 2.0, 1.0], first=9.0, last=1.0, low=1.0, high=9.0
    )
    table, *notes = LEARNING.blocks(replace(made, series=[again]))
    assert isinstance(table, Table)
    assert ["loss", "3", "1", "1", "3"] == list(table.rows[0].cells[:5])
    assert [Line("Of the last training loop, as LEARN; --all has all loops.", "note")] == notes
    (whole,) = LEARNING.blocks(replace(made, series=[replace(again, steps=[1, 2, 3, 4, 5, 6])]))
    assert isinstance(whole, Table)
    assert ["loss", "9", "1", "1", "9"] == list(whole.rows[0].cells[:5])
