"""What a report finds of the health of runs, real and made."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.read import open_run
from otel_rl.journal.write import Writer
from otel_rl.records import MetricPoints, Number
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Report
from tests.fixtures import Recording
from tests.made_runs import BEGIN_NS, MIB, MS, SETUP_MS, Attributes, Plan, write_run
from tests.peers import ALIVE, Did, Peer

PROGRAM = """
import sys, time, otel_rl
otel_rl.instrument([])
kept, chunk = [], int(sys.argv[1]) << 20
for number in range(40):
    with otel_rl.step(number):
        with otel_rl.stage("sample"):
            time.sleep(0.012)
        with otel_rl.stage("reward"):
            with otel_rl.stage("judge"):
                time.sleep(0.012)
                kept.append(b"x" * chunk)
            time.sleep(0.012)
"""


def health(report: Report) -> list[tuple[str, str]]:
    """Return severity and name of the findings of health."""
    return [(one.severity, one.rule) for one in report.findings.health]


def trained(root: Path, megabytes: int) -> Report:
    """Train in a program that keeps so many MiB in each step."""
    environ = {"OTEL_RL_DIR": str(root), "OTEL_RL_RUN_ID": "run", "PYTHONPATH": ":".join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", PROGRAM, str(megabytes)], env=environ, check=True)
    return build_report(open_run(root / "run"), 10**19)


@pytest.mark.medium
def test_a_real_leak_is_named_with_its_stage(tmp_path: Path) -> None:
    """What memory was at the end of each step, and rose in the innermost stage."""
    report = trained(tmp_path, 8)
    (found,) = report.findings.health
    assert found.sentence.startswith("Memory of rank 0 grows by 8.0")
    assert "inside judge; " in found.sentence
    assert found.sentence.endswith(" steps.")
    assert found.values["limit"] > 1 << 24  # type: ignore[operator]
    assert ("judge", 39) == (report.memory[0].stage, report.memory[0].iteration)


@pytest.mark.medium
def test_a_real_program_that_keeps_nothing_is_healthy(tmp_path: Path) -> None:
    """Its memory is told."""
    (found,) = trained(tmp_path, 0).findings.health
    assert ("note", "healthy") == (found.severity, found.rule)
    assert found.sentence.startswith("No error, no hang, nothing lost. Memory ")
    assert found.sentence.endswith(" since step 5.")


@pytest.mark.parametrize(
    ("plan", "after_ms", "expected"),
    [
        (Plan(), 0, [("note", "healthy")]),
        (Plan(killed_in=v.REWARD), 60_000, [("alarm", "killed")]),
        (Plan(killed_in=v.REWARD, is_alive=True), 60_000, [("alarm", "hanging")]),
        (Plan(killed_in=v.REWARD, is_alive=True), 100, [("note", "healthy")]),
        (Plan(dropped=5), 0, [("warning", "telemetry_lost")]),
        (Plan(changed=5), 0, [("note", "healthy")]),
    ],
)
def test_findings_follow_the_run(tmp_path: Path, plan: Plan, after_ms: int, expected: list[tuple[str, str]]) -> None:
    """What was changed is not lost."""
    now_ns = BEGIN_NS + (SETUP_MS + 11 * 100 + 2 * 30 + 200 + after_ms) * MS
    assert expected == health(build_report(open_run(write_run(tmp_path, plan)), now_ns))


def test_a_missing_rank_and_other_numbers_are_told(tmp_path: Path) -> None:
    """Rank 2 has no journal; rank 1 counts from another number."""
    for rank in (0, 1):
        peer = Peer(tmp_path, rank, 3)
        for number in range(1, 5):
            peer.step(number + rank, [Did("rl.sample", 5)])
    found = health(build_report(open_run(tmp_path), 10**19))
    assert {("warning", "missing_ranks"), ("warning", "steps_disagree")} == set(found)


def test_the_rank_that_died_first_is_named(tmp_path: Path) -> None:
    """Its peer waited for it in a collective until it was killed, too."""
    for rank, stage in ((0, v.COMM), (1, v.REWARD)):
        peer = Peer(tmp_path, rank, identity=replace(ALIVE, start_time=1))
        peer.step(1, [Did("rl.sample", 5)])
        peer.open(f"{v.RANK_SPAN} {rank}", stage)
        peer.die()
    (found,) = build_report(open_run(tmp_path), 10**19).findings.health
    assert found.sentence.startswith("Rank 1, like 1 more, was killed, last seen in rl.reward")


def test_an_attempt_that_died_is_told_beside_the_next_one(tmp_path: Path) -> None:
    """It is no alarm, since the run went on."""
    root = write_run(tmp_path, Plan(killed_in=v.REWARD, ranks=1))
    write_run(tmp_path, Plan(attempt="b" * 32, ranks=1, shift_ms=60_000))
    report = build_report(open_run(root), 10**19)
    assert [("warning", "restarted")] == health(report)
    assert "1 attempt before this one ended early: killed after 11 steps." == report.findings.health[0].sentence


def test_an_exception_that_ended_the_run_is_an_alarm(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names rank, error, stage and step; what went on is a warning."""
    monkeypatch.setattr("otel_rl.journal.read.Journal.alive", lambda journal: False)
    for number in (1, 2, 3):
        with pytest.raises(ValueError, match="prompt"), otel_rl.step(number):
            recording.tick(5)
            with otel_rl.stage("reward"):
                raise ValueError("a prompt")
    report = build_report(recording.stop(), 10**19)
    assert ["Rank 0 failed with ValueError inside rl.reward, step 3."] == [
        one.sentence for one in report.findings.health if one.severity == "alarm"
    ]
    assert ["failed", "failed_and_went_on"] == [one.rule for one in report.findings.health]


