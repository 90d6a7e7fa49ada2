"""Calls of rollout servers, in the server's process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.hooks.generators import Ending, ending
from otel_rl.process.carrier import IN_USE
from otel_rl.records import Value
from otel_rl.requests.queue import Request, record_requests
from otel_rl.trace.stage import Stage

ENGINES = frozenset(("vllm.v1.engine", "sglang.srt.managers"))
"""Packages whose integration records requests itself."""


class Answer(NamedTuple):
    """One answer of a server, as far as it is known."""

    tokens: int
    finish: str = ""
    """``stop``, ``length`` or ``abort``; empty: unknown."""
    policy: int = -1
    """Version of the weights."""
    preemptions: int = -1


class Asked(NamedTuple):
    """What a server is asked for."""

    engine: str
    request_id: str
    prompt_tokens: int


class ServedCall:
    """One call: its stage, and the request itself if no integration records the engine's own."""

    def __init__(self, asked: Asked, read: Callable[[Any], Sequence[Answer]]) -> None:
        """Open the stage.

        Args:
            asked: what the server is asked for.
            read: returns the answers that a result holds.
        """
        self._asked, self._read = asked, read
        used = IN_USE.get()
        mode: dict[str, Value] = {vocabulary.MODE: used.mode} if used is not None and used.mode else {}
        said = {vocabulary.RESPONSE_ID: asked.request_id, **mode}
        self._stage = Stage(vocabulary.SAMPLE_SERVE, said, coarse=True)
        self._stage.open()

    def item(self, value: Any) -> None:
        """Wait for the end: a server gives its answer as a whole."""

    def end(self, result: Any, error: BaseException | None) -> None:
        """End stage and request at the same time."""
        stage, end = self._stage, monotonic_ns()
        answers = () if error is not None else self._read(result)
        if ENGINES.isdisjoint(sys.modules):
            how = None if error is None else ending(error)
            made = functools.partial(_requests, self._asked, stage.began, end)
            record_requests(made, answers, how, parent=stage)
        if error is not None:
            stage.fail(error)
        stage.close(end, None if error is not None else _describe(self._asked, answers))


def _describe(asked: Asked, answers: Sequence[Answer]) -> dict[str, Value]:
    finish = tuple(answer.finish for answer in answers if answer.finish)
    return {
        vocabulary.TOKENS_PROMPT: asked.prompt_tokens,
        vocabulary.TOKENS_RESPONSE: sum(answer.tokens for answer in answers),
        **({vocabulary.FINISH_REASONS: finish} if finish else {}),
        **({vocabulary.REQUEST_ABORTED: True} if "abort" in finish else {}),
    }


def _requests(asked: Asked, begun: int, ended: int, answers: Sequence[Answer], how: Ending | None) -> Iterator[Request]:
    request = Request(asked.engine, begun, ended, input_tokens=asked.prompt_tokens, streamed=True, id=asked.request_id)
    if how is not None:
        yield request._replace(finish=how.finish, error=how.error)
    elif answers:
        first = answers[0]
        yield request._replace(
            output_tokens=sum(answer.tokens for answer in answers),
            finish=first.finish,
            policy_start=first.policy,
            policy_end=first.policy,
            preemptions=first.preemptions,
        )
