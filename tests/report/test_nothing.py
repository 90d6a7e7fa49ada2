"""Why a run shows nothing, each reason with what to do."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.journal.files import Journal
from otel_rl.journal.read import open_run
from otel_rl.process.state import state
from otel_rl.report.build import build_report
from otel_rl.report.findings.no_step import HOW_TO_BEGIN
from otel_rl.report.terminal import document, render
from tests.fixtures import Recording
from tests.made_runs import Plan, write_run

NOW_NS = 10**18


@pytest.fixture
def _dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no process live."""
    monkeypatch.setattr(Journal, "alive", lambda journal: False)


def sentence(path: Path) -> str:
    """Report on a run of which nothing can be said."""
    report = build_report(open_run(path), NOW_NS)
    assert document(report, 80) is not None
    (found,) = report.findings.time
    assert found.rule in ("no_step", "no_step_yet")
    return found.sentence


@pytest.mark.usefixtures("_dead")
def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """The report lists them below."""
    (tmp_path / "trainer-0-1-x.traces.000000.otlp").write_bytes(os.urandom(999))
    assert sentence(tmp_path).startswith("Nothing could be read: ")


@pytest.mark.parametrize(
    ("is_alive", "expected"),
    [(False, "The journal is empty: "), (True, "Nothing is in the journal yet; it is written every half second.")],
)
def test_files_without_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alive: bool, expected: str) -> None:
    """The process ended at once, or has just begun."""
    monkeypatch.setattr(Journal, "alive", lambda journal: is_alive)
    (tmp_path / "trainer-0-1-x.traces.000000.otlp").touch()
    assert sentence(tmp_path).startswith(expected)


@pytest.mark.usefixtures("_dead")
def test_no_step_began(recording: Recording) -> None:
    """otel_rl was on and nothing trained, or a loop of one's own has stages and no steps."""
    with otel_rl.stage("reward"):
        recording.tick(5)
    found = sentence(recording.stop().path)
    assert found.startswith("No step began: otel_rl was on, but it found no step. A step begins when ")
    assert "`with otel_rl.step(number):`" in found


def test_no_step_has_begun_yet(recording: Recording) -> None:
    """Set-up goes on."""
    state.ensure_awake()
    otel_rl.flush()
    assert sentence(recording.run().path).startswith("No step has begun yet. A step begins when ")


def test_a_framework_that_sets_up(recording: Recording) -> None:
    """Its trainer is known, so no advice is needed on where a step begins."""
    state.identify(system="verl")
    with otel_rl.stage("setup.model"):
        recording.tick(5)
    otel_rl.flush()
    assert "No step has begun yet: verl sets up." == sentence(recording.run().path)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("raise KeyboardInterrupt", "No step began: KeyboardInterrupt ended the process in its set-up."),
        ("os.kill(os.getpid(), signal.SIGTERM)", "No step began: the process was killed in its set-up."),
    ],
)
@pytest.mark.parametrize("more", ["pass", "with otel_rl.stage('reward'): pass"])
def test_a_process_that_was_ended_while_it_loaded(tmp_path: Path, end: str, expected: str, more: str) -> None:
    """What to do about steps is said where it did anything else than load: it may have trained."""
    program = f"import os, signal, otel_rl\notel_rl.instrument(())\n{more}\notel_rl.flush(60)\n{end}"
    environ = {**os.environ, "OTEL_RL_DIR": str(tmp_path), "OTEL_RL_RUN_ID": "mine"}
    subprocess.run([sys.executable, "-c", program], env=environ, check=False, stderr=subprocess.DEVNULL)
    advice = "" if more == "pass" else f" {HOW_TO_BEGIN}"
    assert f"{expected}{advice}" == sentence(tmp_path / "mine")


@pytest.mark.medium
def test_what_failed_before_the_end_did_not_end_the_process(tmp_path: Path) -> None:
    """Pytest and shells leave it where Python leaves what ends a program."""
    program = (
        "import json, sys, otel_rl\notel_rl.instrument(())\notel_rl.flush(60)\n"
        "try: json.loads('{')\n"
        "except ValueError as error: sys.last_value = error.with_traceback(error.__traceback__.tb_next)"
    )
    environ = {**os.environ, "OTEL_RL_DIR": str(tmp_path), "OTEL_RL_RUN_ID": "mine"}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)
    assert sentence(tmp_path / "mine").startswith("No step began: otel_rl was on, but it found no step. ")


