"""What the flusher counts in bulk is what it would count one record at a time, and what a plain reference counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl import guard
from otel_rl import vocabulary as v
from otel_rl.comm.collectives import SPANS_PER_STAGE, Collective, StageCollectives
from otel_rl.comm.groups import Group
from otel_rl.flusher import stage_metrics, step_time
from otel_rl.flusher.dispatch import Dispatcher
from otel_rl.flusher.open_stages import OpenStages
from otel_rl.metrics.record import Fold
from otel_rl.observing.book import book
from otel_rl.process.state import Trace
from otel_rl.records import Distribution, Point
from otel_rl.requests import parents
from otel_rl.requests.parents import EVALUATION, ForeignParent, Purpose, Stages
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage

fewer = settings(max_examples=50)

GROUPS = (None, Group("default", "default", 2), Group("tp 1", "tp", 2), Group("tp 2", "tp", 2))


@pytest.fixture(autouse=True)
def _nothing_open() -> Iterator[None]:
    """Nothing is left of what a test opens, nor of its errors."""
    yield
    tracing.open.clear()
    guard.errors.clear()


def collective(stage: Stage | None, began: int, ended: int, **about: Any) -> Collective:
    """Make one that is over."""
    made = Collective(about.get("operation", "all_reduce"), about.get("size", 0), about.get("group"))
    tracing.open.pop(made, None)
    made.stage, made.began, made.ended = stage, began, ended
    return made


# --- bulk against one at a time ---------------------------------------------------------------------------------------

TEXTS = {
    v.MODE: ("train", "eval"),
    v.LOGPROB_KIND: ("old", "ref"),
    v.REWARD_FUNCTION: ("accuracy", "format", ["a list"]),
    v.IDLE_REASON: ("data", "queue", "pipeline"),
    v.COMM_HIDDEN: (True, False),
    "rl.mine": (1, 2.5),
}
NAMES = (v.SAMPLE, v.REWARD, f"{v.REWARD} format", v.TRAIN, v.FORWARD, v.BACKWARD, v.IDLE, v.CHECKPOINT, "mine")

attributes = st.none() | st.fixed_dictionaries({}, optional={key: st.sampled_from(some) for key, some in TEXTS.items()})
lengths = st.integers(1, 20_000).map(lambda number: number * 1_953_125)
"""ns; 512ths of a second, whose sums are exact in any order."""
drawn_collective = st.tuples(
    st.just("comm"), lengths, st.sampled_from(["all_reduce", "barrier"]), st.integers(0, 3), st.sampled_from(GROUPS)
)
drawn_stage = st.tuples(st.sampled_from(NAMES), lengths, attributes, st.lists(drawn_collective, max_size=5))
drawn_step = st.tuples(st.booleans(), st.lists(drawn_stage | drawn_collective, max_size=6), st.booleans())
"""Whether it is sampled, what is in it, and whether it is a step at all: set-up has no number."""


def records(steps: list[Any]) -> list[Any]:
    """Make the records of some steps, one behind the other, in the order of their end."""
    made: list[Any] = []
    at = 0

    def finished(name: str, began: int, trace: Trace, about: Any, parent: int) -> Stage:
        stage = Stage(name, about and dict(about), coarse=name.startswith("rl."))
        stage.trace, stage.parent_id, stage.span_id = trace, parent, len(made) + 1_000
        stage.began, stage.ended = began, at
        return stage

    for number, (sampled, inside, is_step) in enumerate(steps):
        trace = Trace(number + 1, 0, sampled=sampled, step=f"train {number}")
        container = finished("rl.rank 0", at, trace, {v.ITERATION: number} if is_step else None, 0)
        for name, length, about, *more in inside:
            began = at
            if name == "comm":
                at += length
                made.append(collective(container, began, at, operation=about, size=more[0], group=more[1]))
                continue
            stage = finished(name, began, trace, about, container.span_id)
            for _, in_length, operation, size, group in more[0]:
                at += in_length
                made.append(collective(stage, at - in_length, at, operation=operation, size=size, group=group))
            at += length
            stage.ended = at
            made += [stage, Point("my.metric", at, at)]
        container.ended = at
        made.append(container)
    return made


@pytest.fixture(autouse=True, scope="module")
def without_exemplars() -> Iterator[None]:
    """What they say depends on the cycles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_metrics, "EXEMPLARS_S", math.nan)
        yield


