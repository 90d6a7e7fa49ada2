"""What a worker that is started afresh learns from its parent, and when it is none. Real ones: test_processes.py."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import otel_rl
from otel_rl import entry, ids, vocabulary
from otel_rl.integrations.torch.process_group import join_process_group
from otel_rl.integrations.transformers.hooks import _trainer_made as trainer_made
from otel_rl.process.identity import Identity, identifying
from otel_rl.process.state import state
from otel_rl.requests.queue import record_requests
from otel_rl.trace.child_process import KEY, join_worker
from otel_rl.trace.memory import tracing
from tests.fixtures import ATTEMPT, Recording, in_child, modules_with, orphans
from tests.requests.test_queue import bad, given, ids_of, request

CONFIGURATION: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]

Become = Callable[[Any], None]


class Trainer:
    """Stands for one of a framework's."""


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
    assert {} == tracing.open
    run = recording.stop()
    (judge,) = (span for span in run.spans(None) if span.name == "judge")
    assert (step.trace_id.to_bytes(16, "big"), step.span_id.to_bytes(8, "big")) == (judge.trace_id, judge.parent_id)
    of_steps = [span.name for span in run.spans(None) if vocabulary.ITERATION in span.attributes]
    assert ["rl.loop", "rl.rank 0"] == sorted(of_steps)


def test_requests_of_a_worker_are_below_that_step(recording: Recording, become_worker: Become) -> None:
    """And counted as a forked one's: the rollout is its parent's."""
    with otel_rl.step(7) as step, otel_rl.stage("sample"):
        assert step is not None
        values = told()
    become_worker(values)
    record_requests(given, [request(recording, 1)])
    run = recording.stop()
    assert ({"forked": 1}, ["r1"]) == (bad(run), ids_of(run))
    (span,) = (span for span in run.spans(None) if vocabulary.SUBMISSION in span.attributes)
    assert (step.trace_id.to_bytes(16, "big"), step.span_id.to_bytes(8, "big")) == (span.trace_id, span.parent_id)


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
    assert {} == values
    assert [f"{vocabulary.RANK_SPAN} 0", "rl.setup"] == sorted(one.name for one in tracing.open)


def test_a_trainer_of_transformers_is_one_whatever_the_parent_trains_with(
    recording: Recording, become_worker: Become
) -> None:
    """In one process what TRL's trainer said holds for the others, too."""
    state.identify(system="trl")
    trainer_made((Trainer(),), {})
    values = told()
    become_worker(values)
    with otel_rl.stage("load"):
        pass
    trainer_made((Trainer(),), {})
    assert ("trl", "transformers") == (values["identity"]["system"], state.identity.system)


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
    assert min(own_ns, 400) == state.first_ns == told()["first_ns"]


@pytest.mark.parametrize("has_recorded", [True, False])
def test_a_worker_that_is_alone_in_a_group_of_its_own_stays_its_parents(
    recording: Recording, become_worker: Become, *, has_recorded: bool
) -> None:
    """An engine's process makes such a group: rank 0 of 1 would be another rank of its parent's attempt."""
    pytest.importorskip("torch")
    state.identify(rank=3, world_size=8, system="mine")
    become_worker(told())
    if has_recorded:
        with otel_rl.stage("load"):
            pass
    join_group_of_one()
    with otel_rl.stage("serve"):
        pass
    assert (3, 8, "mine", "", {}) == known(state.identity)


