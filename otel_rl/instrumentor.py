"""The entry point for ``opentelemetry-instrument`` and for everything else that loads standard instrumentors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from otel_rl.autoload.sitecustomize import FRAMEWORKS, FirstImport


class OtelRlInstrumentor(BaseInstrumentor):
    """``instrument()`` and ``uninstrument()`` in OpenTelemetry's shape.

    Like ``otel-rl run``, it starts with the first import of a framework, or of what records in otel_rl.
    """

    _first: FirstImport | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing is required: what is not installed is not instrumented."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        self._first = FirstImport(FRAMEWORKS | {"otel_rl"})
        self._first.install()

    def _uninstrument(self, **kwargs: Any) -> None:
        first, self._first = self._first, None
        if first is not None:
            first.remove()
        if first is None or first.is_started:
            from otel_rl import entry

            entry.uninstrument()
