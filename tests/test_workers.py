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
from otel_rl.flusher import Flusher
from otel_rl.identity import Identity
from otel_rl.integrations.torch import ATTEMPT_KEY, join_process_group
from otel_rl.runtime import state
from otel_rl.spans import current_stage
from otel_rl.workers import KEY
from tests.fixtures import ATTEMPT, Recording, Tree, trees

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
    """Its steps would have the ids of its parent's, or of another child's: attempt and run are its own."""
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
    assert state.identity.run_id not in ("", "run")
    assert (own, state.identity.run_id) == (told()[0]["attempt_id"], told()[0]["run_id"])


@pytest.mark.parametrize("before", ["nothing", "waits", "written"])
def test_the_set_up_of_a_child_that_trains_begins_with_its_process(
    recording: Recording, become_worker: Become, before: str
) -> None:
    """What it recorded when nobody knew that yet is its parent's, wherever it is; journal and counts begin anew."""
    become_worker(told())
    recording.tick(10)
    if before != "nothing":
        with otel_rl.stage("load"):
            recording.tick(5)
    if before == "written":
        otel_rl.flush(60)
    with otel_rl.step(1):
        recording.tick(20)
    name = state.identity.run_id
    of_parent, own = recording.stop(), recording.run(name)
    end = 10 if before == "nothing" else 15
    assert [
        Tree("rl.setup", 0, end, (Tree("rl.rank 0", 0, end),)),
        Tree("rl.loop", end, end + 20, (Tree("rl.rank 0", end, end + 20),)),
        Tree("rl.teardown", end + 20, end + 20, (Tree("rl.rank 0", end + 20, end + 20),)),
    ] == trees(own)
    loads = () if before == "nothing" else (Tree("load", 10, 15),)
    assert [Tree("rl.setup", 0, 0, (Tree("rl.rank 0", 0, 0, loads),))] == trees(of_parent)
    assert [["load"] * len(loads), []] == [
        [point.attributes[vocabulary.STAGE] for point in run.last_points(vocabulary.STAGE_DURATION)]
        for run in (of_parent, own)
    ]


def test_a_stage_that_is_open_when_a_child_begins_to_train_is_its_own(
    recording: Recording, become_worker: Become
) -> None:
    """The part before is its parent's, because of what is inside it; both journals name its end."""
    become_worker(told())
    with otel_rl.stage("job"):
        recording.tick(5)
        with otel_rl.stage("load"):
            recording.tick(5)
        otel_rl.flush(60)
        with otel_rl.step(1):
            recording.tick(20)
        recording.tick(1)
    name = state.identity.run_id
    of_parent, own = recording.stop(), recording.run(name)
    assert Tree("rl.setup", 0, 10, (Tree("rl.rank 0", 0, 10, (Tree("job", 0, 31),)),)) == trees(own)[0]
    inside = Tree("job", 0, 10, (Tree("load", 5, 10),))
    assert [Tree("rl.setup", 0, 0, (Tree("rl.rank 0", 0, 0, (inside,)),))] == trees(of_parent)
    assert ([True], []) == (
        [span.attributes[vocabulary.TRUNCATED] for span in of_parent.spans(None) if span.name == "job"],
        of_parent.open_stages(),
    )
    assert [] == own.open_stages()


def test_a_child_that_trains_gives_back_what_is_its_parents(recording: Recording, become_worker: Become) -> None:
    """What it has learned of itself meanwhile it keeps, and it may learn more: its resource is open again."""
    state.identify(rank=3, world_size=8, system="theirs", system_version="1", coordinates={"rl.rank.data": 1})
    become_worker(told())
    with otel_rl.stage("load"):
        state.identify(system="own")
    of_worker, state.frozen = state.identity, True
    with otel_rl.step(1):
        own = state.identity
    assert (3, 8, "own", "1", {"rl.rank.data": 1}) == known(of_worker)
    assert (0, 1, "own", "", {}) == known(own)


def known(identity: Identity) -> tuple[object, ...]:
    """Give what a process may have of its parent."""
    return identity.rank, identity.world_size, identity.system, identity.system_version, identity.coordinates


@pytest.mark.parametrize("own_ns", [300, 500])
def test_a_request_may_wait_for_its_worker_to_be_started(
    recording: Recording, become_worker: Become, own_ns: int
) -> None:
    """It was submitted in a process that began before: in the parent, or in one that this was forked from."""
    state.first_ns = 400
    become_worker(told())
    state.first_ns = own_ns
    with otel_rl.stage("judge"):
        pass
    assert min(own_ns, 400) == state.first_ns == told()[-1]


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


def test_a_rank_of_a_group_of_children_has_a_set_up_of_its_own(recording: Recording, become_worker: Become) -> None:
    """It begins with the process and has the rank's name, in the run of rank 0; so it is where it joins in a stage."""
    torch = pytest.importorskip("torch")
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - makes the backend known

    become_worker(told())
    with otel_rl.stage("init"):
        recording.tick(5)
        otel_rl.flush(60)
        torch.distributed.init_process_group("fake", store=torch.distributed.HashStore(), rank=1, world_size=2)
        torch.distributed.distributed_c10d._get_default_store().set(ATTEMPT_KEY, "abc job")
        try:
            join_process_group()
        finally:
            torch.distributed.destroy_process_group()
        recording.tick(5)
    setup = current_stage()
    assert setup is not None
    expected = (
        f"{vocabulary.RANK_SPAN} 1",
        ids.trace_id("abc", vocabulary.SETUP, 0),
        ids.root_id("abc", vocabulary.SETUP, 0),
    )
    assert expected == (setup.name, setup.trace_id, setup.parent_id)
    of_parent, own = recording.stop(), recording.run("job")
    assert [Tree("?rl.rank 1", 0, 10, (Tree("init", 0, 10),))] == trees(own)
    assert [Tree("rl.setup", 0, 0, (Tree("rl.rank 0", 0, 0, (Tree("init", 0, 5),)),))] == trees(of_parent)


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


def test_what_the_journal_of_a_worker_does_not_take_comes_into_no_other(
    recording: Recording, become_worker: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the parent's, whose disk hangs: it is counted."""
    with otel_rl.step(7):
        values = told()
    become_worker(values)
    with otel_rl.stage("judge"):
        pass
    with monkeypatch.context() as hanging:
        hanging.setattr(Flusher, "stop", lambda *_: False)
        with otel_rl.step(0):
            assert {("traces", "unwritten"): 1} == state.dropped
    run = recording.stop()
    assert "judge" not in [span.name for span in run.spans(None)]
