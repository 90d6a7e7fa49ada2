"""Tests of standing in for missing providers of OpenTelemetry."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import opentelemetry.metrics._internal as metrics_api
import pytest
from opentelemetry import metrics, trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

import otel_rl
from otel_rl import entry, vocabulary
from otel_rl.config import LIMITS
from otel_rl.guard import errors
from otel_rl.process.state import state
from otel_rl.sdk import Ids, OurMeterProvider, OurSpan
from tests.fixtures import Recording, in_child, orphans


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """OpenTelemetry's global state as in a fresh process, and so again after the test."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    monkeypatch.setattr(metrics_api, "_METER_PROVIDER", None)
    monkeypatch.setattr(metrics_api, "_METER_PROVIDER_SET_ONCE", Once())
    monkeypatch.setattr(metrics_api, "_PROXY_METER_PROVIDER", metrics_api._ProxyMeterProvider())
    yield
    otel_rl.uninstrument()


def exporting() -> tuple[TracerProvider, InMemorySpanExporter]:
    """Make a provider of the user's."""
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def test_the_api_has_the_private_names_that_we_use() -> None:
    """``_TRACER_PROVIDER`` and ``_METER_PROVIDER``, consulted at every call; a new API may break this."""
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    trace._TRACER_PROVIDER = ours = TracerProvider(shutdown_on_exit=False)
    assert trace.get_tracer_provider() is ours
    metrics_api._METER_PROVIDER = meters = MeterProvider(shutdown_on_exit=False)
    assert metrics.get_meter_provider() is meters


def test_ours_serve_and_are_seen_nowhere(stubbed: Recording) -> None:
    """A program that makes a provider only if there is none makes its own."""
    plain = trace.ProxyTracer._tracer
    stubbed.start()
    assert (None, None) == (trace._TRACER_PROVIDER, metrics_api._METER_PROVIDER)
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    assert isinstance(trace.get_tracer("lib").start_span("x"), OurSpan)
    otel_rl.uninstrument()
    assert (plain, None) == (trace.ProxyTracer._tracer, metrics_api._PROXY_METER_PROVIDER._real_meter_provider)


def test_a_provider_that_was_set_before_stays(stubbed: Recording) -> None:
    """And its spans go where its owner sends them."""
    provider, exporter = exporting()
    meters = MeterProvider(shutdown_on_exit=False)
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(meters)
    stubbed.start()
    with otel_rl.step(1), trace.get_tracer("lib").start_as_current_span("theirs"):
        pass
    run = stubbed.stop()
    assert (provider, meters) == (trace.get_tracer_provider(), metrics.get_meter_provider())
    assert ["theirs"] == [span.name for span in exporter.get_finished_spans()]
    assert "theirs" not in {span.name for span in run.spans()}
    meters.shutdown()


def test_a_provider_that_is_set_later_wins(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """Without a warning; uninstrument leaves it alone."""
    provider, exporter = exporting()
    meters = MeterProvider(shutdown_on_exit=False)
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(meters)
    with otel_rl.step(1), trace.get_tracer("lib").start_as_current_span("theirs"):
        pass
    otel_rl.uninstrument()
    assert (provider, meters) == (trace.get_tracer_provider(), metrics.get_meter_provider())
    assert (["theirs"], "") == ([span.name for span in exporter.get_finished_spans()], caplog.text)
    meters.shutdown()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_tracer_that_somebody_took_earlier_follows_the_provider(stubbed: Recording, when: str) -> None:
    """Libraries take their tracer when they are imported: it serves ours, then the user's, and after us nobody's."""
    early = trace.get_tracer("lib") if when == "before" else None
    stubbed.start()
    tracer = early or trace.get_tracer("lib")
    with otel_rl.step(1), tracer.start_as_current_span("to us"):
        pass
    provider, exporter = exporting()
    trace.set_tracer_provider(provider)
    with otel_rl.step(2), tracer.start_as_current_span("to them"), tracer.start_as_current_span("to them, too"):
        pass
    run = stubbed.stop()
    tracer.start_span("after us").end()
    assert ["to them, too", "to them", "after us"] == [span.name for span in exporter.get_finished_spans()]
    names = {span.name for span in run.spans()}
    assert ("to us" in names, "to them" in names) == (True, False)


def test_after_us_a_tracer_records_nothing(recording: Recording) -> None:
    """Neither into our journal nor anywhere else."""
    tracer = trace.get_tracer("lib")
    recording.stop()
    tracer.start_span("late").end()
    assert 0 == len(state.queue)


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("OTEL_PYTHON_TRACER_PROVIDER", (False, True)), ("OTEL_PYTHON_METER_PROVIDER", (True, False))],
)
def test_a_provider_that_a_variable_names_is_the_programs(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, variable: str, expected: tuple[bool, bool]
) -> None:
    """We do not stand in for it."""
    plain = trace.ProxyTracer._tracer
    monkeypatch.setenv(variable, "sdk_provider")
    stubbed.start()
    meters = metrics_api._PROXY_METER_PROVIDER._real_meter_provider
    assert expected == (trace.ProxyTracer._tracer is not plain, isinstance(meters, OurMeterProvider))


