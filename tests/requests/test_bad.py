"""Bad input: what cannot be is counted by its reason and left out, and everything else of the request is kept."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from opentelemetry.trace import SpanContext, TraceFlags

import otel_rl
from otel_rl import guard, vocabulary
from otel_rl.process.state import state
from otel_rl.requests import queue
from otel_rl.requests.queue import Request, record_requests
from otel_rl.trace.stage import current_stage
from tests.fixtures import MS, Recording
from tests.noted import take
from tests.requests.test_queue import bad, counted, given, ids_of, request, rollout

UNUSED = 10**30


class Unlike:
    """Holds an error whose name is not all of its qualified name."""

    class Error(Exception):
        """It."""


class OnDevice:
    """A count that would have to be waited for."""

    device = SimpleNamespace(type="cuda")

    def __index__(self) -> int:
        return 5


def histograms(recording: Recording, **changes: Any) -> tuple[dict[Any, float], set[str]]:
    """Record one changed request; give what was wrong, and the histograms that it is a value of."""
    run = rollout(recording, [request(recording, 1, **changes)], ms=1000)
    names = {point.name for point in run.points() if point.kind == "histogram" and not point.name.startswith("rl.")}
    names |= {point.name for point in run.points() if point.name.startswith("rl.request.") and point.count}
    return bad(run), {name.rpartition(".")[2] for name in names}


TIMED = {"time_to_first_token", "time_per_output_token", "duration", "queue_time", "prefill_time"}
COUNTED = {"prompt_length", "response_length", "cached_length"}
ALL = TIMED | COUNTED


@pytest.mark.parametrize(
    ("changes", "reason", "missing"),
    [
        ({"ended": 0}, "unfinished", {"duration"}),
        ({"ended": 900 * MS}, "reversed", {"duration"}),
        ({"first_token": 900 * MS}, "reversed", {"time_to_first_token", "prefill_time"}),
        ({"scheduled": 900 * MS}, "reversed", {"queue_time"}),
        ({"last_token": 900 * MS}, "reversed", {"time_per_output_token"}),
        ({"submitted": -5}, "impossible_time", {"duration", "queue_time", "time_to_first_token"}),
        ({"ended": 10_000 * MS}, "impossible_time", {"duration"}),
        ({"ended": UNUSED}, "impossible_time", {"duration"}),
        ({"input_tokens": 0}, "tokens", {"prompt_length"}),
        ({"input_tokens": -7}, "tokens", {"prompt_length"}),
        ({"output_tokens": 0}, "tokens", {"response_length", "time_per_output_token"}),
        ({"output_tokens": -2}, "tokens", {"response_length", "time_per_output_token"}),
        ({"output_tokens": 1 << 50}, "tokens", {"response_length", "time_per_output_token"}),
        ({"cached_tokens": 6}, "tokens", {"cached_length"}),
        ({"output_tokens": "many"}, "not_a_number", {"response_length", "time_per_output_token"}),
        ({"output_tokens": 2.5}, "not_a_number", {"response_length", "time_per_output_token"}),
        ({"ended": nan}, "not_a_number", {"duration"}),
        ({"output_tokens": None}, "", {"response_length", "time_per_output_token"}),
        ({"output_tokens": 10.0}, "", set()),
        ({"output_tokens": 1}, "", {"time_per_output_token"}),
        ({"output_tokens": 0, "finish": "abort"}, "", {"time_per_output_token"}),
        ({"finish": None, "id": None, "model": 5, "streamed": 1}, "", set()),
    ],
)
def test_what_cannot_be_is_left_out_and_counted(
    stubbed: Recording, changes: dict[str, Any], reason: str, missing: set[str]
) -> None:
    """The other numbers of the request stay."""
    stubbed.tick(1000)
    stubbed.start()
    problems, names = histograms(stubbed, **changes)
    if reason == "unfinished" or (reason == "not_a_number" and "ended" in changes):
        problems.pop("unfinished", None)
        problems.setdefault(reason, 1)
    assert ({reason: 1} if reason else {}, ALL - missing) == (problems, names)


@pytest.mark.parametrize("count", [1, 100])
def test_a_request_that_never_finishes_is_no_span(recording: Recording, count: int) -> None:
    """It has no end; the others are not disturbed, however many come at once."""
    rows = [request(recording, number, ended=0 if number % 2 else recording.clock.ns) for number in range(count + 1)]
    run = rollout(recording, rows)
    assert ({"unfinished": count // 2 + count % 2}, True) == (
        bad(run),
        all(str(name)[1:] in {str(even) for even in range(0, count + 1, 2)} for name in ids_of(run)),
    )
    assert {"stop": count + 1} == counted(run, vocabulary.REQUESTS, vocabulary.FINISH)


def test_an_id_that_comes_twice_counts_once(recording: Recording) -> None:
    """With another submission it is another attempt; across writes of the journal, too."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(50)
        first = request(recording, 1)
        record_requests(given, [first, first])
        otel_rl.flush()
        recording.tick(50)
        record_requests(given, [first, request(recording, 1)])
        record_requests(given, [first._replace(turn=1), first._replace(replica="2"), request(recording, id="")] * 2)
    run = recording.stop()
    assert {"repeated_id": 4, "another_attempt": 1} == bad(run)
    assert 6 == sum(counted(run, vocabulary.REQUESTS, vocabulary.REPLICA).values())


