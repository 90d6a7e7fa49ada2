"""An error of ours in one part of a report costs that part, and is counted in every form."""

from __future__ import annotations

import io
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from rich.console import Console

from otel_rl import guard
from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report import screen
from otel_rl.report.build import build_report, empty
from otel_rl.report.data.finding import Unmade
from otel_rl.report.data.report import Report
from otel_rl.report.findings import judge
from otel_rl.report.findings.health import HEALTH
from otel_rl.report.findings.learning import LEARN
from otel_rl.report.pictures import drawn
from otel_rl.report.read.memory_course import MemoryPeaks
from otel_rl.report.rows import evidence, series
from otel_rl.report.schema import to_json
from otel_rl.report.screen import PARTS
from otel_rl.report.section import Sparkline
from otel_rl.report.terminal import document, render
from otel_rl.report.to_markdown import to_markdown
from tests.made_runs import BEGIN_NS, Plan, write_run

pytestmark = pytest.mark.guarded


def fail(*_: Any) -> Any:
    """Fail as a part of ours may."""
    raise ZeroDivisionError("a part of ours")


def made(root: Path) -> Report:
    """Report on a healthy run."""
    return build_report(open_run(write_run(root, Plan())), BEGIN_NS)


def texts(report: Report) -> list[str]:
    """Show it in a terminal, live and as Markdown."""
    shown, live = io.StringIO(), io.StringIO()
    render(report, Console(file=shown, width=200), PARTS)
    Console(file=live, width=200).print(document(report, 200))
    return [shown.getvalue(), live.getvalue(), to_markdown(report)]


def test_a_rule_that_fails_costs_its_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other rules find stays; a rule also fails whose sentence lacks a value."""
    whole = made(tmp_path / "whole").findings
    rules = [replace(rule, find=fail) if rule.name == "reward_course" else rule for rule in LEARN]
    monkeypatch.setattr(judge, "LEARN", rules)
    report = made(tmp_path)
    assert [Unmade(part="finding", name="reward_course")] == report.unmade
    assert (whole.time, []) == (report.findings.time, report.findings.learn)
    said = "1 finding could not be made (reward_course)"
    assert [True] * 3 == [said in text.replace("\\", "") for text in texts(report)]
    assert [{"part": "finding", "name": "reward_course"}] == json.loads(to_json(report))["unmade"]
    assert {"make the finding reward_course of a report": 1} == guard.errors


def test_nothing_is_called_fine_that_could_not_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a rule of its kind fails, no fallback speaks."""
    assert ["healthy"] == [one.rule for one in made(tmp_path / "whole").findings.health]
    rules = [replace(rule, find=fail) if rule.name == "hanging" else rule for rule in HEALTH]
    monkeypatch.setattr(judge, "HEALTH", rules)
    report = made(tmp_path)
    assert ([], [Unmade(part="finding", name="hanging")]) == (report.findings.health, report.unmade)


def test_evidence_that_fails_costs_the_findings_that_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rule judges what is not there."""
    monkeypatch.setattr(evidence, "time_rows", fail)
    report = made(tmp_path)
    assert [Unmade(part="finding", name="TIME")] == report.unmade
    assert ([], 1, 1) == (report.findings.time, len(report.findings.learn), len(report.findings.health))


def test_a_curve_that_fails_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are judged and drawn."""
    whole = {one.name for one in made(tmp_path / "whole").series}
    make = series._series
    monkeypatch.setattr(series, "_series", lambda head, *rest: (fail if head[0] == v.LOSS else make)(head, *rest))
    report = made(tmp_path)
    assert [Unmade(part="curve", name=v.LOSS)] == report.unmade
    assert whole - {v.LOSS} == {one.name for one in report.series}
    assert [True] * 3 == ["1 curve could not be made" in text for text in texts(report)]


def test_data_that_fail_cost_their_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that could not be made is empty."""
    monkeypatch.setattr(MemoryPeaks, "rows", fail)
    report = made(tmp_path)
    assert ([], [Unmade(part="section", name="memory")]) == (report.memory, report.unmade)
    assert [True] * 3 == ["1 section could not be made (memory)" in text for text in texts(report)]


def test_a_section_that_cannot_be_shown_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is below it is shown."""
    (first, *others) = screen.BELOW["requests"]
    monkeypatch.setitem(screen.BELOW, "requests", (replace(first, blocks=fail), *others))
    monkeypatch.setattr(screen, "SCREEN", (replace(screen.SCREEN[1], blocks=fail), *screen.SCREEN[2:]))
    found = texts(made(tmp_path))
    assert [True] * 3 == ["2 sections could not be made (findings and " in text for text in found]
    assert [True] * 3 == ["sample" in text for text in found]


def test_a_picture_that_cannot_be_drawn_is_left_out() -> None:
    """The numbers beside it stay."""
    assert ("", {"draw a picture of a report": 1}) == (drawn(Sparkline(None), 10), guard.errors)  # type: ignore[arg-type]


def test_every_field_of_a_report_can_be_empty() -> None:
    """A report without any part can be shown and written."""
    kinds = get_type_hints(Report)
    nothing = Report(**{field.name: empty(kinds[field.name]) for field in fields(Report)})
    assert (3, 0) == (len(texts(nothing)), json.loads(to_json(nothing))["duration_s"])
