"""Tests of what a report says of exceptions that ended steps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import otel_rl
from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.journal.read import Journal, open_run
from otel_rl.process.identity import Identity
from otel_rl.process.state import state
from otel_rl.report.build import build_report
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Failure
from otel_rl.report.section import Line
from otel_rl.report.sections.caveats import FAILURES
from otel_rl.report.terminal import document
from tests.fixtures import Recording
from tests.made_runs import FakeSpan
from tests.peers import Did, Met, Peer
from tests.watched import DEAD


def steps(recording: Recording, number: int, failing: int) -> None:
    """Run some steps; one of them fails in its second stage."""
    for iteration in range(1, number + 1):
        with contextlib.suppress(ValueError), otel_rl.step(iteration):
            with otel_rl.stage("sample"):
                recording.tick(5)
            with otel_rl.stage("reward"):
                recording.tick(5)
                if iteration == failing:
                    raise ValueError("a prompt")


def test_a_run_that_an_exception_ended_has_failed(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last step is not counted, and the innermost stage is named."""
    monkeypatch.setattr(Journal, "alive", lambda journal: False)
    identity: Identity = state.identity
    steps(recording, 3, failing=3)
    report = build_report(recording.stop(), 10**18)
    expected = Failure(
        attempt=identity.attempt_id,
        rank=Rank("trainer", 0),
        loop="train",
        step=3,
        stage="rl.reward",
        error="ValueError",
        follows="",
    )
    assert ("failed", [expected], 2) == (report.state, report.failures, report.steps.recorded)
    assert document(report, 80) is not None


def test_what_was_cancelled_after_an_exception_is_no_cause(recording: Recording) -> None:
    """Of rollouts side by side, those that go on when another one raises are cancelled."""
    with contextlib.suppress(ValueError), otel_rl.step(1), otel_rl.stage("sample"):
        for stage, error in (("reward", KeyError("a prompt")), ("sample.turn", asyncio.CancelledError())):
            with contextlib.suppress(KeyError, asyncio.CancelledError), otel_rl.stage(stage):
                recording.tick(5)
                raise error
        raise ValueError
    (failure,) = build_report(recording.stop(), 10**18).failures
    assert (v.REWARD, "KeyError") == (failure.stage, failure.error)


@pytest.mark.parametrize(
    ("is_tried_again", "expected"), [(True, (v.LOOP, "RuntimeError")), (False, (v.REWARD, "KeyError"))]
)
def test_what_was_caught_before_the_step_went_on_is_no_cause(
    recording: Recording, expected: tuple[str, str], *, is_tried_again: bool
) -> None:
    """What the program raises in place of it, without a stage between them, comes from it."""
    with contextlib.suppress(RuntimeError), otel_rl.step(1):
        recording.tick(5)
        with contextlib.suppress(KeyError), otel_rl.stage("reward"):
            recording.tick(5)
            raise KeyError("a prompt")
        if is_tried_again:
            with otel_rl.stage("reward"):
                recording.tick(5)
        raise RuntimeError("no rollouts")
    (failure,) = build_report(recording.stop(), 10**18).failures
    assert expected == (failure.stage, failure.error)


def test_a_worker_that_an_exception_left_in_a_stage_kills_nobody(tmp_path: Path) -> None:
    """It is named, and the run failed; so it did where a launcher killed another rank after the exception."""
    Peer(tmp_path, 0, 1, identity=DEAD).step(1, [], status=2)
    worker = Peer(tmp_path, 1, 1, identity=DEAD)
    worker.open("load")
    report = build_report(open_run(tmp_path), 10**18)
    assert ("failed", ["load"]) == (report.state, [one.stage for one in report.open_stages])
    worker.open(f"{v.RANK_SPAN} 1")
    assert "failed" == build_report(open_run(tmp_path), 10**18).state


def failing_step(peer: Peer, number: int, error: str, *, in_collective: bool = False) -> None:
    """Make a step that an exception ends, in its rewards or in a collective there."""
    rewards = Did(v.REWARD, 5, [Met(3)] if in_collective else [])
    spans = peer.step(number, [Did(v.SAMPLE, 5), rewards], is_journaled=False)
    for span in [span for span in spans if span.end_ns == peer.now_ns]:
        span.status, span.attributes = (2, ""), {**(span.attributes or {}), v.ERROR_TYPE: error}
    peer.write(spans[::-1])


def test_the_first_failure_is_told_first_and_what_followed_after_it(tmp_path: Path) -> None:
    """A rank that hears in a collective that its peer is gone may be named by no cause; nor one that is killed then."""
    peers = [Peer(tmp_path, rank, 4, identity=DEAD) for rank in range(4)]
    for peer in peers:
        peer.step(1, [Did(v.REWARD, 5)])
    failing_step(peers[1], 2, "RuntimeError", in_collective=True)  # on a clock that is behind those of the others
    failing_step(peers[2], 2, "KeyError")
    failing_step(peers[0], 2, "RuntimeError", in_collective=True)
    peers[3].open(f"{v.RANK_SPAN} 3", v.COMM)
    report = build_report(open_run(tmp_path), 10**18)
    assert (
        "failed",
        ["Rank 2 failed with KeyError inside rl.reward, step 2; "
         "then 2 more failed (RuntimeError) and 1 more was killed."],
        {"KeyError": "", "RuntimeError": "loss"},
    ) == (
        report.state,
        [one.sentence for one in report.findings.health],
        {one.error: one.follows for one in report.failures},
    )  # fmt: skip


