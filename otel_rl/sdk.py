"""Other people's OpenTelemetry: the only module that imports the SDK.

If the program has no providers, ours serve the spans and metrics of vLLM, Ray, HTTP clients and the user into the
journal. They serve the tracers and meters that OpenTelemetry's API hands out meanwhile, and are set nowhere: a program
that asks for the provider sees none, and one that it sets afterwards wins. That needs private attributes of the API,
which ``tests/test_sdk.py`` watches.

A program with a provider of its own, also one that it keeps to itself, sees nothing of us: its spans, measurements and
log records are what they would be without us.
"""

from __future__ import annotations

import gc
import os
import sys
from functools import partial
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

import opentelemetry.metrics._internal as metrics_api
from opentelemetry import trace as trace_api
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common._internal import _encode_attributes
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, MetricsData
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, Tracer, TracerProvider, _Span
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio, Sampler

from otel_rl.analysis.buckets import MOST_BUCKETS, SCALE
from otel_rl.config import LIMITS, ignored
from otel_rl.guard import guard
from otel_rl.ids import random_bits
from otel_rl.journal.otlp.clean import UNENCODABLE
from otel_rl.journal.otlp.wire import OtlpRequest
from otel_rl.process.state import state
from otel_rl.records import Attributes
from otel_rl.trace.current import CONTEXT, SPAN_KEY, is_shared, leave_context, seen_without_us
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import innermost
from otel_rl.vocabulary import EXCEPTION_MESSAGE, EXCEPTION_STACKTRACE

BATCH = 512
DEFAULT_LIMIT = 128
THEIRS = object()
"""Returns that the program has a provider of its own."""
OF_API: Any = trace_api.ProxyTracer._tracer
"""Returns the tracer that serves one which the API handed out before there was a provider."""
CONTENT = (
    EXCEPTION_MESSAGE,
    EXCEPTION_STACKTRACE,
    "gen_ai.prompt",
    "gen_ai.completion",
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.system_instructions",
    "gen_ai.tool.call.",
    "gen_ai.event.content",
    "llm.prompts",
    "llm.completions",
    "input.value",
    "output.value",
)
"""Begins of attribute keys that hold contents, of OpenTelemetry's conventions and the usual GenAI instrumentations."""


class Ids(IdGenerator):
    """Ids from our private generator: the SDK's draws from ``random``, which is the training program's."""

    def generate_span_id(self) -> int:
        return random_bits(64) or 1

    def generate_trace_id(self) -> int:
        return random_bits(128) or 1


class Ours(trace_api.Span):
    """A span of another library that ours serves; a provider that the program sets afterwards does not see it."""

    outside: Context
    """The program's context that it began in."""
    otel_rl_stage: Any
    """The innermost stage that it is in."""

    def get_span_context(self) -> trace_api.SpanContext:
        return self.own_context() if is_shared() else seen_without_us(self.outside)

    def own_context(self) -> trace_api.SpanContext:
        return super().get_span_context()  # type: ignore[safe-super]


class OurSpan(Ours, _Span):
    """One that is sampled."""


class OurUnsampled(Ours, trace_api.NonRecordingSpan):
    """One that is not."""


KINDS: dict[type, type[Ours]] = {_Span: OurSpan, trace_api.NonRecordingSpan: OurUnsampled}


class OurTracer(Tracer):
    """The SDK's tracer; its spans nest below our stages, also where those are not in OpenTelemetry's context."""

    def start_span(self, name: str, context: Context | None = None, *args: Any, **kwargs: Any) -> trace_api.Span:
        """Start a span. Cost: 1 us more than the SDK's."""
        outside = CONTEXT.get() if context is None else context
        span = super().start_span(name, outside if is_shared() else _below_ours(outside), *args, **kwargs)
        kind = KINDS.get(type(span))
        if kind is not None:
            span.__class__ = kind
            ours = cast("Ours", span)
            ours.outside, ours.otel_rl_stage = outside, innermost()
        return span


def _below_ours(context: Context) -> Context:
    """Return a context in which the innermost of our stages and of our spans is the current one."""
    span, stage = context.get(SPAN_KEY), innermost()
    if isinstance(span, Ours) and span.otel_rl_stage is stage:
        parent = span.own_context()
    else:
        parent = trace_api.INVALID_SPAN_CONTEXT if stage is None else stage.own_context
    return trace_api.set_span_in_context(trace_api.NonRecordingSpan(parent), context)


