"""Log records of the samples that are kept, with their texts if the user wants them; made on the flusher's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.clock import monotonic_ns
from otel_rl.guard import attempt, error_of, say
from otel_rl.layers.kept_samples import FinishedSample, StepSamples
from otel_rl.process.state import Trace
from otel_rl.records import Attributes, Count, Log, Value
from otel_rl.trace.values import MAX_ITEMS, MAX_LENGTH, clean

FIELDS: Final[Mapping[str, str]] = {
    "id": v.SAMPLE_ID,
    "group": v.GROUP_ID,
    "policy_version": v.POLICY_VERSION,
    "prompt_tokens": v.TOKENS_PROMPT,
    "response_tokens": v.TOKENS_RESPONSE,
    "environment_tokens": v.TOKENS_ENVIRONMENT,
    "turns": v.SAMPLE_TURNS,
    "tool_calls": v.SAMPLE_TOOL_CALLS,
    "reward": v.SAMPLE_REWARD,
    "advantage": v.SAMPLE_ADVANTAGE,
    "finish": v.SAMPLE_FINISH,
    "error": v.ERROR_TYPE,
}
LIMIT_S: Final = 1.0
"""How long the texts of a sample may take."""
SHARE: Final = 0.1
BURST_S: Final = 0.5
"""How long it may run at once, when it has rested."""
DEEPEST: Final = 4
"""Collections inside collections whose texts are redacted; what lies deeper is left out."""
TEXTS: Final = {"prompt": v.SAMPLE_PROMPT, "response": v.SAMPLE_RESPONSE}


class Redaction:
    """The user's function that takes out of a text what must not be recorded; what it cannot take is not recorded.

    It runs on a thread of its own, for a tenth of the time at most, and for ``LIMIT_S`` at once: the flusher, which
    waits for it, has everything else to journal.

    Args:
        name: of the function, as ``package.module:function``; empty: texts stay as they are.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._function: Callable[[str], Any] | None = None if name else _unchanged
        self._said: set[str] = set()
        self._left_s = BURST_S
        """How long it may still run."""
        self._refilled_ns = monotonic_ns()

    def texts_of(self, sample: FinishedSample) -> dict[str, Value] | None:
        """Return the texts of a sample, None if they cannot be redacted: then none of them is recorded."""
        if self._function is None:
            self._function = attempt("import", f"OTEL_RL_REDACT={self._name}", _import, self._name) or _refuse
            if self._function is _refuse:
                say("otel_rl: OTEL_RL_REDACT=%s cannot be imported: no text of a sample is recorded", self._name)
        if self._function is _unchanged:
            return attempt("read", "the texts of a sample", self._texts, sample)
        if self._function is _refuse or not self._has_time():
            return None
        made: list[dict[str, Value]] = []
        error = self._in_time(sample, made)
        if error:
            self._say(error)
        return made[0] if made and not error else None

    def _has_time(self) -> bool:
        now = monotonic_ns()
        self._left_s = min(BURST_S, self._left_s + (now - self._refilled_ns) / 1e9 * SHARE)
        self._refilled_ns = now
        if self._left_s <= 0:
            self._say("takes too long: most samples have no text")
        return self._left_s > 0

    def _in_time(self, sample: FinishedSample, made: list[dict[str, Value]]) -> str:
        """Let the function make the texts of a sample; return what is wrong with it."""
        errors: list[BaseException | None] = []
        thread = threading.Thread(
            target=lambda: errors.append(error_of(lambda: made.append(self._texts(sample)))), daemon=True
        )
        began = monotonic_ns()
        thread.start()
        thread.join(LIMIT_S)
        self._left_s -= (monotonic_ns() - began) / 1e9
        if not errors:
            self._function = _refuse
            return f"did not return within {LIMIT_S:g} s: no further sample has a text"
        return "" if errors[0] is None else f"failed with {type(errors[0]).__name__}: such samples have no text"

    def _say(self, what: str) -> None:
        """Log once what is wrong; the error's text may be that of a sample."""
        if what not in self._said:
            self._said.add(what)
            say("otel_rl: OTEL_RL_REDACT=%s %s", self._name, what)

    def _texts(self, sample: FinishedSample) -> dict[str, Value]:
        given = ((key, getattr(sample, field)) for field, key in TEXTS.items())
        return {key: self._text(text) for key, text in given if text is not None}

    def _text(self, given: Any) -> str:
        """Return a text, or messages as one; every text inside is redacted while it is whole, then cut."""
        return str(clean(given if self._function is _unchanged else self._redacted(given)))[:MAX_LENGTH]

    def _redacted(self, given: Any, depth: int = DEEPEST) -> Any:
        if isinstance(given, Mapping):
            items = islice(given.items(), MAX_ITEMS) if depth else ()
            return {self._redacted(key, depth - 1): self._redacted(item, depth - 1) for key, item in items}
        if isinstance(given, list | tuple):
            return [self._redacted(item, depth - 1) for item in given[:MAX_ITEMS]] if depth else []
        text = given if isinstance(given, str) else str(clean(given))
        if text is not given and len(text) >= MAX_LENGTH:
            raise ValueError("a text is cut before it could be redacted")
        redacted = _redact(self._function, text)
        return given if redacted == text else redacted