def test_attempts_without_a_submission_are_told_apart_by_their_ends(recording: Recording) -> None:
    """The same end is the same request."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        for _ in range(3):
            recording.tick(50)
            record_requests(given, [request(recording, 1, submitted=0)] * 2)
    run = recording.stop()
    assert ({"repeated_id": 3, "another_attempt": 2}, {"stop": 3}) == (
        bad(run),
        counted(run, vocabulary.REQUESTS, vocabulary.FINISH),
    )


class Odd:
    """A value that refuses everything."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("compared")

    def __str__(self) -> str:
        raise ValueError("written")

    def __index__(self) -> int:
        raise ValueError("counted")

    def __bool__(self) -> bool:
        raise ValueError("asked")


class Gone:
    """A number in memory that is gone, as JAX deletes an array."""

    def __index__(self) -> int:
        raise RuntimeError("deleted")


@pytest.mark.guarded
@pytest.mark.parametrize(
    ("name", "value"),
    [(name, Odd()) for name in ("output_tokens", "id", "finish", "model", "streamed", "ended")]
    + [("output_tokens", Gone())],
)
def test_an_odd_value_costs_only_itself(recording: Recording, name: str, value: Any) -> None:
    """The others of its batch are counted."""
    rows = [request(recording, number) for number in range(100)]
    rows[50] = rows[50]._replace(**{name: value})
    run = rollout(recording, rows)
    assert 1 == bad(run)["not_a_number"]
    assert 100 == sum(point.value for point in run.last_points(vocabulary.REQUESTS))


class Wild(str):
    """A text that can be in no set."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("compared")


class Named:
    """Something that is written as such a text."""

    def __str__(self) -> str:
        return Wild("name")


@pytest.mark.parametrize(
    "changes",
    [
        *({name: Wild("r50")} for name in ("id", "engine", "model", "finish", "error", "sample")),
        {"id": Named()},
        {"engine": Named()},
        {"turn": np.array(3)},
        {"limit": np.array(3)},
    ],
)
def test_a_value_of_a_class_of_its_own_is_what_it_says(recording: Recording, changes: dict[str, Any]) -> None:
    """Though it cannot be compared or looked up: nothing of its batch is lost, nothing is wrong with it."""
    rows = [request(recording, number) for number in range(100)]
    rows[50] = rows[50]._replace(**changes)
    run = rollout(recording, rows)
    assert ({}, 100) == (bad(run), sum(point.value for point in run.last_points(vocabulary.REQUESTS)))


@pytest.mark.guarded
@pytest.mark.parametrize(
    "bad_load", [(None, 1, 0.5, 0), (1, "2", 0.5, 0), (1, 2, nan, 0), (1, 2, "?", 0), (1, 2, 0.5, None)]
)
def test_the_load_of_an_engine_may_be_anything(recording: Recording, bad_load: Any) -> None:
    """It is left out, counted as an error, and rollouts end as they do."""
    context = SpanContext(7, 9, is_remote=True, trace_flags=TraceFlags(1))
    recording.tick(20)
    record_requests(given, [request(recording, 1)], parent=context)
    queue.record_load("bad", "", recording.clock.ns, *bad_load)
    queue.record_load("good", "", recording.clock.ns, 1, 2, 0.5)
    otel_rl.flush()
    recording.tick(5_001)
    otel_rl.flush()
    assert (["r1"], 1) == (ids_of(recording.run()), guard.errors["count a record"])
    assert {"good": 1} == counted(recording.stop(), vocabulary.RUNNING, vocabulary.PROVIDER)


@pytest.mark.guarded
def test_rollouts_end_though_the_load_cannot_be_written(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has nothing to do with the other."""
    monkeypatch.setattr("otel_rl.requests.engine_load.Engines.emit", lambda *_: 1 / 0)
    recording.tick(20)
    record_requests(given, [request(recording, 1)], parent=SpanContext(7, 9, is_remote=True, trace_flags=TraceFlags(1)))
    otel_rl.flush()
    recording.tick(5_001)
    otel_rl.flush()
    assert ["r1"] == ids_of(recording.run())
    recording.stop()