class ToQueue(SpanProcessor):
    """Hands finished spans of other libraries to the flusher; one that a fork copied is its parent's to end."""

    def __init__(self) -> None:
        self._open: WeakSet[Span] = WeakSet()
        self._inherited: set[int] = set()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Remember an open span. Cost: 0.5 us."""
        self._open.add(span)

    def on_end(self, span: ReadableSpan) -> None:
        context = span.context
        if state.on and context is not None and context.trace_flags.sampled and context.span_id not in self._inherited:
            state.add(span)

    def in_child(self) -> None:
        """Ignore a fork's copies of what is open in the parent."""
        self._inherited |= {span.context.span_id for span in self._open if not span.end_time}


class OurTracerProvider(TracerProvider):
    """The SDK's tracer provider, known as ours."""

    def get_tracer(self, *args: Any, **kwargs: Any) -> trace_api.Tracer:
        tracer = super().get_tracer(*args, **kwargs)
        if type(tracer) is Tracer:
            tracer.__class__ = OurTracer
        return tracer

    def _handle_fork(self) -> None:
        """Leave out what the SDK does in a forked child: it starts threads there, which may wait for ever.

        The flusher gives spans the resource of their process.
        """
        self._tracers_lock = Lock()


class OurMeterProvider(MeterProvider):
    """The SDK's meter provider, known as ours."""

    def _handle_fork(self) -> None:
        """As that of our tracer provider; a forked child does not report its parent's counters."""
        self._lock, self._meter_lock = Lock(), Lock()


OURS = OurTracerProvider, OurMeterProvider


class CollectedMetrics(MetricReader):
    """A reader that keeps what one collection found."""

    def __init__(self) -> None:
        # The SDK's own scale would always fill all buckets.
        buckets = ExponentialBucketHistogramAggregation(max_size=MOST_BUCKETS, max_scale=SCALE)
        super().__init__(preferred_aggregation={Histogram: buckets} if state.config.is_exponential else None)
        self._data: MetricsData | None = None

    def drain(self) -> MetricsData | None:
        self.collect()
        data, self._data = self._data, None
        return data

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        self._data = metrics_data

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Nothing is open here."""


class Providers:
    """Our providers while they stand in for missing ones."""

    def __init__(self) -> None:
        self.reader: CollectedMetrics | None = None
        self.queue = ToQueue()
        self._tracers: WeakKeyDictionary[trace_api.ProxyTracer, trace_api.Tracer] = WeakKeyDictionary()

    def place(self) -> None:
        """Serve where the program has no provider; one named by OTEL_PYTHON_*_PROVIDER is the program's."""
        if _others():
            tracing.provider = THEIRS
        resource = Resource(state.identity.resource(state.config.service))
        if trace_api._TRACER_PROVIDER is None and "OTEL_PYTHON_TRACER_PROVIDER" not in os.environ:
            ours = OurTracerProvider(
                sampler=_sampler(),
                resource=resource,
                id_generator=Ids(),
                shutdown_on_exit=False,
                span_limits=_limits(),
            )
            ours.add_span_processor(self.queue)
            trace_api.ProxyTracer._tracer = property(partial(self._served, ours))  # type: ignore[assignment]
        if metrics_api._METER_PROVIDER is None and "OTEL_PYTHON_METER_PROVIDER" not in os.environ:
            reader = CollectedMetrics()
            # Exemplars would be drawn with the program's random numbers.
            meters = OurMeterProvider(
                [reader], resource=resource, exemplar_filter=AlwaysOffExemplarFilter(), shutdown_on_exit=False
            )
            self.reader = reader
            metrics_api._PROXY_METER_PROVIDER.on_set_meter_provider(meters)

    def _served(self, provider: OurTracerProvider, proxy: trace_api.ProxyTracer) -> trace_api.Tracer:
        """Return what serves a tracer: the program's provider once there is one, until then ours."""
        theirs: trace_api.Tracer = OF_API.fget(proxy)
        if theirs is not proxy._noop_tracer:
            return theirs
        with guard("serve a tracer"):
            tracer = self._tracers.get(proxy)
            if tracer is None:
                name, version = proxy._instrumenting_module_name, proxy._instrumenting_library_version
                tracer = provider.get_tracer(name, version, proxy._schema_url, proxy._attributes)
                self._tracers[proxy] = tracer
            return tracer
        return theirs

    def remove(self) -> None:
        """Stop serving; a program's own provider stays."""
        trace_api.ProxyTracer._tracer = OF_API  # type: ignore[method-assign]
        if isinstance(metrics_api._PROXY_METER_PROVIDER._real_meter_provider, OurMeterProvider):
            _release_meters()
        self.reader = None

    def in_child(self) -> None:
        """A forked child does not report the parent's counters and spans as its own."""
        self.reader = None
        self.queue.in_child()

    def encode(self, spans: list[ReadableSpan], resource: Attributes) -> list[OtlpRequest]:
        """Encode other libraries' spans with the stock encoder and the resource of this process. Cost: 40 us a span."""
        requests = []
        for first in range(0, len(spans), BATCH):
            batch = spans[first : first + BATCH]
            try:
                requests.append(_spans_request(batch, resource))
            except UNENCODABLE:
                requests += _one_by_one(batch, resource)
        return requests

    def collect(self, resource: Attributes) -> list[OtlpRequest]:
        """Collect the metrics that other libraries recorded through our meter provider."""
        if self.reader is None:
            return []
        data = self.reader.drain()
        if data is None or not data.resource_metrics:
            return []
        message = encode_metrics(data)
        count = 0
        for part in message.resource_metrics:
            part.resource.CopyFrom(_resource(resource))
            count += sum(_points(metric) for scope in part.scope_metrics for metric in scope.metrics)
        now = state.now()
        return [OtlpRequest("metrics", message.SerializeToString(), count, now, now)] if count else []


