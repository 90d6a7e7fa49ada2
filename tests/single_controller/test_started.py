"""What a program inherits that the driver starts."""

from __future__ import annotations

import os

import pytest

from otel_rl.single_controller.started import lend_environment, restore_environment
from tests.fixtures import ATTEMPT, RUN, Recording

OURS = "OTEL_RL_PROCESS_KIND", "OTEL_RL_RUN_ID", "OTEL_RL_ATTEMPT_ID"


def inherited() -> dict[str, str | None]:
    """Return what a child would get."""
    return {name: os.environ.get(name) for name in OURS}


def test_what_is_started_belongs_to_the_attempt(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only while the call lasts, also within another one, and whatever was set before."""
    monkeypatch.setenv("OTEL_RL_RUN_ID", "theirs")
    before = inherited()
    lend_environment((), {})
    lend_environment((), {})
    assert dict(zip(OURS, ("worker", RUN, ATTEMPT), strict=True)) == inherited()
    restore_environment((), {}, None)
    restore_environment((), {}, ValueError())
    assert before == inherited() == dict(zip(OURS, (None, "theirs", None), strict=True))
