"""What of a trace is sent: all below half of the budget, above it ever less, and never a span without its parents."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl import vocabulary
from otel_rl.journal.frame import TYPES, Frame
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.sidecar.ship import trace_budget
from otel_rl.sidecar.ship.trace_budget import TraceBudget
from tests.made_runs import FakeSpan
from tests.sink import records_of

NS = 1_700_000_000_000_000_000
TRACE = 77
ROOT = 1


def span(number: int, parent: int = ROOT, name: str = "work", **more: object) -> FakeSpan:
    """Make a span of about 200 bytes."""
    made = FakeSpan(name, TRACE, number, parent, NS, NS + 1, {"text": "x" * 150})
    for key, value in more.items():
        setattr(made, key, value)
    return made


def frame_of(spans: Sequence[FakeSpan], world_size: int = 1) -> Frame:
    """Make the frame that a rank writes."""
    (request,) = SpanEncoder({vocabulary.WORLD_SIZE: world_size, "rl.rank": 0}, "1").encode(spans)
    return Frame(TYPES["traces"], request.count, request.first_ns, request.last_ns, request.payload, 0)


def ship(budget: TraceBudget, frames: Sequence[Frame], writer: str = "w") -> list[bytes]:
    """Ship frames one by one, one after the other; return the requests."""
    payloads = []
    for frame in frames:
        chosen = budget.choose(writer, frame.payload, frame.count)
        assert chosen.records == len(records_of("traces", chosen.payload))
        assert frame.count == chosen.records - chosen.fetched + chosen.left_out
        payloads.append(chosen.payload)
    return payloads


def shipped(payloads: Sequence[bytes]) -> dict[int, bytes]:
    """The spans by id, each once."""
    spans = [record for payload in payloads for record in records_of("traces", payload)]
    found = {int.from_bytes(span.span_id, "big"): span.SerializeToString(deterministic=True) for span in spans}
    assert len(found) == len(spans)
    return found


def size_of(payloads: Sequence[bytes]) -> int:
    """Bytes of the spans."""
    return sum(map(len, shipped(payloads).values()))


def test_below_half_of_the_budget_the_very_bytes_go() -> None:
    """Whatever the spans are."""
    frames = [frame_of([span(100 * number + n) for n in range(20)]) for number in range(1, 6)]
    assert [frame.payload for frame in frames] == ship(TraceBudget(2 * 26_000), frames)


@pytest.mark.medium
def test_above_it_ever_less_goes() -> None:
    """The first half whole, then ever fewer; never above nine tenths, whatever the budget."""
    frames = [frame_of([span(1000 * number + n) for n in range(1, 101)]) for number in range(1, 101)]
    for limit in (0, 100, 20_000, 333_333):
        payloads = ship(TraceBudget(limit), frames)
        assert 0.6 * limit - 1300 < size_of(payloads) <= 0.9 * limit
    first, *_, last = ship(TraceBudget(20_000 * 10), frames)
    assert (frames[0].payload, True) == (first, size_of([last]) < 2000)


def test_the_longest_go_before_others() -> None:
    """Where most are left out already, those that last longer than all before are sent."""
    spans = [span(n) for n in range(2, 902)]
    slow = list(range(802, 902, 10))
    for number in slow:
        spans[number - 2].end_ns = NS + 1_000_000 * number
    payloads = ship(TraceBudget(66_000), [frame_of(spans[begin : begin + 100]) for begin in range(0, 900, 100)])
    assert set(slow) <= set(shipped(payloads))
    assert size_of(payloads) <= 60_000


def test_each_rank_has_its_part() -> None:
    """Each of so many ranks has that part, and two of a node do not count for each other."""
    spans = [span(n) for n in range(2, 2001)]
    for world_size in (1, 2, 8, 100):
        budget = TraceBudget(200_000)
        for writer in ("one", "two"):
            size = size_of(ship(budget, [frame_of(spans, world_size)], writer))
            assert 0.6 * 200_000 / world_size - 1300 < size <= 200_000 / world_size


def test_what_holds_a_trace_together_goes() -> None:
    """The step, set-up and the containers of ranks, without any budget."""
    must = [span(1, 0, f"{vocabulary.LOOP} 7"), span(2, 1, f"{vocabulary.RANK_SPAN} 3"), span(3, 2, vocabulary.SETUP)]
    frame = frame_of([*must, span(6, 2), span(7, 2, status=(1, ""))])
    assert {1, 2, 3} == set(shipped(ship(TraceBudget(0), [frame])))


OUTLIERS = [
    {"status": (2, "no")},
    {"attributes": {vocabulary.TRUNCATED: True}},
    {"attributes": {vocabulary.REQUEST_ABORTED: True}},
    {"attributes": {vocabulary.REQUEST_TIMED_OUT: True}},
]


@pytest.mark.parametrize("mark", OUTLIERS)
def test_outliers_go_where_the_sample_is_used_up(mark: dict[str, object]) -> None:
    """The last tenth is for errors and for what people look for."""
    found = [span(2000 + n, **mark) for n in range(20)]
    budget = TraceBudget(60_000)
    ship(budget, [frame_of([span(100 * frame + n) for n in range(100)]) for frame in range(1, 11)])
    assert {made.span_id for made in found} == set(shipped(ship(budget, [frame_of(found)])))


def errors(count: int, parents: int) -> list[FakeSpan]:
    """Make spans of about 1 kB that failed, below so many parents."""
    text = {"text": "x" * 900}
    return [span(10**6 + n, 100 + n % parents, status=(2, "no"), attributes=text) for n in range(count)]


@pytest.mark.parametrize("world_size", [1, 4])
def test_errors_have_a_bound(world_size: int) -> None:
    """Ten thousand of them leave a trace that its store takes; none of one rank takes the part of another."""
    spans = errors(10_000, 10)
    frames = [frame_of(spans[begin : begin + 500], world_size) for begin in range(0, 10_000, 500)]
    size = size_of(ship(TraceBudget(), frames))
    assert 0.9 * trace_budget.TRACE_BYTES / world_size < size <= trace_budget.TRACE_BYTES / world_size


def test_siblings_are_few() -> None:
    """Jaeger's limit holds however small spans are, for errors too."""
    frames = [frame_of([span(5000 * n + m, ROOT) for m in range(2000)]) for n in range(1, 5)]
    assert 0.6 * trace_budget.SIBLINGS < len(shipped(ship(TraceBudget(1 << 30), frames))) <= trace_budget.SIBLINGS
    failed = [frame_of([span(5000 * n + m, ROOT, status=(2, "")) for m in range(2000)]) for n in range(1, 5)]
    assert trace_budget.SIBLINGS == len(shipped(ship(TraceBudget(1 << 30), failed)))