def taken(made: list[Any], cycle: int) -> tuple[list[Any], dict[str, Any]]:
    """Take records in, so many a cycle; give the spans as they would be encoded, and the metrics."""
    fold = Fold(0)
    dispatcher = Dispatcher(fold)
    tracing.open.update(dict.fromkeys(one for one in made if isinstance(one, Stage)))
    spans = []
    for first in range(0, len(made), cycle):
        some = made[first : first + cycle]
        for one in some:
            tracing.open.pop(one, None)
        spans += dispatcher.dispatch(tuple(tracing.open), some, is_asked=False, is_all=True, is_last=False).spans
    told = [(one.name, one.parent_id, one.trace_id, one.start_ns, one.end_ns, one.attributes) for one in spans]
    return told, {points.name: {str(one.attributes): one for one in points.points} for points in fold.drain(0)}


@fewer
@given(st.lists(drawn_step, min_size=1, max_size=4), st.integers(2, 50))
def test_many_records_count_like_one_at_a_time(steps: list[Any], cycle: int) -> None:
    """The same spans, in the same order, and the same points."""
    assert taken(records(steps), 1) == taken(records(steps), cycle)


@fewer
@given(st.lists(drawn_step, min_size=1, max_size=4))
def test_durations_are_those_of_a_plain_count(steps: list[Any]) -> None:
    """Of each metric and its labels: how many, how long together, the shortest and the longest."""
    made = records(steps)
    expected: dict[tuple[str, str], list[float]] = {}
    for one in made:
        if isinstance(one, Point):
            continue
        seconds = (one.ended - one.began) / 1e9
        if isinstance(one, Collective):
            labels = {v.COMM_OPERATION: one.operation}
            if one.group is not None:
                labels[v.COMM_GROUP_KIND] = one.group.kind
            expected.setdefault((v.COMM_DURATION, str(labels)), []).append(seconds)
            continue
        about = one.attributes or {}
        row = v.STAGES.get("rl.loop" if one.name == "rl.rank 0" else one.name.partition(" ")[0])
        if one.name == "rl.rank 0" and v.ITERATION not in about:
            continue
        labels = {} if row else {v.STAGE: one.name}
        keys = (v.LOGPROB_KIND, v.REWARD_FUNCTION, v.IDLE_REASON, v.MODE)
        labels |= {key: about[key] for key in keys if isinstance(about.get(key), str)}
        expected.setdefault((row.duration if row else v.STAGE_DURATION, str(labels)), []).append(seconds)
    _, metrics = taken(made, 1_000)
    found = {
        (name, labels): (sum(one.counts), one.sum, one.min, one.max)
        for name, points in metrics.items()
        for labels, one in points.items()
        if isinstance(one, Distribution)
    }
    assert {key: (len(some), sum(some), min(some), max(some)) for key, some in expected.items()} == found


def test_a_record_that_fails_takes_no_other_with_it() -> None:
    """Wherever it fails: what is in front of it and behind it counts."""
    trace = Trace(1, 0, step="train 0")
    made: list[Any] = []
    for name, ended in (("mine", 3), (["no name"], 3), ("mine", None), ("mine", 5)):
        stage = Stage("", None)
        stage.name, stage.trace, stage.began, stage.ended = name, trace, 1, ended  # type: ignore[assignment]
        made.append(stage)
    broken = collective(made[0], 1, 2, operation=["no operation"])
    made = [made[0], broken, *made[1:], collective(made[3], 1, 3)]
    fold = Fold(0)
    Dispatcher(fold).dispatch((), made, is_asked=False, is_all=True, is_last=False)
    found = {points.name: points.points[0] for points in fold.drain(0)}
    assert (2, 1) == tuple(sum(found[name].counts) for name in (v.STAGE_DURATION, v.COMM_DURATION))  # type: ignore[union-attr]
    assert {
        "count a record": 1,
        "count the time of a stage": 2,
        "count the duration of a stage": 1,
        "count a collective": 1,
    } == dict(guard.errors)


# --- the collectives of one stage -------------------------------------------------------------------------------------

lasting = st.tuples(st.integers(0, 9), st.sampled_from([False, False, False, True]))
"""How long, and whether it is journaled as open."""


@pytest.mark.medium
@fewer
@given(st.lists(lasting, max_size=30) | st.lists(lasting, min_size=50, max_size=90), st.integers(1, 60))
def test_the_longest_are_those_of_a_sort(drawn: list[tuple[int, bool]], cycle: int) -> None:
    """Of equal length the earlier, in however many cycles they come; those that are journaled as open besides."""
    some = [collective(None, 0, length) for length, _ in drawn]
    for number, (one, (_, is_open)) in enumerate(zip(some, drawn, strict=True)):
        one.span_id = number + 1 if is_open else 0
    must = [one for one in some if one.span_id]
    free = sorted((one for one in some if not one.span_id), key=lambda one: -one.ended)
    inside = StageCollectives()
    for first in range(0, len(some), cycle):
        inside.ended += some[first : first + cycle]
        inside.add_up()
    omitted = len(free) - SPANS_PER_STAGE
    assert {
        v.COMM_COUNT: len(some),
        v.COMM_TIME: sum(length for length, _ in drawn) / 1e9,
        **({v.COMM_OMITTED: omitted} if omitted > 0 else {}),
    } == inside.attributes()
    assert {*must, *free[:SPANS_PER_STAGE]} == set(inside.spans())


