"""The arithmetic of many requests: numpy's and the plain one agree to the last bit, and both with brute force."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.requests import Request
from otel_rl.rollouts import bulk_numpy, bulk_plain
from otel_rl.rollouts.bulk import FEW, bulk
from otel_rl.rollouts.candidates import Candidates, Policy
from otel_rl.rollouts.columns import FEW as MANY
from otel_rl.rollouts.columns import Table, _arrays, clean
from otel_rl.rollouts.measures import HISTOGRAMS

NOW = 10**13
TIME = st.one_of(st.integers(0, 50), st.integers(-3, NOW + 3), st.integers(5 * 10**12, 5 * 10**12 + 3 * 10**6))
COUNT = st.one_of(st.integers(-3, 12), st.integers(0, 1 << 41))
FIELDS = ("duration", "ttft", "queue", "prefill", "decode", "tpot", "input", "output", "cached", "preemptions")


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
    columns = {name: [int(one) for one in getattr(derived, name)] for name in (*FIELDS, "started", "ended")}
    return {**columns, "problems": {reason: number for reason, number in derived.problems.items() if number}}


@pytest.mark.medium
@given(rows(), st.sampled_from([0, 20, 5 * 10**12]))
def test_numpy_derives_what_plain_python_derives(made: list[Request], begun: int) -> None:
    """Every column, every problem, every bucket and sum."""
    table = Table(made, [9] * len(made))
    whole = Table(made, table.parents, table.columns, _arrays(table.columns))
    assert [row.submitted for row in made] == list(whole.arrays["submitted"])
    plain, fast = bulk_plain.derive(table, begun, NOW), bulk_numpy.derive(table, begun, NOW)
    assert listed(plain) == listed(fast) == listed(bulk_numpy.derive(whole, begun, NOW))
    assert bulk_plain.finished(plain) == bulk_numpy.finished(fast)
    for _, column, bounds, _ in HISTOGRAMS:
        bins = bulk_numpy.histogram(getattr(fast, column), bounds)
        assert bulk_plain.histogram(getattr(plain, column), bounds) == bins
        assert bins is None or sum(bins.counts) == sum(value >= 0 for value in getattr(plain, column))
        assert bulk_plain.total(getattr(plain, column)) == bulk_numpy.total(getattr(fast, column))


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


@given(st.lists(st.integers(-1, 20), min_size=1, max_size=200), st.integers(-1, 20), st.integers(1, 8))
def test_the_largest_are_among_those_that_are_found(values: list[int], floor: int, count: int) -> None:
    """Nothing at or below the floor, in the order of the column, the same by both."""
    found = bulk_plain.largest(values, floor, count)
    assert found == bulk_numpy.largest(np.array(values), floor, count)
    above = sorted((value for value in values if value > floor), reverse=True)
    assert above[:count] == sorted((values[place] for place in found), reverse=True)[:count]
    assert found == sorted(found)


@given(st.lists(st.text(max_size=8), min_size=1, max_size=100), st.integers(0, (1 << 64) - 1))
def test_scores_agree(ids: list[str], seed: int) -> None:
    """And fit a signed number of 64 bits."""
    scores = bulk_plain.scores(ids, seed)
    assert scores == bulk_numpy.scores(ids, seed).tolist()
    assert all(0 <= score < 1 << 63 for score in scores)


def test_scores_are_evenly_spread() -> None:
    """Ids that follow each other are chosen as often as any: a tenth of each thousand, give or take a third."""
    scores = bulk_plain.scores([f"cmpl-{number}" for number in range(10_000)], 12345)
    chosen = sorted(range(10_000), key=scores.__getitem__)[:1000]
    assert all(70 <= number <= 130 for number in Counter(one // 1000 for one in chosen).values())


@pytest.mark.medium
@given(st.lists(rows(), min_size=1, max_size=4), st.booleans())
def test_the_extremes_do_not_depend_on_slices(parts: list[list[Request]], is_fast: bool) -> None:
    """They are those that sorting everything gives; of equal ones the earliest."""
    module = bulk_numpy if is_fast else bulk_plain
    policy = Policy(failed=0, extreme=3, sample=0, total=100)
    candidates = Candidates(policy)
    together = [row._replace(id=f"{part}-{row.id}") for part, made in enumerate(parts) for row in made]
    first = 0
    for part, made in enumerate(parts):
        table = Table([row._replace(id=f"{part}-{row.id}") for row in made], [9] * len(made))
        derived = module.derive(table, 0, NOW)
        candidates.add(module, table, derived, module.scores(table.columns.id, 1), first)
        first += len(made)
    columns = listed(bulk_plain.derive(Table(together, [9] * len(together)), 0, NOW))
    expected = set()
    for column in ("duration", "ttft", "output"):
        order = sorted(range(len(together)), key=lambda place: (-columns[column][place], place))
        expected |= {together[place].id for place in order[:3] if columns[column][place] >= 0}
    assert expected == {kept.row.id for kept in candidates.chosen(100)}


def test_numpy_is_for_many_requests_of_programs_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never loaded for this."""
    assert (bulk_plain, bulk_numpy) == (bulk(FEW - 1), bulk(FEW))
    monkeypatch.delitem(__import__("sys").modules, "numpy")
    assert bulk_plain is bulk(10**6)


