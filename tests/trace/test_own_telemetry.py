"""Tests of programs with OpenTelemetry of their own: it stays as it would be without us."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import baggage, context, metrics, propagate, trace
from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON
from opentelemetry.util._once import Once

import otel_rl
from otel_rl import vocabulary
from otel_rl.journal.views import SpanView
from otel_rl.report.build import build_report
from otel_rl.report.data.report import StageRow
from otel_rl.runs.spans import own_stages
from otel_rl.trace.context import headers
from tests.fixtures import WALL_NS, Recording

Tracers = Callable[[], trace.Tracer]
Row = tuple[str, str | None, int, int]
"""Name, name of the parent, trace id and span id of a span."""


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """OpenTelemetry's global state as in a fresh process, and so again after the test."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    yield
    otel_rl.uninstrument()


class Theirs:
    """A tracer provider of the program's, with what it exported."""

    def __init__(self) -> None:
        self._exported = InMemorySpanExporter()

    def make(self) -> trace.Tracer:
        """Make it, and keep it to oneself."""
        provider = TracerProvider(sampler=DEFAULT_ON, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exported))
        self._provider = provider
        return provider.get_tracer("theirs")

    def set(self) -> trace.Tracer:
        """Make it, and set it for everybody."""
        tracer = self.make()
        trace.set_tracer_provider(self._provider)
        return tracer

    def rows(self) -> list[Row]:
        """Describe what was exported, in order of the ends."""
        spans = self._exported.get_finished_spans()
        names = {span.context.span_id: span.name for span in spans}
        found = [(span.name, span.parent, span.context) for span in spans]
        return [
            (name, parent and names.get(parent.span_id, "?"), of.trace_id, of.span_id) for name, parent, of in found
        ]


def job(tracer: trace.Tracer) -> None:
    """Make spans as a program does, inside and outside of steps and stages, and below one another."""
    with tracer.start_as_current_span("job"):
        for number in range(2):
            with otel_rl.step(number), tracer.start_as_current_span("phase"), otel_rl.stage("reward"):
                trace.get_current_span().set_attribute("seen", True)
                with tracer.start_as_current_span("judge"), otel_rl.stage("reward parse"):
                    tracer.start_span("leaf").end()
    with otel_rl.step(2), otel_rl.stage("sample"):
        tracer.start_span("root").end()


def at_once(theirs: Theirs, tracer: Tracers) -> None:
    """The provider is there before the first stage."""
    job(tracer())


def inside_a_stage(theirs: Theirs, tracer: Tracers) -> None:
    """The provider is made while stages of ours, and a span that ours served, are open."""
    early = trace.get_tracer("early")
    with otel_rl.step(0), early.start_as_current_span("early"), otel_rl.stage("sample"):
        taken = tracer()
        taken.start_span("first").end()
        with early.start_as_current_span("still early"), taken.start_as_current_span("second"):
            job(taken)


def if_there_is_none(theirs: Theirs, tracer: Tracers) -> None:
    """The provider is made only if the program finds none, as Traceloop does."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        job(tracer())


def in_a_session(theirs: Theirs, tracer: Tracers) -> None:
    """The provider, and a span and baggage that go on after it, are made inside a stage; some of it is detached."""
    before = context.attach(baggage.set_baggage("tenant", "a"))
    with otel_rl.step(0):
        with otel_rl.stage("sample"):
            taken = tracer()
            session = context.attach(trace.set_span_in_context(taken.start_span("session")))
            context.attach(baggage.set_baggage("key", "b"))
            taken.start_span(f"{trace.get_current_span().is_recording()}").end()
        job(taken)
        with otel_rl.stage("reward"):
            taken.start_span(f"{baggage.get_all()}").end()
    with otel_rl.step(1), otel_rl.stage("sample"):
        context.detach(session)
        context.detach(before)
        taken.start_span(f"{baggage.get_all()} {trace.get_current_span() is trace.INVALID_SPAN}").end()
    taken.start_span(f"{baggage.get_all()} {trace.get_current_span() is trace.INVALID_SPAN}").end()


@pytest.mark.parametrize("program", [at_once, inside_a_stage, if_there_is_none, in_a_session])
@pytest.mark.parametrize("how", ["set", "make"])
@pytest.mark.parametrize("sampler", ["always_on", "always_off"])
def test_their_spans_are_what_they_would_be_without_us(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, program: Any, how: str, sampler: str
) -> None:
    """The same spans with the same parents and ids, and the same random numbers drawn."""

    def run() -> tuple[list[Row], Any]:
        monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
        random.seed(7)
        theirs = Theirs()
        program(theirs, getattr(theirs, how))
        return theirs.rows(), random.getstate()

    plain = run()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    stubbed.start()
    assert plain == run()


@pytest.mark.parametrize("how", ["api", "own meters", "own logs"])
def test_measurements_and_logs_are_what_they_would_be_without_us(stubbed: Recording, how: str) -> None:
    """No exemplar, which the SDK chooses by a random number; no trace id of ours."""

    def run() -> tuple[Any, ...]:
        random.seed(7)
        reader, logs = InMemoryMetricReader(), InMemoryLogRecordExporter()
        own = MeterProvider([reader], shutdown_on_exit=False) if how == "own meters" else None
        counter = (own or metrics.get_meter_provider()).get_meter("lib").create_counter("n")
        logger = LoggerProvider(shutdown_on_exit=False) if how == "own logs" else None
        if logger is not None:
            logger.add_log_record_processor(SimpleLogRecordProcessor(logs))
        with otel_rl.step(1), otel_rl.stage("reward"):
            for _ in range(20):
                counter.add(1)
            if logger is not None:
                logger.get_logger("lib").emit(LogRecord(body="text"))
        points = [point for metric in _metrics_of(reader.get_metrics_data()) for point in metric.data.data_points]
        traces = [one.log_record.trace_id for one in logs.get_finished_logs()]
        return [point.exemplars for point in points], traces, random.getstate()

    plain = run()
    stubbed.start()
    assert plain == run()


def _metrics_of(data: Any) -> list[Any]:
    parts = data.resource_metrics if data is not None else ()
    return [metric for part in parts for scope in part.scope_metrics for metric in scope.metrics]


def test_a_current_span_without_ids_is_none(recording: Recording) -> None:
    """As MLflow's for what it does not trace."""
    nothing: Any = None
    outer, inner = trace.NonRecordingSpan(nothing), trace.NonRecordingSpan(nothing)
    with trace.use_span(outer), otel_rl.step(1) as container, trace.use_span(inner), otel_rl.stage("reward") as stage:
        pass
    assert container is not None
    assert (container.span_id, None) == (stage.parent_id, stage.attributes)


