"""What a call of an OpenAI-compatible API says of its sequences: one request for every choice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from otel_rl.clock import monotonic_ns
from otel_rl.hooks.generators import Ending
from otel_rl.ids import random_bits
from otel_rl.requests.queue import UNKNOWN, Request

MAX_CHOICES = 4096
"""A failed call counts as so many sequences at most, whatever it asked for."""
CONTENT = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal")
"""Fields of a chat chunk's delta that hold output; servers begin with a chunk that holds none."""
THOUGHTS = ("reasoning_content", "reasoning")
"""Fields that hold reasoning tokens, where a server shows them."""
LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")
FINISH = {"completed": "stop", "max_output_tokens": "length", "failed": "error", "cancelled": "abort"}
"""Ends as the responses API names them, and our words; other words (stop, length, tool_calls, content_filter) stay."""


class Choice:
    """What a stream has shown of one sequence; times are monotonic ns."""

    __slots__ = ("ended", "finish", "first", "last")

    def __init__(self) -> None:
        self.first = self.last = self.ended = 0
        self.finish = ""

    def add_chunk(self, now: int, *, has_content: bool, finish: Any = None) -> None:
        """Record the time of one chunk. The one that names the end came with the last token, or right after it."""
        if has_content:
            self.first = self.first or now
            self.last = now
        if finish:
            self.finish = str(finish)
            self.ended = now
            self.last = now if self.first else 0


class Reading:
    """What has been read of a streamed answer."""

    def __init__(self, call: Any, now: int) -> None:
        self.call = call
        self.seen = now
        """When its last chunk came."""
        self.is_over = False
        self.choices: dict[int, Choice] = {}
        self.id = ""
        self.usage: Any = None
        self.has_thoughts = False
        """Whether it showed reasoning tokens, which ``usage`` counts either way."""

    def item(self, chunk: Any) -> None:
        """Read one chunk of a completion, or one event of a response; nothing of it is kept."""
        if self.is_over:
            return
        self.seen = now = monotonic_ns()
        if self.call.has_events:
            self._read_event(now, chunk, str(get(chunk, "type")))
            return
        self.id = self.id or get(chunk, "id")
        self.usage = get(chunk, "usage") or self.usage
        for choice in get(chunk, "choices") or ():
            delta = get(choice, "delta")
            has_content = any(get(delta, name) for name in CONTENT) if delta is not None else bool(get(choice, "text"))
            self.has_thoughts = self.has_thoughts or any(get(delta, name) for name in THOUGHTS)
            self._choice(get(choice, "index")).add_chunk(
                now, has_content=has_content, finish=get(choice, "finish_reason")
            )

    def _read_event(self, now: int, event: Any, kind: str) -> None:
        response = get(event, "response")
        if response is not None:
            self.id = get(response, "id") or self.id
            self.usage = get(response, "usage") or self.usage
        finish = _finish_of(response) if kind in LAST_EVENTS else ""
        self.has_thoughts = self.has_thoughts or kind == "response.reasoning_text.delta"
        self._choice(0).add_chunk(now, has_content=kind.endswith(".delta"), finish=finish)

    def _choice(self, index: Any) -> Choice:
        return self.choices.setdefault(index if type(index) is int else 0, Choice())

    def requests(self, now: int, ending: Ending | None) -> Iterable[Request]:
        """Make the request of every choice, also of those that never came, if others or an error did."""
        call, identity = self.call, self.id or _new_id()
        expected = _expected(call.body)
        choices = self.choices
        if ending is not None or not choices:
            choices = {index: Choice() for index in range(expected)} | choices
        is_hidden = _thoughts(self.usage) > 0 and not self.has_thoughts
        for index, seen in sorted(choices.items()):
            request = _request(call, index, max(expected, len(choices)), identity, self.usage)._replace(
                ended=seen.ended or now,
                first_token=seen.first,
                last_token=0 if is_hidden else seen.last,  # tokens that never came have no time each
                finish=seen.finish,
            )
            yield (
                request if seen.finish or ending is None else request._replace(finish=ending.finish, error=ending.error)
            )


