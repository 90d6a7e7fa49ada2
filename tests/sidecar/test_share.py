"""What of a trace ships: all below the share; above it no more than must be, and never a span without its parents."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl import vocabulary
from otel_rl.journal.frame import TYPES, Frame
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.sidecar.ship import trace_budget
from otel_rl.sidecar.ship.trace_budget import Share
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


def ship(share: Share, frames: Sequence[Frame], writer: str = "w") -> list[bytes]:
    """Ship frames one by one, each in a batch of its own; give the requests."""
    payloads = []
    for frame in frames:
        draft = share.draft()
        chosen = draft.select(writer, frame)
        assert chosen.records == len(records_of("traces", chosen.payload))
        assert frame.count == chosen.records - chosen.fetched + chosen.left_out
        draft.commit()
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


def test_below_the_share_the_very_bytes_go() -> None:
    """Half of the share is for everybody."""
    frames = [frame_of([span(100 * number + n) for n in range(20)]) for number in range(1, 6)]
    assert [frame.payload for frame in frames] == ship(Share(2 * 25_000), frames)


@pytest.mark.medium
def test_above_it_less_and_less_goes() -> None:
    """The first half whole, then ever fewer; never above the share, whatever its size."""
    frames = [frame_of([span(1000 * number + n) for n in range(1, 101)]) for number in range(1, 101)]
    for limit in (0, 100, 20_000, 333_333):
        payloads = ship(Share(limit), frames)
        assert size_of(payloads) <= limit
        assert size_of(payloads) > 0.6 * limit - 300
    first, *_, last = ship(Share(20_000 * 10), frames)
    assert (frames[0].payload, True) == (first, size_of([last]) < 2000)


def test_the_longest_go_before_others() -> None:
    """Where most are left out already, those that last longer than all before are not; within the share."""
    spans = [span(n) for n in range(2, 902)]
    slow = list(range(802, 902, 10))
    for number in slow:
        spans[number - 2].end_ns = NS + 1_000_000 * number
    payloads = ship(Share(60_000), [frame_of(spans[begin : begin + 100]) for begin in range(0, 900, 100)])
    found = shipped(payloads)
    assert set(slow) <= set(found)
    assert len(found) < 400
    assert size_of(payloads) <= 60_000


def test_the_world_shares() -> None:
    """Each of so many ranks has that part."""
    spans = [span(n) for n in range(2, 2001)]
    for world_size in (1, 2, 8, 100):
        payloads = ship(Share(200_000), [frame_of(spans, world_size)])
        assert 0.6 * 200_000 / world_size - 300 < size_of(payloads) <= 200_000 / world_size


def test_each_writer_has_its_own_share() -> None:
    """Two of a node do not count for each other."""
    share = Share(20_000)
    one = ship(share, [frame_of([span(n) for n in range(2, 500)])], "one")
    two = ship(share, [frame_of([span(n) for n in range(1001, 1500)])], "two")
    assert 0.6 * 20_000 < size_of(one) <= 20_000
    assert 0.6 * 20_000 < size_of(two) <= 20_000


def test_what_must_go_goes() -> None:
    """Errors, what was cut off, and what holds a trace together."""
    must = [
        span(1, 0, f"{vocabulary.LOOP} 7"),
        span(2, 1, f"{vocabulary.RANK_SPAN} 3"),
        span(3, 2, vocabulary.SETUP),
        span(4, 2, "failed", status=(2, "no")),
        span(5, 2, "cut", attributes={vocabulary.TRUNCATED: True}),
    ]
    frame = frame_of([*must, span(6, 2), span(7, 2, status=(1, ""))])
    assert {1, 2, 3, 4, 5} == set(shipped(ship(Share(0), [frame])))


@pytest.mark.parametrize("mark", [vocabulary.REQUEST_ABORTED, vocabulary.REQUEST_TIMED_OUT])
def test_aborts_go_where_the_share_is_used_up(mark: str) -> None:
    """Requests that were aborted or timed out have no error status; they are what people look for."""
    aborted = [span(2000 + n, attributes={mark: True}) for n in range(20)]
    share = Share(60_000)
    ship(share, [frame_of([span(100 * frame + n) for n in range(100)]) for frame in range(1, 11)])
    assert {made.span_id for made in aborted} == set(shipped(ship(share, [frame_of(aborted)])))


def errors(count: int, parents: int) -> list[FakeSpan]:
    """Make spans of about 1 kB that failed, below so many parents."""
    text = {"text": "x" * 900}
    return [span(10**6 + n, 100 + n % parents, status=(2, "no"), attributes=text) for n in range(count)]


def cut(spans: Sequence[FakeSpan], size: int = 500) -> list[Frame]:
    """Cut spans into frames."""
    return [frame_of(spans[begin : begin + size]) for begin in range(0, len(spans), size)]


@pytest.mark.parametrize("world_size", [1, 4])
def test_errors_have_a_bound(world_size: int) -> None:
    """Ten thousand of them leave a trace that its store takes; none of one rank takes the part of another."""
    spans = errors(10_000, 10)
    frames = [frame_of(spans[begin : begin + 500], world_size) for begin in range(0, 10_000, 500)]
    payloads = ship(Share(), frames)
    assert 0.9 * trace_budget.TRACE_BYTES / world_size < size_of(payloads) <= trace_budget.TRACE_BYTES / world_size


def test_errors_below_one_span_are_few() -> None:
    """As all siblings."""
    spans = [span(10**6 + n, status=(2, "no")) for n in range(10_000)]
    found = shipped(ship(Share(), cut(spans)))
    assert 0.9 * trace_budget.SIBLINGS < len(found) <= trace_budget.SIBLINGS


@pytest.mark.medium
def test_errors_go_before_what_came_before_them() -> None:
    """However much there was, room is left for some of them."""
    spans = [span(n, 10 + n % 50, attributes={"text": "x" * 900}) for n in range(1000, 21_000)]
    for number, made in enumerate(spans):
        made.end_ns = NS + number  # each longer than all before
    share = Share()
    used = size_of(ship(share, cut(spans)))
    payloads = ship(share, cut(errors(1000, 1)))
    assert 0.8 * trace_budget.TRACE_BYTES < used <= trace_budget.SHARE_BYTES
    assert len(shipped(payloads)) > 300
    assert used + size_of(payloads) <= trace_budget.TRACE_BYTES


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[Frame], dict[int, int]]:
    """Failed, aborted and other spans of about 200 bytes, below parents that come before or behind them."""
    parents = draw(st.integers(1, 80))
    kinds: list[dict[str, object]] = [{}, {"status": (2, "")}, {"attributes": {vocabulary.REQUEST_ABORTED: True}}]
    made = [span(100 + n) for n in range(parents)]
    made += [
        span(1000 + n, 100 + n % parents, **draw(st.sampled_from(kinds))) for n in range(draw(st.integers(1, 200)))
    ]
    order = draw(st.sampled_from(["parents first", "children first", "any"]))
    if order == "children first":
        made.reverse()
    elif order == "any":
        random.Random(draw(st.integers(0, 99))).shuffle(made)
    return cut(made, draw(st.integers(1, 100))), {one.span_id: one.parent_id for one in made}


@pytest.mark.medium
@settings(max_examples=200)
@given(crowds(), st.integers(2000, 40_000), st.integers(2, 60))
def test_no_crowd_goes_beyond_the_bounds(crowd: tuple[list[Frame], dict[int, int]], most: int, siblings: int) -> None:
    """Neither in bytes nor in siblings, whatever fails, with the parents of all that is shipped."""
    frames, parents = crowd
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_budget, "SIBLINGS", siblings)
        payloads = ship(Share(most // 2, most), frames)
    found = shipped(payloads)
    assert size_of(payloads) <= most
    assert max(Counter(parents[number] for number in found).values(), default=0) <= siblings
    assert {parents[number] for number in found} - {ROOT} <= set(found)


def test_siblings_are_few() -> None:
    """Jaeger's limit holds however small spans are."""
    frames = [frame_of([span(5000 * n + m, ROOT) for m in range(2000)]) for n in range(1, 5)]
    found = shipped(ship(Share(1 << 30), frames))
    assert 0.6 * trace_budget.SIBLINGS < len(found) <= trace_budget.SIBLINGS
    assert 800 == len(shipped(ship(Share(1 << 30), [frame_of([span(n) for n in range(2, 802)], 1000)])))


