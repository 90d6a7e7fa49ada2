"""Tests of the guard: what of our errors the host may see."""

from __future__ import annotations

import errno
import functools
import logging
import signal
from typing import Any

import pytest

from otel_rl import guard
from otel_rl.guard import report, say

pytestmark = pytest.mark.guarded


def test_an_error_stays_inside_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once for each kind of work, with its traceback."""
    for what in ("read", "read", "write"):
        with guard.guard(what):
            raise ValueError("ours")
    assert {"read": 2, "write": 1} == guard.errors
    assert ["otel_rl could not read", "otel_rl could not write"] == [
        record.getMessage().partition(";")[0] for record in caplog.records
    ]
    assert 2 == caplog.text.count("ValueError: ours")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENOSPC, "No space left on device"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        RuntimeError("can't start new thread"),
    ],
)
def test_what_the_machine_has_too_little_of_is_one_line(caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    """And no error of ours."""
    for _ in range(2):
        with guard.guard("watch"):
            raise error
    why = getattr(error, "strerror", None) or str(error)
    assert ({}, {"watch": 2}) == (guard.errors, guard.shortages)
    (record,) = caplog.records
    assert (f"otel_rl could not watch ({why}); training is not affected", None) == (
        record.getMessage(), record.exc_info
    )  # fmt: skip


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_passes(kind: type[BaseException]) -> None:
    """It is the host's."""
    with pytest.raises(kind), guard.guard("read"):
        raise kind
    assert {} == guard.errors


class Late(Exception):
    """What a program's own timeout raises."""


def too_late(number: int, frame: object) -> None:
    """Handle its signal."""
    raise Late


class Timeouts:
    """Handlers of other shapes."""

    def handle(self, number: int, frame: object) -> None:
        """By a method, which calls another one."""
        too_late(number, frame)

    def __call__(self, number: int, frame: object) -> None:
        """By the object itself."""
        raise Late


HANDLERS = {
    "function": too_late,
    "method": Timeouts().handle,
    "object": Timeouts(),
    "partial": functools.partial(lambda more, number, frame: too_late(number, frame), 1),
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_what_a_handler_of_a_signal_raises_is_the_hosts(handler: Any) -> None:
    """It arrives where it likes, also while we work; an error of ours under the same handler stays ours."""
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(Late), guard.guard("read"):
            signal.raise_signal(signal.SIGUSR2)
        with pytest.raises(Late):
            guard.attempt("read", "memory", signal.raise_signal, signal.SIGUSR2)
        assert {} == guard.errors
        with guard.guard("read"):
            raise Late
        assert {"read": 1} == guard.errors
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_work_that_succeeds_is_not_counted() -> None:
    """The usual case."""
    with guard.guard("read"):
        pass
    assert {} == guard.errors


class Broken(logging.Handler):
    """A handler of the host that fails, or that uses us while it logs."""

    def emit(self, record: logging.LogRecord) -> None:
        with guard.guard("log through us"):
            raise OSError
        raise RuntimeError


@pytest.mark.filterwarnings("ignore")
def test_a_log_handler_that_fails_or_uses_us_is_survived() -> None:
    """Nothing is raised and nothing goes round in circles."""
    handler = Broken()
    guard.logger.addHandler(handler)
    try:
        report("read", ValueError())
        say("otel_rl: %s", "something")
    finally:
        guard.logger.removeHandler(handler)
    assert {"read": 1, "log through us": 2, "log": 2} == guard.errors


def test_a_message_with_the_wrong_arguments_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own mistake in a message does not reach the host."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    say("otel_rl: %d", "word")


def test_an_attempt_gives_the_result_or_nothing() -> None:
    """An error is counted under what was done; what is none of ours passes."""
    assert 5 == guard.attempt("add", "two", lambda a, b: a + b, 2, 3)
    assert guard.attempt("fail", "at once", lambda: 1 // 0) is None
    assert 1 == guard.errors["fail at once"]
    with pytest.raises(KeyboardInterrupt):
        guard.attempt("stop", "now", stop)


def stop() -> None:
    """What a person does."""
    raise KeyboardInterrupt
