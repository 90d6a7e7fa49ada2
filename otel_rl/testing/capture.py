"""A recording of a test, and what it recorded as plain values."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from otel_rl import entry, guard
from otel_rl.hooks import Integration
from otel_rl.journal.read import Run, open_run
from otel_rl.process.state import state
from otel_rl.records import Attributes, Value

RUN = "captured"


class CapturedSpan(NamedTuple):
    """A finished span."""

    name: str
    parent: str
    """Name of the parent; empty for a root."""
    attributes: Attributes
    start_ns: int
    end_ns: int
    is_error: bool
    trace_id: str
    span_id: str


class CapturedPoint(NamedTuple):
    """The last value of one series; of a histogram its sum."""

    name: str
    value: float
    attributes: Attributes


@dataclass
class Capture:
    """What was recorded inside the block of ``capture``; empty until ``stop`` or the end of the block."""

    root: Path
    """A temporary directory, which is removed when the block ends."""
    spans: list[CapturedSpan] = field(default_factory=list)
    """In the order of their begin."""
    points: list[CapturedPoint] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    """Errors of otel_rl, or of the functions of a hook, which are kept from the program: by what failed, how often."""
    is_over: bool = False

    def stop(self) -> Capture:
        """End the recording and fill this in; returns itself."""
        if not self.is_over:
            self.is_over = True
            entry.uninstrument()
            self.errors.update(guard.errors)
            guard.errors.clear()
            if (self.root / RUN).exists():
                self._read(open_run(self.root / RUN))
        return self

    def names(self) -> list[str]:
        """Return the names of the spans in the order of their begin."""
        return [span.name for span in self.spans]

    def span(self, name: str) -> CapturedSpan:
        """Return the only span of a name.

        Raises:
            LookupError: there is none, or more than one.
        """
        found = [span for span in self.spans if span.name == name]
        if len(found) != 1:
            raise LookupError(f"{len(found)} spans are called {name!r}; there are: {', '.join(self.names())}")
        return found[0]

    def value(self, name: str, **attributes: Value) -> float | None:
        """Return the last value of the series that has these attributes, None if there is none."""
        return next(
            (one.value for one in self.points if one.name == name and attributes.items() <= one.attributes.items()),
            None,
        )

    def _read(self, run: Run) -> None:
        spans = sorted(run.spans(None), key=lambda span: (span.start_ns, -span.end_ns))
        names = {span.span_id: span.name for span in spans}
        self.spans = [
            CapturedSpan(
                span.name,
                names.get(span.parent_id, ""),
                span.attributes,
                span.start_ns,
                span.end_ns,
                span.status_code == 2,
                span.trace_id.hex(),
                span.span_id.hex(),
            )
            for span in spans
        ]
        last = {(one.name, tuple(sorted(one.attributes.items(), key=str))): one for one in run.points()}
        self.points = [
            CapturedPoint(one.name, one.sum if one.kind == "histogram" else one.value, one.attributes)
            for one in last.values()
        ]


@contextmanager
def capture(*integrations: str | Integration) -> Iterator[Capture]:
    """Record the block, without the ``OTEL_*`` settings of the process.

    The journal lies in a temporary directory, which is removed at the end. Nothing is sent anywhere.

    Args:
        integrations: by name, or themselves, which need not be registered; what these need is to be named besides.
            Without any, only stages of the program are recorded.

    Raises:
        RuntimeError: the process is being recorded already.
        NotPossibleError: an integration was given by name, and its package is missing or of an unsupported version.
    """
    if state.on:
        raise RuntimeError("this process is already being recorded; call otel_rl.uninstrument() first")
    others = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    with TemporaryDirectory(prefix="otel_rl-") as folder:
        captured = Capture(Path(folder))
        for name in others:
            del os.environ[name]
        os.environ |= {"OTEL_RL_DIR": folder, "OTEL_RL_RUN_ID": RUN, "OTEL_RL_SIDECAR": "false"}
        guard.errors.clear()
        try:
            entry.instrument([one for one in integrations if isinstance(one, str)])
            for one in integrations:
                if isinstance(one, Integration):
                    entry.install(one)
            yield captured
        finally:
            captured.stop()
            for name in [name for name in os.environ if name.startswith("OTEL_")]:
                del os.environ[name]
            os.environ |= others