def test_a_worker_that_is_alone_in_a_group_has_the_launchers_rank(
    recording: Recording, become_worker: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group of one says nothing of it."""
    pytest.importorskip("torch")
    values = told()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    become_worker(values)
    join_group_of_one()
    with otel_rl.stage("serve"):
        pass
    worker = state.identity
    assert (1, 2, "run", ATTEMPT) == (worker.rank, worker.world_size, worker.run_id, worker.attempt_id)


@pytest.fixture(params=["function", "partial", "class"])
def become_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let multiprocessing have started this process to run a function of a module."""

    def become(module: str) -> None:
        def main() -> None:
            pass

        main.__module__ = module
        process: Any = type("Scheduler", (), {"__module__": module})()
        if request.param != "class":
            process._target = main if request.param == "function" else functools.partial(main)
        process._config = CONFIGURATION
        monkeypatch.setattr("multiprocessing.current_process", lambda: process)

    return become


@pytest.mark.parametrize("module", ["vllm.v1.executor.multiproc_executor", "sglang.srt.managers.scheduler"])
@pytest.mark.parametrize("is_told", [True, False])
def test_an_engines_worker_is_its_parents_in_whatever_group_it_is(
    recording: Recording,
    become_worker: Become,
    become_engine: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    *,
    is_told: bool,
) -> None:
    """With tensor parallelism its group has several ranks, but it trains nothing: they are ranks of another role."""
    pytest.importorskip("torch")
    state.identify(rank=3, world_size=8, system="mine", coordinates={"rl.rank.data": 1})
    values = told()
    become_engine(module)
    # nobody is there whom it could ask
    monkeypatch.setattr("otel_rl.integrations.torch.process_group.ATTEMPT_LIMIT_S", -1.0)
    if is_told:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
    become_worker(values)
    with otel_rl.stage("load"):
        pass
    alone = state.identity
    join_group(rank=1, world_size=2)
    with otel_rl.stage("serve"):
        pass
    run = recording.stop()
    resources = {span.name: span.resource for span in run.spans()}
    keys = vocabulary.ATTEMPT_ID, vocabulary.ROLE, vocabulary.RANK, vocabulary.WORLD_SIZE, vocabulary.SERVICE_NAME
    assert (ATTEMPT, "rollout", 1, 2, "mine-rollout") == tuple(resources["serve"][key] for key in keys)
    assert ("rollout", (1, 2) if is_told else (3, 8)) == (alone.role, (alone.rank, alone.world_size))
    assert ([], "trainer", {}) == (orphans(run), resources["rl.rank 0"][vocabulary.ROLE], alone.coordinates)


def join_group_of_one() -> None:
    """Make a process group of one rank, and leave it."""
    join_group(rank=0, world_size=1)


def join_group(rank: int, world_size: int) -> None:
    """Make a process group, and leave it."""
    import torch.distributed as dist
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - makes the backend known

    dist.init_process_group("fake", store=dist.HashStore(), rank=rank, world_size=world_size)
    try:
        join_process_group()
    finally:
        dist.destroy_process_group()


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


# --- forked -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_where_there_is_no_step_has_an_attempt_of_its_own(stubbed: Recording) -> None:
    """Its parent has recorded nothing (``otel-rl run`` of a program that only starts others): two set-ups, not one."""
    entry.autoload()

    def work() -> None:
        with otel_rl.stage("work"):
            stubbed.tick(5)
        otel_rl.uninstrument()

    in_child(work)
    with otel_rl.stage("mine"):
        stubbed.tick(3)
    found: dict[object, set[str]] = {}
    for span in stubbed.stop().spans():
        found.setdefault((span.resource[vocabulary.ATTEMPT_ID], span.trace_id), set()).add(span.name)
    assert [{"rl.setup", "rl.rank 0", "mine"}, {"rl.setup", "rl.rank 0", "work"}] == sorted(found.values(), key=sorted)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_rank_that_does_not_know_its_attempt_is_a_process_of_its_own(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell it the attempt: its traces are whole, also where it was forked in a stage."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    stubbed.start()

    def work() -> None:
        with otel_rl.stage("work"):
            stubbed.tick(5)
        otel_rl.uninstrument()

    with otel_rl.stage("mine"):
        in_child(work)
    otel_rl.uninstrument()
    names = {node.name: node for node in stubbed.run().spans()}
    assert names["work"].trace_id != names["mine"].trace_id
    assert names["work"].resource[vocabulary.ATTEMPT_ID] != names["mine"].resource[vocabulary.ATTEMPT_ID]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_worker_that_is_alone_in_a_group_of_its_own_has_its_parents_rank(recording: Recording) -> None:
    """The same as one that is started afresh."""
    pytest.importorskip("torch")

    def serve() -> None:
        join_group_of_one()
        with otel_rl.stage("serve"):
            pass
        otel_rl.uninstrument()

    with otel_rl.step(7):
        state.identify(rank=3, world_size=8)
        in_child(serve)
    assert [(3, 8)] == [
        (span.resource[vocabulary.RANK], span.resource[vocabulary.WORLD_SIZE])
        for span in recording.stop().spans()
        if span.name == "serve"
    ]


def test_a_group_is_joined_while_the_flusher_learns_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither forgets what the other has learned."""
    monkeypatch.setattr("otel_rl.trace.child_process.is_serving", lambda: True)
    monkeypatch.setattr(state, "identity", state.identity)
    monkeypatch.setattr(identifying, "learned", {})
    joining = threading.Thread(target=join_worker, args=(1, 2))
    with identifying.lock:
        before = state.identity
        joining.start()
        joining.join(0.1)
        state.identity = replace(before, attempt_id="abc")
    joining.join()
    assert ("abc", 1, 2) == (state.identity.attempt_id, state.identity.rank, state.identity.world_size)


def draw_other_ids() -> None:
    """Have a forked child count from elsewhere than its parent."""
    numbers = itertools.count(0x1000)
    for module in modules_with("random_bits"):
        module.random_bits = lambda bits: next(numbers) << bits - 16