@pytest.mark.usefixtures("_dead")
def test_a_framework_that_never_trained(recording: Recording) -> None:
    """Its trainer is known, so no advice is needed on what to instrument."""
    state.identify(system="trl")
    with otel_rl.stage("reward"):
        recording.tick(5)
    expected = "No step began: trl was found, but the process ended before its trainer began to train."
    assert expected == sentence(recording.stop().path)


@pytest.mark.parametrize("system", ["", "trl"])
@pytest.mark.parametrize("is_alive", [False, True])
def test_a_training_without_steps_is_not_denied(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, system: str, is_alive: bool
) -> None:
    """What says that it trained is here; another library may have replaced the method in which steps begin."""
    monkeypatch.setattr(Journal, "alive", lambda journal: is_alive)
    if system:
        state.identify(system=system)
    with otel_rl.stage("train.optimizer"):
        recording.tick(5)
    expected = (
        f"{system or 'The program'} trained, but no step was recorded: otel_rl did not learn where one begins. "
        f"{HOW_TO_BEGIN} `otel-rl doctor RUN` names methods of a trainer that another library has replaced."
    )
    assert expected == sentence(recording.stop().path)


@pytest.mark.usefixtures("_dead")
def test_an_evaluation_alone_is_no_training_that_did_not_begin(recording: Recording) -> None:
    """Nor does its header miss a tear-down, which belongs to a training."""
    state.identify(system="trl")
    with otel_rl.stage("evaluate"):
        recording.tick(5)
    report = build_report(recording.stop(), 10**18)
    out = io.StringIO()
    render(report, Console(file=out, width=80))
    assert "No step began: trl evaluated, and did not train." == report.findings.time[0].sentence
    assert out.getvalue().splitlines()[0].endswith("  ended, 5.00 ms (set-up 5.00 ms)")


@pytest.mark.parametrize(
    ("is_alive", "expected"),
    [
        (False, "No step was finished: the process ended in the first one."),
        (True, "The first step goes on; where its time goes can be said when it is finished."),
    ],
)
def test_the_first_step_is_not_finished(tmp_path: Path, is_alive: bool, expected: str) -> None:
    """A killed process, and one that is at work."""
    assert expected == sentence(write_run(tmp_path, Plan(steps=1, killed_in=v.SAMPLE, is_alive=is_alive)))


@pytest.mark.usefixtures("_dead")
def test_an_exception_ended_the_only_step(recording: Recording) -> None:
    """The failure itself is listed below the sentence."""
    with contextlib.suppress(ValueError), otel_rl.step(1):
        recording.tick(5)
        raise ValueError("a prompt")
    assert "No step was finished: an exception ended each of them." == sentence(recording.stop().path)


@pytest.mark.usefixtures("_dead")
def test_steps_without_spans(tmp_path: Path) -> None:
    """They were not sampled, or their segments are gone."""
    path = write_run(tmp_path)
    for segment in path.glob("*.traces.*"):
        segment.unlink()
    assert sentence(path).startswith("The steps' numbers are here, but no step's spans: none was sampled (OTEL_TR")


@pytest.mark.parametrize("is_alive", [False, True])
def test_the_first_step_with_spans_is_not_finished(tmp_path: Path, is_alive: bool) -> None:
    """It is not the first one: others were not sampled."""
    path = write_run(tmp_path, Plan(killed_in=v.SAMPLE, is_alive=is_alive))
    open_only = write_run(tmp_path / "open", Plan(steps=1, killed_in=v.SAMPLE, is_alive=is_alive))
    for rank in (0, 1):
        (theirs,) = open_only.glob(f"trainer-{rank}-*.traces.*")
        (ours,) = path.glob(f"trainer-{rank}-*.traces.*")
        ours.write_bytes(theirs.read_bytes())
    assert sentence(path).startswith("The steps' numbers are here, but no step's spans: none was sampled (OTEL_TR")


@pytest.mark.usefixtures("_dead")
def test_steps_whose_spans_cannot_be_read(tmp_path: Path) -> None:
    """Nobody removed them."""
    path = write_run(tmp_path)
    for segment in path.glob("*.traces.*"):
        segment.write_bytes(os.urandom(999))
    expected = "The steps' numbers are here, but no step's spans: some files could not be read, as listed below."
    assert expected == sentence(path)
