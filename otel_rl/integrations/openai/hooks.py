"""OpenAI-compatible clients: chat completions, completions and responses; sync and async, streamed and not.

Runs in whatever process calls the API: a rollout worker, an environment, a judge. Source: openai 1.66 to 3.54,
``_base_client.py`` (``request`` is below every endpoint and above the client's own retries) and ``_streaming.py``.

A request is timed where its caller is. What the server does not report is unknown: TTFT where nothing is streamed,
output tokens of a stream without ``stream_options``, tokens of one choice among several. Inside a step the W3C
``traceparent`` of the current span goes along as a header, so that an engine's own spans hang below it; not where the
caller or the client gives one, nor where ``OTEL_PROPAGATORS`` leaves ``tracecontext`` out (``none``).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from otel_rl.clock import monotonic_ns
from otel_rl.hooks import CallbackHook, Integration, RequestHook, Verified
from otel_rl.hooks.arguments import Args, Kwargs
from otel_rl.hooks.generators import ending
from otel_rl.integrations.openai.requests import Reading, failed, finished
from otel_rl.requests.memory import generation
from otel_rl.requests.queue import record_requests
from otel_rl.trace import context
from otel_rl.trace.stage import current_parent

PACKAGE = "openai"
SUPPORTS = ">=1.66,<4"

OPERATIONS = {"/chat/completions": "chat", "/completions": "text_completion", "/responses": "chat"}
"""Endpoint to operation, by GenAI's conventions."""


class ApiCall:
    """One call of the API, with the client's retries."""

    def __init__(self, client: Any, options: Any, *, is_stream: bool) -> None:
        self.submitted = monotonic_ns()
        self.parent = current_parent()
        self.recording = generation.recording
        self.operation = OPERATIONS[options.url]
        self.has_events = options.url == "/responses"
        self.body = {**(options.json_data or {}), **(options.extra_json or {})}
        self.server = client.base_url
        self._is_stream = is_stream
        self._answer: Any = None
        self._options, self._headers, self._parser = options, options.headers, options.post_parser
        options.headers = _with_context(options.headers, client)
        if callable(self._parser) and not is_stream:
            options.post_parser = self._parse

    def item(self, value: Any) -> None:
        """A call yields nothing; its stream does."""

    def end(self, result: Any, error: BaseException | None) -> None:
        """Note what came back, or follow the stream that begins."""
        now = monotonic_ns()
        self._options.headers, self._options.post_parser = self._headers, self._parser
        answer, self._answer = self._answer, None
        if error is not None and answer is not None:  # it came, and its caller cannot use it
            record_requests(finished, self, now, answer, parent=self.parent)
            return
        if error is not None:
            record_requests(failed, self, now, ending(error), parent=self.parent)
            return
        raw = getattr(result, "http_response", None)  # of with_raw_response and with_streaming_response
        if not self._is_stream and (raw is None or raw.is_closed):
            record_requests(finished, self, now, result, parent=self.parent)
            return
        response = getattr(result, "response", result) if raw is None else raw
        generation.streams[response] = stream = ApiStream(self, now)
        stream.is_parsed = raw is None
        weakref.finalize(response, stream.left).atexit = False  # it may run too late; the exit asks those still open

    def _parse(self, answer: Any) -> Any:
        """Keep what came, whole, until it is known whether its caller's own parser accepts it."""
        self._answer = answer
        return self._parser(answer)


class ApiStream(Reading):
    """What was read of a response that its caller has yet to read; over when it ended, was closed, or is gone."""

    is_parsed = True
    """Whether it is read as items; the caller may also read its bytes, unseen by us."""

    def end(self, result: Any, error: BaseException | None) -> None:
        """Record how it ended; a caller that leaves it had the last item at that time."""
        self._over(self.seen if isinstance(error, GeneratorExit) else monotonic_ns(), error)

    def left(self) -> None:
        """Record that it is gone, or the process ends, before it was read to its end, as far as we know."""
        if self.is_parsed:
            self._over(self.seen, GeneratorExit())
        else:
            self._over(0, None)

    def closed(self) -> None:
        """Record that its caller closed it; how much of its bytes the caller read is unknown."""
        self._over(monotonic_ns(), GeneratorExit() if self.is_parsed else None)

    def read(self, answer: Any) -> None:
        """Record that its caller has read all of its bytes at once."""
        if self._ends():
            record_requests(finished, self.call, monotonic_ns(), answer, parent=self.call.parent)

    def _over(self, now: int, error: BaseException | None) -> None:
        if self._ends():
            record_requests(self.requests, now, None if error is None else ending(error), parent=self.call.parent)

    def _ends(self) -> bool:
        was_over, self.is_over = self.is_over, True
        return not was_over and self.call.recording is generation.recording


def _with_context(headers: Any, client: Any) -> Any:
    given = headers if isinstance(headers, Mapping) else {}
    carrier = context.headers()
    if not carrier or any(name.lower() == "traceparent" for name in (*given, *client._custom_headers)):
        return headers
    return {**given, **carrier}


def _begin_call(args: Args, kwargs: Kwargs) -> ApiCall | None:
    client, options = args[0], args[2]
    if options.url not in OPERATIONS or options.method.lower() != "post":
        return None
    return ApiCall(client, options, is_stream=bool(kwargs.get("stream")))


def _begin_stream(args: Args, kwargs: Kwargs) -> ApiStream | None:
    stream = generation.streams.get(args[0].response)
    if stream is not None:
        stream.is_parsed = True
    return stream


def _close_stream(args: Args, kwargs: Kwargs, result: Any) -> None:
    stream = generation.streams.get(args[0].response)
    if stream is not None:
        stream.closed()


def _read(args: Args, kwargs: Kwargs, result: Any) -> None:
    stream = generation.streams.get(args[0].http_response)
    if stream is not None:
        stream.read(args[0])


def _fail_to_read(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    stream = generation.streams.get(args[0].http_response)
    if stream is not None:
        stream.end(None, error)


def _close(args: Args, kwargs: Kwargs, result: Any) -> None:
    stream = generation.streams.get(args[0].http_response)
    if stream is not None:
        stream.closed()


HOOKS = (
    RequestHook(target="openai._base_client:SyncAPIClient.request", watch=_begin_call),
    RequestHook(target="openai._base_client:AsyncAPIClient.request", watch=_begin_call),
    RequestHook(target="openai._streaming:Stream.__stream__", watch=_begin_stream),
    RequestHook(target="openai._streaming:AsyncStream.__stream__", watch=_begin_stream),
    CallbackHook(target="openai._streaming:Stream.close", after=_close_stream),
    CallbackHook(target="openai._streaming:AsyncStream.close", after=_close_stream),
    CallbackHook(target="openai._response:APIResponse.read", after=_read, failed=_fail_to_read),
    CallbackHook(target="openai._response:AsyncAPIResponse.read", after=_read, failed=_fail_to_read),
    CallbackHook(target="openai._response:APIResponse.close", after=_close),
    CallbackHook(target="openai._response:AsyncAPIResponse.close", after=_close),
)
INTEGRATION = Integration(
    name="openai",
    package=PACKAGE,
    supports=SUPPORTS,
    records="requests to OpenAI-compatible servers",
    verified=Verified.REAL,
    hooks=HOOKS,
)
