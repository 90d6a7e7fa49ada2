"""What a worker that is started afresh learns from its parent, and when it is none. Real ones: test_processes.py."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import otel_rl
from otel_rl import ids, vocabulary
from otel_rl.integrations.torch import join_process_group
from otel_rl.runtime import state
from otel_rl.workers import KEY
from tests.fixtures import ATTEMPT, Recording

CONFIGURATION: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]

Become = Callable[[Any], None]


def told() -> Any:
    """Give what a worker finds that is started now: multiprocessing pickles it."""
    return pickle.loads(pickle.dumps(CONFIGURATION[KEY]))


@pytest.fixture
def become_worker(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Become:
    """Go on as a process that was told something, in a world where nobody names the run."""

    def become(values: Any) -> None:
        otel_rl.uninstrument()
        monkeypatch.setitem(CONFIGURATION, KEY, values)
        monkeypatch.delenv("OTEL_RL_RUN_ID")
        monkeypatch.setattr("otel_rl.entry._is_worker", lambda: True)
        stubbed.start()

    return become


def test_nothing_of_ours_is_left_with_multiprocessing(recording: Recording) -> None:
    """What a worker would be told is there while we record, and loads nothing of ours."""
    assert b"otel_rl" not in pickle.dumps(CONFIGURATION[KEY]).replace(b"otel_rl_runs", b"")
    recording.stop()
    assert KEY not in CONFIGURATION


def test_a_worker_records_below_the_step_in_which_it_was_started(recording: Recording, become_worker: Become) -> None:
    """As a forked one does: run, attempt and rank are its parent's, the step's time is its parent's to count."""
    with otel_rl.step(7) as step:
        assert step is not None
        state.identify(rank=3, world_size=8, system="mine")
        values = told()
    become_worker(values)
    with otel_rl.stage("judge"):
        recording.tick(5)
    worker = state.identity
    assert ("run", ATTEMPT, 3, 8, "mine") == (
        worker.run_id,
        worker.attempt_id,
        worker.rank,
        worker.world_size,
        worker.system,
    )
    assert set() == state.open
    run = recording.stop()
    (judge,) = (span for span in run.spans(None) if span.name == "judge")
    assert (step.trace_id.to_bytes(16, "big"), step.span_id.to_bytes(8, "big")) == (judge.trace_id, judge.parent_id)
    of_steps = [span.name for span in run.spans(None) if vocabulary.ITERATION in span.attributes]
    assert ["rl.loop", "rl.rank 0"] == sorted(of_steps)


def test_behind_a_step_a_worker_belongs_to_it(recording: Recording, become_worker: Become) -> None:
    """Until the next one begins, as everything does."""
    with otel_rl.step(7):
        pass
    become_worker(told())
    with otel_rl.stage("judge") as judge:
        pass
    assert ids.trace_id(ATTEMPT, "train", 7) == judge.trace_id


def test_a_worker_that_records_numbers_alone_does_so_for_its_parent(
    recording: Recording, become_worker: Become
) -> None:
    """There is no stage that asks for a place."""
    become_worker(told())
    otel_rl.record("mine", 1.5)
    assert (ATTEMPT, "run") == (state.identity.attempt_id, state.identity.run_id)


def test_a_launcher_that_says_the_rank_is_believed(
    recording: Recording, become_worker: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has set the variables for this worker, or the parent has the same."""
    values = told()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    become_worker(values)
    with otel_rl.stage("judge"):
        pass
    assert (1, 2, ATTEMPT) == (state.identity.rank, state.identity.world_size, state.identity.attempt_id)


@pytest.mark.parametrize("is_on", [True, False])
def test_a_parent_without_a_place_tells_none(stubbed: Recording, become_worker: Become, *, is_on: bool) -> None:
    """It waits for its attempt itself, or records no more: the worker has an attempt of its own."""
    stubbed.start()
    state.identity, state.on = type(state.identity)(), is_on
    values = told()
    state.on = True
    become_worker(values)
    with otel_rl.stage("judge"):
        pass
    assert () == values
    assert [f"{vocabulary.RANK_SPAN} 0", "rl.setup"] == sorted(one.name for one in state.open)


@pytest.mark.parametrize("has_recorded", [True, False])
def test_a_child_that_trains_is_no_worker(recording: Recording, become_worker: Become, *, has_recorded: bool) -> None:
    """Its steps would have the ids of its parent's, or of another child's: it has an attempt of its own, of the run."""
    become_worker(told())
    if has_recorded:
        with otel_rl.stage("load"):
            pass
        assert ATTEMPT == state.identity.attempt_id
    with otel_rl.step(1) as step:
        recording.tick(5)
    assert step is not None
    own = state.identity.attempt_id
    assert own not in ("", ATTEMPT)
    assert (ids.trace_id(own, "train", 1), None) == (step.trace_id, state.inherited)
    assert has_recorded == (state.identity.run_id == "run")
    assert own == told()[0]["attempt_id"]


@pytest.mark.parametrize("has_recorded", [True, False])
def test_a_restarted_group_of_children_has_an_attempt_of_its_own(
    recording: Recording, become_worker: Become, *, has_recorded: bool
) -> None:
    """An agent that starts its ranks as children starts them again: the first group's attempt is not the second's."""
    torch = pytest.importorskip("torch")
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - makes the backend known

    become_worker(told())
    if has_recorded:
        with otel_rl.stage("load"):
            pass
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("fake", store=store, rank=0, world_size=2)
    try:
        join_process_group()
    finally:
        torch.distributed.destroy_process_group()
    own = state.identity.attempt_id
    with otel_rl.stage("load the model"), otel_rl.step(1):
        pass
    assert own not in ("", ATTEMPT)
    assert own == state.identity.attempt_id


def test_a_root_that_was_found_is_the_workers_too(
    recording: Recording, become_worker: Become, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program that changes its working directory starts workers there."""
    values = told()
    monkeypatch.setenv("OTEL_RL_DIR", "elsewhere")
    monkeypatch.chdir(tmp_path)
    become_worker(values)
    with otel_rl.stage("judge"):
        pass
    recording.stop()
    assert not (tmp_path / "elsewhere").exists()
