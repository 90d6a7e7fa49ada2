"""What a process hands to another one that works for it: whose work it is, and below which span it belongs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from otel_rl.process.memory import Memory

TRACEPARENT: Final = "traceparent"
HEADERS: Final = {
    "otel-rl-run": "run_id",
    "otel-rl-attempt": "attempt_id",
    "otel-rl-role": "role",
    "otel-rl-step": "step",
    "otel-rl-mode": "mode",
    "otel-rl-began": "began_ns",
}
MAX_LENGTH: Final = 1024
"""Characters of a header; a longer one is not ours."""
W3C: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True)
class Carrier:
    """Names run, attempt, step and span to another process, thread or task that works for this one.

    Hand it over in whatever way the program has: an argument of a Ray call or of a pool's task, the headers of a
    request. It can be pickled. The other side records inside ``with carrier.use():``.

    Args:
        run_id: the run that the work belongs to.
        attempt_id: the attempt of that run.
        role: role of the process that made the carrier.
        step: loop and number of the step, as in ``train 7``; empty outside a step.
        traceparent: the span that the work belongs to, as W3C Trace Context writes it.
        mode: ``train`` or ``eval``, if the span has a mode.
        began_ns: when the step began by the maker's clock, ns since 1970; 0 if unknown.
    """

    run_id: str
    attempt_id: str
    role: str
    step: str
    traceparent: str
    mode: str = ""
    began_ns: int = 0

    @classmethod
    def current(cls) -> Carrier | None:
        """Return the carrier of the current step and stage; None if nothing is recorded here. Cost: 5 us."""
        return carrying.current()

    @contextmanager
    def use(self) -> Iterator[Carrier]:
        """Record below the carrier's span what this task or thread does in the block.

        A process that makes no steps itself, and knows no run yet, joins the run and attempt of its first carrier.
        """
        token = IN_USE.set(self)
        try:
            with carrying.use(self):
                yield self
        finally:
            with suppress(ValueError):  # the block ends in another task or thread than it began in
                IN_USE.reset(token)

    @property
    def trace_id(self) -> int:
        """Trace of the span."""
        return int(self.traceparent.split("-")[1], 16)

    @property
    def span_id(self) -> int:
        """Id of the span."""
        return int(self.traceparent.split("-")[2], 16)

    @property
    def is_sampled(self) -> bool:
        """Return whether the spans of its trace are kept."""
        return bool(int(self.traceparent.split("-")[3], 16) & 1)

    def to_headers(self) -> dict[str, str]:
        """Return the carrier as HTTP headers: W3C's ``traceparent`` and others of our own, all ASCII."""
        own = {header: str(getattr(self, name) or "") for header, name in HEADERS.items()}
        quoted = {header: quote(text, safe="", errors="surrogatepass") for header, text in own.items() if text}
        return {TRACEPARENT: self.traceparent, **quoted}

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> Carrier | None:
        """Read a carrier from headers, in upper or lower case; None if they hold no valid ``traceparent``."""
        try:
            found = {str(name).lower(): value for name, value in headers.items()}
        except (AttributeError, TypeError, ValueError):
            return None
        traceparent = found.get(TRACEPARENT)
        own = {name: found.get(header, "") for header, name in HEADERS.items()}
        texts = traceparent, *own.values()
        if not all(isinstance(text, str) and text.isascii() and len(text) <= MAX_LENGTH for text in texts):
            return None
        if W3C.fullmatch(str(traceparent)) is None:
            return None
        began_ns = own.pop("began_ns")
        unquoted = {name: unquote(text, errors="surrogatepass") for name, text in own.items()}
        return cls(**unquoted, traceparent=str(traceparent), began_ns=int(began_ns) if began_ns.isdigit() else 0)


IN_USE: Final[ContextVar[Carrier | None]] = ContextVar("otel_rl_carrier", default=None)
"""The carrier that this task or thread uses."""


def _not_entered(carrier: Carrier) -> AbstractContextManager[Any]:
    return nullcontext()


@dataclass(eq=False)
class Carrying(Memory):
    """How carriers are made and used while this process records; ``trace`` puts its own functions here."""

    current: Callable[[], Carrier | None] = IN_USE.get
    use: Callable[[Carrier], AbstractContextManager[Any]] = _not_entered

    def after_fork_in_child(self) -> None:
        """Keep the functions: the child records, too."""


carrying = Carrying.keep("carrying")