@pytest.mark.parametrize(
    ("skips", "expected"), [((1,), "healthy"), ((3, 4, 5), "updates_skipped"), (range(12, 21), "no_update")]
)
def test_skipped_updates_are_counted(tmp_path: Path, skips: tuple[int, ...], expected: str) -> None:
    """A few at the start are usual, where a loss scale settles."""
    peer = Peer(tmp_path, 0, 1)
    for number in range(1, 21):
        facts: Attributes = {v.OPTIMIZER_SKIPPED: True} if number in skips else {}
        peer.step(number, [Did(v.OPTIMIZER, 5, more=facts)])
    assert [expected] == [name for _, name in health(build_report(open_run(tmp_path), 10**19))]


def test_what_a_sidecar_says_is_read(tmp_path: Path) -> None:
    """The size of a device, and what a server refused; what had no room is still in the journal."""
    peer = Peer(tmp_path, 0, 1, place={v.HW_ID: "GPU-7"})  # type: ignore[dict-item]
    for number in range(1, 41):
        low, high = (1_000 + 10 * number) * MIB, (1_010 + 10 * number) * MIB
        _step(peer, number, {v.ALLOCATED_START: low, v.ALLOCATED_END: high}, {v.ALLOCATED_START: low})
    points = [
        MetricPoints(v.GPU_MEMORY_LIMIT, "gauge", "By", "", [Number(BEGIN_NS, 80_000 * MIB, {v.HW_ID: "GPU-7"})]),
        MetricPoints(v.SELF_SHIPPED, "counter", "{record}", "", [
            Number(BEGIN_NS, number, {v.SIGNAL: "traces", v.OUTCOME: outcome})
            for outcome, number in (("shipped", 90), ("refused", 3), ("rejected", 4), ("left_out", 5))
        ], BEGIN_NS),
    ]  # fmt: skip
    writer = Writer(tmp_path, WriterIdentity("sidecar-0-1-x"), max_bytes=MIB)
    for request in SpanEncoder({v.ROLE: "sidecar"}).encode_metrics(points):
        writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
    writer.close()
    first, second = (one.sentence for one in build_report(open_run(tmp_path), 10**19).findings.health)
    assert first.startswith("Device memory of rank 0 grows by 10.0 MiB per step")
    assert first.endswith("; the device (78.1 GiB) is full in about 7,900 steps.")
    assert "Lost: 7 spans that the server refused. What depends on them may be too low." == second


def test_an_event_loop_that_is_late_inside_a_step_is_told(tmp_path: Path) -> None:
    """Not one that was late before the first step, while its process loaded, or by less than a second."""
    for rank, lags in enumerate(((30.0, 0.1, 2.5, 2.0), (30.0, 0.1, 0.9, 0.1))):
        peer = Peer(tmp_path, rank)
        points = []
        for number, lag in enumerate(lags):
            if number:
                peer.step(number, [Did("rl.sample", 5000)])
            points.append(Number(peer.now_ns - 1, lag))
        peer.measure(MetricPoints(v.EVENT_LOOP_LAG, "gauge", "s", "", points))
    assert [("warning", "The event loop of rank 0 was late by up to 2.50 s, in step 2.")] == [
        (one.severity, one.sentence) for one in build_report(open_run(tmp_path), 10**19).findings.health
    ]


def test_ranks_share_the_memory_of_their_host(tmp_path: Path) -> None:
    """Both grow, and their host is full twice as soon."""
    for rank in (0, 1):
        peer = Peer(tmp_path, rank, 2, place={v.MEMORY_LIMIT: 20_000 * MIB})
        for number in range(1, 41):
            low, high = (1_000 + 10 * number) * MIB, (1_010 + 10 * number) * MIB
            _step(peer, number, {v.RSS_START: low, v.RSS_END: high}, {v.RSS_START: low, v.RSS_END: low})
    (found,) = build_report(open_run(tmp_path), 10**19).findings.health
    assert "memory_grows" == found.rule
    assert "Memory of rank 0, like 1 more, grows by 10.0 MiB per step" in found.sentence
    assert ", 100 % inside rl.reward digits; the host (19.5 GiB) is full in about 860 steps." in found.sentence


def _step(peer: Peer, number: int, grown: Attributes, before: Attributes) -> None:
    """Make a step in whose reward memory grows."""
    inner = Did(f"{v.REWARD} digits", 5, more=grown)
    did = [Did(v.SAMPLE, 5, more=before), Did(v.REWARD, 1, more=grown, inside=[inner])]
    spans = peer.step(number, did, is_journaled=False)
    for span in spans:
        if span.name.startswith(v.RANK_SPAN):
            span.attributes = {**(span.attributes or {}), **grown}
    peer.write(spans[::-1])
