"""Findings are told while a run goes on: once when they begin, and once when they are over."""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.config import Config
from otel_rl.guard import shortages
from otel_rl.journal.read import open_run
from otel_rl.process.on_finding import LiveFinding, told
from otel_rl.records import Log
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding, Findings, Severity
from otel_rl.sidecar import finding_teller, read_ahead
from otel_rl.sidecar.finding_teller import FindingTeller
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
def teller(tmp_path: Path, said: list[str]) -> FindingTeller:
    """What tells, without a hook."""
    return FindingTeller(tmp_path, "sidecar-0-1", Config(), said.append)


@pytest.fixture
def watch(teller: FindingTeller) -> FindingWatch:
    """A watch of a run that nobody watched before."""
    return FindingWatch(teller)


def labels(severity: str = "alarm") -> dict[str, str]:
    return {v.FINDING_RULE: "nan", v.FINDING_KIND: "learn", v.FINDING_SEVERITY: severity}


def test_a_finding_begins_and_ends(
    tmp_path: Path, teller: FindingTeller, watch: FindingWatch, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds twice, and is gone twice; its record lies in the trace of the last step. The trainers hear the same."""
    monkeypatch.setattr(time, "time_ns", lambda: 5)
    logs = []
    for findings in (found(), NOTHING, found(), found(), found(), NOTHING, found(), NOTHING, NOTHING, NOTHING):
        watch.judge(findings, STEP)
        logs.append(teller.logs())
    place = ids.trace_id(*STEP), ids.root_id(*STEP)
    begun = {**labels(), v.FINDING_STATE: "begun", v.FINDING_ID: "nan-5", v.FINDING_ADVICE: "Look at it."}
    over = {**labels(), v.FINDING_STATE: "over", v.FINDING_ID: "nan-5"}
    expected: list[list[Log]] = [[] for _ in logs]
    expected[3] = [Log(v.FINDING, 5, begun, "The loss is NaN. Look at it.", 17, *place)]
    expected[8] = [Log(v.FINDING, 5, over, "Over: The loss is NaN.", 9, *place)]
    assert expected == logs
    assert ["learn alarm: The loss is NaN. Look at it.", "learn alarm: Over: The loss is NaN."] == said
    heard = LiveFinding(
        rule="nan", kind="learn", severity="alarm", state="begun", sentence="The loss is NaN.", advice="Look at it.",
        run=tmp_path.name, attempt=STEP[0], step=7, id="nan-5", time_ns=5, link=tmp_path.as_uri(),
        trace_id=f"{place[0]:032x}", span_id=f"{place[1]:016x}",
    )  # fmt: skip
    gone = replace(heard, state="over", sentence="Over: The loss is NaN.", advice="")
    assert [heard, gone] == told(tmp_path)


def test_it_is_told_in_the_attempt_that_goes_on(tmp_path: Path, watch: FindingWatch) -> None:
    """Also where that has no step yet; meanwhile the run is judged sooner."""
    turning = []
    for _ in range(3):
        watch.judge(found(), STEP, "b" * 16)
        turning.append(watch.is_turning)
    assert ([True, False, False], ["b" * 16]) == (turning, [one.attempt for one in told(tmp_path)])


def test_what_is_no_alarm_and_no_warning_is_not_told(teller: FindingTeller, watch: FindingWatch) -> None:
    for _ in range(3):
        watch.judge(found("note"), STEP)
    assert ([], []) == (teller.logs(), teller.samples())


def test_each_rule_is_a_series(teller: FindingTeller, watch: FindingWatch) -> None:
    """At 0 once it is over, also where it has begun again with another sentence."""
    values = []
    for number in range(6):
        watch.judge(NOTHING if number in {2, 3} else found("warning", f"Step {number} is NaN."), None)
        values.append({dict(one.labels)[v.FINDING_SENTENCE]: one.value for one in teller.samples()})
    first, second = "Step 1 is NaN.", "Step 5 is NaN."
    assert [{}, {first: 1}, {first: 1}, {first: 0}, {first: 0}, {first: 0, second: 1}] == values


def test_a_hook_that_takes_nothing_is_journaled_once(tmp_path: Path, said: list[str]) -> None:
    """The terminal of the run has it from there; each miss is said and counted."""
    teller = FindingTeller(tmp_path, "sidecar-0-1", Config(on_finding=str(tmp_path / "gone")), said.append)
    watch = FindingWatch(teller)
    for findings in (found(), found(), NOTHING, NOTHING):
        watch.judge(findings, STEP)
    teller.close()
    problem = "OTEL_RL_ON_FINDING: the command could not be started (No such file or directory)"
    told = [one.body for _ in range(2) for one in teller.logs() if one.event_name == v.FINDING_CALL_FAILED]
    assert [f"{problem}. Look into sidecar.log of the run for further ones"] == told
    assert [problem] * 2 == [line for line in said if line.startswith("OTEL_RL")]
    assert [2] == [one.value for one in teller.samples() if one.name == v.FINDING_CALLS]


@pytest.mark.parametrize(("turns", "expected"), [((0, 0), ["begun"]), ((0, 0, 1, 1), ["begun", "over", "begun"])])
def test_a_sidecar_that_follows_another_tells_nothing_twice(
    tmp_path: Path, teller: FindingTeller, said: list[str], turns: tuple[int, ...], expected: list[str]
) -> None:
    """It knows what was told, and that it was over, of which a torn or foreign line takes nothing."""
    first = FindingWatch(teller)
    for turn in turns:
        first.judge(NOTHING if turn else found(), STEP)
    with next((tmp_path / "messages").iterdir()).open("ab") as file:
        file.write(b'{"kind":"finding","attempt":"a","content":{"rule":"no time"}}\n{"kind":"fin')
    following = FindingTeller(tmp_path, "sidecar-0-2", Config(), said.append)
    second = FindingWatch(following)
    for _ in range(2):
        second.judge(found(), STEP)
    assert expected == [one.state for one in told(tmp_path)]
    assert [1.0] == [one.value for one in following.samples()]


def stall(state: str) -> LiveFinding:
    """Return a stall of this node."""
    evidence = {v.HOST_NAME: socket.gethostname()}
    return LiveFinding(
        rule="stalled", kind="health", severity="alarm", state=state, sentence="Rank 1 is stuck.", id="r-1",
        evidence=evidence,
    )  # fmt: skip


def test_a_stall_is_told_once_and_ends_though_its_sidecar_was_killed(
    tmp_path: Path, teller: FindingTeller, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is seen again goes on; one that is not is over after a minute. No line: the watch for stalls has one."""
    teller.tell(stall("begun"))
    for is_seen in (True, False):
        following = FindingTeller(tmp_path, f"sidecar-0-{2 + is_seen}", Config(), said.append)
        following.adopt(lambda one: one.rule == "stalled")
        if is_seen:
            following.tell(stall("begun"))
        monkeypatch.setattr(finding_teller, "CONFIRM_S", -1.0)
        states = [log.attributes[v.FINDING_STATE] for log in following.logs()]
        assert ([] if is_seen else ["over"], [float(is_seen)]) == (states, [one.value for one in following.samples()])
    assert (["begun", "over"], []) == ([one.state for one in told(tmp_path)], said)


@pytest.mark.guarded
def test_a_disk_that_is_full_costs_the_message_only(
    teller: FindingTeller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted, and record, metric and line are there."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(finding_teller, "send", full)
    teller.tell(stall("begun"))
    assert {"tell the training processes of a finding": 1} == dict(shortages)
    assert (1, 1) == (len(teller.logs()), len(teller.samples()))


def test_a_run_that_goes_on_is_judged(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rules of its report, when something is new; TIME and LEARN, which judge steps, when a step is."""
    monkeypatch.setattr(read_ahead, "JUDGE_S", 0.0)
    monkeypatch.setattr(read_ahead, "PERIOD_S", 0.0)
    path = write_run(tmp_path, Plan(steps=40, nan_loss_step=30, is_alive=True, killed_in=v.SAMPLE))
    teller = FindingTeller(path, "sidecar-0-1", Config(), said.append)
    ahead = ReadAhead(path, lambda _: True, teller)
    for _ in range(3):
        ahead._look()
    only_once = [log.attributes[v.FINDING_RULE] for log in teller.logs()]
    for file in path.glob("*.metrics.*"):
        file.write_bytes(file.read_bytes() * 2)  # the same again: something is new
    ahead._look()
    in_the_step = [log.attributes[v.FINDING_RULE] for log in teller.logs()]
    write_run(tmp_path, Plan(attempt="b" * 32, first_step=41, shift_ms=90_000, is_alive=True, killed_in=v.SAMPLE))
    ahead._look()
    after_it = [log.attributes[v.FINDING_RULE] for log in teller.logs()]
    assert ([], ["hanging"], ["nan_at_times"]) == (only_once, in_the_step, after_it)
    assert all(line.startswith(("learn ", "health ", "time ")) for line in said)


def test_what_is_judged_is_what_a_report_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of stages that are open now."""
    path = write_run(tmp_path, Plan(killed_in=v.SAMPLE, is_alive=True))
    judged: list[Findings] = []
    monkeypatch.setattr(FindingWatch, "judge", lambda _, findings, *place, **new: judged.append(findings))
    monkeypatch.setattr(read_ahead, "time_ns", lambda: NOW_NS)
    ReadAhead(path, lambda _: True, FindingTeller(path, "sidecar-0-1", Config(), print))._look()
    report = build_report(open_run(path), NOW_NS)
    assert (True, [report.findings]) == (bool(report.open_stages), judged)


def test_a_rule_that_is_not_asked_stays_as_it_is(teller: FindingTeller, watch: FindingWatch) -> None:
    """What it found goes on, and what it would find does not begin."""
    states = []
    for findings, kinds in (
        (found(), ["health"]), (found(), ["learn"]), (found(), ["learn"]),
        (NOTHING, ["health"]), (NOTHING, ["time"]), (NOTHING, ["learn"]), (NOTHING, ["learn"]),
    ):  # fmt: skip
        watch.judge(findings, STEP, kinds=kinds)
        states.append([log.attributes[v.FINDING_STATE] for log in teller.logs()])
    assert [[], [], ["begun"], [], [], [], ["over"]] == states


@pytest.mark.parametrize(("share", "expected"), [(1e3, True), (1e-9, False)])
def test_time_is_judged_as_often_as_its_cost_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, expected: bool
) -> None:
    """At first it is; then after a new step if the last time was short enough. LEARN is in any case."""
    monkeypatch.setattr(read_ahead, "JUDGE_S", 0.0)
    monkeypatch.setattr(read_ahead, "TIME_SHARE", share)
    judged: list[list[str]] = []
    monkeypatch.setattr(FindingWatch, "judge", lambda *given: judged.append(given[-1]))
    path = write_run(tmp_path, Plan(steps=8, killed_in=v.SAMPLE, is_alive=True))
    ahead = ReadAhead(path, lambda _: True, FindingTeller(path, "sidecar-0-1", Config(), print))
    ahead._look()
    write_run(tmp_path, Plan(attempt="b" * 32, first_step=9, shift_ms=90_000, is_alive=True, killed_in=v.SAMPLE))
    ahead._look()
    assert [["time", "learn", "health"], [*["time"] * expected, "learn", "health"]] == judged
