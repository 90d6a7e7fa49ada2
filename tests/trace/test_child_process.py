"""What a worker that is started afresh learns from its parent, and when it is none. Real ones: test_processes.py."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.context import attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

import otel_rl
from otel_rl import entry, guard, ids, vocabulary
from otel_rl.flusher.thread import Flusher
from otel_rl.integrations.torch.process_group import ATTEMPT_KEY, join_process_group
from otel_rl.integrations.transformers.hooks import _begin_loop as begin_loop
from otel_rl.integrations.transformers.hooks import _trainer_made as trainer_made
from otel_rl.probes.deferred import deferral
from otel_rl.process.identity import Identity
from otel_rl.process.state import state
from otel_rl.records import Point
from otel_rl.requests.queue import record_requests
from otel_rl.trace.child_process import KEY, join_worker, leave_place, take_place
from otel_rl.trace.stage import current_stage
from otel_rl.trace.steps import know_attempt
from tests.fixtures import ATTEMPT, Recording, Tree, in_child, modules_with, orphans, trees
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
    assert set() == state.open
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


def test_what_a_child_that_trains_has_learned_is_its_own_where_its_parent_is_the_same(
    recording: Recording, become_worker: Become
) -> None:
    """A sweep's trainings are of one kind; and what a worker learned too late for its resource it knows for its own."""
    state.identify(rank=3, world_size=8, system="trl", model_name="small")
    become_worker(told())
    with otel_rl.stage("load"):
        state.identify(system="trl")
    state.freeze()
    state.identify(system_version="1", model_name="small")
    of_worker = state.identity
    leave_place()
    left = state.identity
    state.identify(system_version="2")
    assert (3, 8, "trl", "", {}) == known(of_worker)
    assert [(0, 1, "trl", "1", {}), (0, 1, "trl", "2", {})] == [known(left), known(state.identity)]
    assert ["small"] * 2 == [of_worker.model_name, left.model_name]
    assert of_worker.started_ns == left.started_ns


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
    assert ("trl", "transformers") == (values[0]["system"], state.identity.system)


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
        torch.distributed.distributed_c10d._get_default_store().set(ATTEMPT_KEY.format(1), "abc job")
        try:
            join_process_group()
        finally:
            torch.distributed.destroy_process_group()
        otel_rl.flush(60)
        assert {"rl.rank 1", "init"} == {stage.name for stage in recording.run("job").open_stages()}
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
    of_worker = state.identity
    leave_place()
    assert [(3, 8, "mine", "", {}), (0, 1, "", "", {})] == [known(of_worker), known(state.identity)]


