"""Isolation of every test: no setting from outside, no recording left on, no swallowed error unseen."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.context import Context, attach

from otel_rl import guard
from tests.fixtures import recording, stubbed

__all__ = ["recording", "stubbed"]

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def pytest_configure() -> None:
    """Heed SIGINT: who is started in the background of a script ignores it, and so would the programs of the tests."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def isolated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run a test without settings, with its own root of runs; stop recording and look for swallowed errors after it."""
    for name in [*LAUNCHER, *filter(lambda name: name.startswith("OTEL_"), tuple(os.environ))]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_RL_DIR", str(tmp_path / "runs"))
    guard.errors.clear()
    attach(Context())
    yield
    if "otel_rl.entry" in sys.modules:
        sys.modules["otel_rl.entry"].uninstrument()
    swallowed = dict(guard.errors)
    guard.errors.clear()
    if swallowed and request.node.get_closest_marker("guarded") is None:
        pytest.fail(f"otel_rl swallowed errors of its own (they are in the captured log): {swallowed}")