def test_what_comes_after_its_step_is_counted_only(recording: Recording) -> None:
    """Nothing is added to a trace that is complete."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        stage = current_stage()
        recording.tick(20)
        record_requests(given, [request(recording, 1)])
    with otel_rl.step(2):
        recording.tick(20)
        record_requests(given, [request(recording, 2)], parent=stage)
        otel_rl.flush()
    run = recording.stop()
    assert ({"late": 1}, ["r1"], {"stop": 2}, {"": 1}) == (
        bad(run),
        ids_of(run),
        counted(run, vocabulary.REQUESTS, vocabulary.FINISH),
        counted(run, vocabulary.OMITTED),
    )


def test_what_comes_after_its_stage_but_in_its_step_is_a_span(recording: Recording) -> None:
    """Another thread's, for example: it is held no longer than until the next write."""
    with otel_rl.step(1):
        with otel_rl.stage("sample"):
            stage = current_stage()
            recording.tick(20)
        otel_rl.flush()
        record_requests(given, [request(recording, 1)], parent=stage)
        otel_rl.flush()
        assert (["r1"], {}) == (ids_of(recording.run()), recording.flusher.dispatcher.requests._rollouts)
    run = recording.stop()
    assert ({"after_rollout": 1}, []) == (bad(run), list(run.points(vocabulary.ROLLOUT_WALL)))


@pytest.mark.guarded
def test_a_reader_that_fails_loses_only_what_it_had_not_given(recording: Recording) -> None:
    """It is counted, and logged once."""

    def failing(rows: list[Request]) -> Iterator[Request]:
        yield from rows
        raise KeyError("engine")

    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        for number in range(2):
            record_requests(failing, [request(recording, number)])
        record_requests(given, None)
        record_requests(given, [request(recording, 3), "no request", None])
    run = recording.stop()
    assert {"unreadable": 3, "no_request": 2} == bad(run)
    assert (["r0", "r1", "r3"], 3) == (sorted(ids_of(run)), guard.errors["read finished requests"])


