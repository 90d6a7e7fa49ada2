"""The entry point for ``opentelemetry-instrument`` and for everything else that loads standard instrumentors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from otel_rl import entry


class OtelRlInstrumentor(BaseInstrumentor):
    """``instrument()`` and ``uninstrument()`` in OpenTelemetry's shape."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing is required: what is not installed is not instrumented."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        entry.autoload()

    def _uninstrument(self, **kwargs: Any) -> None:
        entry.uninstrument()