def test_spans_of_a_library_are_children_of_our_stage(recording: Recording) -> None:
    """With our resource, their own scope, attributes, events and status; stages stay below the nearest stage."""
    tracer = trace.get_tracer("lib", "1.2")
    http = tracer.start_as_current_span("http", attributes={"code": 200})
    with otel_rl.step(1), otel_rl.stage("sample"), http as span:
        span.add_event("sent")
        with otel_rl.stage("reward"):
            recording.tick(1)
    run = recording.stop()
    by_name = {span.name: span for span in run.spans(None)}
    http, sample, reward = by_name["http"], by_name["rl.sample"], by_name["rl.reward"]
    assert (sample.span_id, sample.trace_id, sample.span_id) == (http.parent_id, http.trace_id, reward.parent_id)
    assert http.span_id.hex() == reward.attributes[vocabulary.OUTER_SPAN]
    assert ({"code": 200}, "run", 0) == (
        http.attributes,
        http.resource[vocabulary.RUN_ID],
        http.resource[vocabulary.RANK],
    )
    requests = [ExportTraceServiceRequest.FromString(frame.payload) for _, frame in run.frames("traces")]
    scopes = {s.scope.name for request in requests for group in request.resource_spans for s in group.scope_spans}
    assert {"lib", "otel_rl"} == scopes


@pytest.mark.parametrize("captured", [True, False])
def test_texts_of_exceptions_in_library_spans_are_content(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, captured: bool
) -> None:
    """The SDK records them by itself; the journal has them only with OTEL_RL_CAPTURE_CONTENT."""
    monkeypatch.setattr(state, "config", replace(state.config, capture_content=captured))
    with (
        otel_rl.step(1),
        pytest.raises(ValueError, match="a prompt"),
        trace.get_tracer("lib").start_as_current_span("x"),
    ):
        raise ValueError("a prompt")
    run = recording.stop()
    payloads = b"".join(frame.payload for _, frame in run.frames("traces"))
    assert (captured, True) == (b"a prompt" in payloads, b"ValueError" in payloads)


def test_contents_in_library_spans_are_left_out_wherever_they_stand(recording: Recording) -> None:
    """In attributes of the span, of its events and of its links; what else is there stays."""
    said = {"gen_ai.prompt": "a prompt", "kept": 1}
    with otel_rl.step(1), otel_rl.stage("reward") as ours:
        link = trace.Link(ours.get_span_context(), said)
        with trace.get_tracer("lib").start_as_current_span("x", attributes=said, links=[link]) as span:
            span.add_event("e", said)
    requests = [ExportTraceServiceRequest.FromString(frame.payload) for _, frame in recording.stop().frames("traces")]
    scopes = [scope for request in requests for group in request.resource_spans for scope in group.scope_spans]
    (found,) = [span for scope in scopes for span in scope.spans if span.name == "x"]
    holders = (found, *found.events, *found.links)
    assert [["kept"]] * 3 == [[pair.key for pair in holder.attributes] for holder in holders]