def test_a_forked_worker_is_counted(recording: Recording) -> None:
    """It writes its own journal; the rollout that it was forked in goes on in its parent."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        child = os.fork()
        if not child:
            record_requests(given, [request(recording, 1)])
            otel_rl.uninstrument()
            os._exit(0)
        os.waitpid(child, 0)
        record_requests(given, [request(recording, 2)])
    run = recording.stop()
    assert ({"forked": 1}, ["r1", "r2"]) == (bad(run), sorted(ids_of(run)))
    stages = {span.span_id for span in run.spans() if span.name == "rl.sample"}
    assert stages == {span.parent_id for span in run.spans((vocabulary.SUBMISSION,)) if span.attributes}


@pytest.mark.guarded
def test_a_parent_that_is_no_span_costs_only_the_span(recording: Recording) -> None:
    """The request is counted."""
    with otel_rl.step(1):
        recording.tick(20)
        record_requests(given, [request(recording, 1)], parent="the rollout")
    run = recording.stop()
    assert ([], {"stop": 1}, {"": 1}) == (
        ids_of(run),
        counted(run, vocabulary.REQUESTS, vocabulary.FINISH),
        counted(run, vocabulary.OMITTED),
    )


def test_words_of_labels_are_few(recording: Recording) -> None:
    """A model or finish reason per request makes no series per request."""
    rows = [request(recording, one, model=f"m{one}", finish=f"f{one}", error=f"E{one}") for one in range(200)]
    run = rollout(recording, rows)
    (points,) = ({point.attributes[vocabulary.REQUEST_MODEL] for point in run.points(vocabulary.TTFT)},)
    assert (65, 137) == (
        len(points),
        sum(p.value for p in run.last_points(vocabulary.REQUESTS) if p.attributes[vocabulary.FINISH] == "other") + 1,
    )


# --- otel_rl.request --------------------------------------------------------------------------------------------------


def test_a_custom_engine_reports_in_seconds(recording: Recording) -> None:
    """By any clock of this host; what it leaves out is not told."""
    wall = recording.clock.ns + state.clock.anchor
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(100)
        otel_rl.request("mine", submitted=1.01, ended=1.05, id="monotonic", output_tokens=4, finish="stop")
        otel_rl.request(
            "mine", submitted=wall / 1e9, ended=(wall + 40 * MS) / 1e9, clock="wall", id="wall", error=OSError()
        )
        otel_rl.request("mine", submitted=None, ended=1.05, id="unknown", policy_start=1, policy_end=0)
    run = recording.stop()
    found = {
        span.attributes[vocabulary.RESPONSE_ID]: (round((span.end_ns - span.start_ns) / MS), dict(span.attributes))
        for span in run.spans(None)
        if vocabulary.SUBMISSION in span.attributes
    }
    plain = {
        vocabulary.OPERATION: "generate_content",
        vocabulary.PROVIDER: "mine",
        vocabulary.SUBMISSION: "bulk",
    }
    assert (40, 40, 0) == (found["monotonic"][0], found["wall"][0], found["unknown"][0])
    assert {
        **plain,
        vocabulary.RESPONSE_ID: "monotonic",
        vocabulary.OUTPUT_TOKENS: 4,
        vocabulary.FINISH_REASONS: ("stop",),
        vocabulary.REQUEST_KEPT: "slowest,longest,sample",
    } == found["monotonic"][1]
    assert {
        **plain,
        vocabulary.RESPONSE_ID: "wall",
        vocabulary.ERROR_TYPE: "OSError",
        vocabulary.REQUEST_KEPT: "failed,slowest,sample",
    } == found["wall"][1]
    assert {} == bad(run)


@pytest.mark.guarded
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"submitted": 2.0, "ended": 1.0}, "reversed"),
        ({"ended": None}, "unfinished"),
        ({"output_tokens": -1}, "tokens"),
        ({"output_tokens": "x"}, "not_a_number"),
        ({"submitted": inf}, "not_a_number"),
        ({"submitted": "now"}, "not_a_number"),
        ({"submitted": "1.0"}, "not_a_number"),
        ({"submitted": np.array([1.0, 1.1])}, "not_a_number"),
        ({"submitted": SimpleNamespace(device=SimpleNamespace(type="cuda"), __float__=lambda: 1.0)}, "not_a_number"),
        ({"output_tokens": OnDevice()}, "not_a_number"),
        ({"submitted": 10**400}, "not_a_number"),
        ({"submitted": 1e300}, "not_a_number"),
        ({"clock": "sundial"}, "unreadable"),
    ],
)
def test_bad_values_of_a_custom_engine_are_counted(stubbed: Recording, values: dict[str, Any], reason: str) -> None:
    """And never raised."""
    stubbed.tick(5000)
    stubbed.start()
    with otel_rl.step(1):
        otel_rl.request("mine", **{"submitted": 1.0, "ended": 1.5, **values})
    assert {reason: 1} == bad(stubbed.stop())


@pytest.mark.parametrize(
    "kind", [int, float, Fraction, np.int64, np.uint8, np.float32, lambda seconds: np.array(seconds, np.int16)]
)
def test_seconds_are_seconds_whatever_their_type(recording: Recording, kind: Callable[[int], Any]) -> None:
    """Of any number that Python takes for a real one."""
    recording.tick(5000)
    with otel_rl.step(1):
        otel_rl.request("mine", submitted=kind(2), ended=kind(5))
    run = recording.stop()
    (point,) = run.last_points(vocabulary.REQUEST_DURATION)
    assert (3, {}) == (point.sum, bad(run))


def test_a_time_before_the_process_is_none(recording: Recording) -> None:
    """As one relative to the begin of the engine is: it would stretch the run by hours. Likewise of many at once.

    A process that was forked knows of what began in the one that it comes from.
    """
    recording.tick(10_000)
    state.first_ns = recording.clock.ns - 5000 * MS
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(100)
        otel_rl.request("mine", submitted=0.5, ended=recording.clock.ns / 1e9, id="relative", finish="abort")
        otel_rl.request("mine", submitted=(state.first_ns + MS) / 1e9, ended=recording.clock.ns / 1e9, id="own")
        record_requests(given, [request(recording, number, submitted=MS * (number == 3)) for number in range(100)])
    run = recording.stop()
    lengths = {
        span.attributes[vocabulary.RESPONSE_ID]: span.end_ns - span.start_ns
        for span in run.spans((vocabulary.RESPONSE_ID,))
        if span.attributes
    }
    assert ({"impossible_time": 2}, 0, 5099 * MS) == (bad(run), lengths["relative"], lengths["own"])
    assert 5099 * MS == max(lengths.values())


def test_an_error_of_a_custom_engine_is_its_class(recording: Recording) -> None:
    """Given as itself, as its class, or by its name; itself is not kept, nor what its frames hold."""
    try:
        raise Unlike.Error
    except Unlike.Error as error:
        otel_rl.request("mine", submitted=1.0, ended=1.5, error=error)
        gone = weakref.ref(error)
    gc.collect()
    assert gone() is None
    otel_rl.request("mine", submitted=1.0, ended=1.5, error=Unlike.Error)
    otel_rl.request("mine", submitted=1.0, ended=1.5, error="Unlike.Error")
    assert ["Unlike.Error"] * 3 == [row.error for row in take().rows]


def test_what_cancels_a_request_of_a_custom_engine_aborts_it(recording: Recording) -> None:
    """It is no failure of its own, whatever its engine says of how it ended."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(50)
        now = recording.clock.ns / 1e9
        for number, finish in enumerate(("", "timeout", "abort")):
            error = asyncio.CancelledError()
            otel_rl.request("mine", submitted=now, ended=now, id=str(number), finish=finish, error=error)
    run = recording.stop()
    assert {"abort": 2, "timeout": 1} == counted(run, vocabulary.REQUESTS, vocabulary.FINISH)
    assert {} == counted(run, vocabulary.REQUEST_ERRORS, vocabulary.FAILURE)


def test_a_number_beyond_64_bits_does_not_disturb_the_others(recording: Recording) -> None:
    """Of many requests at once, as of one alone; nor does half a character in an id."""
    rows = [request(recording, one, id=f"\ud800{one}") for one in range(99)]
    run = rollout(recording, [*rows, request(recording, 99, input_tokens=UNUSED)])
    lengths = {point.name: point.count for point in run.last_points() if point.kind == "histogram"}
    assert ({"tokens": 1}, 99, 100) == (
        bad(run),
        lengths[vocabulary.PROMPT_LENGTH],
        lengths[vocabulary.OUTPUT_LENGTH],
    )


def test_old_traces_are_forgotten(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of steps is bounded."""
    monkeypatch.setattr("otel_rl.requests.histograms.KEPT_TRACES", 3)
    for number in range(6):
        with otel_rl.step(number), otel_rl.stage("sample"):
            recording.tick(20)
            record_requests(given, [request(recording)])
    otel_rl.flush()
    fold = recording.flusher.dispatcher.requests
    assert (3, 3) == (len(fold._used), len(fold._over))
    assert {} == bad(recording.stop())