def test_stages_are_below_the_nearest_stage_and_note_the_span_between(stubbed: Recording) -> None:
    """Once: what lies in the same span does not repeat it."""
    theirs = Theirs()
    tracer = theirs.set()
    stubbed.start()
    job(tracer)
    spans = list(stubbed.stop().spans(None))
    names = {span.span_id: span.name for span in spans}
    steps = {span.trace_id for span in spans if vocabulary.ITERATION in span.attributes}
    outer = {f"{span_id:016x}": name for name, _, _, span_id in theirs.rows()}
    rows = sorted(
        (span.name, names[span.parent_id], outer.get(str(span.attributes.get(vocabulary.OUTER_SPAN)), ""))
        for span in spans
        if span.trace_id in steps and span.parent_id and not span.name.startswith("rl.rank")
    )
    assert (
        2 * [("reward parse", "rl.reward", "judge")]
        + 2 * [("rl.reward", "rl.rank 0", "phase")]
        + [("rl.sample", "rl.rank 0", "")]
        == rows
    )


def test_with_join_spans_theirs_nest_below_our_stages(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one trace with them, for who sends both to one backend."""
    monkeypatch.setenv("OTEL_RL_JOIN_SPANS", "true")
    theirs = Theirs()
    tracer = theirs.set()
    stubbed.start()
    with otel_rl.step(1), otel_rl.stage("reward") as reward, tracer.start_as_current_span("judge") as judge:
        sent = headers()
        with otel_rl.stage("reward parse") as parse:
            pass
    context_of = judge.get_span_context()
    assert (reward.trace_id, reward.span_id) == (context_of.trace_id, judge.parent.span_id)  # type: ignore[attr-defined]
    assert (reward.span_id, reward.trace_id) == (parse.parent_id, parse.trace_id)
    assert f"00-{context_of.trace_id:032x}-{context_of.span_id:016x}-01" == sent["traceparent"]


def test_with_join_spans_a_provider_made_in_a_stage_joins_it(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That stage and those after it."""
    monkeypatch.setenv("OTEL_RL_JOIN_SPANS", "true")
    stubbed.start()
    with otel_rl.step(1), otel_rl.stage("sample") as sample:
        tracer = Theirs().set()
        spans = [tracer.start_span("a")]
    with otel_rl.step(2), otel_rl.stage("reward") as reward:
        spans.append(tracer.start_span("b"))
    assert [sample.span_id, reward.span_id] == [span.parent.span_id for span in spans]  # type: ignore[attr-defined]


def test_nothing_of_ours_is_sent_where_the_program_has_a_provider(stubbed: Recording) -> None:
    """Neither by the program's own propagation nor by ours."""
    Theirs().set()
    stubbed.start()
    carrier: dict[str, str] = {}
    with otel_rl.step(1), otel_rl.stage("sample"):
        propagate.inject(carrier)
        assert ({}, {}, trace.INVALID_SPAN) == (carrier, headers(), trace.get_current_span())


def test_spans_that_ours_serves_nest_below_stages_beside_a_provider_that_is_not_set(stubbed: Recording) -> None:
    """A library's own, private provider takes no span of others out of our tree."""
    stubbed.start()
    private, tracer = Theirs().make(), trace.get_tracer("lib")
    with (
        otel_rl.step(1),
        otel_rl.stage("reward"),
        private.start_as_current_span("private"),
        tracer.start_as_current_span("a"),
        tracer.start_as_current_span("b"),
        otel_rl.stage("parse"),
    ):
        tracer.start_span("c").end()
    spans = stubbed.spans()
    chain = [("a", "rl.reward"), ("b", "a"), ("parse", "rl.reward"), ("c", "parse")]
    assert [spans[above].span_id for _, above in chain] == [spans[name].parent_id for name, _ in chain]


def test_a_thread_that_is_given_the_context_is_inside_the_stage(recording: Recording) -> None:
    """As a program hands OpenTelemetry's context on: below a stage, and below a span inside it."""
    found: list[int] = []

    def work(given: context.Context) -> None:
        token = context.attach(given)
        with otel_rl.stage("reward parse") as stage:
            found.append(stage.parent_id)
        context.detach(token)

    with otel_rl.step(1), otel_rl.stage("reward") as reward:
        givens = [context.get_current()]
        with trace.get_tracer("lib").start_as_current_span("lib"):
            givens.append(context.get_current())
        for given in givens:
            thread = threading.Thread(target=work, args=(given,))
            thread.start()
            thread.join()
    assert [reward.span_id] * 2 == found


def test_a_stage_of_a_caller_in_another_process_is_in_its_trace(recording: Recording) -> None:
    """If no stage of this process is open there: it works for that one."""
    caller = propagate.extract({"traceparent": f"00-{5:032x}-{6:016x}-01"}, context.Context())
    token = context.attach(caller)
    with otel_rl.stage("reward") as alone, otel_rl.stage("parse") as parse:
        pass
    with otel_rl.step(1) as container, otel_rl.stage("reward") as inside:
        pass
    context.detach(token)
    assert ((5, 6), (5, alone.span_id)) == ((alone.trace_id, alone.parent_id), (parse.trace_id, parse.parent_id))
    assert container is not None
    assert container.span_id == inside.parent_id
    assert [None, None] == [(one.attributes or {}).get(vocabulary.OUTER_SPAN) for one in (alone, parse)]


@pytest.mark.parametrize("how", ["set", "make", "get"])
def test_the_report_is_the_same_with_and_without_spans_of_others(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Whoever serves them, and wherever they lie between step and stages."""

    def table(tracer: trace.Tracer, run: str) -> list[StageRow]:
        monkeypatch.setenv("OTEL_RL_RUN_ID", run)
        stubbed.start()
        for number in range(4):
            with otel_rl.step(number):
                with tracer.start_as_current_span("phase"):
                    with otel_rl.stage("sample"):
                        stubbed.tick(5)
                    with otel_rl.stage("reward"), tracer.start_as_current_span("judge"), otel_rl.stage("parse"):
                        stubbed.tick(3)
                    stubbed.tick(1)
                stubbed.tick(2)
        otel_rl.uninstrument()
        return build_report(stubbed.run(run), WALL_NS + stubbed.clock.ns).stages

    plain = table(trace.NoOpTracer(), "plain")
    tracer = trace.get_tracer("lib") if how == "get" else getattr(Theirs(), how)()
    assert plain == table(tracer, "theirs")
    assert ["rl.sample", "rl.reward", "parse", "rl.other"] == [row.stage for row in plain]


def test_readers_climb_over_spans_of_others() -> None:
    """As a caller's, or those of a run that an older version recorded; one that goes round ends somewhere."""
    journal: Any = SimpleNamespace()

    def span(own: int, parent: int, *, is_own: bool = True) -> SpanView:
        ids = bytes([own]), bytes([parent])
        return SpanView(str(own), b"trace", *ids, 0, 1, 0, {}, {}, journal, is_own)

    spans = [span(1, 0), span(2, 1, is_own=False), span(3, 2, is_own=False), span(4, 3), span(5, 4), span(6, 2)]
    assert [("1", 0), ("4", 1), ("5", 4), ("6", 1)] == [(one.name, one.parent_id[0]) for one in own_stages(spans)]
    circle = [span(1, 2, is_own=False), span(2, 1, is_own=False), span(3, 1)]
    assert ["3"] == [one.name for one in own_stages(circle)]


def test_providers_that_were_made_before_are_known() -> None:
    """Also one that is set for nobody, and one of a subclass."""
    program = """
from opentelemetry.sdk.trace import TracerProvider
from otel_rl.sdk import OurTracerProvider, _others

class Own(TracerProvider): ...

found = [_others()]
ours = OurTracerProvider()
found += [_others()]
own = Own()
print(*found, _others())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "False False True" == done.stdout.strip()
