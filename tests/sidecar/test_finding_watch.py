"""Findings are told while a run goes on: once when they begin, and once when they are over."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.journal.views import LogView
from otel_rl.records import Log
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding, Findings, Severity
from otel_rl.sidecar import read_ahead
from otel_rl.sidecar.finding_watch import FindingWatch
from otel_rl.sidecar.read_ahead import ReadAhead
from tests.made_runs import BEGIN_NS, Plan, write_run

STEP = ("a" * 16, "train", 7)
NOW_NS = BEGIN_NS + 3_600_000_000_000
NOTHING = Findings(time=[], learn=[], health=[])


def found(severity: Severity = "alarm", sentence: str = "The loss is NaN.") -> Findings:
    """Return what rules find: one thing."""
    one = Finding(rule="nan", kind="learn", severity=severity, sentence=sentence, advice="Look at it.", values={})
    return Findings(time=[], learn=[one], health=[])


@pytest.fixture
def said() -> list[str]:
    """Lines for people."""
    return []


@pytest.fixture
def watch(said: list[str]) -> FindingWatch:
    """A watch of a run that nobody watched before."""
    return FindingWatch((), said.append)


def labels(severity: str = "alarm") -> dict[str, str]:
    return {v.FINDING_RULE: "nan", v.FINDING_KIND: "learn", v.FINDING_SEVERITY: severity}


def test_a_finding_begins_and_ends(watch: FindingWatch, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds twice, and is gone twice; its record lies in the trace of the last step."""
    monkeypatch.setattr(time, "time_ns", lambda: 5)
    told = []
    for findings in (found(), NOTHING, found(), found(), found(), NOTHING, found(), NOTHING, NOTHING, NOTHING):
        watch.judge(findings, STEP)
        told.append(watch.logs())
    place = ids.trace_id(*STEP), ids.root_id(*STEP)
    begun = {**labels(), v.FINDING_STATE: "begun", v.FINDING_ADVICE: "Look at it."}
    over = {**labels(), v.FINDING_STATE: "over"}
    expected: list[list[Log]] = [[] for _ in told]
    expected[3] = [Log(v.FINDING, 5, begun, "The loss is NaN. Look at it.", 17, *place)]
    expected[8] = [Log(v.FINDING, 5, over, "Over: The loss is NaN.", 9, *place)]
    assert expected == told
    assert ["learn alarm: The loss is NaN. Look at it.", "learn alarm: Over: The loss is NaN."] == said


def test_what_is_no_alarm_and_no_warning_is_not_told(watch: FindingWatch) -> None:
    for _ in range(3):
        watch.judge(found("note"), STEP)
    assert ([], []) == (watch.logs(), watch.samples())


def test_each_rule_is_a_series(watch: FindingWatch) -> None:
    """At 0 before it begins, and after it is over."""
    values = []
    for findings in (found("warning"), found("warning"), NOTHING, NOTHING):
        watch.judge(findings, None)
        ((name, value, of),) = watch.samples()
        values.append(value)
    assert (v.FINDING_ACTIVE, tuple(labels("warning").items()), [0.0, 1.0, 1.0, 0.0]) == (name, of, values)


@pytest.mark.parametrize(("state", "expected"), [("begun", []), ("over", ["begun"])])
def test_a_sidecar_that_follows_another_tells_nothing_twice(
    tmp_path: Path, said: list[str], state: str, expected: list[str]
) -> None:
    journal = open_run(write_run(tmp_path, Plan())).journals[0]
    attributes = {**labels(), v.FINDING_STATE: state}
    before = LogView(v.FINDING, 5, "The loss is NaN.", 17, b"", b"", attributes, {}, journal)
    watch = FindingWatch([before], said.append)
    for _ in range(2):
        watch.judge(found(), STEP)
    assert expected == [log.attributes[v.FINDING_STATE] for log in watch.logs()]


def test_a_run_that_goes_on_is_judged(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rules of its report, when something is new."""
    monkeypatch.setattr(read_ahead, "JUDGE_S", 0.0)
    path = write_run(tmp_path, Plan(steps=40, nan_loss_step=30, is_alive=True, killed_in=v.SAMPLE))
    ahead = ReadAhead(path, lambda _: True, said.append)
    for _ in range(3):
        ahead._look()
    only_once = [log.attributes[v.FINDING_RULE] for log in ahead.logs()]
    for file in path.glob("*.metrics.*"):
        file.write_bytes(file.read_bytes() * 2)  # the same again: something is new
    ahead._look()
    told = [log.attributes[v.FINDING_RULE] for log in ahead.logs()]
    assert ([], ["hanging", "nan_at_times"]) == (only_once, told)
    assert all(line.startswith(("learn ", "health ", "time ")) for line in said)


def test_what_is_judged_is_what_a_report_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of stages that are open now."""
    path = write_run(tmp_path, Plan(killed_in=v.SAMPLE, is_alive=True))
    judged: list[Findings] = []
    monkeypatch.setattr(FindingWatch, "judge", lambda _, findings, step: judged.append(findings))
    monkeypatch.setattr(read_ahead, "time_ns", lambda: NOW_NS)
    ReadAhead(path, lambda _: True, print)._look()
    report = build_report(open_run(path), NOW_NS)
    assert (True, [report.findings]) == (bool(report.open_stages), judged)