# --- what a request is for --------------------------------------------------------------------------------------------


@fewer
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from([v.SAMPLE, v.EVALUATE, v.REWARD, "mine"]), attributes),
        max_size=30,
    )
)
def test_a_purpose_is_that_of_any_stage_around(drawn: list[Any]) -> None:
    """As a walk up to the root finds it."""
    stages: list[Stage] = []
    for number, (above, name, about) in enumerate(drawn):
        stage = Stage(name, about)
        stage.span_id, stage.parent_id = number + 1, above % (number + 1)
        stages.append(stage)

    def walk(span_id: int) -> Purpose:
        is_evaluation = is_judging = False
        while span_id:
            stage = stages[span_id - 1]
            is_evaluation |= stage.name == v.EVALUATE or (stage.attributes or {}).get(v.MODE) == "eval"
            is_judging |= stage.name == v.REWARD
            span_id = stage.parent_id
        return Purpose(EVALUATION if is_evaluation else (), is_judging)

    known = Stages()
    known.remember(reversed(stages))
    trace = Trace(1, 0)
    places = [ForeignParent(trace, stage.span_id) for stage in stages]
    assert {parents: walk(parents.span_id) for parents in places} == known.purposes(places)


def test_so_many_stages_are_known_and_no_more_than_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones; what a stage says later counts."""
    monkeypatch.setattr(parents, "KNOWN_STAGES", 10)
    known, trace = Stages(), Trace(1, 0)
    for number in range(1, 101):
        stage = Stage("mine")
        stage.span_id = number
        known.remember([stage, "none of ours"])
        stage.attributes = {v.MODE: "eval"}
        known.remember([stage])
        last = [ForeignParent(trace, one) for one in range(max(1, number - 9), number + 1)]
        assert dict.fromkeys(last, Purpose(EVALUATION, is_judging=False)) == known.purposes(last)
        assert len(known._known) + len(known._before) <= 20


# --- what is open -----------------------------------------------------------------------------------------------------


def test_what_has_ended_is_forgotten_once_it_is_counted() -> None:
    """As long as it was open a moment ago, or waits for its device, the journal would name it again."""
    opened = OpenStages()
    stages = []
    for number in range(4):
        stage = Stage(f"number {number}")
        stage.trace, stage.span_id, stage.began = Trace(1, 0), number + 1, 1
        stages.append(stage)
    tracing.open.update(dict.fromkeys(stages))
    assert 4 == len(opened.logs(stages, []))
    for stage in stages[:3]:
        stage.ended = 2
    opened.keep({stages[0]})
    assert [True, False, False, True] == [stage in opened for stage in stages]
    assert [] == opened.logs([stages[0], stages[3]], [])


def test_the_time_of_a_step_is_kept_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its collectives, too."""
    monkeypatch.setattr(step_time, "MOST_STAGES", 10)
    stage = Stage("mine")
    stage.trace = Trace(1, 0, step="train 1")
    times = step_time.StepTime(Fold(0))
    for number in range(25):
        times.add(iter([collective(stage, number, number + 1)]))
    (kept,) = times._steps.values()
    assert kept is not None
    assert ([(number, number + 1) for number in range(15, 25)], 15) == (
        kept.collectives,
        guard.errors["count the time of all stages of a step"],
    )


@pytest.mark.parametrize(
    ("is_all", "is_last", "expected"), [(False, True, False), (True, True, True), (True, False, False)]
)
def test_what_was_observed_is_closed_behind_the_last_record(
    monkeypatch: pytest.MonkeyPatch, is_all: bool, is_last: bool, expected: bool
) -> None:
    """At stop the records come slice by slice: a step's numbers are whole with the last slice only."""
    asked: list[bool] = []

    def due(late: object, stages: object, *, is_last: bool) -> list[object]:
        asked.append(is_last)
        return []

    monkeypatch.setattr(book, "is_open", True)
    monkeypatch.setattr(book, "due", due)
    Dispatcher(Fold(0)).dispatch((), [], is_asked=False, is_all=is_all, is_last=is_last)
    assert [expected] == asked
