"""The arithmetic of many requests: it agrees with the definitions, and choosing with brute force."""

from __future__ import annotations

import subprocess
import sys
from bisect import bisect_left
from collections import Counter
from fractions import Fraction
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.process.state import Trace
from otel_rl.requests.columns import Derived, RequestBatch, bins, joined, make_batch
from otel_rl.requests.queue import Request
from otel_rl.requests.rollout import RolloutRequests
from otel_rl.requests.sampling import Candidates, Policy

NOW = 10**13
TIME = st.one_of(st.integers(0, 50), st.integers(-3, NOW + 3), st.integers(5 * 10**12, 5 * 10**12 + 3 * 10**6))
COUNT = st.one_of(st.integers(-3, 12), st.integers(0, 1 << 41))


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


def batch(made: list[Any], parents: list[Any] | None = None) -> RequestBatch:
    """Make a batch of clean requests."""
    problems: Counter[str] = Counter()
    found = make_batch(made, parents or [9] * len(made), problems)
    assert found is not None
    assert not +problems
    return found


def listed(derived: Derived) -> dict[str, list[int]]:
    """Return the columns as lists."""
    return {name: column.tolist() for name, column in derived.columns._asdict().items()}


def derive_one(row: Request, begun: int) -> tuple[dict[str, int], dict[str, bool]]:
    """Derive the numbers of one request by the definitions, and what is wrong with it."""
    given = row.submitted, row.ended, row.scheduled, row.first_token, row.last_token
    times = [time if begun <= time <= NOW else 0 for time in given]
    submitted, ended, started, first, last = times

    def between(begin: int, end: int, slack: int) -> int:
        if not begin or not end:
            return -1
        return end - begin if end >= begin else 0 if begin - end <= slack else -2

    slack = 1_000_000
    spans = {
        "duration": between(submitted, ended, slack),
        "ttft": between(submitted, first, slack),
        "queue": between(submitted, started, slack),
        "prefill": between(started, first, 0),
        "decode": between(first, last, 0),
    }
    is_reversed = min(*spans.values(), between(last, ended, slack)) < -1
    numbers = {name: max(span, -1) for name, span in spans.items()}
    most, is_failed = 1 << 40, bool(row.error) or row.finish in ("abort", "timeout", "error")
    prompt = row.input_tokens if 1 <= row.input_tokens < most else -1
    output = row.output_tokens if (0 if is_failed else 1) <= row.output_tokens < most else -1
    is_cached = 0 <= row.cached_tokens < most and (prompt == -1 or row.cached_tokens <= prompt)
    cached = row.cached_tokens if is_cached else -1
    wrong = (prompt, output, cached) != (row.input_tokens, row.output_tokens, row.cached_tokens)
    decode = numbers["decode"]
    numbers |= {
        "tpot": decode // (output - 1) if output > 1 and decode >= 0 else -1,
        "input": prompt,
        "output": output,
        "cached": cached,
        "preemptions": row.preemptions if 0 <= row.preemptions < most else -1,
        "started": started,
        "ended": ended,
    }
    problems = {
        "impossible_time": list(given) != times,
        "unfinished": not row.ended,
        "reversed": is_reversed,
        "tokens": wrong,
    }
    return numbers, problems


@pytest.mark.medium
@given(rows(), st.sampled_from([0, 20, 5 * 10**12]), st.booleans())
def test_what_is_derived_is_what_the_definitions_say(made: list[Request], begun: int, is_beyond: bool) -> None:
    """Every number and every problem; also where a number does not fit into 64 bits."""
    if is_beyond:
        made = [*made, made[0]._replace(output_tokens=1 << 70), made[0]._replace(ended=-(1 << 70))]
    expected = [derive_one(row, begun) for row in made]
    derived = batch(made).derive(begun, NOW)
    assert {name: [numbers[name] for numbers, _ in expected] for name in expected[0][0]} == listed(derived)
    assert {reason: sum(wrong[reason] for _, wrong in expected) for reason in expected[0][1]} == derived.problems
    for place, row in enumerate(made):
        if row.first_token and row.last_token and derived.columns.tpot[place] >= 0 and row.output_tokens > 1:
            exact = Fraction(row.last_token - row.first_token, row.output_tokens - 1)
            assert 0 <= exact - int(derived.columns.tpot[place]) < 1


