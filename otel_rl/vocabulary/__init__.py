"""Every telemetry name that otel_rl emits, spelled once.

Order of precedence: the OpenTelemetry ``rl.*`` proposal (semantic-conventions-genai #88), then ``gen_ai.*``, ``hw.*``,
``process.*`` and ``system.*``, then our own extension under ``rl.*``; what concerns otel_rl itself is ``otel_rl.*``.
Units are UCUM. Times are seconds, sizes bytes, ratios 0..1. ``docs/catalogue.md`` is generated from this package.
"""

# ruff: noqa: F403, F405  a name is spelled in one file and used as vocabulary.NAME
from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.attributes import *
from otel_rl.vocabulary.comm import *
from otel_rl.vocabulary.efficiency import *
from otel_rl.vocabulary.flops import *
from otel_rl.vocabulary.hardware import *
from otel_rl.vocabulary.kinds import *
from otel_rl.vocabulary.ledger import *
from otel_rl.vocabulary.metrics import *
from otel_rl.vocabulary.requests import *
from otel_rl.vocabulary.resource import *
from otel_rl.vocabulary.self import *
from otel_rl.vocabulary.stages import *

STAGES: Final = {row.name: row for row in ROWS if isinstance(row, Stage)}
METRICS: Final = {row.name: row for row in ROWS if isinstance(row, Metric)}
ATTRIBUTES: Final = {row.key: row for row in ROWS if isinstance(row, Attribute)}
EVENTS: Final = {row.name: row for row in ROWS if isinstance(row, Event)}
SHORT_NAMES: Final = {name.removeprefix("rl."): name for name in STAGES if name.startswith("rl.")}
"""What ``otel_rl.stage("reward")`` opens: ``rl.reward``; a name that is not here stays as the user wrote it."""