def test_a_collective_whose_error_was_caught_is_no_loss(tmp_path: Path) -> None:
    """What the program raised after it is its own."""
    peer = Peer(tmp_path, 0, 2, identity=DEAD)
    spans = peer.step(1, [Did(v.SAMPLE, 5), Did(v.REWARD, 5, [Met(3)])], is_journaled=False)
    for span in spans:
        if span.end_ns == peer.now_ns:
            error = "RuntimeError" if span.name == v.COMM else "KeyError"
            span.status, span.attributes = (2, ""), {**(span.attributes or {}), v.ERROR_TYPE: error}
    peer.write(spans[::-1])
    (failure,) = build_report(open_run(tmp_path), 10**18).failures
    assert ("KeyError", v.REWARD, "") == (failure.error, failure.stage, failure.follows)


def test_a_rank_that_was_killed_is_told_before_what_followed_from_it(tmp_path: Path) -> None:
    """As where the kernel kills one: the others fail in their next collective."""
    peers = [Peer(tmp_path, rank, 3, identity=DEAD) for rank in range(3)]
    for peer in peers[:2]:
        failing_step(peer, 1, "DistBackendError")
    peers[2].step(1, [Did(v.REWARD, 5)])
    peers[2].open(f"{v.RANK_SPAN} 2", v.REWARD)
    report = build_report(open_run(tmp_path), 10**18)
    assert (
        "killed",
        ["Rank 2 was killed, last seen in rl.reward: it ended without an exception; "
         "then 2 more failed (DistBackendError)."],
    ) == (report.state, [one.sentence for one in report.findings.health])  # fmt: skip


def test_an_exception_in_setup_that_was_survived_ended_nothing(tmp_path: Path) -> None:
    """A killed process that had gone on after it was killed."""
    peer = Peer(tmp_path, 0, 1, identity=DEAD)
    trace = ids.trace_id(peer.attempt, v.SETUP, 0)
    begin = peer.now_ns
    failed = FakeSpan("load", trace, 7, 0, begin, begin + 5, {v.ERROR_TYPE: "OSError"}, status=(2, ""))
    peer.write([failed])
    peer.open(f"{v.RANK_SPAN} 0")
    assert "failed" == build_report(open_run(tmp_path), 10**18).state
    peer.write([FakeSpan("load", trace, 8, 0, begin + 6, begin + 9)])
    assert "killed" == build_report(open_run(tmp_path), 10**18).state


def test_a_failure_that_was_survived_is_no_end(recording: Recording) -> None:
    """The steps after it count, and it is still named."""
    steps(recording, 3, failing=2)
    report = build_report(recording.stop(), 10**18)
    assert (["ValueError"], False) == ([failure.error for failure in report.failures], report.state == "failed")


@pytest.mark.parametrize(
    ("number", "said"), [(16, ""), (17, "and 1 failure before these:"), (18, "and 2 failures before these:")]
)
def test_what_is_not_listed_is_said(recording: Recording, number: int, said: str) -> None:
    """The last failures are shown, behind how many there were before them."""
    for iteration in range(number):
        with contextlib.suppress(ValueError), otel_rl.step(iteration):
            recording.tick(5)
            raise ValueError
    shown = [line.text for line in FAILURES.blocks(build_report(recording.stop(), 10**18)) if isinstance(line, Line)]
    listed = [f"rank 0 failed with ValueError in step {step}, in no stage" for step in range(number - 16, number)]
    assert [said, *listed][not said :] == shown


def test_a_shorter_loop_that_an_exception_ended_has_failed(tmp_path: Path) -> None:
    """Its last step began last, though one of the loop before has a higher number."""
    peer = Peer(tmp_path, 0, 1, identity=DEAD)
    for number in range(1, 5):
        peer.step(number, [Did(v.REWARD, 5)])
    peer.step(1, [Did(v.REWARD, 5)], loop="train.2")
    peer.step(2, [Did(v.REWARD, 5)], loop="train.2", status=2)
    report = build_report(open_run(tmp_path), 10**18)
    assert ("failed", [("train.2", 2)]) == (report.state, [(one.loop, one.step) for one in report.failures])


def test_a_last_step_that_was_made_again_is_no_end(tmp_path: Path) -> None:
    """Another loop has the step of the same number that ended well."""
    peer = Peer(tmp_path, 0, 1, identity=DEAD)
    peer.step(4, [Did(v.REWARD, 5)], status=2)
    peer.step(4, [Did(v.REWARD, 5)], loop="train.2")
    report = build_report(open_run(tmp_path), 10**18)
    assert ("unknown", [("train", 4)]) == (report.state, [(one.loop, one.step) for one in report.failures])


