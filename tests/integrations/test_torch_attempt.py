"""torch: a rank to whom rank 0 says the attempt too late, or never."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

import torch

import otel_rl
from otel_rl.integrations.torch.process_group import ATTEMPT_KEY
from otel_rl.process.identity import identifying
from otel_rl.process.state import state
from tests.fixtures import Recording


@pytest.fixture
def untold(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """Rank 1 of two, to whom rank 0 has not said the attempt in time."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - makes the backend known

    monkeypatch.setattr("otel_rl.integrations.torch.process_group.ATTEMPT_LIMIT_S", -1.0)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    stubbed.start("torch")
    torch.distributed.init_process_group("fake", store=torch.distributed.HashStore(), rank=1, world_size=2)
    assert "" == state.identity.attempt_id
    yield stubbed
    otel_rl.uninstrument()
    torch.distributed.destroy_process_group()


def say(attempt_id: str, start: int) -> None:
    """Say the attempt to the ranks that have joined so often, as rank 0 does."""
    store = torch.distributed.distributed_c10d._get_default_store()
    store.set(ATTEMPT_KEY.format(start), f"{attempt_id} {state.identity.run_id}")


def test_an_attempt_that_comes_late_is_read_at_the_first_step(untold: Recording) -> None:
    """Rank 0 was instrumented after this rank had given up; until the first step it has said it."""
    say("abc", 1)
    with otel_rl.step(1):
        untold.tick(1)
    assert "abc" == state.identity.attempt_id


@pytest.mark.parametrize(("start", "is_taken"), [(2, True), (3, False)])
def test_an_attempt_of_a_former_start_is_not_taken(untold: Recording, start: int, is_taken: bool) -> None:
    """A store that outlives the processes has it still; this rank takes what rank 0 says to its own start."""
    store = torch.distributed.distributed_c10d._get_default_store().underlying_store
    say("former", 1)
    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", store=store, rank=1, world_size=2)
    assert "" == state.identity.attempt_id
    say("abc", start)
    with otel_rl.step(1):
        untold.tick(1)
    assert (is_taken, False) == tuple(state.identity.attempt_id == said for said in ("abc", "former"))


def test_rank_0_says_the_attempt_to_each_start(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said to the first one stays as it was."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - makes the backend known

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    stubbed.start("torch")
    store = torch.distributed.HashStore()
    said = []
    for start in (1, 2):
        torch.distributed.init_process_group("fake", store=store, rank=0, world_size=2)
        own = torch.distributed.distributed_c10d._get_default_store()
        said.append([own.check([ATTEMPT_KEY.format(number)]) for number in (1, 2)])
        assert f"{state.identity.attempt_id} " in own.get(ATTEMPT_KEY.format(start)).decode()
        torch.distributed.destroy_process_group()
    assert [[True, False], [True, True]] == said


def test_an_attempt_that_never_comes_is_made(untold: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """This rank reports alone, and says so."""
    with otel_rl.step(1):
        untold.tick(1)
    assert state.identity.attempt_id not in ("", "abc")
    said = [record.getMessage() for when in ("setup", "call") for record in caplog.get_records(when)]
    assert [True, True] == ["asks again when its first step begins" in said[0], "reports alone" in said[1]]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_ask_the_store(untold: Recording) -> None:
    """Its connection is the parent's: two that talk on it would read each other's answers."""
    child = os.fork()
    if not child:
        os._exit(identifying.ask_again is not None)
    assert (0, True) == (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), identifying.ask_again is not None)