def records_of(
    samples: StepSamples, trace: Trace, of_step: Attributes, redaction: Redaction, allowed: int
) -> Iterator[Log | Count]:
    """Make the records of the samples of a step, and count those that have none.

    Args:
        samples: of the step.
        trace: of the step.
        of_step: attributes that say which step it is.
        redaction: for their texts.
        allowed: most records.
    """
    chosen = samples.chosen(allowed)
    for sample, reason in chosen:
        attributes: dict[str, Value] = {**of_step, **_attributes(sample)}
        if reason:
            attributes[v.SAMPLE_KEPT] = reason
        if sample.prompt is not None or sample.response is not None:
            texts = redaction.texts_of(sample)
            if texts is None:
                yield Count(v.SELF_CHANGED, 1, ((v.REASON, "text_not_redacted"),))
            attributes |= texts or {}
        severity = 13 if sample.is_failed else 9
        yield Log(v.SAMPLE_RECORD, sample.time_ns, attributes, _body(sample), severity, trace.trace_id, sample.span_id)
    if samples.count > len(chosen):
        yield Count(v.SAMPLES_OMITTED, samples.count - len(chosen))


def _attributes(sample: FinishedSample) -> dict[str, Value]:
    known = ((key, getattr(sample, field)) for field, key in FIELDS.items())
    attributes: dict[str, Value] = {key: value for key, value in known if value is not None and value != ""}
    if sample.is_evaluation:
        attributes[v.MODE] = "eval"
    elif sample.discarded is not None:
        attributes[v.SAMPLE_USED] = not sample.discarded
    if sample.discarded:
        attributes[v.SAMPLE_DISCARDED] = sample.discarded
    attributes |= {f"{v.SAMPLE_REWARD}.{name}": reward for name, reward in sample.rewards.items()}
    return attributes


def _body(sample: FinishedSample) -> str:
    parts = [
        f"sample {sample.id}".rstrip(),
        "" if sample.reward is None else f"reward {sample.reward:.4g}",
        "" if sample.length < 0 else f"{sample.length} tokens",
        sample.error or sample.finish,
        sample.discarded,
    ]
    return ", ".join(filter(None, parts))


def _redact(function: Callable[[str], Any] | None, text: str) -> str:
    """Call the user's function; what would end the thread is an error like any other."""
    try:
        redacted = None if function is None else function(text)
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        raise RuntimeError(f"the function raised {type(error).__name__}") from error
    if not isinstance(redacted, str):
        raise TypeError(f"the function returned {type(redacted).__name__}, no text")
    return str.__str__(redacted)  # of a derived class it may be another


def _unchanged(text: str) -> str:
    return text


def _refuse(text: str) -> None:
    return None


def _import(name: str) -> Callable[[str], Any]:
    module, _, function = name.partition(":")
    found: Callable[[str], Any] = getattr(import_module(module), function)
    return found