def failed(call: Any, now: int, ending: Ending) -> Iterable[Request]:
    """Make the requests of a call that raised: one for every sequence that it asked for."""
    expected, identity = _expected(call.body), _new_id()
    for index in range(expected):
        request = _request(call, index, expected, identity, None)
        yield request._replace(ended=now, finish=ending.finish, error=ending.error)


def finished(call: Any, now: int, answer: Any) -> Iterable[Request]:
    """Make the requests of an answer that came as a whole."""
    answer = _content(answer)
    if answer is None:
        yield from failed(call, now, Ending("", ""))
        return
    choices = get(answer, "choices")
    identity, usage = str(get(answer, "id") or _new_id()), get(answer, "usage")
    if not choices:
        yield _request(call, 0, 1, identity, usage)._replace(ended=now, finish=_finish_of(answer))
        return
    for place, choice in enumerate(choices):
        index = get(choice, "index")
        request = _request(call, index if type(index) is int else place, len(choices), identity, usage)
        if len(choices) > 1:
            request = request._replace(output_tokens=_tokens_of(choice))
        yield request._replace(ended=now, finish=str(get(choice, "finish_reason") or ""))


def get(value: Any, *path: str) -> Any:
    """Follow names through objects and dicts; None where the path ends early."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value


def _request(call: Any, index: int, choices: int, identity: str, usage: Any) -> Request:
    """Make what the requests of a call share. ``usage`` sums over choices and prompts: it counts for one alone."""
    prompts = _prompts(call.body)
    per_prompt = max(choices // prompts, 1)
    server = call.server
    return Request(
        engine="openai",
        submitted=call.submitted,
        ended=0,
        input_tokens=_count(usage, "prompt_tokens", "input_tokens") if prompts == 1 else UNKNOWN,
        output_tokens=_count(usage, "completion_tokens", "output_tokens") if choices == 1 else UNKNOWN,
        cached_tokens=_cached(usage) if prompts == 1 else UNKNOWN,
        streamed=True,
        operation=call.operation,
        model=str(call.body.get("model") or ""),
        id=identity if choices == 1 else f"{identity}/{index}",
        sample=identity if prompts == 1 else f"{identity}/{index // per_prompt}",
        replica=f"{server.host}:{server.port}" if server.port else str(server.host),
        limit=_limit(call.body),
    )


def _prompts(body: Mapping[str, Any]) -> int:
    """Count the prompts; a completion takes a list of them, and one prompt may be a list of token ids."""
    prompt = body.get("prompt")
    is_many = isinstance(prompt, (list, tuple)) and len(prompt) > 0 and not isinstance(prompt[0], int)
    return len(prompt) if is_many and prompt is not None else 1


def _expected(body: Mapping[str, Any]) -> int:
    n = body.get("n")
    return min(_prompts(body) * (n if type(n) is int and n > 0 else 1), MAX_CHOICES)


def _limit(body: Mapping[str, Any]) -> int:
    limits = (body.get(name) for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"))
    return next((limit for limit in limits if type(limit) is int), UNKNOWN)


def _count(usage: Any, *names: str) -> int:
    counts = (get(usage, name) for name in names)
    return next((count for count in counts if type(count) is int), UNKNOWN)


def _cached(usage: Any) -> int:
    details = get(usage, "prompt_tokens_details") or get(usage, "input_tokens_details")
    return _count(details, "cached_tokens")


def _thoughts(usage: Any) -> int:
    details = get(usage, "completion_tokens_details") or get(usage, "output_tokens_details")
    return _count(details, "reasoning_tokens")


def _tokens_of(choice: Any) -> int:
    """Count one choice's tokens where it lists them: with log-probabilities, or with vLLM's ``return_token_ids``."""
    for path in (("token_ids",), ("logprobs", "content"), ("logprobs", "tokens")):
        tokens = get(choice, *path)
        if isinstance(tokens, list):
            return len(tokens)
    return UNKNOWN


def _finish_of(response: Any) -> str:
    word = str(get(response, "incomplete_details", "reason") or get(response, "status") or "")
    return FINISH.get(word, word)


def _content(answer: Any) -> Any:
    """Parse an answer that the caller parses too; None if its text is no JSON."""
    raw = getattr(answer, "http_response", None)
    if raw is None:
        return answer
    with suppress(ValueError):
        return json.loads(raw.content)
    return None


def _new_id() -> str:
    return f"{random_bits(64):016x}"
