"""Random runs of ranks that meet in collectives, as spans of a journal, and what an all-seeing clock says of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from otel_rl import vocabulary as v
from otel_rl.journal.read import SpanView
from otel_rl.records import Value
from otel_rl.report.data.ranks import Rank

KINDS = {
    v.REWARD: "productive",
    v.FORWARD: "productive",
    v.BACKWARD: "productive",
    v.OPTIMIZER: "productive",
    v.CHECKPOINT: "overhead",
    v.IDLE: "idle",
    "mine": "other",
}
UPDATE = (v.FORWARD, v.BACKWARD, v.OPTIMIZER)


@dataclass(frozen=True)
class Call:
    """One call of a stage on every rank, and the collective at its end, if there is one."""

    stage: str
    own: tuple[int, ...]
    transfer: int | None


@dataclass(frozen=True)
class PlayedStep:
    """What the ranks do in one step; then they do nothing, some longer than others, in the step and behind it."""

    calls: tuple[Call, ...]
    rest: tuple[int, ...]
    pause: tuple[int, ...]
    is_skipped: bool
    """The optimizer skips its update."""


@dataclass(frozen=True)
class Start:
    """One attempt."""

    first: int
    setup: int
    steps: tuple[PlayedStep, ...]


@dataclass
class Truth:
    """Of one step of one rank, or of what is no step."""

    begin: int
    end: int
    number: int | None
    own: Counter[str] = field(default_factory=Counter)
    """Time by stage without collectives."""
    wait: Counter[str] = field(default_factory=Counter)
    transfer: Counter[str] = field(default_factory=Counter)
    wasted: int = 0


@dataclass
class Game:
    """A run: what was recorded, and what is true by attempt and rank."""

    spans: list[SpanView] = field(default_factory=list, repr=False)
    truth: dict[tuple[str, Rank], list[Truth]] = field(default_factory=dict)


def play(starts: list[Start], clocks: tuple[int, ...]) -> Game:
    """Play a run; each rank records by its own clock."""
    game, ids, now = Game(), itertools.count(1), 0
    for number, start in enumerate(starts):
        attempt = f"attempt {number}"
        times = [now + start.setup] * len(clocks)
        for rank, clock in enumerate(clocks):
            game.truth[attempt, Rank("trainer", rank)] = [Truth(now + clock, now + start.setup + clock, None)]
            writer = _Writer(game.spans, ids, attempt, rank, trace=number * 1000)
            writer.container(now + clock, now + start.setup + clock, None)
        for place, step in enumerate(start.steps):
            times = _play_step(game, ids, step, attempt, start.first + place, clocks, times, number * 1000 + place + 1)
        now = max(times) + 1
    game.spans.sort(key=lambda span: (span.journal.identity.writer, span.end_ns))
    return game


def _play_step(
    game: Game,
    ids: Iterator[int],
    step: PlayedStep,
    attempt: str,
    number: int,
    clocks: tuple[int, ...],
    times: list[int],
    trace: int,
) -> list[int]:
    writers = [_Writer(game.spans, ids, attempt, rank, trace) for rank in range(len(clocks))]
    containers = [next(ids) for _ in clocks]
    truths = [Truth(time + clock, 0, number) for time, clock in zip(times, clocks, strict=True)]
    for call in step.calls:
        arrived = [time + own for time, own in zip(times, call.own, strict=True)]
        left = arrived if call.transfer is None else [max(arrived) + call.transfer] * len(times)
        for rank, clock in enumerate(clocks):
            is_last = call.stage == v.OPTIMIZER and step.is_skipped
            writers[rank].call(
                containers[rank], call.stage, times[rank] + clock, arrived[rank] + clock, left[rank] + clock, is_last
            )
            truths[rank].own[call.stage] += call.own[rank]
            truths[rank].wait[call.stage] += 0 if call.transfer is None else max(arrived) - arrived[rank]
            truths[rank].transfer[call.stage] += call.transfer or 0
        times = left
        if call.stage == v.OPTIMIZER and step.is_skipped:
            for truth in truths:
                done = (truth.own, truth.wait, truth.transfer)
                truth.wasted = sum(part[stage] for part in done for stage in UPDATE)
    for rank, clock in enumerate(clocks):
        truths[rank].end = times[rank] + step.rest[rank] + clock
        writers[rank].container(truths[rank].begin, truths[rank].end, number, containers[rank])
        game.truth[attempt, Rank("trainer", rank)].append(truths[rank])
    return [time + rest + pause for time, rest, pause in zip(times, step.rest, step.pause, strict=True)]


class _Writer:
    def __init__(self, spans: list[SpanView], ids: Iterator[int], attempt: str, rank: int, trace: int) -> None:
        self._spans, self._ids, self._rank, self._trace = spans, ids, rank, trace
        self._resource: dict[str, Value] = {v.ATTEMPT_ID: attempt, v.ROLE: "trainer", v.RANK: rank}
        self._journal: Any = SimpleNamespace(identity=SimpleNamespace(writer=f"{attempt} {rank}", boot_id="boot"))

    def container(self, begin: int, end: int, number: int | None, span_id: int | None = None) -> None:
        attributes: dict[str, Value] = {} if number is None else {v.ITERATION: number, v.LOOP_NAME: "train"}
        self._span(f"{v.RANK_SPAN} {self._rank}", begin, end, span_id or next(self._ids), 1 << 40, attributes)

    def call(self, parent: int, stage: str, begin: int, arrived: int, left: int, is_skipped: bool) -> None:
        span_id = next(self._ids)
        attributes: dict[str, Value] = {v.COMM_COUNT: 1, v.COMM_TIME: (left - arrived) / 1e9}
        attributes |= {v.IDLE_REASON: "data"} if stage == v.IDLE else {}
        attributes |= {v.OPTIMIZER_SKIPPED: True} if is_skipped else {}
        self._span(stage, begin, left, span_id, parent, attributes)
        if left > arrived:
            self._span(v.COMM, arrived, left, next(self._ids), span_id, {v.COMM_OPERATION: "all_reduce"})

    def _span(self, name: str, begin: int, end: int, span_id: int, parent: int, attributes: dict[str, Value]) -> None:
        trace = self._trace.to_bytes(16, "big")
        ids = span_id.to_bytes(8, "big"), parent.to_bytes(8, "big")
        self._spans.append(SpanView(name, trace, *ids, begin, end, 0, attributes, self._resource, self._journal))


@st.composite
def games(draw: st.DrawFn) -> Game:
    """Draw a run of up to three ranks and three attempts, of up to ten steps each."""
    count = draw(st.integers(1, 3))
    times = st.tuples(*[st.integers(0, 40)] * count)
    stages = st.lists(st.sampled_from([stage for stage in KINDS if stage != v.OPTIMIZER]), min_size=0, max_size=5)
    starts: list[Start] = []
    reached = 0
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.integers(0, reached))
        steps: list[PlayedStep] = []
        for _ in range(draw(st.integers(0, 10))):
            names = draw(stages) + draw(st.sampled_from([[], [v.OPTIMIZER]]))
            calls = [
                Call(name, draw(times), None if name == v.IDLE else draw(st.none() | st.integers(0, 20)))
                for name in names
            ]
            steps.append(PlayedStep(tuple(calls), draw(times), draw(times), draw(st.booleans())))
        starts.append(Start(first, draw(st.integers(0, 50)), tuple(steps)))
        reached = first + len(steps)
    clocks = draw(st.tuples(*[st.integers(10**18, 10**18 + 10**12)] * count))
    return play(starts, clocks)
