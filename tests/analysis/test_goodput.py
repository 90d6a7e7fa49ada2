"""Goodput adds up to wall time to the nanosecond, and each moment has the kind that the order of priority says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_rl import vocabulary
from otel_rl.analysis.goodput import KIND_OF_STAGE, Goodput, Kind, goodput, kind_of, redone, total
from otel_rl.analysis.intervals import partition
from otel_rl.analysis.steps import Step

times = st.integers(0, 40)
spans = st.lists(st.tuples(st.sampled_from(Kind), st.tuples(times, times)), max_size=12)
WALL = 10**18


@given(spans, times, times)
def test_every_tick_has_the_first_kind_that_claims_it(
    spent: list[tuple[Kind, tuple[int, int]]], a: int, b: int
) -> None:
    """Against a walk over all ticks of the window, with the order of the docstring."""
    begin, end = min(a, b), max(a, b)
    expected = dict.fromkeys(Kind, 0)
    for tick in range(begin, end):
        claims = {kind for kind, (low, high) in spent if low <= tick < high}
        order = (Kind.WASTED, Kind.IDLE, Kind.OVERHEAD, Kind.PRODUCTIVE, Kind.OTHER)
        expected[next((kind for kind in order if kind in claims), Kind.OTHER)] += 1
    found = goodput(spent, begin, end)
    assert expected == {
        Kind.PRODUCTIVE: found.productive_ns,
        Kind.OVERHEAD: found.overhead_ns,
        Kind.IDLE: found.idle_ns,
        Kind.WASTED: found.wasted_ns,
        Kind.OTHER: found.other_ns,
    }


wall = st.integers(0, 10**19)
large = st.lists(st.tuples(st.sampled_from(Kind), st.tuples(wall, wall)), max_size=30)


@given(large, wall, wall)
def test_the_parts_add_up_to_wall_time(spent: list[tuple[Kind, tuple[int, int]]], begin: int, end: int) -> None:
    """Exactly, at the size of Unix time in ns, whatever overlaps, nests, ends before it begins or lies outside."""
    found = goodput(spent, begin, end)
    assert max(0, end - begin) == found.wall_ns
    assert all(part >= 0 for part in (found.productive_ns, found.overhead_ns, found.idle_ns, found.wasted_ns))
    assert found.other_ns >= 0


@given(st.lists(st.lists(st.tuples(times, times), max_size=4), max_size=4), times, times)
def test_a_partition_is_one_of_the_window(layers: list[list[tuple[int, int]]], begin: int, end: int) -> None:
    """Of any number of layers, each tick goes to the first."""
    expected = [0] * (len(layers) + 1)
    for tick in range(begin, end):
        has = [any(low <= tick < high for low, high in layer) for layer in layers]
        expected[has.index(True) if True in has else len(layers)] += 1
    assert tuple(expected) == partition(layers, begin, end)


def test_a_step_by_hand() -> None:
    """A wait inside the rollout is idle, an evaluation's rollout is overhead, a skipped update is wasted."""
    spent = [
        (kind_of(vocabulary.SAMPLE), (0, 40)),
        (kind_of(vocabulary.IDLE), (10, 15)),
        (kind_of(f"{vocabulary.REWARD} accuracy"), (40, 50)),
        (kind_of("my own stage"), (50, 55)),
        (kind_of(vocabulary.TRAIN), (55, 80)),
        (Kind.WASTED, (70, 80)),
        (kind_of(vocabulary.EVALUATE), (80, 95)),
        (kind_of(vocabulary.SAMPLE), (82, 90)),
    ]
    found = goodput(spent, 0, 100)
    assert Goodput(productive_ns=60, overhead_ns=15, idle_ns=5, wasted_ns=10, other_ns=10) == found


def test_every_stage_of_the_vocabulary_has_a_kind() -> None:
    """Containers, collectives and the remainder have none of their own."""
    without = {vocabulary.LOOP, vocabulary.RANK_SPAN, vocabulary.COMM, vocabulary.OTHER}
    assert set(vocabulary.STAGES) - without == set(KIND_OF_STAGE)


def test_ranks_add_up() -> None:
    """The total of ranks is still the total of their wall times; no rank is no time."""
    one = Goodput(1, 2, 3, 4, 5)
    assert Goodput(2, 4, 6, 8, 10) == total([one, one])
    assert Goodput(0, 0, 0, 0, 0) == total([])


def test_steps_done_again_after_a_restart_are_wasted() -> None:
    """Resumed at step 3, then at step 2: of each attempt what a later one repeats; another loop is another matter."""
    first = [Step(number * 10, number * 10 + 10, "train", number) for number in range(1, 6)]
    second = [Step(100 + number * 10, 110 + number * 10, "train", number) for number in range(3, 5)]
    third = [Step(200 + number * 10, 210 + number * 10, "train", number) for number in range(2, 9)]
    other = [Step(500, 510, "train.2", 1)]
    expected = [(20, 30), (30, 40), (40, 50), (50, 60), (130, 140), (140, 150)]
    assert expected == redone([first, second, third + other])
    assert [] == redone([first])
    assert [] == redone([])