def test_a_retry_chooses_the_same() -> None:
    """A batch that was not accepted counts for nothing."""
    frames = [frame_of([span(1000 * number + n) for n in range(1, 101)]) for number in range(1, 20)]
    share = Share(100_000)
    patient = ship(share, frames)
    share = Share(100_000)
    payloads = []
    for frame in frames:
        for _ in range(3):
            again = share.draft().select("w", frame)
        draft = share.draft()
        assert again == draft.select("w", frame)
        draft.commit()
        payloads.append(again.payload)
    assert patient == payloads


def test_memory_is_bounded() -> None:
    """Traces and spans that are long gone are forgotten, a trace that goes on is not."""
    share = Share()
    traces = trace_budget.KEPT_TRACES + 10
    for number in range(traces):
        ship(share, [frame_of([span(100 + number, trace_id=1000 + number), span(10**6 + number)])])
    assert trace_budget.KEPT_TRACES == len(share.traces)
    assert traces == share.traces[TRACE.to_bytes(16, "big")].children[ROOT.to_bytes(8, "big")]
    share = Share(0)
    ship(share, [frame_of([span(10**7 * number + n) for n in range(3000)]) for number in range(1, 5)])
    assert trace_budget.KEPT_SPANS == len(share.left_out)


def test_what_is_no_request_goes_as_it_is() -> None:
    """The other side says what it thinks of it."""
    frame = Frame(1, 3, 1, 2, b"\xff\xff\xff", 0)
    assert (frame.payload, 3, 0, 0) == Share().draft().select("w", frame)


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[list[FakeSpan]], int]:
    """Spans of one tree in any order and in any frames, and a share."""
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
    """Whatever is written first and however it is cut into frames; errors always go, nothing goes twice or changed."""
    groups, limit = drawn
    frames = [frame_of(spans) for spans in groups]
    written = shipped([frame.payload for frame in frames])
    payloads = ship(Share(limit), frames)
    assert payloads == ship(Share(limit), frames)
    found = shipped(payloads)
    assert found.items() <= written.items()
    parents = {made.span_id: made.parent_id for spans in groups for made in spans}
    errors = {made.span_id for spans in groups for made in spans if made.status}
    assert errors <= set(found)
    assert {parents[number] for number in found} - {0} <= set(found)