def test_a_rank_that_an_exception_ended_has_failed_whatever_the_others_do_behind_it(tmp_path: Path) -> None:
    """Its own last step counts: another one may have come further."""
    failed, other = Peer(tmp_path, 0, identity=DEAD), Peer(tmp_path, 1, identity=DEAD)
    failed.step(1, [Did(v.REWARD, 5)], status=2)
    for number in (1, 2):
        other.step(number, [Did(v.REWARD, 5)])
    assert "failed" == build_report(open_run(tmp_path), 10**18).state


def test_a_span_of_somebody_else_that_failed_is_no_end(tmp_path: Path) -> None:
    """A request of the program, in a trace of its own, may fail and be sent again."""
    peer = Peer(tmp_path, 0, 1, identity=DEAD)
    peer.step(1, [Did(v.REWARD, 5)])
    peer.write([FakeSpan("GET", 7, 7, 0, peer.now_ns, peer.now_ns, status=(2, ""))])
    assert "unknown" == build_report(open_run(tmp_path), 10**18).state


def test_a_failure_says_in_which_attempt_it_was(tmp_path: Path) -> None:
    """Where there are several: both count their steps from 1."""
    for number, attempt in enumerate(("a" * 16, "b" * 16)):
        peer = Peer(tmp_path, 0, 1, identity=DEAD, attempt=attempt, clock_ms=60_000 * number)
        peer.step(1, [Did(v.REWARD, 5)])
        peer.step(2, [Did(v.REWARD, 5)], status=2)
    shown = [line.text for line in FAILURES.blocks(build_report(open_run(tmp_path), 10**18)) if isinstance(line, Line)]
    assert ["step 2, in no stage, attempt 1", "step 2, in no stage, attempt 2"] == [line[-30:] for line in shown]


def test_what_fails_after_the_steps_is_in_tear_down(tmp_path: Path) -> None:
    """Also where a journal has the end of a short process before its steps; what fails before any is in set-up."""
    for name in (v.SETUP, v.TEARDOWN):
        peer = Peer(tmp_path / name, 0, 1, identity=DEAD)
        trace, root = ids.trace_id(peer.attempt, name, 0), ids.root_id(peer.attempt, name, 0)
        steps = [] if name == v.SETUP else peer.step(1, [Did(v.REWARD, 5)], is_journaled=False)
        error = {v.ERROR_TYPE: "KeyError"}
        ends = [
            FakeSpan(name, trace, root, 0, peer.now_ns, peer.now_ns + 5, error, status=(2, "")),
            FakeSpan(f"{v.RANK_SPAN} 0", trace, 7, root, peer.now_ns, peer.now_ns + 5, error, status=(2, "")),
        ]
        peer.write([*ends, *steps[::-1]])
        findings = build_report(open_run(tmp_path / name), 10**18).findings
        phase = "set-up" if name == v.SETUP else "tear-down"
        assert f"Rank 0 failed with KeyError in {phase}." in [one.sentence for one in findings.health]


def test_the_cause_of_an_attempt_that_another_followed_is_told_with_it(tmp_path: Path) -> None:
    """What its rank raised between two steps comes before what the others heard in a collective, which ended them."""
    peers = [Peer(tmp_path, rank, 2, identity=DEAD) for rank in range(2)]
    for peer in peers:
        peer.step(1, [Did(v.REWARD, 5)])
    trace, began = ids.trace_id(peers[1].attempt, v.SETUP, 1), peers[1].now_ns
    error = {v.ERROR_TYPE: "KeyError"}
    peers[1].write([FakeSpan(f"{v.RANK_SPAN} 1", trace, 7, 0, began, began + 5, error, status=(2, ""))])
    failing_step(peers[0], 2, "RuntimeError", in_collective=True)
    report = build_report(open_run(tmp_path), 10**18)
    told = ["Rank 1 failed with KeyError in tear-down; then rank 0 failed (RuntimeError)."]
    assert told == [one.sentence for one in report.findings.health]
    again = Peer(tmp_path, 0, 2, attempt="b" * 16, clock_ms=60_000, identity=DEAD)
    again.step(2, [Did(v.REWARD, 5)])
    report = build_report(open_run(tmp_path), 10**18)
    told = ["1 attempt before this one ended early: failed after 1 step (rank 1: KeyError in tear-down)."]
    assert told == [one.sentence for one in report.findings.health if one.rule != "missing_ranks"]


@pytest.mark.medium
@pytest.mark.parametrize(("name", "expected"), [("default_worker.py", "finished"), ("train.py", "failed")])
def test_what_ends_a_worker_of_ray_after_its_tasks_is_not_theirs(tmp_path: Path, name: str, expected: str) -> None:
    """As when Ray ends a trainer of verl with its data loader's workers, of which torch tells the main thread."""
    program = tmp_path / name
    program.write_text("import otel_rl\notel_rl.instrument(())\nwith otel_rl.step(1): pass\nraise RuntimeError")
    environ = {**os.environ, "OTEL_RL_DIR": str(tmp_path), "OTEL_RL_RUN_ID": "mine"}
    subprocess.run([sys.executable, str(program)], env=environ, check=False, stderr=subprocess.DEVNULL)
    assert expected == build_report(open_run(tmp_path / "mine"), 10**18).state