def yield_to_provider(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Stop serving once the program makes a provider, whether or not it sets it."""
    if not isinstance(args[0], OURS):
        tracing.provider = THEIRS
        if not state.config.join_spans:
            leave_context()


def _others() -> bool:
    """Return whether the program has made a provider before. Cost: 10 to 30 ms."""
    kinds: set[type] = set()
    found: list[type] = [TracerProvider, MeterProvider]
    if "opentelemetry.sdk._logs" in sys.modules:
        found.append(sys.modules["opentelemetry.sdk._logs"].LoggerProvider)
    while found:
        kinds.add(found[-1])
        found = found[:-1] + found[-1].__subclasses__()
    kinds.difference_update(OURS)
    return any(type(one) in kinds for one in gc.get_objects())


def _sampler() -> Sampler:
    """Return what decides for spans of other libraries outside our steps; inside, the step's decision holds.

    Read from our settings: the SDK reads the same variables and warns on its own.
    """
    ratios = {"always_on": 1.0, "always_off": 0.0}
    return ParentBasedTraceIdRatio(ratios.get(state.config.sampler, state.config.sampler_ratio))


def _limits() -> SpanLimits:
    """Return the limits of other libraries' spans; the SDK would raise for one that is no number."""
    length = state.config.attribute_length
    arguments = [LIMITS[variable] for variable in LIMITS.keys() & ignored()]
    defaults = {name: length if name == "max_span_attribute_length" else DEFAULT_LIMIT for name in arguments}
    return SpanLimits(max_attribute_length=length, **defaults)


def _release_meters() -> None:
    """Make the meters that libraries took before us what they were: without a provider."""
    proxies = metrics_api._PROXY_METER_PROVIDER
    proxies._real_meter_provider = None
    for meter in proxies._meters:
        meter._real_meter = None
        for instrument in meter._instruments:
            instrument._real_instrument = None


def _spans_request(spans: list[ReadableSpan], resource: Attributes) -> OtlpRequest:
    message = encode_spans(spans)
    for part in message.resource_spans:
        part.resource.CopyFrom(_resource(resource))
    if not state.config.captures_errors:
        _leave_out_content(message)
    first_ns = min(span.start_time or 0 for span in spans)
    last_ns = max(span.end_time or 0 for span in spans)
    return OtlpRequest("traces", message.SerializeToString(), len(spans), first_ns, last_ns)


def _leave_out_content(message: ExportTraceServiceRequest) -> None:
    """Remove what other libraries record of contents by themselves: prompts, answers, texts and traces of exceptions.

    The SDK repeats the text of an exception as the description of the status. What is not in ``CONTENT`` stays:
    libraries have names of their own, and the Collector's redaction is the place for them.
    """
    for part in message.resource_spans:
        for span in (span for scope in part.scope_spans for span in scope.spans):
            span.status.message = ""
            for holder in (span, *span.events, *span.links):
                kept = [pair for pair in holder.attributes if not pair.key.startswith(CONTENT)]
                if len(kept) < len(holder.attributes):
                    del holder.attributes[:]
                    holder.attributes.extend(kept)


def _one_by_one(spans: list[ReadableSpan], resource: Attributes) -> list[OtlpRequest]:
    """Encode spans of which at least one cannot be: the stock encoder gives up the whole batch for it."""
    requests = []
    for span in spans:
        try:
            requests.append(_spans_request([span], resource))
        except UNENCODABLE:
            state.drop("traces", "unencodable")
    return requests


def _points(metric: Any) -> int:
    return len(getattr(metric, metric.WhichOneof("data")).data_points) if metric.WhichOneof("data") else 0


def _resource(attributes: Attributes) -> ResourceMessage:
    return ResourceMessage(attributes=_encode_attributes(dict(attributes)))