def test_spans_of_a_library_follow_the_steps_sampling(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is unsampled is so for everybody."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    stubbed.start()
    tracer = trace.get_tracer("lib")
    for number in range(30):
        with otel_rl.step(number), otel_rl.stage("sample"), tracer.start_as_current_span(f"http {number}"):
            pass
    run = stubbed.stop()
    names = sorted(span.name for span in run.spans() if span.name.startswith("http"))
    sampled = [s.attributes[vocabulary.ITERATION] for s in run.spans(None) if s.name == "rl.loop"]
    assert 0 < len(sampled) < 30
    assert sorted(f"http {number}" for number in sampled) == names


@pytest.mark.parametrize("text", ["lots", "-1", "9" * 30])
def test_a_limit_that_is_none_has_its_default(stubbed: Recording, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """The SDK would raise for it, here or with each span; a limit that is one holds."""
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "3")
    for name in LIMITS.keys() - {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"}:
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "5")
    stubbed.start()
    metrics.get_meter("lib").create_counter("tokens").add(3)
    said = {f"key {number}": "longer" for number in range(200)}
    with trace.get_tracer("lib").start_as_current_span("theirs", attributes=said) as span:
        for _ in range(200):
            span.add_event("e", said)
    run = stubbed.stop()
    requests = [ExportTraceServiceRequest.FromString(frame.payload) for _, frame in run.frames("traces")]
    scopes = [scope for request in requests for group in request.resource_spans for scope in group.scope_spans]
    (found,) = [span for scope in scopes for span in scope.spans if span.name == "theirs"]
    counts = len(found.attributes), len(found.events), len(found.events[0].attributes)
    assert ((3, 128, 128), "longe") == (counts, found.attributes[0].value.string_value)
    assert [3] == [point.value for point in run.points("tokens")]


def test_without_the_sdk_our_own_stages_are_recorded(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With this variable it cannot be imported, which the program is told by one line."""
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "lots")
    stubbed.start()
    with otel_rl.step(1), trace.get_tracer("lib").start_as_current_span("theirs"):
        pass
    names = set(stubbed.spans())
    assert ({"rl.loop"}, set()) == (names & {"rl.loop"}, names & {"theirs"})
    assert [
        "otel_rl: OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT is ignored: it takes a whole number, 0 or above; the OpenTelemetry "
        "SDK cannot be imported, so spans and metrics of other libraries are not recorded"
    ] == [record.getMessage() for record in caplog.records]


@pytest.mark.guarded
def test_a_reader_that_its_provider_refused_is_not_asked(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would say at every collection that it has no provider."""
    monkeypatch.setattr(OurMeterProvider, "__init__", lambda *_, **__: 1 // 0)
    stubbed.start()
    assert entry._parts.providers.reader is None
    with otel_rl.step(1):
        pass
    stubbed.stop()
    assert {"stand in for a missing provider": 1} == errors
    assert 1 == len(caplog.records)


@pytest.mark.filterwarnings("ignore")
def test_a_library_span_that_cannot_be_encoded_takes_no_other_with_it(recording: Recording) -> None:
    """A surrogate in a name, a negative time: those are counted, the others arrive."""
    tracer = trace.get_tracer("lib")
    with otel_rl.step(1):
        tracer.start_span("good 1").end()
        tracer.start_span("bad \ud800").end()
        tracer.start_span("bad time", start_time=-5).end()
        tracer.start_span("good 2").end()
        with otel_rl.stage("reward"):
            pass
    run = recording.stop()
    names = {span.name for span in run.spans()}
    assert {"good 1", "good 2", "rl.reward"} <= names
    dropped = {p.attributes[vocabulary.REASON]: p.value for p in run.last_points(vocabulary.SELF_DROPPED)}
    assert {"unencodable": 2} == dropped


def test_metrics_of_a_library_are_journaled(recording: Recording) -> None:
    """At the end at the latest, with our resource."""
    meter = metrics.get_meter("lib")
    counter, histogram = meter.create_counter("lib.requests"), meter.create_histogram("lib.latency")
    with otel_rl.step(1):
        for _ in range(3):
            counter.add(2, {"code": "200"})
            histogram.record(0.5)
        assert otel_rl.flush()
        assert 6 == recording.run().last_points("lib.requests")[0].value
        counter.add(1, {"code": "200"})
    run = recording.stop()
    (requests,), (latency,) = run.last_points("lib.requests"), run.last_points("lib.latency")
    assert (7, {"code": "200"}, 3) == (requests.value, requests.attributes, latency.count)
    assert 0 == requests.resource[vocabulary.RANK]


@pytest.mark.parametrize(
    ("said", "form"),
    [("", "exponential_histogram"), ("explicit_bucket_histogram", "histogram"), ("ddsketch", "exponential_histogram")],
)
def test_histograms_have_the_form_that_is_asked_for(
    said: str, form: str, stubbed: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours and those of libraries, by OpenTelemetry's own setting."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", said)
    stubbed.start()
    histogram = metrics.get_meter("lib").create_histogram("lib.latency")
    with otel_rl.step(1), otel_rl.stage("reward"):
        histogram.record(0.5)
    forms = {
        metric.name: metric.WhichOneof("data")
        for _, frame in stubbed.stop().frames("metrics")
        for group in ExportMetricsServiceRequest.FromString(frame.payload).resource_metrics
        for scope in group.scope_metrics
        for metric in scope.metrics
        if metric.name in ("lib.latency", "rl.reward.duration", "rl.step.time")
    }
    assert {"lib.latency": form, "rl.reward.duration": form, "rl.step.time": "gauge"} == forms


def test_meters_that_somebody_took_earlier_follow_the_provider(stubbed: Recording) -> None:
    """Libraries take meters and make instruments when they are imported: they serve ours, then the user's."""
    meter = metrics.get_meter("lib")
    counter = meter.create_counter("lib.requests")
    meter.create_observable_gauge("lib.depth", [lambda options: [metrics.Observation(5)]])
    counter.add(100)
    stubbed.start()
    late = meter.create_counter("lib.late")
    with otel_rl.step(1):
        counter.add(2)
        late.add(3)
        assert otel_rl.flush()
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    metrics.set_meter_provider(meters)
    counter.add(40)
    run = stubbed.stop()
    counter.add(1)
    ours = {p.name: p.value for p in run.last_points() if p.name.startswith("lib.")}
    assert {"lib.requests": 2, "lib.late": 3, "lib.depth": 5} == ours
    data = reader.get_metrics_data()
    assert data is not None
    theirs = [m for part in data.resource_metrics for scope in part.scope_metrics for m in scope.metrics]
    assert {"lib.requests": 41, "lib.depth": 5} == {m.name: m.data.data_points[0].value for m in theirs}  # type: ignore[union-attr]
    meters.shutdown()


def test_after_us_meters_wait_for_a_provider_again(stubbed: Recording) -> None:
    """As if we had never been there: what they are told is kept by nobody, until the program sets a provider."""
    meter = metrics.get_meter("lib")
    counter = meter.create_counter("lib.requests")
    stubbed.start()
    with otel_rl.step(1):
        counter.add(2)
    otel_rl.uninstrument()
    proxies = metrics_api._PROXY_METER_PROVIDER
    assert (None, None, None) == (proxies._real_meter_provider, meter._real_meter, counter._real_instrument)  # type: ignore[attr-defined]
    stubbed.start()
    with otel_rl.step(1):
        counter.add(7)
    assert {2, 7} == {point.value for point in stubbed.stop().last_points("lib.requests")}, "one for each journal"


def test_a_library_that_records_nothing_writes_nothing(recording: Recording) -> None:
    """No empty requests."""
    metrics.get_meter("lib").create_counter("lib.requests")
    with otel_rl.step(1):
        pass
    assert [] == [point for point in recording.stop().points() if point.name.startswith("lib")]


def test_our_ids_are_not_the_programs_random_numbers() -> None:
    """The SDK's generator draws from ``random``."""
    random.seed(1)
    before = random.getstate()
    found = {Ids().generate_span_id() for _ in range(100)} | {Ids().generate_trace_id() for _ in range(100)}
    assert (200, before) == (len(found), random.getstate())


def test_random_numbers_are_the_same_with_and_without_us(stubbed: Recording) -> None:
    """Of Python, numpy and torch, bit by bit, whatever is recorded."""
    torch = pytest.importorskip("torch")

    def states() -> tuple[Any, ...]:
        return random.getstate(), repr(np.random.get_state()), torch.random.get_rng_state().tolist()

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = states()
    stubbed.start("torch")
    with otel_rl.step(1), otel_rl.stage("reward", x=torch.ones(3)) as span:
        with trace.get_tracer("lib").start_as_current_span("theirs"):
            span.add_event("event")
        otel_rl.record("x", 1)
        otel_rl.flush()
    otel_rl.uninstrument()
    assert before == states()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_span_of_a_library_that_is_open_in_a_fork_is_there_once(recording: Recording) -> None:
    """Parent and child both leave its block, as where a child exits inside it; what the child begins is its own."""
    tracer = trace.get_tracer("lib")
    started = tracer.start_span("started")

    def leave() -> None:
        started.end()
        trace.get_current_span().end()
        with tracer.start_as_current_span("child"):
            in_child(lambda: (trace.get_current_span().end(), otel_rl.flush(60)))
        otel_rl.flush(60)

    with otel_rl.step(1), tracer.start_as_current_span("user"):
        in_child(leave)
    started.end()
    run = recording.stop()
    names = Counter(span.name for span in run.spans())
    assert (1, 1, 1, []) == (names["started"], names["user"], names["child"], orphans(run))


def test_a_fork_does_not_wait_for_threads_of_the_sdk() -> None:
    """The SDK starts some in the child, whose lock the parent holds if it was imported after the provider was made."""
    program = """
import os, otel_rl
otel_rl.instrument(())
import concurrent.futures.thread
pid = os.fork()
if pid == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "7" == done.stdout.strip()


@pytest.mark.guarded
def test_a_tracer_that_cannot_be_served_records_nothing(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program goes on as without us."""
    monkeypatch.setattr("otel_rl.sdk.OurTracerProvider.get_tracer", lambda *_: 1 // 0)
    with trace.get_tracer("lib").start_as_current_span("x") as span:
        assert not span.is_recording()
    assert {"serve a tracer": 1} == errors
