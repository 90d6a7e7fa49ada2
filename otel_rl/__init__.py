"""OpenTelemetry for reinforcement-learning post-training of language models.

``instrument()`` records every stage of every step on every rank; ``step``, ``stage``, ``request``, ``sample``,
``record`` and ``observe`` do it by hand where no framework is known, and ``trajectory``, ``turn`` and ``tool`` in an
agent loop. ``read`` opens the tables of a run, ``on_finding`` calls a function with what the rules find while it goes
on. Importing this package loads neither torch, nor Ray, nor the OpenTelemetry SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_rl.config import ConfigurationError
    from otel_rl.entry import flush, instrument, uninstrument
    from otel_rl.integrations.choice import NotPossibleError
    from otel_rl.layers.api import sample
    from otel_rl.metrics.record import record
    from otel_rl.observing.api import observe
    from otel_rl.process.carrier import Carrier
    from otel_rl.process.on_finding import on_finding
    from otel_rl.query.engine import read
    from otel_rl.requests.agent_loop import tool, trajectory, turn
    from otel_rl.requests.api import request
    from otel_rl.trace.stage import stage
    from otel_rl.trace.steps import step
    from otel_rl.version import __version__

_HOME = {
    "Carrier": "otel_rl.process.carrier",
    "ConfigurationError": "otel_rl.config",
    "NotPossibleError": "otel_rl.integrations.choice",
    "__version__": "otel_rl.version",
    "flush": "otel_rl.entry",
    "instrument": "otel_rl.entry",
    "observe": "otel_rl.observing.api",
    "on_finding": "otel_rl.process.on_finding",
    "read": "otel_rl.query.engine",
    "record": "otel_rl.metrics.record",
    "request": "otel_rl.requests.api",
    "sample": "otel_rl.layers.api",
    "stage": "otel_rl.trace.stage",
    "step": "otel_rl.trace.steps",
    "tool": "otel_rl.requests.agent_loop",
    "trajectory": "otel_rl.requests.agent_loop",
    "turn": "otel_rl.requests.agent_loop",
    "uninstrument": "otel_rl.entry",
}

__all__ = [
    "Carrier",
    "ConfigurationError",
    "NotPossibleError",
    "__version__",
    "flush",
    "instrument",
    "observe",
    "on_finding",
    "read",
    "record",
    "request",
    "sample",
    "stage",
    "step",
    "tool",
    "trajectory",
    "turn",
    "uninstrument",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'otel_rl' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
