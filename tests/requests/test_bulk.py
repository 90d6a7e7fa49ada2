"""The arithmetic of many requests: that in C and the plain one agree to the last bit, and both with brute force."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.requests import bulk_native, bulk_plain, columns, queue, sampling, seen
from otel_rl.requests.bulk import bulk
from otel_rl.requests.columns import Table, clean
from otel_rl.requests.measures import EXPONENTIAL, HISTOGRAMS
from otel_rl.requests.queue import Request
from otel_rl.requests.sampling import Candidates, Policy

needs_both = pytest.mark.skipif(queue.native is None, reason="no compiler where otel_rl was installed")

NOW = 10**13
TIME = st.one_of(st.integers(0, 50), st.integers(-3, NOW + 3), st.integers(5 * 10**12, 5 * 10**12 + 3 * 10**6))
COUNT = st.one_of(st.integers(-3, 12), st.integers(0, 1 << 41))
WAYS = [pytest.param(False, id="python"), pytest.param(True, id="C", marks=needs_both)]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Both ways to compute, one after the other."""
    return use(monkeypatch, is_native=request.param)


def use(monkeypatch: pytest.MonkeyPatch, *, is_native: bool) -> Any:
    """Have everything computed in C, or nothing."""
    if not is_native:
        monkeypatch.setattr(columns, "native", None)
    module = bulk_native if is_native else bulk_plain
    monkeypatch.setattr(sampling, "bulk", module)
    return module


@st.composite
def rows(draw: st.DrawFn) -> list[Request]:
    """Make requests of which many are impossible."""
    made = []
    for number in range(draw(st.integers(1, 30))):
        submitted, ended, scheduled, first, last = (draw(TIME) for _ in range(5))
        tokens = [draw(COUNT) for _ in range(4)]
        finish = draw(st.sampled_from(["stop", "abort", "error", ""]))
        error = draw(st.sampled_from(["", "", "E"]))
        made.append(
            Request(
                "e", submitted, ended, scheduled, first, last, *tokens[:3], finish, error, tokens[3], id=f"i{number}"
            )
        )
    return made


def listed(derived: Any) -> dict[str, Any]:
    """Give the columns as lists."""
    found = {name: list(column) for name, column in derived.columns._asdict().items()}
    return {**found, "problems": {reason: number for reason, number in derived.problems.items() if number}}


@needs_both
@pytest.mark.medium
@given(rows(), st.sampled_from([0, 20, 5 * 10**12]), st.booleans())
def test_c_derives_what_plain_python_derives(made: list[Request], begun: int, is_beyond: bool) -> None:
    """Every column, every problem, every bucket and sum; also where a number does not fit into 64 bits."""
    if is_beyond:
        made = [*made, made[0]._replace(output_tokens=1 << 70)]
    table = Table(made, [9] * len(made))
    assert is_beyond == (table.numbers is None)
    plain, fast = bulk_plain.derive(table, begun, NOW), bulk_native.derive(table, begun, NOW)
    assert listed(plain) == listed(fast)
    assert bulk_plain.finished(plain) == bulk_native.finished(fast)
    assert list(table.column("ended")) == [row.ended for row in made]
    classic = tuple(limits for _, _, limits, _ in HISTOGRAMS)
    for times, buckets in ((1, classic), (2, EXPONENTIAL)):
        bounds = [*buckets, ()]
        found = []
        for module, derived in ((bulk_plain, plain), (bulk_native, fast)):
            columns = [getattr(derived.columns, name) for _, name, _, _ in HISTOGRAMS] + [derived.columns.preemptions]
            found.append(module.histograms([(column,) * times for column in columns], bounds))
        assert found[0] == found[1]
        for column, bins in zip(columns, found[0], strict=True):
            known = [value for value in column if value >= 0] * times
            assert (bins is None) == (not known)
            assert bins is None or (len(known), sum(known)) == (sum(bins.counts), bins.total)


@needs_both
def test_histograms_of_many_are_filled_while_others_run() -> None:
    """As those of few are."""
    numbers = list(range(-5, 2_000))
    column, bounds = bulk_native._column(numbers), tuple(range(0, 2_000, 7))
    assert bulk_plain.histograms([(numbers,) * 9], [bounds]) == bulk_native.histograms([(column,) * 9], [bounds])


@needs_both
@given(rows())
def test_c_sees_in_rows_what_plain_python_sees(made: list[Request]) -> None:
    """Whether they are alike, and their counts."""
    made += [made[0]._replace(engine="another"), made[0]][: len(made) % 3]
    with pytest.MonkeyPatch.context() as patch:
        found = []
        for is_native in (True, False):
            use(patch, is_native=is_native)
            table = Table(made, [9] * len(made))
            found.append((len(table.parts()), table.finishes, table.errors, table.has_failed()))
    assert found[0] == found[1]


