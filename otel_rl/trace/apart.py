"""Traces of their own: work that a step submits and that may outlive it, as rollouts do in asynchronous training.

The ids of such a trace derive from the attempt and a key that both sides know. So a step that takes what came of it can
link to it, whichever task or thread did the work: nothing has to travel along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.trace import SpanContext, TraceFlags

from otel_rl import ids, vocabulary
from otel_rl.ids import random_bits
from otel_rl.journal.page import BEGAN, STAGE
from otel_rl.process.carrier import Carrier
from otel_rl.process.memory import Memory
from otel_rl.process.state import Trace, state
from otel_rl.process.status import status
from otel_rl.records import Attributes
from otel_rl.trace.carried import stand_in_of
from otel_rl.trace.stage import Stage

ROLLOUT: Final = "rollout"
"""Stands for the loop in the ids."""
MOST_KEYS: Final = 4_096
MAX_LINKS: Final = 128
"""More links of a span are cut by many stores."""


@dataclass(eq=False)
class Apart(Memory):
    """What this process remembers of such traces."""

    opened: dict[str, None] = field(default_factory=dict)
    """The keys of the newest, in order."""


apart = Apart.keep("apart")


def open_apart(stage: Stage, key: str, submitted: Carrier | None) -> None:
    """Open a stage as the root of the trace of this key, linked to the span that submitted it.

    A key that this process opens again has a further stage below that root.
    """
    state.ensure_awake()  # a worker learns whose it is, and the ids derive from that
    if not state.identity.known:
        return stage.open()
    root = root_of(key)
    stage.trace = Trace(root.trace_id, state.clock.anchor, sampled=root.trace_flags.sampled)
    stage.trace.is_carried = True  # it has no container
    if key in apart.opened:  # the work is done again, or in parts: no id may be there twice
        stage.parent_id, stage.span_id = root.span_id, random_bits(64) or 1
    else:
        stage.span_id = root.span_id
        apart.opened[key] = None
        if len(apart.opened) > MOST_KEYS:
            apart.opened.pop(next(iter(apart.opened)), None)
    if submitted is not None:
        stage.set_attribute(vocabulary.SUBMITTED_STEP, submitted.step)
        stage.add_link(SpanContext(submitted.trace_id, submitted.span_id, is_remote=True))
    _open(stage)


def open_below(stage: Stage, carrier: Carrier) -> None:
    """Open a stage below the carrier's span, whatever is current."""
    stand_in = stand_in_of(carrier)
    stage.trace, stage.parent_id = stand_in.trace, stand_in.span_id
    stage.span_id = random_bits(64) or 1
    _open(stage)


def open_under(stage: Stage, parent: Stage) -> None:
    """Open a stage below another one of this process, in a thread that has inherited nothing."""
    stage.trace, stage.parent_id = parent.trace, parent.span_id
    stage.span_id = random_bits(64) or 1
    _open(stage)


def link_apart(stage: Stage, keys: Mapping[str, Attributes]) -> None:
    """Link a stage to the roots of the traces of these keys, with attributes of each link; count those that are cut."""
    left = len(keys)
    for key, attributes in keys.items():
        if len(stage.links or ()) >= MAX_LINKS:
            before = (stage.attributes or {}).get(vocabulary.LINKS_OMITTED, 0)
            return stage.set_attribute(vocabulary.LINKS_OMITTED, int(before) + left)  # type: ignore[arg-type]
        root = root_of(key)
        if root.trace_flags.sampled:
            stage.add_link(root, attributes)
        left -= 1


def root_of(key: str) -> SpanContext:
    """Name the root of the trace of a key, as far as it is recorded in this attempt."""
    attempt = state.identity.attempt_id
    trace_id = ids.trace_id(attempt, ROLLOUT, key)
    flags = TraceFlags(TraceFlags.SAMPLED if state.sampled(trace_id) else TraceFlags.DEFAULT)
    return SpanContext(trace_id, ids.root_id(attempt, ROLLOUT, key), is_remote=True, trace_flags=flags)


def _open(stage: Stage) -> None:
    stage.open(is_current=False)
    stage.make_current()
    status.words[STAGE], status.words[BEGAN] = status.codes[stage.name], stage.began
