"""What tests of several integrations share: trainings, and a local server with the rows that calls of it leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import otel_rl
from tests.fixtures import Recording
from tests.integrations import api_server as api
from tests.integrations.api_server import Server
from tests.integrations.openai_calls import Notes
from tests.programs.launch import Trainings


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    """One process that has imported the frameworks, from which every training is forked."""
    server = Trainings(tmp_path_factory.mktemp("trainings"))
    yield server
    server.close()


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notes]:
    """Record the OpenAI client, and take the rows before the flusher does."""
    notes = Notes()
    monkeypatch.setattr("otel_rl.integrations.openai.hooks.record_requests", notes)
    otel_rl.instrument(["openai"])
    yield notes
    otel_rl.uninstrument()


@pytest.fixture
def server() -> Iterator[Server]:
    """Run a server that the test tells what to answer."""
    with api.serve() as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    """Make a client of it that does not repeat anything."""
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
def rank(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A worker that its launcher made rank 1."""
    monkeypatch.delenv("OTEL_RL_RUN_ID")
    monkeypatch.setenv("OTEL_RL_PROCESS_KIND", "worker")
    monkeypatch.setattr("otel_rl.entry._is_worker", lambda: True)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    return stubbed.start()
