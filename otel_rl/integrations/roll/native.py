"""ROLL's own spans: while its flag is off, ROLL gets the tracer that it has without otel_rl, which records nothing.

Otherwise its spans would be in our journal beside the stages that say the same. With its flag they go to the provider
that ROLL makes then, and to nobody else. Source: ROLL 0.3.0, ``utils/telemetry.py``; 0.2 has none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from opentelemetry.trace import NoOpTracer, ProxyTracer

from otel_rl.hooks import Attachment
from otel_rl.process.state import state

NOTHING: Final = NoOpTracer()


def _stay_out(module: ModuleType) -> Callable[[], object]:
    original = module.get_tracer

    @functools.wraps(original)
    def get_tracer(*args: Any, **kwargs: Any) -> Any:
        tracer = original(*args, **kwargs)
        return NOTHING if state.on and type(tracer) is ProxyTracer else tracer

    module.get_tracer = get_tracer  # type: ignore[attr-defined]
    return lambda: setattr(module, "get_tracer", original)


ATTACHMENTS = (Attachment("roll.utils.telemetry", _stay_out),)
