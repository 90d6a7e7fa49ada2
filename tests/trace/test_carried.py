"""Tests of carriers: what a process hands to another one, and what that one records with it."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import otel_rl
from otel_rl import Carrier, ids
from otel_rl.journal.read import open_run
from otel_rl.process.carrier import IN_USE
from otel_rl.process.identity import from_launcher, is_ray_worker
from otel_rl.process.state import state
from otel_rl.trace.child_process import Start
from otel_rl.trace.memory import tracing
from tests.fixtures import ATTEMPT, Recording, Tree, orphans, trees

SPAN = f"00-{7:032x}-{8:016x}-01"


def carrier(step: int = 7, attempt: str = "abc", run: str = "job", span: int = 1 << 40) -> Carrier:
    """Make the carrier of a driver's stage."""
    trace_id = ids.trace_id(attempt, "train", step)
    return Carrier(run, attempt, "trainer", f"train {step}", f"00-{trace_id:032x}-{span:016x}-01")


@pytest.fixture
def worker(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A process that belongs to the run of its first carrier."""
    monkeypatch.delenv("OTEL_RL_RUN_ID")
    monkeypatch.setenv("OTEL_RL_PROCESS_KIND", "worker")
    monkeypatch.setattr("otel_rl.entry._is_worker", lambda: True)
    return stubbed.start()


# --- the carrier ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["job", "läuf 1/ü%", "a\nb", "\udcff"])
def test_headers_and_pickles_hold_all_of_a_carrier(run: str) -> None:
    """They are ASCII, whatever the run is called, and their names may come back in upper case."""
    made = Carrier(run, "abc", "trainer", "train 7", SPAN, "eval", 5)
    headers = made.to_headers()
    assert all(text.isascii() and text.isprintable() for pair in headers.items() for text in pair)
    assert [made, made] == [
        Carrier.from_headers({name.upper(): value for name, value in headers.items()}),
        pickle.loads(pickle.dumps(made)),
    ]


def test_a_plain_traceparent_is_a_carrier_without_a_run() -> None:
    """Of a client that otel_rl does not record."""
    assert Carrier("", "", "", "", SPAN) == Carrier.from_headers({"traceparent": SPAN})
    assert {"traceparent": SPAN} == Carrier("", "", "", "", SPAN).to_headers()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"traceparent": ""},
        {"traceparent": SPAN.upper().replace("0", "x")},
        {"traceparent": f"00-{0:032x}-{8:016x}-01"},
        {"traceparent": f"00-{7:032x}-{0:016x}-01"},
        {"traceparent": f"ff{SPAN[2:]}"},
        {"traceparent": SPAN, "otel-rl-run": "ü"},
        {"traceparent": SPAN, "otel-rl-run": "x" * 2000},
        {"traceparent": 7},
        None,
        7,
    ],
)
def test_bad_headers_are_no_carrier(headers: Any) -> None:
    """Nor an error."""
    assert Carrier.from_headers(headers) is None


# --- the current one --------------------------------------------------------------------------------------------------


def test_the_current_carrier_names_the_innermost_stage(recording: Recording) -> None:
    """Else the container of the step; without a step that of set-up."""
    setup = Carrier.current()
    with otel_rl.step(7) as container:
        of_step = Carrier.current()
        with otel_rl.stage("reward") as stage:
            of_stage = Carrier.current()
    assert container is not None
    trace_id = ids.trace_id(ATTEMPT, "train", 7)
    assert setup is not None
    assert ("rl.setup 0", ids.trace_id(ATTEMPT, "rl.setup", 0)) == (setup.step, setup.trace_id)
    assert [
        Carrier("run", ATTEMPT, "trainer", "train 7", f"00-{trace_id:032x}-{span_id:016x}-01", "", container.start_ns)
        for span_id in (container.span_id, stage.span_id)
    ] == [of_step, of_stage]


def test_there_is_none_where_nothing_is_recorded() -> None:
    """But one that is in use is handed on."""
    with carrier().use():
        handed_on = Carrier.current()
    assert (None, carrier()) == (Carrier.current(), handed_on)


def test_there_is_none_before_the_attempt_is_known(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """No id of its trace can be derived."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    stubbed.start()
    with otel_rl.stage("load"):
        assert Carrier.current() is None


# --- in use -----------------------------------------------------------------------------------------------------------


def test_a_worker_records_below_the_span_of_the_carrier(worker: Recording) -> None:
    """In the run, attempt and trace of the step; without a container of its own."""
    with carrier().use(), otel_rl.stage("reward"):
        worker.tick(5)
        with otel_rl.stage("inner"):
            worker.tick(1)
    assert (None, None) == (tracing.container, IN_USE.get())
    assert ("job", "abc", "worker") == (state.identity.run_id, state.identity.attempt_id, state.identity.kind)
    otel_rl.uninstrument()
    run = worker.run("job")
    assert [Tree("?rl.reward", 0, 6, (Tree("inner", 5, 6),))] == trees(run)
    trace_id = ids.trace_id("abc", "train", 7)
    assert {trace_id} == {int.from_bytes(span.trace_id, "big") for span in run.spans()}
    assert {("reward", 1 << 40)} == {
        (span.name.removeprefix("rl."), int.from_bytes(span.parent_id, "big"))
        for span in run.spans()
        if span.name == "rl.reward"
    }


def test_what_a_worker_recorded_before_is_below_the_set_up_of_its_run(worker: Recording) -> None:
    """It waits until the first carrier names the run; with its step the set-up is over."""
    with otel_rl.stage("load"):
        worker.tick(5)
    assert not otel_rl.flush(60), "it waits"
    with carrier().use(), otel_rl.stage("reward"):
        worker.tick(1)
    otel_rl.uninstrument()
    load = Tree("?rl.rank 0", 0, 5, (Tree("load", 0, 5),))
    assert [load, Tree("?rl.reward", 5, 6)] == trees(worker.run("job"))
    (setup,) = (span for span in worker.run("job").spans() if span.name == "rl.rank 0")
    assert (ids.trace_id("abc", "rl.setup", 0), ids.root_id("abc", "rl.setup", 0)) == (
        int.from_bytes(setup.trace_id, "big"),
        int.from_bytes(setup.parent_id, "big"),
    )


def test_a_worker_without_a_carrier_is_a_run_of_its_own(worker: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """It says what to do, and its traces are whole."""
    with otel_rl.stage("load"):
        worker.tick(5)
    otel_rl.uninstrument()
    (path,) = worker.root.glob("[!.]*")
    assert [Tree("rl.setup", 0, 5, (Tree("rl.rank 0", 0, 5, (Tree("load", 0, 5),)),))] == trees(open_run(path))
    assert "this worker was given no carrier" in caplog.text


def test_a_carrier_of_another_attempt_changes_no_identity(recording: Recording) -> None:
    """A server may work for several runs; its spans are in their traces, and what it hands on names theirs."""
    with carrier().use(), otel_rl.stage("serve"):
        handed_on = Carrier.current()
    assert handed_on is not None
    assert ("job", "abc", "train 7") == (handed_on.run_id, handed_on.attempt_id, handed_on.step)
    assert ("run", ATTEMPT) == (state.identity.run_id, state.identity.attempt_id)


def test_a_step_inside_a_step_of_another_process_is_work_of_that(worker: Recording) -> None:
    """A judge that learns in a reward function begins no step of the run."""
    with carrier().use(), otel_rl.stage("reward"), otel_rl.step(0) as stage, otel_rl.stage("train"):
        worker.tick(3)
    assert stage is not None
    otel_rl.uninstrument()
    assert [Tree("?rl.reward", 0, 3, (Tree("rl.train", 0, 3),))] == trees(worker.run("job"))


def test_carriers_of_tasks_do_not_mix(worker: Recording) -> None:
    """Each task has its own, and so have those that it starts, also when they outlive it."""
    started: list[asyncio.Task[None]] = []

    async def after(step: int) -> None:
        await asyncio.sleep(0)
        with otel_rl.stage("after", step=step):
            await asyncio.sleep(0)

    async def serve(step: int) -> None:
        with carrier(step).use():
            for _ in range(3):
                with otel_rl.stage("serve", step=step):
                    await asyncio.sleep(0)
                    started.append(asyncio.create_task(after(step)))

    async def program() -> None:
        await asyncio.gather(*map(serve, range(4)))
        await asyncio.gather(*started)

    asyncio.run(program())
    otel_rl.uninstrument()
    spans = list(worker.run("job").spans(None))
    assert [24] * 2 == [len(spans), len({span.span_id for span in spans})]
    assert [] == [
        span.name
        for span in spans
        if ids.trace_id("abc", "train", int(str(span.attributes["rl.step"]))).to_bytes(16, "big") != span.trace_id
    ]
    names = {span.span_id: span.name for span in spans}
    assert {("serve", None), ("after", "serve")} == {(span.name, names.get(span.parent_id)) for span in spans}


def test_a_carrier_is_of_its_thread(recording: Recording) -> None:
    """Another one goes on in the step of the process."""
    with otel_rl.step(1):

        def work() -> None:
            with otel_rl.stage("mine"):
                pass

        with carrier().use():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    spans = recording.spans()
    assert ids.trace_id(ATTEMPT, "train", 1).to_bytes(16, "big") == spans["mine"].trace_id
    assert [] == orphans(recording.run())


def test_a_thread_of_the_same_process_may_use_a_carrier(recording: Recording) -> None:
    """It works for a step that is open here: its stages are those of that step, though another one began since."""
    work: list[Any] = []

    def serve(given: Carrier) -> None:
        with given.use(), otel_rl.stage("work") as stage:
            work.append(stage)

    def begin_next(given: Carrier) -> None:
        with otel_rl.step(2):
            serve(given)

    with otel_rl.step(1) as container, otel_rl.stage("ask") as ask:
        given = Carrier.current()
        assert given is not None
        assert container is not None
        thread = threading.Thread(target=begin_next, args=(given,))
        thread.start()
        thread.join()
    assert (container.trace, ask.span_id) == (work[0].trace, work[0].parent_id)


def test_an_unsampled_step_is_none_in_a_worker(worker: Recording) -> None:
    """Its flag comes with the carrier."""
    sampled = carrier()
    with replace(sampled, traceparent=sampled.traceparent[:-1] + "0").use(), otel_rl.stage("reward"):
        pass
    otel_rl.uninstrument()
    assert [] == list(worker.run("job").spans())


def test_a_program_sees_its_own_exception(worker: Recording) -> None:
    """And the carrier is in use no more."""
    with pytest.raises(LookupError, match="mine"), carrier().use():
        raise LookupError("mine")
    assert IN_USE.get() is None


# --- kinds of processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "main", "expected"),
    [
        ({}, "train.py", ("driver", True)),
        ({"RANK": "0"}, "train.py", ("rank", True)),
        ({"RANK": "1"}, "train.py", ("rank", False)),
        ({}, "/ray/_private/workers/default_worker.py", ("worker", False)),
        ({"RANK": "0"}, "/ray/_private/workers/default_worker.py", ("worker", False)),
    ],
)
def test_the_environment_says_what_a_process_is(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], main: str, expected: tuple[str, bool]
) -> None:
    """A driver and rank 0 make an attempt; who works for others does not."""
    import __main__

    monkeypatch.setattr(__main__, "__file__", main, raising=False)
    identity = from_launcher(otel_rl.config.Config(), environ)
    assert expected == (identity.kind, identity.known)
    assert (expected[0] == "worker") == is_ray_worker()