@given(st.lists(st.lists(st.integers(-1, 20), min_size=1), min_size=1), st.sets(st.integers(0, 20)))
def test_a_histogram_has_each_known_value_in_its_bucket(parts: list[list[int]], limits: set[int]) -> None:
    """Of all parts together; none where no value is known."""
    bounds = tuple(sorted(limits))
    column = joined([Derived(np.array([part] * 12), {}) for part in parts]).duration
    known = [value for value in chain(*parts) if value >= 0]
    counts = Counter(bisect_left(bounds, value) for value in known)
    expected = [counts[place] for place in range(len(bounds) + 1)], sum(known), min(known, default=0), max([0, *known])
    found = bins(column, bounds)
    assert (expected if known else None) == found


def test_scores_are_evenly_spread() -> None:
    """Ids that follow each other are chosen as often as any: a tenth of each thousand, give or take a third."""
    made = [Request("e", 1, 2, id=f"cmpl-{number}") for number in range(10_000)]
    scores = batch(made).scores(12345, 0).tolist()
    chosen = sorted(range(10_000), key=scores.__getitem__)[:1000]
    assert all(70 <= number <= 130 for number in Counter(one // 1000 for one in chosen).values())


@given(st.lists(st.text(max_size=8), min_size=1, max_size=100), st.integers(0, (1 << 64) - 1))
def test_a_score_depends_on_id_and_seed_alone(ids: list[str], seed: int) -> None:
    """Half a character is no trouble; a request without an id is scored by its number."""
    together = batch([Request("e", 1, 2, id=one) for one in ids]).scores(seed, 3).tolist()
    alone = [batch([Request("e", 1, 2, id=one or str(3 + place))]).scores(seed, 0)[0] for place, one in enumerate(ids)]
    assert (alone, True) == (together, min(together) >= 0)


@pytest.mark.medium
@given(parts=st.lists(rows(), min_size=1, max_size=4), size=st.integers(0, 4))
def test_the_extremes_do_not_depend_on_batches(parts: list[list[Request]], size: int) -> None:
    """They are those that sorting everything gives; of equal ones the earliest."""
    candidates = Candidates(Policy(failed=0, extreme=size, sample=0, total=100))
    parts = [[row._replace(id=f"{part}-{row.id}") for row in made] for part, made in enumerate(parts)]
    together = list(chain(*parts))
    first = 0
    for made in parts:
        some = batch(made)
        candidates.add(some, some.derive(0, NOW), some.scores(1, 0), first)
        first += len(made)
    columns = listed(batch(together).derive(0, NOW))
    expected = set()
    for column in ("duration", "ttft", "output"):
        order = sorted(range(len(together)), key=lambda place: (-columns[column][place], place))
        expected |= {together[place].id for place in order[:size] if columns[column][place] >= 0}
    assert expected == {kept.request.id for kept in candidates.chosen(100)}


@pytest.mark.medium
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(0, 2)), min_size=1), min_size=1),
    st.sampled_from([3, 1_000_000]),
    st.booleans(),
)
def test_a_request_that_was_seen_is_left_out(
    batches: list[list[tuple[int, int, int]]], most: int, is_one_trace: bool
) -> None:
    """With and without ids, attempts, submissions; of one trace and of several; within the limit."""
    traces = [SimpleNamespace(trace=SimpleNamespace(trace_id=trace_id)) for trace_id in (7, 1 << 100)]
    trace = Trace(7, 0, step="train 1" if is_one_trace else "")
    rollout = RolloutRequests(trace, Policy(0, 0, 0, 0), (), is_stage=True, has_end=True, is_judging=False)
    seen: dict[tuple[int, int], int] = {}
    expected: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("otel_rl.requests.rollout.MOST_KEYS", most)
        for given_rows in batches:
            made = [
                Request("e", submitted, ended, turn=number % 5, id=str(number) if number else "")
                for number, submitted, ended in given_rows
            ]
            kept = []
            is_new = len({row.id for row in made}) == len(made) and all(row.id for row in made)
            is_new = is_new and not any(
                (number, number % 2 * (not is_one_trace)) in seen for number, _, _ in given_rows
            )
            has_room = len(seen) < most  # new ones are remembered together
            for row, (number, submitted, ended) in zip(made, given_rows, strict=True):
                key, attempt = (number, number % 2 * (not is_one_trace)), submitted or -ended
                before = seen.get(key) if number else None
                if before == attempt:
                    expected["repeated_id"] += 1
                    continue
                expected["another_attempt"] += before is not None
                kept.append(row)
                if number and (before is not None or (has_room if is_new else len(seen) < most)):
                    seen[key] = attempt
            found = rollout.fresh(batch(made, [traces[number % 2] for number, _, _ in given_rows]), problems)
            assert kept == ([] if found is None else found.values)
    assert +expected == +problems


