"""Tests of the flusher: what the journal holds at every moment, and what happens when the disk does not."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import otel_rl
from otel_rl import entry, guard, vocabulary
from otel_rl.comm.collectives import Collective
from otel_rl.flusher import thread as flusher
from otel_rl.journal import segment
from otel_rl.journal.columns.decode import decode_spans
from otel_rl.journal.read import Run, open_run
from otel_rl.journal.write import Writer
from otel_rl.probes.memory import probes
from otel_rl.process import directories
from otel_rl.process.directories import run_directory, usable_root
from otel_rl.process.state import state
from otel_rl.records import Count, PendingAttributes
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage
from tests.fixtures import RUN, Recording, Tree, orphans, trees


class Disk:
    """A disk that refuses, or hangs, when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: int | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self._write = os.write
        monkeypatch.setattr(segment.os, "write", self.write)

    def write(self, descriptor: int, data: Any) -> int:
        self.reached.set()
        self.gate.wait(60)
        if self.error is not None:
            half = len(data) // 2
            self._write(descriptor, data[:half])  # a full disk takes a part of it
            raise OSError(self.error, os.strerror(self.error))
        return self._write(descriptor, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk under control."""
    return Disk(monkeypatch)


# --- open stages ------------------------------------------------------------------------------------------------------


def test_what_fails_about_requests_takes_no_span_along(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage is journaled, the failure is counted."""

    def fail(*args: Any) -> None:
        raise ValueError("as the test wants")

    assert otel_rl.flush()
    monkeypatch.setattr(entry._parts.flusher.dispatcher.requests, "ended", fail)
    with otel_rl.step(1), otel_rl.stage("sample"):
        pass
    names = {span.name for span in recording.stop().spans()}
    assert ({"rl.loop", "rl.rank 0", "rl.sample"}, True) == (
        names & {"rl.loop", "rl.rank 0", "rl.sample"},
        guard.errors.pop("count requests") > 0,
    )


def test_a_stage_that_is_open_is_journaled_as_open(recording: Recording) -> None:
    """Once, with what it is, where it is and since when; its span takes its place."""
    with otel_rl.step(1), otel_rl.stage("sample", batch_size=4) as stage:
        recording.tick(5)
        assert otel_rl.flush()
        assert otel_rl.flush()
        run = recording.run()
        opened = {stage.name: stage for stage in run.open_stages()}
        assert {"rl.loop", "rl.rank 0", "rl.sample"} == set(opened)
        sample = opened["rl.sample"]
        about = {"rl.batch_size": 4, vocabulary.STAGE: "rl.sample"}
        assert (stage.start_ns, stage.span_id, stage.parent_id, stage.trace_id, about, True) == (
            sample.start_ns,
            *(int.from_bytes(value, "big") for value in (sample.span_id, sample.parent_id, sample.trace_id)),
            sample.attributes,
            sample.alive,
        )
    run = recording.stop()
    assert [] == run.open_stages()
    assert 1 == sum(log.body == "rl.sample" for log in run.logs(vocabulary.OPEN))


def test_the_set_up_is_journaled_as_open_at_once(recording: Recording) -> None:
    """A process that dies while it loads says so."""
    assert otel_rl.flush()
    assert {"rl.setup", "rl.rank 0"} == {stage.name for stage in recording.run().open_stages()}


def test_a_killed_process_leaves_truncated_spans(recording: Recording) -> None:
    """A reader closes them at the last sign of life."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(5)
        with otel_rl.stage("tool"):
            recording.tick(5)
        assert otel_rl.flush()
        run = recording.run()
        (journal,) = run.journals
        journal.alive = lambda: False  # type: ignore[method-assign]
        closed = {span.name: span for span in run.closed_spans(None)}
    assert {"tool", "rl.sample", "rl.rank 0", "rl.loop", "rl.setup"} == set(closed)
    truncated = {name for name, span in closed.items() if span.attributes.get(vocabulary.TRUNCATED)}
    assert {"rl.sample", "rl.loop"} == truncated - {"rl.rank 0"}
    assert closed["tool"].end_ns == closed["rl.sample"].end_ns


PROGRAM = st.recursive(
    st.sampled_from(["collective", "flush", "tick"]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=20,
)


def play(recording: Recording, program: Any, cycles: list[int]) -> None:
    """Record a nesting of stages, collectives and cycles of the flusher."""
    if program == "collective":
        collective = Collective("barrier", 0)
        recording.tick(1)
        collective.close()
    elif program == "flush":
        recording.flusher.flush(60)
        check(recording.run(), cycles)
    elif program == "tick":
        recording.tick(1)
    else:
        with otel_rl.stage(f"stage {len(cycles)}"):
            for item in program:
                play(recording, item, cycles)


def check(run: Run, cycles: list[int]) -> None:
    """After every cycle each parent is a span or an open stage."""
    cycles.append(1)
    known = {span.span_id for span in run.spans()} | {stage.span_id for stage in run.open_stages()}
    assert [] == [span.name for span in run.spans() if span.parent_id and span.parent_id not in known]


@pytest.mark.medium
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(PROGRAM, max_size=5))
def test_no_span_is_an_orphan_after_any_cycle(stubbed: Recording, tmp_path: Path, programs: list[Any]) -> None:
    """Whatever is nested in whatever, whenever the flusher looks; and cut at any frame nothing is one either."""
    stubbed.root = tmp_path / "runs" / os.urandom(4).hex()
    os.environ["OTEL_RL_DIR"] = str(stubbed.root)
    frames: list[tuple[Path, int]] = []
    stubbed.start()
    cycles: list[int] = []
    writer = Writer.append

    def append(self: Writer, *args: Any) -> None:
        writer(self, *args)
        frames.extend((path, path.stat().st_size) for path in self.directory.glob("*.otlp"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "append", append)
        for number, program in enumerate(programs):
            with otel_rl.step(number):
                play(stubbed, program, cycles)
        run = stubbed.stop()
    assert [] == orphans(run)
    assert [] == run.open_stages()
    sizes: dict[Path, int] = {}
    for path, size in frames:
        sizes[path] = size
        check_cut(sizes, tmp_path / "cut")


def check_cut(sizes: dict[Path, int], directory: Path) -> None:
    """Make the journal as it was after a frame, and look for orphans in it."""
    directory.mkdir(exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    for path, size in sizes.items():
        (directory / path.name).write_bytes(path.read_bytes()[:size])
    assert [] == orphans(open_run(directory))


def test_a_machine_that_stands_still_at_the_exit_costs_no_record(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wait is over at once then, as nothing went on meanwhile."""
    wait, stalls = flusher._Answer.wait, [False]
    monkeypatch.setattr(flusher._Answer, "wait", lambda self, s: stalls.pop() if s and stalls else wait(self, s))
    with otel_rl.stage("last"):
        pass
    assert recording.flusher.stop(10.0)
    assert [] == stalls
    assert ["last"] == [span.name for span in open_run(recording.root / RUN).spans() if span.name == "last"]


def test_a_large_batch_is_cut_into_frames_parents_first(recording: Recording) -> None:
    """A process killed between two frames of one cycle leaves no orphan."""
    with otel_rl.step(1):
        for i in range(60):
            with otel_rl.stage(f"outer {i}"):
                for j in range(20):
                    with otel_rl.stage(f"inner {i} {j}", text="x" * 2000):
                        pass
    run = recording.stop()
    frames = [(journal, frame) for journal, frame in run.frames("traces")]
    assert len(frames) > 2
    known: set[bytes] = set()
    for journal, frame in frames:
        spans = list(decode_spans([frame.payload]).views(journal, ()))
        known |= {span.span_id for span in spans}
        assert [] == [span.name for span in spans if span.parent_id and span.parent_id not in known]


def test_a_stage_that_ends_while_the_flusher_looks_is_in_the_journal(recording: Recording) -> None:
    """Between its end and its place in the queue it is still among the open ones."""
    with otel_rl.step(1):
        outer = otel_rl.stage("outer").__enter__()
        with otel_rl.stage("inner"):
            pass
        real, seen = probes.read_memory, []

        def read() -> Any:
            seen.append(otel_rl.flush())  # the flusher looks right now, on its own thread
            return real()

        probes.read_memory = read
        recording.tick(11)
        outer.__exit__(None, None, None)
        probes.read_memory = real
        assert [True] == seen
        known = {stage.name for stage in recording.run().open_stages()}
        assert "outer" in known
        assert [] == orphans(recording.run())
    run = recording.stop()
    assert ([], []) == (run.open_stages(), orphans(run))


def test_a_stage_found_in_the_queue_and_among_the_open_is_a_span(recording: Recording) -> None:
    """It is not said to be open after its end."""
    with otel_rl.step(1):
        with otel_rl.stage("reward") as stage:
            pass
        tracing.open[stage] = None
        assert otel_rl.flush()
        tracing.open.pop(stage, None)
        assert otel_rl.flush()
        assert stage not in recording.flusher.dispatcher.opened
    assert 0 == sum(log.body == "rl.reward" for log in recording.stop().logs())


# --- whatever is recorded ---------------------------------------------------------------------------------------------


@pytest.mark.guarded
def test_a_record_that_cannot_be_handled_takes_no_other_with_it(recording: Recording) -> None:
    """Not even when it is none of ours, or broken."""
    with otel_rl.step(1):
        with otel_rl.stage("before"):
            pass
        broken = Stage("broken")
        broken.trace = tracing.container.trace
        broken.name = ["no name"]  # type: ignore[assignment]
        broken.began, broken.ended = 1, 2
        for odd in (broken, object(), 5, None):
            state.add(odd)
        otel_rl.record("my.metric", 1)
        with otel_rl.stage("after"):
            pass
        otel_rl.flush()
        otel_rl.flush()
    run = recording.stop()
    names = {span.name for span in run.spans()}
    assert {"before", "after", "rl.loop"} <= names
    assert [1] == [point.value for point in run.points("user.my.metric")]
    assert guard.errors


def test_our_own_counts_add_up(recording: Recording) -> None:
    """What was recorded is in the journal: as many records as the counters say."""
    with otel_rl.step(1):
        for _ in range(10):
            with otel_rl.stage("tool"):
                otel_rl.record("my.metric", 1)
        assert otel_rl.flush()
    run = recording.stop()
    assert dict.fromkeys(COUNTED, in_journal(run)) == told(run)
    assert ([], []) == (run.last_points(vocabulary.SELF_DROPPED), run.last_points(vocabulary.SELF_CHANGED))
    assert run.last_points(vocabulary.SELF_BYTES)[0].value > 0


COUNTED = (vocabulary.SELF_RECORDED, vocabulary.SELF_ENCODED, vocabulary.SELF_JOURNALED)


def told(run: Run) -> dict[str, dict[str, float]]:
    """How many records of each signal the process says it recorded, encoded and journaled."""
    return {name: {str(p.attributes[vocabulary.SIGNAL]): p.value for p in run.last_points(name)} for name in COUNTED}


def in_journal(run: Run) -> dict[str, int]:
    """How many records of each signal there are in front of the points that say how many."""
    *points, _ = (frame.count for _, frame in run.frames("metrics"))
    number = {"traces": len(list(run.spans(None))), "metrics": sum(points), "logs": len(list(run.logs()))}
    return {signal: records for signal, records in number.items() if records}


@pytest.mark.guarded
def test_what_cannot_be_encoded_was_recorded(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """So what is missing among the encoded ones is seen, whether it is dropped or an error of ours."""
    with otel_rl.step(1):
        state.add(object())  # no span, whoever made it
        assert otel_rl.flush()
        (recorded, encoded, journaled), traces = told(recording.run()).values(), "traces"
        assert (encoded[traces] + 1, encoded) == (recorded[traces], journaled)
        with monkeypatch.context() as broken:
            broken.setattr(recording.flusher._encoder, "encode", lambda spans: 1 / 0)
            with otel_rl.stage("tool"):
                pass
            otel_rl.flush()
    run = recording.stop()
    recorded, encoded, journaled = told(run).values()
    assert (encoded[traces] + 2, encoded) == (recorded[traces], journaled)
    assert in_journal(run) == journaled
    assert 1 == guard.errors.pop("journal spans")


def sizes() -> dict[str, int]:
    """How large the files of the journal are."""
    return {path.name: path.stat().st_size for path in run_directory().iterdir()}


def test_a_process_that_does_nothing_journals_nothing(recording: Recording) -> None:
    """Its own counts are journaled where something else has changed, and not for having been journaled."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        pass
    assert otel_rl.flush()
    before = sizes()
    for _ in range(3):
        assert otel_rl.flush()
    assert before == sizes()
    with guard.guard("fail for a test"):
        raise ValueError("as the test wants")
    assert otel_rl.flush()
    assert before != sizes()
    assert 1 == guard.errors.pop("fail for a test")


def test_what_had_to_be_changed_is_counted_in_the_journal(recording: Recording) -> None:
    """By the reason; what is kept as it is counts nowhere."""
    with otel_rl.step(1), otel_rl.stage("tool") as stage:
        for key, value in {"long": "x" * 3000, "surrogate": "a\ud800", "large": 1 << 63, "fine": "x"}.items():
            stage.set_attribute(key, value)
        stage.set_attributes({f"key {number}": number for number in range(200)})
    changed = {p.attributes[vocabulary.REASON]: p.value for p in recording.stop().last_points(vocabulary.SELF_CHANGED)}
    assert {"text_cut": 1, "text_replaced": 1, "int_as_text": 1, "attributes_dropped": 76} == changed


@pytest.mark.guarded
def test_our_errors_are_counted_in_the_journal(recording: Recording) -> None:
    """By what we were doing."""
    with otel_rl.step(1), guard.guard("do a thing"):
        raise ValueError
    (point,) = recording.stop().last_points(vocabulary.SELF_ERRORS)
    assert (1, {vocabulary.REASON: "do a thing"}) == (point.value, point.attributes)


@pytest.mark.guarded
def test_metrics_that_could_not_be_encoded_are_said(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next cycle, though nothing else has changed since."""

    def fail(points: object) -> None:
        raise ValueError("as the test wants")

    with otel_rl.step(1):
        assert otel_rl.flush()
        with monkeypatch.context() as broken:
            broken.setattr(entry._parts.flusher._encoder, "encode_metrics", fail)
            otel_rl.record("my.metric", 1)
            otel_rl.flush()
        assert otel_rl.flush()
        (point,) = recording.run().last_points(vocabulary.SELF_ERRORS)
    assert (1, {vocabulary.REASON: "journal metrics"}) == (point.value, point.attributes)


def test_metrics_wait_until_the_resource_is_final(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the first step, so that no series changes its labels when the framework becomes known."""
    otel_rl.record("my.metric", 1)
    assert not otel_rl.flush()  # it is in the spool only
    state.identify(system="trl")
    with otel_rl.step(1):
        assert otel_rl.flush()
    (point,) = recording.stop().points("user.my.metric")
    assert "trl-trainer" == point.resource[vocabulary.SERVICE_NAME]


def test_without_a_step_metrics_wait_for_a_time_only(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no span has ended: nobody is sent what waits. What trains may become known later."""
    monkeypatch.setattr(flusher, "FREEZE_S", -1.0)
    with otel_rl.stage("my loop"):
        otel_rl.record("my.metric", 1)
        answers = [otel_rl.flush(), otel_rl.flush()]  # the time begins when something waits
        assert ([False, True], [1]) == (answers, [point.value for point in recording.run().points("user.my.metric")])
        state.identify(system="trl")
        otel_rl.record("my.metric", 2)
        assert otel_rl.flush()
        points = {
            point.value: point.resource[vocabulary.SERVICE_NAME] for point in recording.run().points("user.my.metric")
        }
    assert {1: "rl-trainer", 2: "trl-trainer"} == points


def test_metrics_of_requests_alone_wait_for_a_time_only(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters and histograms are journaled like points: a rollout engine's process may have no stage at all."""
    monkeypatch.setattr(flusher, "FREEZE_S", -1.0)
    state.add(Count(vocabulary.TRAIN_STEPS, 3))
    assert [False, True] == [otel_rl.flush(), otel_rl.flush()]
    assert [3] == [point.value for point in recording.run().points(vocabulary.TRAIN_STEPS)]


def test_points_do_not_wait_without_end(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the limit they are journaled under what is known."""
    monkeypatch.setattr(flusher, "HOLD_LIMIT", 10)
    answers = []
    for number in range(11):
        otel_rl.record("my.metric", number)
        answers.append(otel_rl.flush())
    assert [False] * 11 == answers
    assert otel_rl.flush()
    assert list(range(11)) == [point.value for point in recording.run().points("user.my.metric")]


# --- the disk ---------------------------------------------------------------------------------------------------------


def test_flush_says_whether_it_is_on_disk(recording: Recording, disk: Disk) -> None:
    """A full disk: False; space again: True, and nothing is lost."""
    with otel_rl.step(1):
        assert otel_rl.flush()
        disk.error = errno.ENOSPC
        for i in range(50):
            with otel_rl.stage("tool", number=i):
                recording.tick(1)
            if i % 10 == 0:
                assert not otel_rl.flush()
        assert "No space left on device" in str(recording.flusher._writer.failure)  # type: ignore[union-attr]
        disk.error = None
        assert otel_rl.flush()
    run = recording.stop()
    assert list(range(50)) == sorted(s.attributes["rl.number"] for s in run.spans(None) if s.name == "tool")
    assert ([], [], []) == (run.damage, orphans(run), run.last_points(vocabulary.SELF_DROPPED))


def test_what_waited_for_the_disk_is_counted_as_journaled(recording: Recording, disk: Disk) -> None:
    """Once it is there, though nothing is recorded any more; and that count is not journaled again and again."""
    with otel_rl.step(1):
        assert otel_rl.flush()
        disk.error = errno.ENOSPC
        with otel_rl.stage("tool"):
            pass
        assert not otel_rl.flush()
        disk.error = None
        assert [True, True] == [otel_rl.flush(), otel_rl.flush()]
        before = sizes()
        assert [True, True] == [otel_rl.flush(), otel_rl.flush()]
        assert before == sizes()
        run = recording.run()
        assert "tool" in {span.name for span in run.spans()}
        assert dict.fromkeys(COUNTED, in_journal(run)) == told(run)


def test_a_full_disk_is_said_once(recording: Recording, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    """What happened, and what becomes of the records."""
    with otel_rl.step(1):
        disk.error = errno.ENOSPC
        for _ in range(5):
            otel_rl.flush()
        disk.error = None
    assert 1 == caplog.text.count("up to 64 MiB of records wait in memory; training goes on")


def test_what_waits_in_an_actor_goes_elsewhere_at_once(
    recording: Recording, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no end at which to do that: Ray kills it."""
    monkeypatch.setattr(flusher, "is_ray_worker", lambda: True)
    monkeypatch.setattr(directories, "fallback_root", lambda: tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with otel_rl.step(1):
        disk.error = errno.ENOSPC
        with otel_rl.stage("tool"):
            pass
        assert not otel_rl.flush()
        disk.error = None
        assert otel_rl.flush()
    assert "tool" in {span.name for span in open_run(tmp_path / "elsewhere" / RUN).spans()}


def test_what_the_disk_refuses_to_the_end_goes_elsewhere(
    recording: Recording, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Into the folder for temporary files, and that is said."""
    monkeypatch.setattr(directories, "fallback_root", lambda: tmp_path / "fallback")
    with otel_rl.step(1), otel_rl.stage("tool"):
        pass
    real = disk.write

    def write(descriptor: int, data: Any) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if "fallback" not in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(segment.os, "write", write)
    otel_rl.uninstrument()
    assert f"the records that wait go to {tmp_path / 'fallback' / RUN}" in caplog.text
    run = open_run(tmp_path / "fallback" / RUN)
    assert {"tool", "rl.loop", "rl.rank 0"} <= {span.name for span in run.spans()}
    assert dict.fromkeys(COUNTED, in_journal(run)) == told(run)


@pytest.mark.parametrize("fallback", ["full", "none"])
def test_what_cannot_be_written_anywhere_is_said(
    recording: Recording,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    fallback: str,
) -> None:
    """How many records are lost; also where there is no folder for temporary files."""

    def fallback_root() -> Path:
        if fallback == "none":
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")
        return tmp_path / "fallback"

    monkeypatch.setattr(directories, "fallback_root", fallback_root)
    disk.error = errno.ENOSPC
    with otel_rl.step(1), otel_rl.stage("tool"):
        pass
    otel_rl.uninstrument()
    assert "records could not be written anywhere and are lost" in caplog.text


def test_a_disk_that_hangs_holds_nobody_up(
    recording: Recording, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither flush nor stop wait longer than they are told to, whoever meets the disk first."""
    monkeypatch.setattr(entry, "EXIT_LIMIT_S", 0.1)
    with otel_rl.step(1), otel_rl.stage("tool"):
        pass
    thread = recording.flusher._thread
    disk.gate.clear()
    assert not otel_rl.flush(0.05)
    assert disk.reached.wait(60)
    assert not otel_rl.flush(0.0)
    otel_rl.uninstrument()
    assert "the journal was not done in time; what was recorded last may be lost" in caplog.text
    disk.gate.set()
    thread.join(60)
    assert not thread.is_alive()
    assert "tool" in {span.name for span in recording.run().spans()}


@pytest.mark.parametrize(("timeout_s", "expected"), [(float("inf"), True), (1e300, True), (-1.0, False), (None, False)])
def test_no_time_to_wait_raises(recording: Recording, disk: Disk, timeout_s: Any, expected: bool) -> None:
    """Not even one that is none; as long as possible is possible."""
    with otel_rl.step(1):
        pass
    if not expected:
        disk.gate.clear()
    assert expected == otel_rl.flush(timeout_s)
    disk.gate.set()
    guard.errors.clear()


def test_who_asks_while_the_journal_is_closed_is_answered(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, by any thread: what they recorded may not be on disk."""
    running, answers = recording.flusher, []
    asking = threading.Thread(target=lambda: answers.append(running.flush(600)))
    close = Writer.close

    def ask_and_close(writer: Writer) -> None:
        asking.start()
        while not running._asked:
            time.sleep(0.001)
        close(writer)

    monkeypatch.setattr(Writer, "close", ask_and_close)
    otel_rl.uninstrument()
    asking.join(60)
    assert [False] == answers
    assert not running.flush(600)


def test_a_root_that_cannot_be_used_is_said(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The run is recorded in the folder for temporary files."""
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("OTEL_RL_DIR", str(tmp_path / "file" / "runs"))
    monkeypatch.setattr(directories, "fallback_root", lambda: tmp_path / "fallback")
    stubbed.start()
    with otel_rl.step(1):
        pass
    otel_rl.uninstrument()
    assert f"this run is recorded in {tmp_path / 'fallback'}" in caplog.text
    assert "rl.loop" in {span.name for span in open_run(tmp_path / "fallback" / RUN).spans()}


def test_a_system_that_is_read_only_is_said_once(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """And training goes on; what was recorded is journaled once there is a place."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("OTEL_RL_DIR", str(tmp_path / "file" / "runs"))
    monkeypatch.setattr(directories.tempfile, "tempdir", None)
    monkeypatch.setattr(directories.tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "nowhere")])
    stubbed.start()
    for number in range(3):
        with otel_rl.step(number):
            pass
        assert not otel_rl.flush()
    assert [
        f"otel_rl: nothing can be recorded: {tmp_path}/file/runs cannot be used (Not a directory), and no temporary "
        "folder can be written; set OTEL_RL_DIR to a directory that can be written; training goes on"
    ] == [record.getMessage() for record in caplog.records]
    (tmp_path / "file").unlink()
    otel_rl.uninstrument()
    assert 3 == sum(span.name == "rl.loop" for span in open_run(tmp_path / "file" / "runs" / RUN).spans())


def test_a_directory_without_permission_is_not_usable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Also where it exists."""
    monkeypatch.setattr(directories.os, "access", lambda path, mode: False)
    assert directories.fallback_root() == usable_root(tmp_path)
    assert "no permission to write" in caplog.text


def test_a_program_that_changes_its_directory_keeps_its_run(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A relative root is where it was when recording began."""
    monkeypatch.setenv("OTEL_RL_DIR", "relative")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    stubbed.start()
    monkeypatch.chdir(tmp_path / "b")
    with otel_rl.step(1):
        pass
    assert tmp_path / "a" / "relative" / RUN == run_directory()
    otel_rl.uninstrument()
    assert "rl.loop" in {span.name for span in open_run(tmp_path / "a" / "relative" / RUN).spans()}


# --- the thread -------------------------------------------------------------------------------------------------------


def test_the_thread_journals_by_itself(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without anybody asking."""
    monkeypatch.setattr(flusher, "PERIOD_S", 0.01)
    stubbed.start()
    written = threading.Event()
    append = Writer.append
    monkeypatch.setattr(Writer, "append", lambda self, *args: (append(self, *args), written.set())[0])
    with otel_rl.step(1):
        assert written.wait(60)


def test_a_signal_handler_may_flush_while_its_thread_does(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preemption handlers do, and the signal may arrive at any moment of a call that wakes the flusher."""
    monkeypatch.setattr(flusher, "PERIOD_S", 3600.0)
    stubbed.start()
    answers, over = [], threading.Event()

    def handle(frame: Any, event: str, argument: Any) -> None:
        answers.append(otel_rl.flush(60))

    def train(calls: Any) -> None:
        sys.setprofile(handle)
        calls.put(None)
        sys.setprofile(None)
        over.set()

    with otel_rl.step(1):
        calls = stubbed.flusher._calls  # the lock of an Event would hold up this test for ever
        threading.Thread(target=train, args=(calls,), daemon=True).start()
        assert over.wait(60)
    assert {True} == set(answers)


def test_flush_without_a_flusher_says_whether_anything_waits() -> None:
    """Before instrument() nothing does."""
    assert otel_rl.flush()


def test_a_flusher_without_a_thread_works_on_the_callers(recording: Recording) -> None:
    """A process that may start no thread, and one whose thread has ended."""
    ours, thread = recording.flusher, threading.Thread()
    ours._thread, thread = thread, ours._thread
    with otel_rl.step(1), otel_rl.stage("tool"):
        pass
    assert otel_rl.flush()
    assert "tool" in {span.name for span in recording.run().spans()}
    ours._thread = thread
    assert [
        Tree("rl.loop", 0, 0, (Tree("rl.rank 0", 0, 0, (Tree("tool", 0, 0),)),)),
    ] == [tree for tree in trees(recording.stop()) if tree.name == "rl.loop"]


def test_a_living_process_beats(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are touched, so that readers elsewhere see that it lives."""
    with otel_rl.step(1):
        otel_rl.flush()
        files = list((recording.root / RUN).iterdir())
        for path in files:
            os.utime(path, (1, 1))
        recording.flusher._beat -= 2 * flusher.HEARTBEAT_S
        otel_rl.flush()
        assert all(path.stat().st_mtime > 1 for path in files)


def test_the_run_directory_is_for_the_owner_only(recording: Recording) -> None:
    """Directories 0700, files 0600."""
    otel_rl.flush()
    directory = recording.root / RUN
    modes = {path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert (0o700, {0o600}) == (directory.stat().st_mode & 0o777, modes)


def test_a_backlog_is_journaled_slice_by_slice(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was recorded first is on disk before the rest is looked at."""
    monkeypatch.setattr(flusher, "SLICE", 10)
    seen = []
    cycle = flusher.Flusher._cycle

    def noted(self: flusher.Flusher) -> None:
        cycle(self)
        seen.append(len(state.queue))

    monkeypatch.setattr(flusher.Flusher, "_cycle", noted)
    for _ in range(100):
        with otel_rl.stage("tool"):
            pass
    run = recording.stop()
    assert sorted(seen, reverse=True) == seen
    assert len(seen) >= 10
    assert 100 == sum(span.name == "tool" for span in run.spans())


def test_an_exit_waits_no_longer_for_a_disk_that_is_slow(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However much it writes meanwhile: a program ends in time, and says that something may be lost."""
    ours, goes_on = recording.flusher, threading.Event()
    append, waits = Writer.append, []

    def slow(self: Writer, *record: Any) -> None:
        goes_on.wait(60)
        append(self, *record)

    monkeypatch.setattr(Writer, "append", slow)
    monkeypatch.setattr(flusher._Answer, "wait", lambda self, timeout_s: waits.append(timeout_s))
    with otel_rl.step(1):
        pass
    assert not ours.stop(2.0)
    assert [0.0, *flusher.WAITS * [0.1]] == waits
    assert "the journal was not done in time; what was recorded last may be lost" in caplog.text
    goes_on.set()
    ours._thread.join(60)


def test_a_flusher_that_cannot_start_is_tried_again(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is out of threads for a moment loses nothing."""
    real, tries = threading.Thread.start, []

    def start(self: threading.Thread) -> None:
        tries.append(self.name)
        if tries.count("otel_rl-flusher") == 1 and self.name == "otel_rl-flusher":
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    stubbed.start()
    assert not state.awake
    guard.errors.clear()
    state.wake_again_ns = 0
    with otel_rl.step(1):
        pass
    assert state.awake
    assert "rl.loop" in {span.name for span in stubbed.stop().spans()}


# --- stages that wait for numbers of their device ---------------------------------------------------------------------


def test_a_stage_waits_for_its_device(recording: Recording) -> None:
    """Journaled as open meanwhile; then it is whole, with its collectives."""
    state.identify(world_size=2)
    late = PendingAttributes({"rl.batch_size": 4})
    with otel_rl.step(1):
        with otel_rl.stage("train.forward") as stage:
            collective = Collective("all_reduce", 8)
            recording.tick(1)
            collective.close()
            stage.attributes = late
        recording.flusher._cycles()
        assert "rl.train.forward" in {stage.name for stage in recording.run().open_stages()}
        assert [] == [span for span in recording.run().spans() if span.name in ("rl.train.forward", "rl.train.comm")]
        late["rl.tokens"] = 7
        late.is_complete = True
        recording.flusher._cycles()
        found = {span.name: span for span in recording.run().spans(None)}
    assert (4, 7, 1) == tuple(
        found["rl.train.forward"].attributes[key] for key in ("rl.batch_size", "rl.tokens", vocabulary.COMM_COUNT)
    )
    assert found["rl.train.comm"].parent_id == found["rl.train.forward"].span_id


@pytest.mark.parametrize("how", ["flush", "stop", "time"])
def test_a_stage_does_not_wait_for_ever(recording: Recording, how: str) -> None:
    """Whoever asks for a flush gets it as it is; so does the end, and after ten seconds everybody."""
    with otel_rl.step(1):
        with otel_rl.stage("train.forward") as stage:
            stage.attributes = PendingAttributes()
        if how == "time":
            recording.tick(10_001)
            recording.flusher._cycles()
        elif how == "flush":
            assert otel_rl.flush()
        if how != "stop":
            assert "rl.train.forward" in {span.name for span in recording.run().spans()}
    assert "rl.train.forward" in recording.spans()