def test_memory_is_bounded() -> None:
    """Traces and spans of long ago are forgotten, a trace that goes on is not."""
    budget = TraceBudget()
    traces = trace_budget.KEPT_TRACES + 10
    for number in range(traces):
        ship(budget, [frame_of([span(100 + number, trace_id=1000 + number), span(10**6 + number)])])
    assert trace_budget.KEPT_TRACES == len(budget.traces)
    assert traces == budget.traces[TRACE.to_bytes(16, "big")].children[ROOT.to_bytes(8, "big")]
    budget = TraceBudget(0)
    ship(budget, [frame_of([span(10**7 * number + n) for n in range(3000)]) for number in range(1, 5)])
    assert trace_budget.KEPT_SPANS == len(budget.left_out)


def test_what_is_no_request_goes_as_it_is() -> None:
    """The server refuses it."""
    assert (b"\xff\xff\xff", 3, 0, 0) == TraceBudget().choose("w", b"\xff\xff\xff", 3)


def test_what_was_closed_is_left_out() -> None:
    """Also where there is room."""
    frame = frame_of([span(2), span(3)])
    chosen = TraceBudget().choose("w", frame.payload, frame.count, {(3).to_bytes(8, "big")})
    assert ([2], 1) == (list(shipped([chosen.payload])), chosen.left_out)


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[list[FakeSpan]], int]:
    """Spans of one tree in any order and in any frames, and a budget."""
    count = draw(st.integers(1, 60))
    errors = draw(st.sets(st.integers(2, count + 1), max_size=3))
    spans = [span(ROOT, 0)]
    for number in range(2, count + 1):
        spans.append(span(number, draw(st.integers(1, number - 1)), status=(2, "") if number in errors else None))
    order = draw(st.sampled_from(["parents first", "children first", "any"]))
    if order == "children first":
        spans.reverse()
    elif order == "any":
        random.Random(draw(st.integers(0, 99))).shuffle(spans)
    frames, rest = [], spans
    while rest:
        size = draw(st.integers(1, len(rest)))
        frames.append(rest[:size])
        rest = rest[size:]
    return frames, draw(st.integers(0, 15_000))


@pytest.mark.medium
@settings(max_examples=300)
@given(trees())
def test_every_shipped_span_has_its_parents(drawn: tuple[list[list[FakeSpan]], int]) -> None:
    """Whatever is written first and however it is cut into frames; nothing goes twice or changed."""
    groups, limit = drawn
    frames = [frame_of(spans) for spans in groups]
    written = shipped([frame.payload for frame in frames])
    payloads = ship(TraceBudget(limit), frames)
    assert payloads == ship(TraceBudget(limit), frames)
    found = shipped(payloads)
    assert found.items() <= written.items()
    parents = {made.span_id: made.parent_id for spans in groups for made in spans}
    assert {parents[number] for number in found} - {0} <= set(found)