@pytest.mark.medium
@given(rows(), st.sampled_from([1, 20]))
def test_what_is_derived_is_what_the_definitions_say(made: list[Request], begun: int) -> None:
    """Of requests whose numbers are possible: differences, and TPOT over all tokens but the first."""
    derived = listed(bulk_plain.derive(Table(made, [9] * len(made)), begun, NOW))
    for place, row in enumerate(made):
        if not begun <= row.submitted <= row.scheduled <= row.first_token <= row.last_token <= row.ended <= NOW:
            continue
        assert row.ended - row.submitted == derived["duration"][place]
        assert row.first_token - row.submitted == derived["ttft"][place]
        assert derived["queue"][place] + derived["prefill"][place] == derived["ttft"][place]
        if 1 < row.output_tokens < 1 << 40:
            exact = Fraction(row.last_token - row.first_token, row.output_tokens - 1)
            assert 0 <= exact - derived["tpot"][place] < 1


@needs_both
@pytest.mark.medium
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2), st.integers(0, 2)), min_size=1), min_size=1),
    st.sampled_from([3, 1_000_000]),
    st.booleans(),
)
def test_c_has_seen_what_plain_python_has(
    batches: list[list[tuple[int, int, int]]], most: int, is_one_trace: bool
) -> None:
    """Requests with and without ids, attempts, submissions; of one trace and of several; within the limit."""
    traces = [SimpleNamespace(trace=SimpleNamespace(trace_id=trace_id)) for trace_id in (7, 1 << 100)]
    ways = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen, "MOST_KEYS", most)
        for is_native in (True, False):
            patch.setattr(seen, "native", queue.native if is_native else None)
            found = seen.Seen()
            verdicts = []
            for batch in batches:
                made = [
                    Request("e", submitted, ended or 1 << 70, turn=number % 5, id=str(number) if number else "")
                    for number, submitted, ended in batch
                ]
                table = Table(made, [traces[number % 2] for number, _, _ in batch])
                verdicts.append(found.look(table, is_one_trace=is_one_trace))
            ways.append(verdicts)
    assert ways[0] == ways[1]


@needs_both
@given(st.lists(st.integers(-1, 20), min_size=1, max_size=200), st.integers(-1, 20), st.integers(1, 8))
def test_the_largest_are_among_those_that_are_found(values: list[int], floor: int, count: int) -> None:
    """Nothing at or below the floor, in the order of the column, the same by both."""
    found = bulk_plain.largest(values, floor, count)
    assert found == bulk_native.largest(bulk_native._column(values), floor, count)
    above = sorted((value for value in values if value > floor), reverse=True)
    assert above[:count] == sorted((values[place] for place in found), reverse=True)[:count]
    assert found == sorted(found)


@needs_both
@given(st.lists(st.text(max_size=8), min_size=1, max_size=100), st.integers(0, (1 << 64) - 1))
def test_scores_agree(ids: list[str], seed: int) -> None:
    """And fit a signed number of 64 bits."""
    scores = bulk_plain.scores(ids, seed)
    assert scores == list(bulk_native.scores(ids, seed))
    assert all(0 <= score < 1 << 63 for score in scores)


