"""Tests of which rollout requests become spans, when, and below what."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags

import otel_rl
from otel_rl import vocabulary
from otel_rl.journal.read import Run
from otel_rl.records import Value
from otel_rl.requests.queue import record_requests
from tests.fixtures import MS, Recording, Tree, orphans, trees
from tests.requests.test_queue import bad, counted, given, ids_of, request, request_spans, rollout, sample_of
from tests.trace.test_stage import proto_spans

# --- which become spans -----------------------------------------------------------------------------------------------


def test_few_of_many_become_spans(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slowest, the longest, the failed and a sample, as the settings say; they are the same in a repetition."""
    for name, value in (("FAILURES", 3), ("EXTREMES", 2), ("SAMPLE", 4)):
        monkeypatch.setenv(f"OTEL_RL_REQUEST_{name}", str(value))
    stubbed.start()
    stubbed.tick(2000)
    now = stubbed.clock.ns
    rows = [
        request(
            stubbed,
            number,
            submitted=now - (1000 + number) * MS,
            scheduled=now - (900 + number) * MS,
            first_token=now - 900 * MS + number * MS,
            last_token=now,
            ended=now,
            output_tokens=1000 - number,
            finish="abort" if number % 100 == 7 else "stop",
        )
        for number in range(500)
    ]
    run = rollout(stubbed, rows)
    why = {
        attributes[vocabulary.RESPONSE_ID]: str(attributes[vocabulary.REQUEST_KEPT]).split(",")
        for attributes in request_spans(run)
    }
    assert {"r7", "r107", "r207"} == {name for name, words in why.items() if "failed" in words}
    assert {"r499", "r498"} == {name for name, words in why.items() if "slowest" in words}
    assert {"r499", "r498"} == {name for name, words in why.items() if "ttft" in words}
    assert {"r0", "r1"} == {name for name, words in why.items() if "longest" in words}
    assert 4 == sum("sample" in words for words in why.values())
    assert {"": 500 - len(why)} == counted(run, vocabulary.OMITTED)


def test_the_sample_depends_on_step_and_id_alone(recording: Recording) -> None:
    """Not on the order or the slices in which the requests came."""
    kept = []
    for number, order in ((1, 1), (2, -1), (2, 1)):
        with otel_rl.step(number), otel_rl.stage("sample"):
            recording.tick(20)
            rows = [request(recording, one) for one in range(300)][::order]
            for first in range(0, 300, 70):
                record_requests(given, rows[first : first + 70])
                otel_rl.flush()
    for spans in trees_by_step(recording.stop()):
        kept.append({name for name, words in spans.items() if "sample" in words})
    assert [32, 32, 32] == [len(names) for names in kept]
    assert kept[0] != kept[1]


