"""Isolation of every test: no setting from outside, no recording left on, no swallowed error unseen."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.context import Context, attach

from otel_rl import entry, guard
from otel_rl.journal import page
from otel_rl.trace.current import CURRENT
from tests.fixtures import rank_1, recording, stubbed

__all__ = ["rank_1", "recording", "stubbed"]

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def pytest_configure(config: pytest.Config) -> None:
    """Heed SIGINT, which a script's background ignores, and our programs with it; let an example take its time."""
    if config.pluginmanager.hasplugin("hypothesispytest"):  # the environment of vLLM has none
        from hypothesis import HealthCheck, settings

        settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("unhurried")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start programs without coverage: it takes SIGTERM, and a signal's handler or a fork may leave its lock locked."""
    for name in filter(lambda name: name.startswith("COVERAGE_"), tuple(os.environ)):
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def isolated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run a test without settings, with its own root of runs; stop recording and look for swallowed errors after it."""
    for name in [*LAUNCHER, *filter(lambda name: name.startswith("OTEL_"), tuple(os.environ))]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_RL_DIR", str(tmp_path / "runs"))
    memory = tmp_path.with_name(f"{tmp_path.name}-memory")
    memory.mkdir()
    monkeypatch.setattr(page, "MEMORY", memory)
    monkeypatch.setattr(entry, "EXIT_LIMIT_S", 60.0)  # a busy machine lets a thread wait for seconds
    monkeypatch.setattr(entry.flush, "__defaults__", (60.0,))
    guard.errors.clear()
    guard.shortages.clear()
    attach(Context())
    CURRENT.set(None)
    yield
    flusher = entry._parts.flusher
    entry.uninstrument()
    if flusher is not None and flusher._thread.is_alive():
        flusher._thread.join(60)  # it has answered, and may not have ended yet
    swallowed = dict(guard.errors)
    guard.errors.clear()
    if swallowed and request.node.get_closest_marker("guarded") is None:
        pytest.fail(f"otel_rl swallowed errors of its own (they are in the captured log): {swallowed}")
