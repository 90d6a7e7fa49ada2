"""The program is told what is found in its run, on a thread that is not its own."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.guard import errors
from otel_rl.process import mailbox
from otel_rl.process.mailbox import send
from otel_rl.process.on_finding import FINDING, LiveFinding, active, on_finding, told
from tests.fixtures import ATTEMPT, RUN, Recording
from tests.waiting import wait_for

FOUND = LiveFinding(
    rule="nan", kind="learn", severity="alarm", state="begun", sentence="All is NaN.", attempt=ATTEMPT, step=3,
    evidence={"steps": [1, 2]}, id="nan-1", time_ns=1,
)  # fmt: skip
OVER = replace(FOUND, state="over", time_ns=2)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often."""
    monkeypatch.setattr(mailbox, "LOOK_S", 0.01)


@pytest.mark.guarded
def test_a_function_is_called_with_each_finding(recording: Recording) -> None:
    """Also of a later version of the sidecar; what is no finding is counted, and the training goes on."""
    heard: list[tuple[LiveFinding, str]] = []

    @otel_rl.on_finding
    def tell(finding: LiveFinding) -> None:
        heard.append((finding, threading.current_thread().name))

    with otel_rl.step(1):
        otel_rl.flush()
        strange: list[Any] = [{"rule": 1}, FOUND.to_json() | {"of_a_later_version": 1}, OVER.to_json()]
        for content in strange:
            send(recording.root / RUN, "sidecar-0-1", FINDING, ATTEMPT, content)
        assert wait_for(lambda: len(heard) == 2)
    assert [(FOUND, "otel_rl-messages"), (OVER, "otel_rl-messages")] == heard
    assert {"call the function that listens for findings": 1} == dict(errors)
    assert on_finding(tell) is tell


def test_an_error_of_the_function_is_the_programs(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once and counted apart from errors of ours; other functions are called."""
    heard: list[LiveFinding] = []

    @otel_rl.on_finding
    def fails(finding: LiveFinding) -> None:
        raise LookupError("no such room")

    on_finding(heard.append)
    with otel_rl.step(1):
        otel_rl.flush()
        for content in (FOUND, OVER):
            send(recording.root / RUN, "sidecar-0-1", FINDING, ATTEMPT, content.to_json())
        assert wait_for(lambda: len(heard) == 2)
    assert {} == dict(errors)
    assert 1 == sum("raised for a finding" in record.message for record in caplog.records)
    (point,) = recording.stop().last_points(v.FINDING_CALLS)
    assert (2, "raised") == (point.value, point.attributes[v.OUTCOME])


def test_one_that_hangs_holds_up_no_step_and_no_end(recording: Recording) -> None:
    """Its thread is left alone."""
    over, called = threading.Event(), threading.Event()
    on_finding(lambda _: (called.set(), over.wait()))
    with otel_rl.step(1):
        otel_rl.flush()
        send(recording.root / RUN, "sidecar-0-1", FINDING, ATTEMPT, FOUND.to_json())
        assert called.wait(60)
    with otel_rl.step(2):
        pass
    assert otel_rl.flush()
    otel_rl.uninstrument()
    over.set()


def test_what_goes_on(recording: Recording) -> None:
    """By what was told of it last, in the order of its times."""
    run = recording.root / RUN
    other = replace(FOUND, id="nan-3", time_ns=3)
    for content in (other, OVER, FOUND):
        send(run, "sidecar-0-1", FINDING, ATTEMPT, content.to_json())
    assert ([FOUND, OVER, other], {"nan-3": other}) == (told(run), active(told(run)))