def test_a_setting_says_what_a_process_is() -> None:
    """A server cannot know it by itself."""
    config = otel_rl.config.Config.from_env({"OTEL_RL_PROCESS_KIND": "Engine"})
    assert ("engine", False) == (from_launcher(config, {}).kind, from_launcher(config, {}).known)
    with pytest.raises(otel_rl.ConfigurationError, match="driver, rank, worker or engine"):
        otel_rl.config.Config.from_env({"OTEL_RL_PROCESS_KIND": "boss"})


def test_a_forked_child_uses_the_carrier_of_its_parent(recording: Recording, tmp_path: Path) -> None:
    """It is in the same task, so to say."""
    with carrier().use():
        pid = os.fork()
        if not pid:
            with otel_rl.stage("work"):
                pass
            os._exit(0 if otel_rl.flush(60) else 1)
        assert os.waitpid(pid, 0)[1] == 0
    (work,) = (span for span in recording.stop().spans() if span.name == "work")
    assert ids.trace_id("abc", "train", 7).to_bytes(16, "big") == work.trace_id


def test_a_child_that_a_worker_forks_works_for_the_same_step(worker: Recording) -> None:
    """As a loader's does: in the run of the carrier, also where a loop of its own begins there."""
    with carrier().use():
        pid = os.fork()
        if not pid:
            with otel_rl.stage("work"), otel_rl.step(0), otel_rl.stage("inner"):
                pass
            os._exit(0 if otel_rl.flush(60) else 1)
        assert os.waitpid(pid, 0)[1] == 0
    otel_rl.uninstrument()
    spans = {span.name: span for span in worker.run("job").spans()}
    assert {"work", "inner"} == spans.keys()
    assert 1 << 40 == int.from_bytes(spans["work"].parent_id, "big")
    assert spans["work"].span_id == spans["inner"].parent_id


def test_a_process_that_a_worker_starts_learns_the_step_of_the_carrier(worker: Recording) -> None:
    """As an engine's does that an actor makes: outside of a carrier there is no step to name."""
    assert {} == pickle.loads(pickle.dumps(Start()))
    with carrier().use():
        values = pickle.loads(pickle.dumps(Start()))
    assert carrier() == replace(Carrier.from_headers(values["headers"]), role="trainer", began_ns=0)
    assert ("job", "abc") == (values["identity"]["run_id"], values["identity"]["attempt_id"])