def test_a_worker_that_is_alone_in_a_group_has_the_launchers_rank(
    recording: Recording, become_worker: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it is a worker; where it trains, it is a world of its own."""
    pytest.importorskip("torch")
    values = told()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    become_worker(values)
    join_group_of_one()
    with otel_rl.stage("serve"):
        pass
    of_worker = state.identity
    leave_place()
    assert [(1, 2), (0, 1)] == [known(of_worker)[:2], known(state.identity)[:2]]
    assert ["run", ATTEMPT] == [of_worker.run_id, of_worker.attempt_id]


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


def test_a_worker_of_an_engine_that_nobody_records_has_its_role(
    recording: Recording, become_worker: Become, become_engine: Callable[[str], None]
) -> None:
    """Its group has an attempt of its own, as any that is launched."""
    pytest.importorskip("torch")
    become_engine("vllm.v1.executor.multiproc_executor")
    become_worker(())
    join_group(rank=0, world_size=2)
    with otel_rl.stage("serve"):
        pass
    served = state.identity
    assert ("rollout", 0, 2) == (served.role, served.rank, served.world_size)
    assert served.attempt_id not in ("", ATTEMPT)


def test_a_process_of_an_engine_that_trains_is_a_trainer(
    recording: Recording, become_worker: Become, become_engine: Callable[[str], None]
) -> None:
    """Whatever started it: run, attempt and role are its own, and the rank that of its group."""
    pytest.importorskip("torch")
    become_engine("vllm.v1.executor.multiproc_executor")
    become_worker(told())
    join_group(rank=0, world_size=2)
    with otel_rl.stage("serve"):
        pass
    with otel_rl.step(1):
        own = state.identity
    assert ("trainer", 0, 2, False) == (own.role, own.rank, own.world_size, own.attempt_id == ATTEMPT)


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


def test_what_the_journal_of_a_worker_does_not_take_comes_into_no_other(
    recording: Recording, become_worker: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the parent's, whose disk hangs: it is counted."""
    with otel_rl.step(7):
        values = told()
    become_worker(values)
    with otel_rl.stage("judge"):
        pass
    ask("judged", 3)
    of_worker = recording.flusher
    with monkeypatch.context() as hanging:
        hanging.setattr(Flusher, "stop", lambda *_: False)
        leave_place()
    assert {("traces", "unwritten"): 4} == state.dropped
    of_worker.stop(60)
    of_worker._thread.join(60)
    ask("own", 2)
    with otel_rl.step(0):
        pass
    name = state.identity.run_id
    of_parent, own = recording.stop(), recording.run(name)
    assert ([], 2) == (
        [span.name for run in (of_parent, own) for span in run.spans(None) if span.name == "judge"],
        sum(point.value for point in own.last_points(vocabulary.REQUESTS)),
    )


def ask(name: str, number: int) -> None:
    """Hand over requests of a pool's thread, which has no span."""
    for one in range(number):
        otel_rl.request("mine", submitted=0.5, ended=0.9, id=f"{name}{one}")


def test_a_journal_that_answers_late_takes_nothing_of_the_training(
    recording: Recording, become_worker: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk hung when it was to end; what waited was given up, and what came since is another journal's."""
    become_worker(told())
    target, hangs, hung = Flusher._target, threading.Event(), []

    def hanging(flusher: Flusher) -> Any:
        found = target(flusher)
        if not hung:
            hung.append(flusher)
            assert hangs.wait(60)
        return found

    monkeypatch.setattr(Flusher, "_target", hanging)
    with otel_rl.stage("judge"):
        pass
    with monkeypatch.context() as hurried:
        hurried.setattr(entry, "EXIT_LIMIT_S", 0.1)
        leave_place()
    assert {("traces", "unwritten"): 1} == state.dropped
    with otel_rl.step(0), otel_rl.stage("own"):
        pass
    hangs.set()
    hung[0]._thread.join(60)
    name = state.identity.run_id
    of_parent, own = recording.stop(), recording.run(name)
    names = [{span.name for span in run.spans(None)} & {"judge", "own"} for run in (of_parent, own)]
    assert ([set(), {"own"}], False) == (names, hung[0]._thread.is_alive())


def test_what_other_threads_do_while_a_worker_begins_to_train_is_its_own(
    recording: Recording, become_worker: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for its journal to end: what was open is in both runs, what begins and ends meanwhile is in one."""
    become_worker(told())
    ask("before", 2)
    job, closing, lasting, stop = *map(otel_rl.stage, ("job", "closing", "lasting")), Flusher.stop

    def meanwhile(flusher: Flusher, limit_s: float) -> bool:
        closing.ended = 0
        closing.close(recording.clock.ns)
        with otel_rl.stage("quick"):
            recording.tick(1)
        ask("meanwhile", 1)
        job.close(recording.clock.ns)
        lasting.__enter__()
        return stop(flusher, limit_s)

    with job:
        with otel_rl.stage("load"):
            recording.tick(5)
        closing.__enter__()
        closing.ended = recording.clock.ns  # its thread was interrupted before it queued it
        with monkeypatch.context() as slow:
            slow.setattr(Flusher, "stop", meanwhile)
            leave_place()
        recording.tick(2)
        lasting.close(recording.clock.ns)
    name = state.identity.run_id
    of_parent, own = recording.stop(), recording.run(name)
    asked = Tree("generate_content", -500, -100)
    stages = asked, asked, Tree("job", 0, 5, (Tree("load", 0, 5),))
    assert [Tree("rl.setup", 0, 0, (Tree("rl.rank 0", 0, 0, stages),))] == trees(of_parent)
    stages = Tree("job", 0, 6, (asked, Tree("quick", 5, 6), Tree("closing", 5, 5))), Tree("lasting", 6, 8)
    assert [Tree("rl.setup", 0, 8, (Tree("rl.rank 0", 0, 8, stages),))] == trees(own)
    assert [2, 1] == [sum(point.value for point in run.last_points(vocabulary.REQUESTS)) for run in (of_parent, own)]
    assert [] == of_parent.open_stages()


def test_counts_of_ours_begin_anew_with_a_training(recording: Recording, become_worker: Become) -> None:
    """What went wrong in a worker is its parent's."""
    become_worker(told())
    with otel_rl.stage("load"):
        guard.errors["try"] += 1
        state.dropped["traces", "queue_full"] += 2
    with otel_rl.step(1):
        pass
    name = state.identity.run_id
    of_parent, own = recording.stop(), recording.run(name)
    assert [[1, 2], []] == [
        [point.value for of in (vocabulary.SELF_ERRORS, vocabulary.SELF_DROPPED) for point in run.last_points(of)]
        for run in (of_parent, own)
    ]


def test_a_number_on_its_way_from_a_device_is_of_the_worker_that_asked(
    recording: Recording, become_worker: Become
) -> None:
    """It is waited for before the journal ends."""
    become_worker(told())
    with otel_rl.stage("load"):
        pass
    looks = itertools.count()
    event = type("Event", (), {"query": lambda _: next(looks) > 2})()
    deferral.pending.append((None, event, (1.5,), lambda hosts: (Point("mine", hosts[0], state.now()),)))
    with otel_rl.step(1):
        pass
    name = state.identity.run_id
    of_parent, own = recording.stop(), recording.run(name)
    assert [[1.5], []] == [[point.value for point in run.last_points("mine")] for run in (of_parent, own)]


def test_what_other_libraries_count_goes_on_when_a_worker_begins_to_train(
    recording: Recording, become_worker: Become
) -> None:
    """It is theirs to begin anew: its own run has it whole, since its process began."""
    become_worker(told())
    with otel_rl.stage("load"):
        counter = metrics.get_meter("library").create_counter("theirs")
        counter.add(5)
    with otel_rl.step(1):
        counter.add(1)
    name = state.identity.run_id
    recording.stop()
    assert [6] == [point.value for point in recording.run(name).last_points("theirs")]


def test_an_open_stage_in_a_trace_of_others_is_there_once(recording: Recording, become_worker: Become) -> None:
    """It is in no step, so nothing of it is the parent's."""
    become_worker(told())
    with otel_rl.stage("load"):
        pass
    others = SpanContext(7, 8, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    token = attach(set_span_in_context(NonRecordingSpan(others)))
    with otel_rl.stage("job"):
        recording.tick(5)
        with otel_rl.step(1):
            recording.tick(5)
    detach(token)
    name = state.identity.run_id
    of_parent, own = recording.stop(), recording.run(name)
    assert [[], [((7).to_bytes(16, "big"), (8).to_bytes(8, "big"), 10)]] == [
        [(one.trace_id, one.parent_id, (one.end_ns - one.start_ns) / 1e6) for one in run.spans() if one.name == "job"]
        for run in (of_parent, own)
    ]


def test_an_open_stage_in_a_trace_of_others_ends_in_the_journal_that_names_it_as_open(
    recording: Recording, become_worker: Become
) -> None:
    """Its span comes in another run: its parent's would seem killed."""
    become_worker(told())
    others = SpanContext(7, 8, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    token = attach(set_span_in_context(NonRecordingSpan(others)))
    with otel_rl.stage("job"):
        with otel_rl.stage("load"):
            pass
        otel_rl.flush(60)
        assert ["job"] == [stage.name for stage in recording.run().open_stages()]
        with otel_rl.step(1):
            pass
    detach(token)
    name = state.identity.run_id
    of_parent, own = recording.stop(), recording.run(name)
    assert ([], []) == (of_parent.open_stages(), own.open_stages())
    assert [[], ["job"]] == [[span.name for span in run.spans() if span.name == "job"] for run in (of_parent, own)]


def test_an_open_stage_in_a_trace_of_others_begins_no_journal(recording: Recording, become_worker: Become) -> None:
    """Nothing was said of it yet, so nothing is given up either."""
    become_worker(told())
    take_place()
    others = SpanContext(7, 8, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    token = attach(set_span_in_context(NonRecordingSpan(others)))
    with otel_rl.stage("job"):
        leave_place()
    detach(token)
    assert {} == state.dropped


# --- forked -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_that_trains_is_a_run_of_its_own(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its set-up begins with the fork; what it recorded as a worker, and its parent's steps, are as they were."""
    monkeypatch.delenv("OTEL_RL_RUN_ID")
    recording = stubbed.start()
    parent = state.identity.run_id
    state.identify(system="theirs")

    def train() -> None:
        draw_other_ids()
        with otel_rl.stage("job"):
            with otel_rl.stage("load"):
                recording.tick(5)
            with otel_rl.step(1):
                recording.tick(20)
        with otel_rl.stage("check"):
            recording.tick(2)
        otel_rl.uninstrument()

    with otel_rl.step(0):
        pass
    with otel_rl.step(1), otel_rl.stage("sweep"):
        in_child(train)
        recording.tick(1)
    otel_rl.uninstrument()
    (own,) = (path.name for path in recording.root.glob("[!.]*") if path.name != parent)
    job = Tree("job", 0, 25)
    assert [
        Tree("rl.setup", 0, 5, (Tree("rl.rank 0", 0, 5, (job,)),)),
        Tree("rl.loop", 5, 27, (Tree("rl.rank 0", 5, 27, (Tree("check", 25, 27),)),)),
        Tree("rl.teardown", 27, 27, (Tree("rl.rank 0", 27, 27),)),
    ] == trees(recording.run(own))
    sweep = Tree("sweep", 0, 1, (Tree("job", 0, 5, (Tree("load", 0, 5),)),))
    assert Tree("rl.loop", 0, 1, (Tree("rl.rank 0", 0, 1, (sweep,)),)) in trees(recording.run(parent))
    spans = list(recording.run(own).spans(None))
    loops = {span.attributes[vocabulary.LOOP_NAME] for span in spans if span.name == "rl.loop"}
    assert ({"train"}, False) == (loops, any(vocabulary.SYSTEM in span.resource for span in spans))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_trainer_that_was_made_before_the_fork_is_what_its_child_trains_with(recording: Recording) -> None:
    """A program's own loop says nothing of its framework, but a trainer's is the trainer's, wherever that was made."""

    def train() -> None:
        state.config = replace(state.config, run_id="own")
        begin_loop((Trainer(),), {})
        state.training.loop.begin(1)
        state.training.loop.end()
        otel_rl.uninstrument()

    with otel_rl.step(0):
        state.identify(system="trl", system_version="1", algorithm="GRPO", model_name="small", rank=3, world_size=8)
        in_child(train)
    keys = vocabulary.SYSTEM, vocabulary.SYSTEM_VERSION, vocabulary.ALGORITHM, vocabulary.MODEL_NAME, vocabulary.RANK
    recording.stop()
    resources = {tuple(span.resource.get(key) for key in keys) for span in recording.run("own").spans(None)}
    assert {("trl", "1", "GRPO", "small", 0)} == resources


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_that_only_trains_writes_nothing_for_its_parent(recording: Recording) -> None:
    """It was no worker."""

    def train() -> None:
        state.config = replace(state.config, run_id="own")
        with otel_rl.step(0):
            pass
        otel_rl.uninstrument()

    in_child(train)
    run, own = recording.stop(), recording.run("own")
    assert [1, 1] == [len(run.journals), len(own.journals)]
    assert ids.trace_id(ATTEMPT, "train", 0).to_bytes(16, "big") not in {span.trace_id for span in own.spans()}


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


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_a_child_recorded_while_its_parents_attempt_was_unknown_is_not_lost(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent waits for rank 0; the child begins to train, and nobody will tell it."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    stubbed.start()

    def train() -> None:
        with otel_rl.stage("load"):
            stubbed.tick(5)
        leave_place(rank=0, world_size=2)
        otel_rl.uninstrument()

    in_child(train)
    otel_rl.uninstrument()
    of_rank = {span.resource[vocabulary.RANK] for span in stubbed.run().spans() if span.name == "load"}
    assert {1} == of_rank


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("trains", [False, True])
def test_a_child_learns_the_attempt_that_its_parent_waited_for(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, *, trains: bool
) -> None:
    """What it recorded, and a child of its own, is below its parent's set-up then."""
    monkeypatch.delenv("OTEL_RL_RUN_ID")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    stubbed.start()
    waits, tells = os.pipe()

    def work(name: str) -> None:
        with otel_rl.stage(name):
            pass
        if name == "child":
            in_child(lambda: work("grandchild"))
        else:
            os.read(waits, 1)
        if trains:
            leave_place(rank=0, world_size=2)
        otel_rl.uninstrument()

    pid = os.fork()
    if not pid:
        try:
            work("child")
        finally:
            os._exit(0)
    know_attempt("abc", "job")
    os.write(tells, b".")
    os.waitpid(pid, 0)
    otel_rl.uninstrument()
    spans = {span.name: span for span in stubbed.run("job").spans()}
    assert {"child", "grandchild", "rl.rank 1"} == set(spans)
    assert {("abc", 1)} == {
        (span.resource[vocabulary.ATTEMPT_ID], span.resource[vocabulary.RANK]) for span in spans.values()
    }
    assert {(spans["rl.rank 1"].trace_id, spans["rl.rank 1"].span_id)} == {
        (spans[name].trace_id, spans[name].parent_id) for name in ("child", "grandchild")
    }


def test_a_group_is_joined_while_the_flusher_learns_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither forgets what the other has learned."""
    monkeypatch.setattr("otel_rl.trace.child_process.is_serving", lambda: True)
    monkeypatch.setattr(state, "identity", state.identity)
    monkeypatch.setattr(state, "learned", {})
    joining = threading.Thread(target=join_worker, args=(1, 2))
    with state.identifying:
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
