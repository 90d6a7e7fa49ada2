"""The C that encodes spans: the same bytes as in Python, nothing kept."""

from __future__ import annotations

import math
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_rl.journal.in_c import find_native
from otel_rl.journal.otlp import encode
from otel_rl.journal.otlp.clean import MAX_TEXT, UNENCODABLE
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.process.state import Trace
from otel_rl.trace.stage import Stage

MOST, TEXT = 4, 20
REFUSED = "refused"
Way = Callable[..., bytes]
Span = tuple[Any, ...]


def in_c(max_text: int) -> Way:
    """Return what encodes a span in C."""
    return partial(encode.native.span, MOST, max_text, MAX_TEXT) if encode.native else in_python


class Finished(NamedTuple):
    """A span as the encoder takes it."""

    trace_id: Any
    span_id: Any
    parent_id: Any
    name: Any
    kind: Any
    start_ns: Any
    end_ns: Any
    status: Any
    attributes: Any
    events: Any = None
    links: Any = None


def in_python(*span: Any) -> bytes:
    """Encode a span in Python."""
    return SpanEncoder({})._in_python(Finished(*span))[0]


C = in_c(TEXT)
needs_both = pytest.mark.skipif(encode.native is None, reason="no compiler where otel_rl was installed")

texts = st.text(max_size=TEXT + 2)  # surrogates are among them
names = st.one_of(st.text(max_size=12), st.sampled_from(["rl.reward", "x" * MAX_TEXT, "x" * (MAX_TEXT + 1)]))
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 63), (1 << 64)),
    st.floats(),
    texts,
    st.tuples(texts),
    st.tuples(texts, texts),
    st.tuples(st.integers()),
    st.just(()),
    st.lists(texts, max_size=2),
    st.binary(max_size=3),
)
numbers = st.one_of(st.integers(-1, 3), st.integers(0, (1 << 64) - 1), st.just(1 << 64))
spans = st.tuples(
    st.one_of(st.integers(-1, 3), st.integers(0, (1 << 128) - 1), st.just(1 << 128)),
    numbers,
    numbers,
    names,
    st.one_of(st.integers(0, 5), st.just(1 << 31)),
    numbers,
    numbers,
    st.one_of(st.none(), st.tuples(st.one_of(st.integers(0, 2), st.just((1 << 64) - 1)), texts)),
    st.one_of(st.none(), st.dictionaries(names, values, max_size=MOST + 1)),
)
plain: Span = (1 << 100, 5, 0, "rl.reward", 1, 10, 20, None, {})
ANCHOR = 7
ROOM = 1 << 20


def stage_of(span: Span) -> Any:
    """Make the stage of which this is the span."""
    trace_id, span_id, parent_id, name, kind, start, end, status, attributes = span
    made: Any = Stage(name, attributes)
    made.trace, made.span_id, made.parent_id = Trace(trace_id, ANCHOR), span_id, parent_id
    made.began, made.ended, made.kind, made.status = start - ANCHOR, end - ANCHOR, kind, status
    return made


def together(stages: list[Any], room: int = ROOM) -> tuple[bytes, int, int, int]:
    """Encode them as far as it goes."""
    assert encode.native is not None
    found: tuple[bytes, int, int, int] = encode.native.stages(MOST, TEXT, MAX_TEXT, Stage, room, stages, 0, len(stages))
    return found


def encoded(way: Way, span: Span) -> Any:
    """Encode a span, or say that it must be cleaned first."""
    try:
        return way(*span)
    except UNENCODABLE:
        return REFUSED


def whole(span: Span) -> Any:
    """Encode in C; Python writes the same bytes, unless the span has to be cleaned."""
    found = encoded(C, span)
    start, end = span[5:7]
    if found is not REFUSED and end >= start:
        assert in_python(*span) == found
    return found


def is_plain(span: Span) -> bool:
    """Whether nothing has to be cleaned and all numbers fit their fields."""
    *numbers_, name, kind, start, end, status, attributes = span
    kinds = {bool, int, float, str}
    code, message = status or (0, "")
    texts_ = [message, *(value for value in (attributes or {}).values() if type(value) is str)]
    return (
        0 <= numbers_[0] < 1 << 128
        and all(0 <= number < 1 << 64 for number in (*numbers_[1:], start, end))
        and kind < 1 << 31
        and code < 1 << 31
        and len(attributes or {}) <= MOST
        and all(len(text) <= MAX_TEXT and text.isascii() for text in (name, *(attributes or {})))
        and all(len(text) <= TEXT and text.isascii() for text in texts_)
        and "" not in (attributes or {})
        and all(type(value) in kinds for value in (attributes or {}).values())
        and all(-(1 << 63) <= value < 1 << 63 for value in (attributes or {}).values() if type(value) is int)
    )


@pytest.mark.medium
@needs_both
@settings(max_examples=2000)
@given(spans)
@example((0, 0, 0, "", 0, 0, 0, (0, ""), None))
@example((*plain[:-1], {"k": math.nan, "l": -0.0, "m": -math.inf}))
@example((*plain[:-1], {"k": -(1 << 63), "l": (1 << 63) - 1, "m": True, "n": ("x" * TEXT,)}))
def test_both_ways_write_the_same_bytes(span: Span) -> None:
    """C refuses only what has to be cleaned."""
    assert whole(span) is not REFUSED or not is_plain(span)


