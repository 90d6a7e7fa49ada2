"""``otel_rl.sample``: one finished sample of a rollout, for the log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from math import isfinite
from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.guard import attempt
from otel_rl.layers.kept_samples import FinishedSample
from otel_rl.layers.memory import add_users_sample
from otel_rl.layers.sample_records import DEEPEST
from otel_rl.metrics.naming import refuse
from otel_rl.metrics.record import as_number
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.records import Count, Deferred
from otel_rl.trace.current import CURRENT
from otel_rl.trace.stage import Stage, current_stage
from otel_rl.trace.values import MAX_ITEMS, MAX_LENGTH, clean_key

MOST_FUNCTIONS = 64
"""Reward functions of a sample that are recorded."""
COUNTS = ("prompt_tokens", "response_tokens", "environment_tokens", "turns", "tool_calls", "policy_version")
WORDS = ("id", "group", "finish", "discarded")
LARGEST = 1 << 53
LONGEST = 1024
"""Characters of a word."""
NUMBERS = frozenset((int, float, bool, type(None)))
"""Types of numbers that nothing changes, and of one that is not given."""
READ = ("reward", "advantage", *COUNTS)
GIVEN = (*READ, "id", "group", "rewards", "finish", "error", "discarded", "prompt", "response", "time_ns")
"""In the order in which a call hands them on."""
UNREADABLE = object()
"""Stands for a number that cannot be read."""
NAME = re.compile(r"[A-Za-z_][\w.<>]*")
"""What the name of a class looks like."""
OTHER = "_OTHER"
"""Stands for an error that was given as a text."""


def sample(  # noqa: PLR0913  a sample has that many properties, all by keyword
    *,
    id: str = "",
    group: str = "",
    reward: float | None = None,
    rewards: Mapping[str, float] | None = None,
    advantage: float | None = None,
    prompt_tokens: int | None = None,
    response_tokens: int | None = None,
    environment_tokens: int | None = None,
    turns: int | None = None,
    tool_calls: int | None = None,
    finish: str = "",
    error: BaseException | type[BaseException] | str | None = None,
    policy_version: int | None = None,
    discarded: str | None = "",
    prompt: Any = None,
    response: Any = None,
) -> None:
    """Record one sample (trajectory) of the current step; call it once per sample, when its advantage is known.

    It becomes a log record ``rl.log.sample`` that belongs to the current stage, or to the step. A step has at most
    ``OTEL_RL_SAMPLE_RECORDS`` on each process: beyond that the failed, the best, the worst and the longest samples have
    one, and some chosen by a hash of their ids; the others are counted. What you leave out is not recorded. What
    cannot be (a count below 0, a tensor on a device) is left out and counted. Inside a compiled region it does nothing.
    Inside of a stage ``evaluate`` it is a sample of the evaluation: ``rl.mode`` says so, and numbers of the step are
    without it.

    Args:
        id: the sample's own id, the same in each repetition of the training.
        group: the samples whose rewards are compared.
        reward: of all functions together; NaN and infinity are kept.
        rewards: by the name of the reward function.
        advantage: of the sample, or the mean of its tokens.
        prompt_tokens: tokens of the prompt.
        response_tokens: tokens that the policy generated.
        environment_tokens: tokens that tools or an environment wrote into the response.
        turns: answers of the policy.
        tool_calls: calls of tools.
        finish: ``stop``, ``length``, ``abort``, ``timeout``, ``error``, or your own word.
        error: the exception that it failed with, its class, or the name of that.
        policy_version: optimizer updates in the weights that made it.
        discarded: why it is not trained on: ``stale``, ``filtered``, ``failed``, ``surplus``, or your own word; None if
            that is not decided yet.
        prompt: its text or messages; recorded only with ``OTEL_RL_CAPTURE_CONTENT``, cut, after ``OTEL_RL_REDACT``.
        response: likewise.

    Emits: ``rl.log.sample``, ``rl.sample.records.omitted``; lengths and rewards in ``rl.log.rollout`` of the step. What
        all samples of the step have and you do not ``record`` becomes the metrics ``rl.reward.score``,
        ``rl.reward.std``, ``rl.reward.function.score``, ``rl.reward.group.zero_std`` and ``rl.sample.response.*``.
    Cost: 1.5 of a call of ``record`` (``benchmarks/layers.py``).
    """
    if not state.on or hooking.is_compiling():
        return
    if error is not None and isinstance(error, BaseException):
        error = type(error)  # itself it would keep its frames alive, and their tensors, until it is read
    if not state.config.capture_content:
        prompt = response = None
    elif prompt is not None or response is not None:
        prompt, response = _as_now(prompt), _as_now(response)
    if rewards is not None:
        is_plain = type(rewards) is dict and NUMBERS.issuperset(map(type, rewards.values()))
        rewards = dict(rewards) if is_plain else _values(rewards)
    given: tuple[Any, ...] = (
        reward, advantage, prompt_tokens, response_tokens, environment_tokens, turns, tool_calls, policy_version,
        id, group, rewards, finish, error, discarded, prompt, response, monotonic_ns() + state.clock.anchor,
    )  # fmt: skip
    if not (
        type(reward) in NUMBERS and type(advantage) in NUMBERS and type(prompt_tokens) in NUMBERS
        and type(response_tokens) in NUMBERS and type(environment_tokens) in NUMBERS and type(turns) in NUMBERS
        and type(tool_calls) in NUMBERS and type(policy_version) in NUMBERS
    ):  # fmt: skip
        given = (*map(_value, given[: len(READ)]), *given[len(READ) :])
    state.add(Deferred(_take, (CURRENT.get() or current_stage(), _is_evaluated(), given)))


# --- at the call: the program may change what it gave ----------------------------------------------------------------


def _is_evaluated() -> bool:
    """Return whether a stage of this thread or task that is open is an evaluation."""
    stage: Any = CURRENT.get()
    while stage.__class__ is Stage:
        attributes = stage.attributes
        if stage.name == vocabulary.EVALUATE or (attributes and attributes.get(vocabulary.MODE) == "eval"):
            return True
        stage = stage.token.old_value if stage.token is not None else None
    return False


def _value(value: Any) -> Any:
    """Return a number as it is now; what cannot be read stands for one that is left out."""
    if type(value) in NUMBERS:
        return value
    number = attempt("read", "a number of a sample", _read, value)
    return UNREADABLE if number is None else number


def _read(value: Any) -> int | float | None:
    try:
        return as_number(value)
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        raise RuntimeError(f"its value raised {type(error).__name__}") from error


def _values(rewards: Any) -> Any:
    if not isinstance(rewards, Mapping):
        return rewards
    read = attempt("read", "the rewards of a sample", _read_all, rewards)
    return {} if read is None else read


def _read_all(rewards: Mapping[str, float]) -> dict[str, Any]:
    return {key: _value(value) for key, value in rewards.items()}


def _as_now(given: Any) -> Any:
    """Return a text, or messages whose lists and mappings nobody else has; no more of a text than is kept of it."""
    return attempt("read", "a text of a sample", _copy, given, DEEPEST) if given is not None else None


def _copy(given: Any, depth: int) -> Any:
    if isinstance(given, Mapping):
        items = islice(given.items(), MAX_ITEMS) if depth else ()
        return {key: _copy(item, depth - 1) for key, item in items}
    if isinstance(given, list | tuple):
        return [_copy(item, depth - 1) for item in given[:MAX_ITEMS]] if depth else []
    if isinstance(given, str) and not state.config.redact:
        return given[:MAX_LENGTH]
    return given


# --- in the flusher ---------------------------------------------------------------------------------------------------


def _take(parent: Any, is_evaluation: bool, given: tuple[Any, ...]) -> Iterator[Count]:
    """Make the sample of what was given."""
    made = FinishedSample(**dict(zip(GIVEN, given, strict=True)), is_evaluation=is_evaluation)
    left_out = sum([_clean_words(made), _clean_counts(made), _clean_numbers(made)])
    if not add_users_sample(parent, made):
        message = "otel_rl.sample: a sample outside of a step is ignored; call it inside of one"
        refuse("sample_outside_step", message, signal="logs")
    if left_out:
        yield Count(vocabulary.SELF_CHANGED, left_out, ((vocabulary.REASON, "sample_value_left_out"),))


def _clean_words(made: FinishedSample) -> int:
    """Clean the words; leave out what is no name of an error, but a text. Return how many were."""
    for name in WORDS:
        if getattr(made, name) is None:
            continue
        setattr(made, name, clean_key(getattr(made, name))[:LONGEST])
    error: Any = made.error
    word = error.__qualname__ if isinstance(error, type) else clean_key(error)
    is_name = not word or NAME.fullmatch(word) is not None
    made.error = word[:LONGEST] if is_name else OTHER
    return not is_name


def _clean_counts(made: FinishedSample) -> int:
    """Leave out what is no count; return how many."""
    left_out = 0
    for name in COUNTS:
        value = getattr(made, name)
        if value is None:
            continue
        number = attempt("read", "a count of a sample", as_number, value)
        is_count = number is not None and isfinite(number) and 0 <= number <= LARGEST
        setattr(made, name, int(number) if is_count and number is not None else None)
        left_out += not is_count
    return left_out


def _clean_numbers(made: FinishedSample) -> int:
    """Leave out what is no number; return how many."""
    left_out = 0
    for name in ("reward", "advantage"):
        value = getattr(made, name)
        if value is not None:
            number = _number(value)
            setattr(made, name, number)
            left_out += number is None
    given: Any = made.rewards
    rewards = given if isinstance(given, Mapping) else {}
    numbers = {clean_key(key)[:LONGEST]: _number(value) for key, value in list(rewards.items())[:MOST_FUNCTIONS]}
    made.rewards = {key: number for key, number in numbers.items() if key and number is not None}
    return left_out + len(rewards) - len(made.rewards)


def _number(value: Any) -> float | None:
    number = attempt("read", "a number of a sample", as_number, value)
    return None if number is None else float(number)
