"""ROLL's own spans: while its flag is off, ROLL gets the tracer that it has without otel_rl, which records nothing.

Otherwise its spans would be in our journal beside the stages that say the same. With its flag they go to the provider
that ROLL makes then, and to nobody else. The endpoint of its receiver is then in the environment of the driver and of
all processes of the job, and is none of ours. Source: ROLL 0.3.0, ``utils/telemetry.py``; 0.2 has none.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from opentelemetry.trace import NoOpTracer, ProxyTracer

from otel_rl.config import FOREIGN
from otel_rl.hooks import Args, Attachment, CallbackHook, Hook, Kwargs
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


def _keep_apart(args: Args, kwargs: Kwargs, result: object) -> None:
    """Name the endpoint to the processes of the job, which inherit it."""
    os.environ[FOREIGN] = str(result)


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target="roll.utils.telemetry:resolve_otel_endpoint", after=_keep_apart, optional=True),
)
ATTACHMENTS = (Attachment("roll.utils.telemetry", _stay_out),)
