"""Faults in a training whose controller and workers are processes: what the report says of them."""

from __future__ import annotations

from pathlib import Path

from otel_rl import vocabulary as v
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Report
from otel_rl.runs.locate import open_whole
from tests.areal.world import train
from tests.blamed import blamed

ROLLOUT = Rank("rollout", 0)


def report_of(folder: Path) -> Report:
    """Read what was recorded."""
    return build_report(open_whole(folder), 0)


def warnings(found: list[Finding]) -> dict[str, Finding]:
    """Return alarms and warnings by rule."""
    return {one.rule: one for one in found if one.severity != "note"}


def test_a_slow_rank(tmp_path: Path) -> None:
    """It is named by its role and its index there; all workers belong to the attempt of the controller."""
    train(tmp_path / "run", [*"abcdefghijkl"], {"actor/1": 0.04})
    report = report_of(tmp_path / "run")
    assert Rank("actor", 1) in blamed(report.findings.time)
    assert {} == warnings(report.findings.health)
    assert ["finished"] == [one.state for one in report.attempts]
    ranks = {"driver": 1, "actor": 2, "ref": 1, "rollout": 1}
    assert ranks == {row.role: row.processes for row in report.roles}


def test_a_reward_that_raises(tmp_path: Path) -> None:
    """The training goes on; process, stage, step and exception are named."""
    train(tmp_path / "run", ["a", "b", "c", "broken", *"defgh"])
    report = report_of(tmp_path / "run")
    told = warnings(report.findings.health)
    assert {"call_failed": (ROLLOUT, v.REWARD, 1)} == {
        rule: (one.rank, one.stage, one.step) for rule, one in told.items()
    }
    assert [(ROLLOUT, v.REWARD, 1, "ZeroDivisionError")] == [
        (one.rank, one.stage, one.step, one.error) for one in report.failures
    ]
    failed = {span.name for span in open_whole(tmp_path / "run").spans(None) if v.ERROR_TYPE in span.attributes}
    assert {v.REWARD, v.TRAJECTORY, v.SAMPLE_GROUP} == failed


def test_an_update_that_raises(tmp_path: Path) -> None:
    """The step and its stage fail; the worker is named where it raised."""
    train(tmp_path / "run", [*"abcdef"], broken="actor/1")
    told = warnings(report_of(tmp_path / "run").findings.health)
    assert {
        "failed": "Actor 1 failed with ZeroDivisionError inside rl.train.backward, step 1; then driver 0 failed "
        "(EngineCallError)."
    } == {rule: one.sentence for rule, one in told.items()}
    failed = {span.name for span in open_whole(tmp_path / "run").spans(None) if v.ERROR_TYPE in span.attributes}
    assert {v.LOOP, "rl.rank 0", v.TRAIN, v.BACKWARD} == failed


def test_groups_that_are_dropped(tmp_path: Path) -> None:
    """Also one of which nothing came has been sampled."""
    train(tmp_path / "run", ["a", "equal", "b", "none", "c", "broken", *"def"])
    told = warnings(report_of(tmp_path / "run").findings.learn)
    assert {"groups_dropped": {"share": 1 / 3, "of": 9, "reasons": ["2 filtered", "1 failed"]}} == {
        rule: one.values for rule, one in told.items()
    }