@pytest.mark.medium
@needs_both
@settings(max_examples=1000)
@given(st.lists(spans, max_size=4))
@example([])
@example([plain, (*plain[:5], 20, 10, None, {}), plain])
@example([plain, (*plain[:5], (1 << 61) - 1, (1 << 61), None, {})])
def test_many_are_written_as_one_by_one(some: list[Span]) -> None:
    """Up to the first that must be cleaned; that one has left nothing, and no time."""
    written: list[bytes] = []
    firsts, lasts = [(1 << 64) - 1], [0]
    for span in some:
        data, (start, end) = whole(span), span[5:7]
        if data is REFUSED or end < start or end - ANCHOR >= 1 << 61:
            break
        written.append(data)
        firsts.append(start)
        lasts.append(end)
    assert (b"".join(written), len(written), min(firsts), max(lasts)) == together([stage_of(span) for span in some])


@needs_both
def test_many_stop_where_one_is_something_else() -> None:
    """Of another class, with events or links, without a trace, or beyond the room that is left."""
    first, *others = (stage_of(plain) for _ in range(6))
    others[0].events, others[1].links, others[2].trace, others[3].began = [], [], None, 2.5
    others[4].__class__ = type("Own", (Stage,), {"__slots__": ()})
    one = whole(plain)
    assert [(one, 1, 10, 20)] * 6 == [together([first, other]) for other in (*others, "a span")]
    assert (one, 1, 10, 20) == together([first, first], room=2 * len(one) - 1)
    assert (one * 2, 2, 10, 20) == together([first, first], room=2 * len(one))
    assert (b"", 0, (1 << 64) - 1, 0) == together([first], room=len(one) - 1)


@needs_both
def test_many_stop_in_front_of_what_is_not_whole() -> None:
    """A stage whose constructor was never called has no fields."""
    assert (whole(plain), 1, 10, 20) == together([stage_of(plain), Stage.__new__(Stage)])


@needs_both
@pytest.mark.parametrize("length", [*range(100, 132), 4_000, 4_096, 16_500, 70_000])
def test_lengths_of_any_number_of_bytes(length: int) -> None:
    """Where a length takes two bytes or three, and where a message outgrows its first room."""
    span = (*plain[:-1], {"a": 1, "k": "\u00e9" * length, "t": ("y" * length,), "z": 2.5})
    encoder = SpanEncoder({}, max_text=1 << 20)
    first, second = in_c(1 << 20)(*span), encoder._in_python(Finished(*span))[0]
    assert second == first
    assert len(first) > 3 * length


@needs_both
@pytest.mark.parametrize(
    "wrong",
    [
        ("1", 5, 0, "n", 1, 0, 0, None, {}),
        (1, 5.0, 0, "n", 1, 0, 0, None, {}),
        (1, 5, 0, b"n", 1, 0, 0, None, {}),
        (1, 5, 0, "n", 1, 0, 0, "status", {}),
        (1, 5, 0, "n", 1, 0, 0, (1,), {}),
        (1, 5, 0, "n", 1, 0, 0, None, ["k"]),
        (1, 5, 0, "n", 1, 0, 0, None, {5: "k"}),
        (1, 5, 0, "n", 1, 0, 0, None, {"": "k"}),
        (1, 5, 0, "n", 1, 0, 0, None, {"k": float("nan").as_integer_ratio}),
    ],
)
def test_what_is_no_span_is_refused(wrong: Span) -> None:
    """By an exception that the encoder knows, never by a crash."""
    assert REFUSED == encoded(C, wrong)


@needs_both
def test_subclasses_take_the_slow_way() -> None:
    """What another library makes of numbers and strings may do anything."""
    kinds = [type("Own", (kind,), {}) for kind in (int, float, str)]
    assert [REFUSED] * 3 == [whole((*plain[:-1], {"k": kind()})) for kind in kinds]


@needs_both
def test_nothing_is_kept() -> None:
    """Neither of what is written nor of what is refused."""
    way = C
    good = (*plain[:-1], {"key": "x" * 19, "other": 2**62})
    refused = (*plain[:-1], {"key": "x" * 19, "other": "x" * 21})
    stages = [stage_of(good), stage_of(good), stage_of(refused)]
    kept = [*good[-1].values(), *stages, *(stage.trace for stage in stages)]
    held = [sys.getrefcount(value) for value in kept]

    def use(times: int) -> int:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(times):
            way(*good)
            encoded(way, refused)
            together(stages)
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        use(100)
        assert use(10_000) < 4096
    finally:
        tracemalloc.stop()
    assert held == [sys.getrefcount(value) for value in kept]


@needs_both
def test_another_number_of_arguments() -> None:
    """Is an error of ours, said as Python says it."""
    assert encode.native is not None
    with pytest.raises(TypeError, match="span\\(\\) takes 12 arguments"):
        encode.native.span(1, 2, 3)
    with pytest.raises(TypeError, match="stages\\(\\) takes 8 arguments, of them a list"):
        encode.native.stages(MOST, TEXT, TEXT, Stage, ROOM, (), 0, 1)


@needs_both
def test_no_limit_of_texts_is_too_large() -> None:
    """A user may have set any."""
    found = [SpanEncoder({}, max_text=length).encode([Finished(*plain)]) for length in (TEXT, 1 << 70)]
    assert found[0] == found[1]


@needs_both
def test_what_an_earlier_version_built_is_not_used() -> None:
    """It may take other arguments."""
    name = "otel_rl.journal.otlp._native"
    assert find_native(name, encode.FORM) is encode.native
    assert find_native(name, encode.FORM + 1) is None
    assert find_native("otel_rl.journal._nothing", encode.FORM) is None
