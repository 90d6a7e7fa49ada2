"""Where requests belong: below a stage of ours, or below a span of another library; and what they are there for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, get_current_span

from otel_rl import vocabulary as v
from otel_rl.clock import monotonic_ns
from otel_rl.guard import guard
from otel_rl.process.state import Trace, state
from otel_rl.records import Labels
from otel_rl.requests.fields import SLACK_NS
from otel_rl.requests.queue import Values
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage

if TYPE_CHECKING:
    from otel_rl.requests.columns import RequestBatch

ROLLOUTS: Final = frozenset((v.SAMPLE, v.EVALUATE))
"""Stages that are a rollout each; requests of other stages are judged with their whole step."""
EVALUATION: Final[Labels] = ((v.MODE, "eval"),)
SAYING: Final = (v.EVALUATE, v.REWARD)
"""Stages that say by their name what the requests inside them are for."""
KNOWN_STAGES: Final = 16_384
"""At least this many of the last stages are known, at most twice as many: more than one cycle of the flusher takes, and
about 4 MB."""
DEEPEST: Final = 64


class ForeignParent(NamedTuple):
    """A span of another library; its trace is ours where it is that of the open step."""

    trace: Trace
    span_id: int


class Purpose(NamedTuple):
    """What requests are for, as the stages that they are in say."""

    mode: Labels
    """``EVALUATION``, which counts apart from training, else empty."""
    is_judging: bool
    """Whether they judge what others made, and are no rollout."""


TRAINING: Final = Purpose((), is_judging=False)
PURPOSES: Final = tuple(Purpose(mode, is_judging) for mode in ((), EVALUATION) for is_judging in (False, True))


class Ancestor(NamedTuple):
    """What a stage says of the requests inside it, and its own parent."""

    parent_id: int
    is_evaluation: bool
    is_judging: bool


@dataclass(eq=False, slots=True)
class Uncounted:
    """Requests that are counted together: of one rollout, and with the same thing wrong with them."""

    key: Any
    """Which rollout it is: a stage, a trace, or what joins traces of others."""
    trace: Trace | None
    problem: str = ""
    """``late`` or ``forked``, where all of them are."""
    values: list[Values] = field(default_factory=list)
    turns: list[tuple[int, Stage | ForeignParent | None]] = field(default_factory=list)
    """Each parent, with the index of the first request that has it."""

    def parents(self) -> list[Stage | ForeignParent | None]:
        """Return the parent of each request."""
        found: list[Stage | ForeignParent | None] = []
        ends = [first for first, _ in self.turns[1:]]
        for (first, parent), end in zip(self.turns, [*ends, len(self.values)], strict=True):
            found += [parent] * (end - first)
        return found


def parent_of(parent: Any) -> Stage | ForeignParent | None:
    """Return what a parent is: a stage of ours, a span of another library, or nothing."""
    if isinstance(parent, Stage):
        return parent if parent.trace is not None else None
    with guard("find the parent of a request"):
        if isinstance(parent, Context):  # as taken from the headers of a message
            parent = get_current_span(parent)
        context = parent if isinstance(parent, SpanContext) or parent is None else parent.get_span_context()
        if context is not None and context.is_valid:
            own = None if tracing.container is None else tracing.container.trace
            if own is None or own.trace_id != context.trace_id:
                own = Trace(context.trace_id, state.clock.anchor, sampled=context.trace_flags.sampled)
            return ForeignParent(own, context.span_id)
    return None


def key_of(parent: Stage | ForeignParent | None) -> Any:
    """Return which rollout a parent belongs to: a stage that is one, else its step; traces of others are one."""
    if parent is None or parent.trace is None:
        return None
    if isinstance(parent, Stage) and parent.name in ROLLOUTS:
        return parent
    return parent.trace if parent.trace.step else parent.trace.sampled


def split_after(key: Any, batch: RequestBatch) -> Iterator[tuple[RequestBatch, bool]]:
    """Split a rollout's requests at the end of its stage; yield with each part whether it ended after that."""
    after: list[int] = []
    if isinstance(key, Stage) and key.name in ROLLOUTS and key.ended:
        after = batch.ended_between(key.ended + SLACK_NS, monotonic_ns())
    if not after:
        yield batch, False
        return
    yield batch.only(after), True
    within = sorted(set(range(len(batch.values))).difference(after))
    if within:
        yield batch.only(within), False


class Stages:
    """The stages that were seen last, by span id: a stage itself knows only the id of its parent."""

    def __init__(self) -> None:
        self._known: dict[int, int | Ancestor] = {}
        """The parent's id, or what the stage says of the requests inside it, if it says something."""
        self._before: dict[int, int | Ancestor] = {}
        """What was known before: it goes once as many stages have been seen since."""

    def remember(self, stages: Iterable[Any]) -> None:
        """Remember the stages among what is open, or has ended, with what they say of themselves so far."""
        if len(self._known) >= KNOWN_STAGES:
            self._known, self._before = {}, self._known
        known = self._known
        for stage in stages:
            if stage.__class__ is Stage:
                is_saying = stage.name in SAYING or (stage.attributes and v.MODE in stage.attributes)
                known[stage.span_id] = _ancestor(stage) if is_saying else stage.parent_id

    def purposes(self, parents: Iterable[Any]) -> dict[Any, Purpose]:
        """Return what the requests of each parent are for, as far as that could be seen."""
        return {parent: _purpose(self._ancestors(parent)) for parent in parents}

    def purpose_and_ancestors(self, stage: Stage) -> tuple[Purpose, list[int]]:
        """Return what a stage is for, and the ids of the spans that it is in, the innermost first."""
        found = list(self._ancestors(stage))
        return _purpose(found), [one.parent_id for one in found]

    def _ancestors(self, parent: Any) -> Iterator[Ancestor]:
        one = _ancestor(parent) if isinstance(parent, Stage) else self._find(parent.span_id) if parent else None
        for _ in range(DEEPEST):
            if one is None:
                break
            yield one
            one = self._find(one.parent_id)

    def _find(self, span_id: int) -> Ancestor | None:
        found = self._known.get(span_id, self._before.get(span_id))
        return Ancestor(found, is_evaluation=False, is_judging=False) if isinstance(found, int) else found


def _purpose(found: Iterable[Ancestor]) -> Purpose:
    is_evaluation = is_judging = False
    for one in found:
        is_evaluation |= one.is_evaluation
        is_judging |= one.is_judging
    return Purpose(EVALUATION if is_evaluation else (), is_judging)


def _ancestor(stage: Stage) -> Ancestor:
    is_evaluation = stage.name == v.EVALUATE or (stage.attributes or {}).get(v.MODE) == "eval"
    return Ancestor(stage.parent_id, is_evaluation, stage.name == v.REWARD)