def test_rows_of_many_shapes_become_clean() -> None:
    """Whole numbers of any type stay, what is no request goes."""
    problems: Counter[str] = Counter()
    odd = Request("e", np.int64(5), 7.0, True)  # type: ignore[arg-type]
    nobody = Request("e", 1, 2)._replace(engine=None)  # type: ignore[arg-type]
    made: list[Any] = [odd, nobody, 5, tuple(Request("e", 3, 4)), (1, 2)]
    found = make_batch(made, [7, 8, 9, 10, 11], problems)
    assert found is not None
    assert [Request("e", 5, 7, 1), Request("", 1, 2), Request("e", 3, 4)] == found.values
    assert [7, 8, 10] == found.parents
    assert [int, int, int] == [type(value) for value in found.values[0][1:4]]
    assert {"no_request": 2} == {reason: number for reason, number in problems.items() if number}
    assert make_batch([], [], problems) is None


class Word(str):
    """A text of another class."""


def test_what_is_as_good_as_a_number_is_one() -> None:
    """A request that becomes a span has Python's own."""
    plain = [Request("e", number, number + 5, output_tokens=1, turn=number, finish="stop") for number in range(50)]
    odd = [row._replace(output_tokens=True, turn=np.int64(row.turn), finish=Word("stop")) for row in plain]
    times = [row._replace(ended=np.int64(row.ended)) for row in plain]
    kept = []
    for made in (plain, odd, times, list(map(tuple, plain))):
        some = batch(made)
        candidates = Candidates(Policy(failed=0, extreme=2, sample=0, total=9))
        candidates.add(some, some.derive(0, NOW), some.scores(1, 0), 0)
        kept.append([(one.request, one.numbers) for one in candidates.chosen(9)])
        assert {int, str, bool} == {type(value) for one in kept[-1] for row in one for value in row}
        assert {Request} == {type(row) for row, _ in kept[-1]}
    assert kept[0] == kept[1] == kept[2] == kept[3]


@pytest.mark.parametrize("wrong", [None, 2.5, "many"])
def test_one_bad_row_is_no_other_s(wrong: Any) -> None:
    """Among others that are looked at with it."""
    made = [Request("e", number, number + 5, turn=number) for number in range(50)]
    problems: Counter[str] = Counter()
    found = make_batch([*made, made[0]._replace(limit=wrong)], [9] * 51, problems)
    assert found is not None
    expected = {} if wrong is None else {"not_a_number": 1}
    assert ([*made, made[0]], expected) == (found.values, dict(+problems))


def test_parts_have_the_same_labels() -> None:
    """In the order in which they came."""
    made = [Request("e", 1, 2, model=model, id=f"{place}") for place, model in enumerate("abab")]
    found = batch(made, list(range(4)))
    assert [["0", "2"], ["1", "3"]] == [list(part.ids) for part in found.parts()]
    assert [[0, 2], [1, 3]] == [part.parents for part in found.parts()]


def test_numpy_is_imported_with_the_first_requests() -> None:
    """Not by ``import otel_rl``, nor by recording."""
    program = (
        "import sys, otel_rl, otel_rl.entry\n"
        "otel_rl.instrument(())\n"
        "with otel_rl.step(1): pass\n"
        "assert otel_rl.flush(60)\n"
        "print('numpy' in sys.modules)\n"
        "with otel_rl.step(2): otel_rl.request('mine', submitted=1.0, ended=2.0)\n"
        "assert otel_rl.flush(60)\n"
        "print('numpy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ("False\nTrue\n", 0) == (done.stdout, done.returncode), done.stderr