def test_another_attempt_chooses_the_same_sample(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that two runs of one training can be compared request by request."""
    chosen = []
    for run_id in ("one", "two"):
        monkeypatch.setenv("OTEL_RL_RUN_ID", run_id)
        stubbed.start()
        with otel_rl.step(3), otel_rl.stage("sample"):
            stubbed.tick(20)
            record_requests(given, [request(stubbed, number) for number in range(200)])
        otel_rl.uninstrument()
        (spans,) = trees_by_step(stubbed.run(run_id))
        chosen.append((spans, {span.trace_id for span in stubbed.run(run_id).spans() if span.name == "rl.sample"}))
    assert (chosen[0][0], True) == (chosen[1][0], chosen[0][1] != chosen[1][1])


def trees_by_step(run: Run) -> list[dict[Value, str]]:
    """Give ids and reasons of the requests that are spans, step by step."""
    found: dict[bytes, dict[Value, str]] = {}
    for span in sorted(run.spans(None), key=lambda span: span.start_ns):
        if vocabulary.SUBMISSION in span.attributes:
            reasons = str(span.attributes[vocabulary.REQUEST_KEPT])
            found.setdefault(span.trace_id, {})[span.attributes[vocabulary.RESPONSE_ID]] = reasons
    return list(found.values())


@pytest.mark.parametrize("limit", [0, 5])
def test_a_step_has_at_most_so_many(stubbed: Recording, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Over all its rollouts; the failed ones come first."""
    monkeypatch.setenv("OTEL_RL_REQUEST_SPANS", str(limit))
    stubbed.start()
    with otel_rl.step(1):
        for first in (0, 10):
            with otel_rl.stage("sample"):
                stubbed.tick(20)
                rows = [request(stubbed, first + one, finish="error" if one == 9 else "stop") for one in range(10)]
                record_requests(given, rows)
    run = stubbed.stop()
    assert limit == len(ids_of(run))
    assert ("r9" in ids_of(run)) == bool(limit)
    assert {"": 20 - limit} == counted(run, vocabulary.OMITTED)


def test_a_rollout_is_judged_when_it_is_over(recording: Recording) -> None:
    """However often the journal is written meanwhile; until then only metrics know its requests."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        for number in range(3):
            recording.tick(20)
            record_requests(given, [request(recording, number)])
            otel_rl.flush()
        assert [] == ids_of(recording.run())
        assert {"stop": 3} == counted(recording.run(), vocabulary.REQUESTS, vocabulary.FINISH)
    otel_rl.flush()
    assert ["r0", "r1", "r2"] == sorted(ids_of(recording.run()))


def test_an_unsampled_step_has_no_requests_as_spans(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """But all of them in metrics."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    stubbed.start()
    run = rollout(stubbed, [request(stubbed, number) for number in range(5)])
    assert ([], {"": 5}, 5) == (
        list(run.spans()),
        counted(run, vocabulary.OMITTED),
        run.last_points(vocabulary.TTFT)[0].count,
    )


# --- where they belong ------------------------------------------------------------------------------------------------


def test_without_a_stage_they_belong_to_the_step(recording: Recording) -> None:
    """They are told when it ends."""
    with otel_rl.step(1):
        recording.tick(20)
        record_requests(given, [request(recording)])
    step = next(tree for tree in recording.trees() if tree.name == "rl.loop")
    assert (Tree("generate_content m", 6, 20),) == step.below[0].below


def test_before_the_first_step_they_belong_to_set_up(recording: Recording) -> None:
    """An engine's warm-up."""
    recording.tick(20)
    record_requests(given, [request(recording)])
    with otel_rl.step(1):
        recording.tick(1)
    setup = next(tree for tree in recording.trees() if tree.name == "rl.setup")
    assert (Tree("generate_content m", 6, 20),) == setup.below[0].below


@pytest.mark.parametrize("is_context", [False, True])
def test_requests_of_another_process_belong_to_its_trace(recording: Recording, is_context: bool) -> None:
    """Their context came with them; nobody says when that rollout ends, so silence does."""
    context: SpanContext | Context = SpanContext(7, 9, is_remote=True, trace_flags=TraceFlags(1))
    if is_context:
        context = trace.set_span_in_context(trace.NonRecordingSpan(context))
    unsampled = SpanContext(8, 9, is_remote=True, trace_flags=TraceFlags(0))
    recording.tick(20)
    record_requests(given, [request(recording, 1)], parent=context)
    record_requests(given, [request(recording, 2)], parent=unsampled)
    otel_rl.flush()
    assert [] == ids_of(recording.run())
    recording.tick(5_001)
    otel_rl.flush()
    (span,) = (span for span in recording.run().spans(None) if vocabulary.SUBMISSION in span.attributes)
    assert (7, 9, "r1") == (
        int.from_bytes(span.trace_id, "big"),
        int.from_bytes(span.parent_id, "big"),
        span.attributes[vocabulary.RESPONSE_ID],
    )
    recording.stop()


def test_a_step_links_to_a_rollout_that_outlived_its_own(recording: Recording) -> None:
    """As docs/requests.md says how: it has a span of its own, no step's, and the step that trains on it names it."""
    with otel_rl.step(1):
        rollout = trace.get_tracer("generator").start_span("rollout", Context())
        recording.tick(20)
        record_requests(given, [request(recording, 1)], parent=rollout)
    with otel_rl.step(2):
        recording.tick(20)
        record_requests(given, [request(recording, 2)], parent=rollout)
        rollout.end()
        with otel_rl.stage("train") as span:
            span.add_link(rollout.get_span_context())
    run = recording.stop()
    spans = proto_spans(recording)
    own = spans["rollout"]
    assert [(own.trace_id, own.span_id)] == [(link.trace_id, link.span_id) for link in spans["rl.train"].links]
    assert own.trace_id != spans["rl.train"].trace_id
    below = {
        one.attributes[vocabulary.RESPONSE_ID]: (one.trace_id, one.parent_id)
        for one in run.spans(None)
        if vocabulary.SUBMISSION in one.attributes
    }
    assert dict.fromkeys(("r1", "r2"), (own.trace_id, own.span_id)) == below
    assert ({}, {"stop": 2}) == (bad(run), counted(run, vocabulary.REQUESTS, vocabulary.FINISH))


def test_of_many_rollouts_the_quietest_is_taken_for_over(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held is bounded."""
    monkeypatch.setattr("otel_rl.requests.histograms.MOST_ROLLOUTS", 2)
    with otel_rl.step(1), ExitStack() as stages:
        recording.tick(20)
        for number in range(3):
            recording.tick(1)
            stage = stages.enter_context(otel_rl.stage("sample"))
            record_requests(given, [request(recording, number)], parent=stage)
            otel_rl.flush()
        assert ["r0"] == ids_of(recording.run())
    assert ["r0", "r1", "r2"] == sorted(ids_of(recording.stop()))


def test_requests_of_many_traces_share_one_limit(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each remains in its own trace; an id of another trace is another request."""
    monkeypatch.setenv("OTEL_RL_REQUEST_SPANS", "5")
    stubbed.start()
    stubbed.tick(20)
    for number in range(40):
        context = SpanContext(7 + number, 9, is_remote=True, trace_flags=TraceFlags(1))
        record_requests(given, [request(stubbed, turn=number)], parent=context)
        record_requests(given, [request(stubbed, id="same")], parent=context)
    run = stubbed.stop()
    spans = [span for span in run.spans(None) if vocabulary.SUBMISSION in span.attributes]
    turns = {int.from_bytes(span.trace_id, "big") - 7: span.attributes.get(vocabulary.TURN) for span in spans}
    assert (5, {}, {"": 75}) == (len(spans), bad(run), counted(run, vocabulary.OMITTED))
    assert all(turn in (None, number) for number, turn in turns.items())


def rollout_points(run: Run) -> set[str]:
    """Give the names of the numbers of rollouts that were told."""
    names = (vocabulary.ROLLOUT_WALL, vocabulary.TAIL, vocabulary.ROLLOUT_BUBBLE, vocabulary.REQUEST_RATIO)
    return {name for name in names if list(run.points(name))}


def walls_of(run: Run) -> set[tuple[object, float]]:
    """Give the time of every rollout, with what it belongs to."""
    return {(point.attributes.get(vocabulary.MODE, ""), point.value) for point in run.points(vocabulary.ROLLOUT_WALL)}


def test_a_slice_between_two_silences_has_no_tail(recording: Recording) -> None:
    """Of another process's trace nobody knows what belongs together: spans and metrics of requests are all."""
    context = SpanContext(7, 9, is_remote=True, trace_flags=TraceFlags(1))
    for first in (0, 100):
        recording.tick(20)
        record_requests(given, [request(recording, first + one) for one in range(100)], parent=context)
        otel_rl.flush()
        recording.tick(5_001)
        otel_rl.flush()
    run = recording.stop()
    assert (set(), {"stop": 200}) == (rollout_points(run), counted(run, vocabulary.REQUESTS, vocabulary.FINISH))
    assert {False, True} == {int(str(name)[1:]) < 100 for name in ids_of(run)}


@pytest.mark.parametrize("silence", ["quiet", "long"])
def test_a_process_without_steps_gives_its_spans_now_and_then(recording: Recording, silence: str) -> None:
    """Its set-up never ends; what it holds is bounded, and what comes later may be spans as well."""
    for first in range(0, 2_000, 1_000):
        for number in range(13):
            recording.tick(4_990 if silence == "long" else 1)
            record_requests(given, [request(recording, first + number)])
            otel_rl.flush()
        recording.tick(5_001 if silence == "quiet" else 10)
        otel_rl.flush()
        otel_rl.flush()
    held = sum(one.count for one in recording.flusher.dispatcher.requests._rollouts.values())
    assert (26, set()) == (len(ids_of(recording.run())) + held, rollout_points(recording.run()))
    assert held < 13
    recording.stop()


def test_a_judges_requests_are_no_rollout(recording: Recording) -> None:
    """They are counted and may be spans, below a stage of the user's as well, and disturb no other's label."""
    with otel_rl.step(1):
        with otel_rl.stage("reward", mode="eval"):
            recording.tick(20)
            record_requests(given, [request(recording, 1)])
        with otel_rl.stage("reward"), otel_rl.stage("judge"):
            recording.tick(20)
            record_requests(given, [request(recording, 2)])
    run = recording.stop()
    assert (["r1", "r2"], set()) == (sorted(ids_of(run)), rollout_points(run))
    assert {"eval": 1, "": 1} == counted(run, vocabulary.REQUESTS, vocabulary.MODE)


def test_requests_of_a_step_and_of_ones_own_stages_are_one_rollout(recording: Recording) -> None:
    """From the first submission to the last finish; the step's container says what it was."""
    with otel_rl.step(1):
        recording.tick(20)
        record_requests(given, [request(recording, 1)])
        with otel_rl.stage("mine"):
            recording.tick(50)
            record_requests(given, [request(recording, 2)])
        with otel_rl.stage("mine", mode="eval"):
            recording.tick(20)
            record_requests(given, [request(recording, 3)])
    run = recording.stop()
    (told,) = (span.attributes for span in run.spans((vocabulary.REQUEST_COUNT,)) if span.attributes)
    assert ({("", 0.064), ("eval", 0.014)}, 2) == (walls_of(run), told[vocabulary.REQUEST_COUNT])


def test_what_a_rollout_stage_left_over_is_no_rollout(recording: Recording) -> None:
    """Requests of the step itself, in a step that had such a stage; those of an evaluation are no part of that."""
    with otel_rl.step(1):
        with otel_rl.stage("sample"):
            recording.tick(20)
            record_requests(given, [request(recording, 1)])
        with otel_rl.stage("train"):
            recording.tick(50)
            record_requests(given, [request(recording, 2)])
            with otel_rl.stage("mine", mode="eval"):
                recording.tick(20)
                record_requests(given, [request(recording, 3)])
    run = recording.stop()
    told = {span.name for span in run.spans((vocabulary.REQUEST_COUNT,)) if span.attributes}
    assert ({("", 0.02), ("eval", 0.014)}, {"r1", "r2", "r3"}, {}) == (walls_of(run), set(ids_of(run)), bad(run))
    assert vocabulary.SAMPLE in told


@pytest.mark.parametrize("is_written", [False, True])
def test_what_ends_after_its_rollout_is_no_rollout(recording: Recording, is_written: bool) -> None:
    """As what over-sampling aborts while training: counted and a span, but the rollout was over without it.

    Whether the flusher has come meanwhile makes no difference.
    """
    for number in (1, 2):
        with otel_rl.step(number):
            with otel_rl.stage("sample") as stage:
                recording.tick(50)
                record_requests(given, [request(recording, one) for one in range(8)])
            if is_written:
                otel_rl.flush()
            with otel_rl.stage("train"):
                recording.tick(10)
                record_requests(given, [request(recording, 8)], parent=stage)
                recording.tick(90)
                record_requests(given, [request(recording, one, finish="abort") for one in (9, 10)], parent=stage)
    run = recording.stop()
    walls = [point.value for point in run.points(vocabulary.ROLLOUT_WALL)]
    ratios = [
        point.value
        for point in run.points(vocabulary.REQUEST_RATIO)
        if point.attributes[vocabulary.OUTCOME_KIND] == "aborted"
    ]
    stages = [dict(span.attributes) for span in run.spans(None) if span.name == "rl.sample"]
    assert ([0.05, 0.05], [0, 0], [8, 8]) == (walls, ratios, [one[vocabulary.REQUEST_COUNT] for one in stages])
    assert {"0.1", "0.05", "0.01"} >= {point.attributes[vocabulary.SLOWEST] for point in run.points(vocabulary.TAIL)}
    assert all(point.value <= 1 for point in run.points(vocabulary.TAIL))
    assert ({"after_rollout": 6}, {"": 4}, {"stop": 18, "abort": 4}, 22) == (
        bad(run),
        counted(run, vocabulary.ABORTED),
        counted(run, vocabulary.REQUESTS, vocabulary.FINISH),
        len(ids_of(run)),
    )
    below = {span.parent_id for span in run.spans((vocabulary.SUBMISSION,)) if vocabulary.SUBMISSION in span.attributes}
    assert below == {span.span_id for span in run.spans() if span.name == "rl.sample"}


def test_a_client_of_a_server_is_a_client(recording: Recording) -> None:
    """The kind of its span says so."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    run = rollout(recording, [request(recording, 1, engine="openai"), request(recording, 2)])
    kinds = [
        span.kind
        for _, frame in run.frames("traces")
        for group in ExportTraceServiceRequest.FromString(frame.payload).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
        if span.name == "generate_content m"
    ]
    assert [1, 3] == sorted(kinds)


def test_many_failures_are_some_spans(recording: Recording) -> None:
    """The first 64 of a rollout, beside the extreme ones and the sample."""
    rows = [request(recording, number, finish="timeout") for number in range(3_000)]
    run = rollout(recording, rows)
    words = [str(attributes[vocabulary.REQUEST_KEPT]) for attributes in request_spans(run)]
    assert (64, {"": 3_000}) == (sum("failed" in word for word in words), counted(run, vocabulary.TIMED_OUT))
    assert len(words) <= 64 + 8 * 3 + 32


def test_requests_of_ones_own_stages_are_judged_with_their_step(recording: Recording) -> None:
    """An agent's stage for every sample: each request lies below its own, but the slowest are those of the step."""
    with otel_rl.step(1):
        for number in range(20):
            with otel_rl.stage("agent"):
                recording.tick(20)
                record_requests(given, [request(recording, number)])
            otel_rl.flush()
        recording.tick(10_000)
        otel_rl.flush()
        assert [] == ids_of(recording.run())
    run = recording.stop()
    step = next(tree for tree in trees(run) if tree.name == "rl.loop").below[0]
    assert [("agent", ["generate_content m"])] * 20 == [
        (tree.name, [one.name for one in tree.below]) for tree in step.below
    ]
    (wall,) = run.points(vocabulary.ROLLOUT_WALL)
    assert (pytest.approx(0.394), [0.05, 0.1]) == (
        wall.value,
        sorted(float(str(point.attributes[vocabulary.SLOWEST])) for point in run.points(vocabulary.TAIL)),
    )


def test_requests_without_ids_are_sampled_by_their_number(recording: Recording) -> None:
    """Not the first ones, and none is taken for another."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        for first in (0, 100):
            rows = [request(recording, one, id="", turn=one) for one in range(first, first + 100)]
            record_requests(given, rows)
    run = recording.stop()
    assert ({}, 200) == (bad(run), sample_of(run)[vocabulary.REQUEST_COUNT])
    turns = [
        int(str(attributes[vocabulary.TURN]))
        for attributes in request_spans(run)
        if "sample" in str(attributes[vocabulary.REQUEST_KEPT])
    ]
    assert (32, True) == (len(turns), max(turns) >= 100)


def test_a_kill_loses_the_spans_that_were_held_and_no_metric(recording: Recording) -> None:
    """The rollout's own end is unknown, so nobody knows who was slowest."""
    child = os.fork()
    if not child:
        with otel_rl.step(1), otel_rl.stage("sample"):
            record_requests(given, [request(recording, number) for number in range(100)])
            otel_rl.flush(60)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    run = recording.stop()
    assert ([], {"stop": 100}, []) == (
        ids_of(run),
        counted(run, vocabulary.REQUESTS, vocabulary.FINISH),
        orphans(run),
    )
    assert "rl.sample" in {span.name for span in run.closed_spans()}


def test_each_request_lies_below_its_own_span(recording: Recording) -> None:
    """Whatever order they come in, and whatever is left out between them."""
    with otel_rl.step(1):
        parents = [SpanContext(7, 100 + one, is_remote=True, trace_flags=TraceFlags(1)) for one in range(3)]
        recording.tick(20)
        for number in (0, 1, 1, 0, 2, 0):
            rows = [request(recording, number, turn=turn) for turn in range(number + 1)]
            record_requests(
                given, [*rows, "no request", request(recording, number, engine="other")], parent=parents[number]
            )
    run = recording.stop()
    found = {
        (int.from_bytes(span.parent_id, "big") - 100, span.attributes[vocabulary.RESPONSE_ID])
        for span in run.spans((vocabulary.RESPONSE_ID,))
        if span.attributes
    }
    assert {(0, "r0"), (1, "r1"), (2, "r2")} == found
    assert {"no_request": 6, "repeated_id": 7} == bad(run)