def test_scores_are_evenly_spread() -> None:
    """Ids that follow each other are chosen as often as any: a tenth of each thousand, give or take a third."""
    scores = bulk_plain.scores([f"cmpl-{number}" for number in range(10_000)], 12345)
    chosen = sorted(range(10_000), key=scores.__getitem__)[:1000]
    assert all(70 <= number <= 130 for number in Counter(one // 1000 for one in chosen).values())


@pytest.mark.medium
@pytest.mark.parametrize("is_native", WAYS)
@given(parts=st.lists(rows(), min_size=1, max_size=4))
def test_the_extremes_do_not_depend_on_slices(is_native: bool, parts: list[list[Request]]) -> None:
    """They are those that sorting everything gives; of equal ones the earliest."""
    with pytest.MonkeyPatch.context() as patch:
        check_extremes(use(patch, is_native=is_native), parts)


def check_extremes(module: Any, parts: list[list[Request]]) -> None:
    """Compare them with what sorting gives."""
    policy = Policy(failed=0, extreme=3, sample=0, total=100)
    sampling = Candidates(policy)
    together = [row._replace(id=f"{part}-{row.id}") for part, made in enumerate(parts) for row in made]
    first = 0
    for part, made in enumerate(parts):
        table = Table([row._replace(id=f"{part}-{row.id}") for row in made], [9] * len(made))
        derived = module.derive(table, 0, NOW)
        sampling.add(table, derived, module.scores(table.ids, 1), first)
        first += len(made)
    columns = listed(bulk_plain.derive(Table(together, [9] * len(together)), 0, NOW))
    expected = set()
    for column in ("duration", "ttft", "output"):
        order = sorted(range(len(together)), key=lambda place: (-columns[column][place], place))
        expected |= {together[place].id for place in order[:3] if columns[column][place] >= 0}
    assert expected == {kept.row.id for kept in sampling.chosen(100)}


@needs_both
def test_c_is_chosen_where_it_is() -> None:
    """However few requests they are."""
    assert bulk_native is bulk


def test_rows_of_many_shapes_become_clean(way: Any) -> None:
    """Whole numbers of any type stay, what is no request goes."""
    problems: Counter[str] = Counter()
    odd = Request("e", np.int64(5), 7.0, True)  # type: ignore[arg-type]
    nobody = Request("e", 1, 2)._replace(engine=None)  # type: ignore[arg-type]
    made: list[Any] = [odd, nobody, 5, tuple(Request("e", 3, 4)), (1, 2)]
    table = clean(made, [7, 8, 9, 10, 11], problems)
    assert table is not None
    assert [Request("e", 5, 7, 1), Request("", 1, 2), Request("e", 3, 4)] == table.rows
    assert [7, 8, 10] == table.parents
    assert [int, int, int] == [type(value) for value in table.rows[0][1:4]]
    assert {"no_request": 2} == {reason: number for reason, number in problems.items() if number}
    assert clean([], [], problems) is None


class Word(str):
    """A text of another class."""


def test_what_is_as_good_as_a_number_is_one(way: Any) -> None:
    """A row that becomes a span has Python's own."""
    plain = [Request("e", number, number + 5, output_tokens=1, turn=number, finish="stop") for number in range(50)]
    odd = [row._replace(output_tokens=True, turn=np.int64(row.turn), finish=Word("stop")) for row in plain]
    problems: Counter[str] = Counter()
    kept = []
    for made in (plain, odd, list(map(tuple, plain))):
        table = clean(made, [9] * len(made), problems)
        assert table is not None
        sampling = Candidates(Policy(failed=0, extreme=2, sample=0, total=9))
        sampling.add(table, way.derive(table, 0, NOW), way.scores(table.ids, 1), 0)
        kept.append([(one.row, one.numbers) for one in sampling.chosen(9)])
        assert {int, str, bool} == {type(value) for one in kept[-1] for row in one for value in row}
        assert {Request} == {type(row) for row, _ in kept[-1]}
    assert kept[0] == kept[1] == kept[2]
    assert not any(problems.values())


@pytest.mark.parametrize("wrong", [None, 2.5, "many"])
def test_one_bad_row_is_no_other_s(way: Any, wrong: Any) -> None:
    """Among others that are looked at with it."""
    rows = [Request("e", number, number + 5, turn=number) for number in range(50)]
    problems: Counter[str] = Counter()
    table = clean([*rows, rows[0]._replace(limit=wrong)], [9] * 51, problems)
    assert table is not None
    expected = {} if wrong is None else {"not_a_number": 1}
    assert ([*rows, rows[0]], expected) == (table.rows, {word: number for word, number in problems.items() if number})


@needs_both
@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("columns", ([], Request), "takes 3 arguments"),
        ("columns", ([], Request, b"q" * 65), "too many fields"),
        ("derive", ((bytes(8),) * 8, b"", 0, 1, 1, 1), "out of range"),
        ("derive", ((bytes(8),) * 8 + (b"",), b"", 0, 1, 1, 1), "not of one length"),
        ("derive", ((bytes(8),) * 9, b"12", 0, 1, 1, 1), "not of one length"),
        ("histograms", (((),) * 65, ()), "too many histograms"),
        ("histograms", (((b"",),), ()), "out of range"),
        ("histograms", ((("",),), (b"",)), "expected bytes"),
        ("finished", (bytes(8), bytes(8), b""), "not of one length"),
        ("largest", (bytes(8), 0, 0), "no largest"),
        ("alike", ([(1,)], bytes(65)), "too many fields"),
        ("see", (bytearray(), 0, 9, [("a",)], bytes(65), bytes(8), bytes(8), b""), "too many fields"),
        ("alike", ([(1,), ()], b"\0"), "out of range"),
        ("see", (bytearray(), 0, 9, [([1],)], b"\0", bytes(8), bytes(8), b""), "unhashable"),
        ("see", (bytearray(), 0, 9, [("a",)], b"\0", b"", b"", b""), "as long as the rows"),
        ("see", (bytearray(), 0, 9, [("a",)], b"\0", bytes(8), bytes(8), bytes(16)), "as long as the rows"),
        ("see", (b"", 0, 9, [("a",)], b"\0", bytes(8), bytes(8), b""), "takes a bytearray"),
        ("run", ([1, 2], 2), "so few pieces"),
        ("ordered", ([1],), "expected bytes"),
    ],
)
def test_c_refuses_what_it_cannot_take(name: str, arguments: tuple[Any, ...], error: str) -> None:
    """With an exception that says what is wrong."""
    function = getattr(queue.native, name)
    with pytest.raises((TypeError, ValueError, IndexError), match=error):
        function(*arguments)
