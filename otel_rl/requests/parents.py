"""Where requests belong: below a stage of ours, or below a span of somebody else; and what they are there for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import monotonic_ns
from typing import Any, Final, NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, get_current_span

from otel_rl import vocabulary as v
from otel_rl.guard import guard
from otel_rl.process.state import Trace, state
from otel_rl.records import Labels
from otel_rl.requests.columns import SLACK_NS, Table
from otel_rl.requests.queue import Row
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage

ROLLOUTS: Final = frozenset((v.SAMPLE, v.EVALUATE))
"""Stages that are a rollout each; requests of other stages are judged with their whole step."""
EVALUATION: Final[Labels] = ((v.MODE, "eval"),)
SAYING: Final = (v.EVALUATE, v.REWARD)
"""Stages that say by their name what the requests inside them are for."""
KNOWN_STAGES: Final = 16_384
"""So many of the last stages are known, and at most twice as many: more than one cycle of the flusher takes, and about
4 MB."""
DEEPEST: Final = 64


class Place(NamedTuple):
    """A span of somebody else; its trace is ours where it is that of the open step."""

    trace: Trace
    span_id: int


class Purpose(NamedTuple):
    """What requests are for, as the stages around them say."""

    mode: Labels
    """That of an evaluation, which counts apart from training."""
    is_judging: bool
    """They judge what others made: no rollout."""


TRAINING: Final = Purpose((), is_judging=False)
PURPOSES: Final = tuple(Purpose(mode, is_judging) for mode in ((), EVALUATION) for is_judging in (False, True))


class Above(NamedTuple):
    """What a stage says of the requests inside it, and where it lies itself."""

    parent_id: int
    is_evaluation: bool
    is_judging: bool


class Bucket:
    """Requests that wait to be counted together: of one rollout, and with the same thing wrong with them."""

    __slots__ = ("key", "problem", "rows", "trace", "turns")

    def __init__(self, key: Any, trace: Trace | None, problem: str = "") -> None:
        self.key = key
        self.trace = trace
        self.problem = problem
        """``late`` or ``forked``, where all of them are."""
        self.rows: list[Row] = []
        self.turns: list[tuple[int, Stage | Place | None]] = []
        """From which row on they belong to which place."""

    def parents(self) -> list[Stage | Place | None]:
        """Give the place of each row."""
        if len(self.turns) == 1:  # as of a bucket that has taken the requests of one parent alone
            return [self.turns[0][1]] * len(self.rows)
        found: list[Stage | Place | None] = []
        ends = [first for first, _ in self.turns[1:]]
        for (first, place), end in zip(self.turns, [*ends, len(self.rows)], strict=True):
            found += [place] * (end - first)
        return found


def place_of(parent: Any) -> Stage | Place | None:
    """Say what a parent is: a stage of ours, a span of somebody else, or nothing."""
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
            return Place(own, context.span_id)
    return None


def key_of(place: Stage | Place | None) -> Any:
    """Say which rollout a place belongs to: a stage that is one, else its step; all traces of others are together."""
    if place is None or place.trace is None:
        return None
    if isinstance(place, Stage) and place.name in ROLLOUTS:
        return place
    return place.trace if place.trace.step else place.trace.sampled


def apart(key: Any, rows: Table) -> Iterator[tuple[Table, bool]]:
    """Part the rows of a rollout from those that ended after its stage, where there are any; says which they are."""
    after: list[int] = []
    if isinstance(key, Stage) and key.name in ROLLOUTS and key.ended:
        end, now = key.ended + SLACK_NS, monotonic_ns()
        after = rows.ended_between(end, now)
    if not after:
        yield rows, False
        return
    yield rows.only(after), True
    within = sorted(set(range(len(rows.rows))).difference(after))
    if within:
        yield rows.only(within), False


class Stages:
    """The stages that were seen last, by span id: a stage itself knows only the id of its parent."""

    def __init__(self) -> None:
        self._known: dict[int, int | Above] = {}
        """The parent's id; of a stage that says something of the requests inside it, what it says."""
        self._before: dict[int, int | Above] = {}
        """What was known before: it goes once as many stages have been seen since."""

    def remember(self, stages: Iterable[Any]) -> None:
        """Take note of the stages among what is open, or has ended; it says of itself what it does by now."""
        if len(self._known) >= KNOWN_STAGES:
            self._known, self._before = {}, self._known
        known = self._known
        for stage in stages:
            if stage.__class__ is Stage:
                is_saying = stage.name in SAYING or (stage.attributes and v.MODE in stage.attributes)
                known[stage.span_id] = _above(stage) if is_saying else stage.parent_id

    def purposes(self, places: Iterable[Any]) -> dict[Any, Purpose]:
        """Say what the requests of each place are for, by the place, as far as that could be seen."""
        return {place: _purpose(self._upwards(place)) for place in places}

    def around(self, stage: Stage) -> tuple[Purpose, list[int]]:
        """Return what a stage is for, and the ids of the spans around it, the innermost first."""
        found = list(self._upwards(stage))
        return _purpose(found), [above.parent_id for above in found]

    def _upwards(self, place: Any) -> Iterator[Above]:
        above = _above(place) if isinstance(place, Stage) else self._find(place.span_id) if place else None
        for _ in range(DEEPEST):
            if above is None:
                break
            yield above
            above = self._find(above.parent_id)

    def _find(self, span_id: int) -> Above | None:
        found = self._known.get(span_id, self._before.get(span_id))
        return Above(found, is_evaluation=False, is_judging=False) if isinstance(found, int) else found


def _purpose(found: Iterable[Above]) -> Purpose:
    is_evaluation = is_judging = False
    for above in found:
        is_evaluation |= above.is_evaluation
        is_judging |= above.is_judging
    return Purpose(EVALUATION if is_evaluation else (), is_judging)


def _above(stage: Stage) -> Above:
    is_evaluation = stage.name == v.EVALUATE or (stage.attributes or {}).get(v.MODE) == "eval"
    return Above(stage.parent_id, is_evaluation, stage.name == v.REWARD)
