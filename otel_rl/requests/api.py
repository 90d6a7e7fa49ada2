"""``otel_rl.request``: one finished request of an engine that no integration knows."""

from __future__ import annotations

from math import isfinite, nan
from typing import Any, Literal

from otel_rl.clock import perf_counter_shift
from otel_rl.guard import attempt
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.requests.fields import COUNTS, ERROR, FINISH, TIMES, indices
from otel_rl.requests.queue import MOST_WAITING, UNKNOWN, Values, add_finished, find_parent
from otel_rl.trace.current import CURRENT

Seconds = float | None
IMPOSSIBLE = -2
"""A number that cannot be: the flusher counts it and leaves it out."""
_LONGEST_S = 1e15
"""Seconds beyond that are no time."""
_TIMES = slice(1, 1 + len(TIMES))
_COUNTS = indices(*COUNTS, "turn", "policy_start", "policy_end", "limit")


def request(  # noqa: PLR0913  a request has that many numbers, all but two by keyword
    engine: str,
    *,
    submitted: Seconds,
    ended: Seconds,
    clock: Literal["monotonic", "wall", "perf_counter"] = "monotonic",
    scheduled: Seconds = None,
    first_token: Seconds = None,
    last_token: Seconds = None,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    cached_tokens: int | None = None,
    finish: str = "",
    error: BaseException | type[BaseException] | str | None = None,
    preemptions: int | None = None,
    streamed: bool = False,
    operation: str = "generate_content",
    model: str = "",
    id: str = "",
    sample: str = "",
    group: str = "",
    turn: int | None = None,
    policy_start: int | None = None,
    policy_end: int | None = None,
    replica: str = "",
    limit: int | None = None,
    parent: Any = None,
) -> None:
    """Record one finished sequence of your own rollout engine; call it once per sequence, when it is over.

    What you leave out is not reported; nothing is guessed. What cannot be (an end before its begin, no tokens, an id
    that comes twice) is counted in ``rl.request.bad`` and never raised. Inside a compiled region it does nothing.

    Args:
        engine: your engine's name.
        submitted: when it was handed to the engine, s of ``clock``.
        ended: when it was finished, aborted or failed, as the caller sees it.
        clock: which clock the times are of: ``time.monotonic``, ``time.perf_counter`` or ``time.time``, on this host.
        scheduled: when the engine took it up.
        first_token: when its first token was there.
        last_token: when its last token was there.
        input_tokens: tokens of the prompt.
        output_tokens: tokens of the response.
        cached_tokens: of the prompt, those that came from a cache.
        finish: ``stop``, ``length``, ``abort``, ``timeout``, ``error``, or your own word.
        error: the exception that it failed with, its class, or the name of that; one that cancels is an abort.
        preemptions: how often it was interrupted for others.
        streamed: submitted one by one while others run, rather than all at once.
        operation: ``chat``, ``text_completion`` or ``generate_content``.
        model: name of the model.
        id: the request's own id; the sample of requests that become spans is chosen by it.
        sample: shared by the sequences of one prompt, and by what resumes a sequence.
        group: the samples whose rewards are compared.
        turn: of a conversation.
        policy_start: optimizer updates in the weights that made the first token.
        policy_end: likewise the last token.
        replica: which of several equal engines.
        limit: output tokens that were allowed.
        parent: the span it belongs to, its ``SpanContext``, or the ``Context`` that it is current in. Where it is None:
            the current stage; in a thread that has none (a pool's) the open rollout, evaluation or reward stage, else
            the step (docs/requests.md).

    Emits: ``gen_ai.server.*`` and ``rl.request.*``; a span where the policy keeps it (docs/requests.md). Cost: 0.5 us
    with 8 arguments, 1 us with 17; of that Python takes 0.2 and 0.6 us to hand them over.
    """
    if state.on and not (hooking.is_tracing() or hooking.compiler._is_compiling_flag):
        if error is not None and isinstance(error, BaseException):
            error = type(error)  # itself it would keep its frames alive, and their tensors, until it is read
        values = (
            engine, submitted, ended, scheduled, first_token, last_token, input_tokens, output_tokens, cached_tokens,
            finish, error, preemptions, streamed, operation, model, id, sample, group, turn, policy_start, policy_end,
            replica, limit, clock, state.clock.anchor,
        )  # fmt: skip
        parent = parent or CURRENT.get()
        queued = state.queue.finished
        if parent is not None and 0 < len(queued) < MOST_WAITING:  # ``add_finished``, of which a call is 0.2 us
            queued += (_read, parent, 1, values)
            if state.queue.finished is not queued:
                state.add(queued)
        else:
            add_finished((_read, parent or find_parent(), 1, values))


def _read(given: Values) -> tuple[Values]:
    """Make the request of what was given, with its clock and the anchor of then, on the flusher's thread."""
    *values, clock, anchor = given
    shift = _shift(clock, anchor)
    values[_TIMES] = [_nanoseconds(value, shift) for value in values[_TIMES]]
    for place in _COUNTS:
        values[place] = _count(values[place])
    error = values[ERROR]
    if isinstance(error, type) and not issubclass(error, Exception):  # what cancels is no error
        values[FINISH], error = values[FINISH] or "abort", ""
    values[ERROR] = error.__qualname__ if isinstance(error, type) else error or ""
    return (tuple(values),)


def _shift(clock: str, anchor: int) -> int:
    """Return what to add to a clock's times to get those of the monotonic clock, ns.

    Raises:
        ValueError: there is no such clock.
    """
    if clock == "wall":
        return -anchor
    if clock == "perf_counter":
        return perf_counter_shift()
    if clock != "monotonic":
        raise ValueError(f"otel_rl.request(clock={clock!r}): clock must be monotonic, wall or perf_counter")
    return 0


def _nanoseconds(seconds: Any, shift: int) -> Any:
    """Return a time of the monotonic clock, ns; nan if it is no time, which is counted when requests are cleaned."""
    if seconds is None:
        return 0
    if type(seconds) is float and -_LONGEST_S < seconds < _LONGEST_S:
        return (round(seconds * 1e9) + shift) or IMPOSSIBLE
    found = attempt("read", "a value of a request", _read_seconds, seconds)
    return nan if found is None else (found + shift) or IMPOSSIBLE


def _read_seconds(seconds: Any) -> int | None:
    """Read seconds of any type as whole ns; None if it is no number, or waits for a device."""
    if _is_elsewhere(seconds) or not isfinite(seconds):  # that takes no text
        return None
    return round(float(seconds) * 1e9)


def _count(number: Any) -> Any:
    """Return a count; nan if it waits for a device."""
    if number is None:
        return UNKNOWN
    if type(number) is not int and _is_elsewhere(number):
        return nan
    return IMPOSSIBLE if isinstance(number, int) and number < 0 else number


def _is_elsewhere(value: Any) -> bool:
    """Return whether it is on a device, which would have to be waited for."""
    return bool(getattr(getattr(value, "device", None), "type", "cpu") != "cpu")
