"""Every telemetry name that otel_rl emits, spelled once.

Names come first from the OpenTelemetry ``rl.*`` proposal (semantic-conventions-genai #88), then ``gen_ai.*``, ``hw.*``,
``process.*`` and ``system.*``, then our own ``rl.*``; otel_rl's own telemetry is ``otel_rl.*``. Units are UCUM.
Times are seconds, sizes bytes, ratios 0..1. ``docs/catalogue.md`` is generated from this package.
"""

# ruff: noqa: F403, F405  a name is spelled in one file and used as vocabulary.NAME
from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.actions import *
from otel_rl.vocabulary.hardware import *
from otel_rl.vocabulary.kinds import *
from otel_rl.vocabulary.layers import *
from otel_rl.vocabulary.live_findings import *
from otel_rl.vocabulary.metrics import *
from otel_rl.vocabulary.performance import *
from otel_rl.vocabulary.requests import *
from otel_rl.vocabulary.resource import *
from otel_rl.vocabulary.self import *
from otel_rl.vocabulary.span_keys import *
from otel_rl.vocabulary.stages import *
from otel_rl.vocabulary.stalls import *

STAGES: Final = {one.name: one for one in DEFINITIONS if isinstance(one, StageName)}
METRICS: Final = {one.name: one for one in DEFINITIONS if isinstance(one, Metric)}
ATTRIBUTES: Final = {one.key: one for one in DEFINITIONS if isinstance(one, Attribute)}
EVENTS: Final = {one.name: one for one in DEFINITIONS if isinstance(one, Event)}
SHORT_NAMES: Final = {name.removeprefix("rl."): name for name in STAGES if name.startswith("rl.")}
"""``otel_rl.stage("reward")`` opens ``rl.reward``; other names stay as the user wrote them."""
