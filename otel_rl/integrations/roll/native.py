"""ROLL's own spans: while its flag is off, ROLL gets the tracer that it has without otel_rl, which records nothing.

Otherwise its spans would be in our journal beside the stages that say the same. With its flag they go to the provider
that ROLL makes then, and to nobody else. Source: ROLL 0.3.0, ``utils/telemetry.py``; 0.2 has none.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.trace import NoOpTracer, ProxyTracer

from otel_rl.hooks import Hook
from otel_rl.process.state import state

NOTHING: Final = NoOpTracer()


@dataclass(frozen=True, kw_only=True)
class TracerHook(Hook):
    """A function that returns a tracer: where the program has no provider, one that records nothing."""

    def replacement(self, original: Any, bind: Any) -> Any:
        """Return the function that stands in the place of ``original``."""

        @functools.wraps(original)
        def tracer_of(*args: Any, **kwargs: Any) -> Any:
            tracer = original(*args, **kwargs)
            return NOTHING if state.on and type(tracer) is ProxyTracer else tracer

        return tracer_of


HOOKS: tuple[Hook, ...] = (TracerHook(target="roll.utils.telemetry:get_tracer", optional=True),)