def test_rows_of_many_shapes_become_clean() -> None:
    """Whole numbers of any type stay, what is no request goes."""
    problems: Counter[str] = Counter()
    made = [Request("e", np.int64(5), 7.0, True), Request("e", 1, 2)._replace(engine=None), 5]  # type: ignore[list-item, arg-type]
    table = clean(made, [7, 8, 9], problems)  # type: ignore[arg-type]
    assert table is not None
    assert [Request("e", 5, 7, 1), Request("", 1, 2)] == table.rows
    assert [7, 8] == table.parents
    assert [int, int, int] == [type(value) for value in table.rows[0][1:4]]
    assert {"no_request": 1} == {reason: number for reason, number in problems.items() if number}
    assert clean([], [], problems) is None


class Word(str):
    """A text of another class."""


@pytest.mark.parametrize("count", [MANY - 1, MANY])
def test_what_is_as_good_as_a_number_is_one(count: int) -> None:
    """However many rows are looked at together; a row that becomes a span has Python's own."""
    plain = [Request("e", number, number + 5, output_tokens=1, turn=number, finish="stop") for number in range(count)]
    odd = [row._replace(output_tokens=True, turn=np.int64(row.turn), finish=Word("stop")) for row in plain]
    problems: Counter[str] = Counter()
    tables = [clean(made, [9] * count, problems) for made in (plain, odd)]
    assert not any(problems.values())
    kept = []
    for table in tables:
        assert table is not None
        assert (count < MANY) == (not table.arrays)
        derived = bulk(count).derive(table, 0, NOW)
        candidates = Candidates(Policy(failed=0, extreme=2, sample=0, total=9))
        candidates.add(bulk(count), table, derived, [0] * count, 0)
        kept.append([(one.row, one.numbers) for one in candidates.chosen(9)])
        assert {int, str, bool} == {type(value) for one in kept[-1] for row in one for value in row}
    assert kept[0] == kept[1]


@pytest.mark.parametrize("wrong", [None, 2.5, "many"])
def test_one_bad_row_is_no_other_s(wrong: Any) -> None:
    """Among so many that they are looked at by column."""
    rows = [Request("e", number, number + 5, turn=number) for number in range(MANY)]
    problems: Counter[str] = Counter()
    table = clean([*rows, rows[0]._replace(limit=wrong)], [9] * (MANY + 1), problems)
    assert table is not None
    expected = {} if wrong is None else {"not_a_number": 1}
    assert ([*rows, rows[0]], expected) == (table.rows, {word: number for word, number in problems.items() if number})
