"""Steps tile the loop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.steps import Disagreement, Step, disagreement, tile, warmup

lengths = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5)), min_size=1, max_size=12)


@given(lengths)
def test_consecutive_steps_leave_no_gap(spans: list[tuple[int, int]]) -> None:
    """Each step ends where the next begins, so their times add up to the whole loop."""
    begin, steps = 0, []
    for number, (length, gap) in enumerate(spans):
        steps.append(Step(begin, begin + length, "train", number))
        begin += length + gap
    tiled = tile(steps[::-1])
    assert [step.iteration for step in steps] == [step.iteration for step in tiled]
    assert steps[-1].end_ns - steps[0].begin_ns == sum(step.time_ns for step in tiled)


def test_a_lost_step_does_not_lengthen_its_neighbour() -> None:
    """Where a number is missing the step keeps its own end."""
    steps = [Step(0, 10, "train", 1), Step(20, 30, "train", 3)]
    assert steps == tile(steps)


def test_a_step_that_goes_on_while_the_next_one_has_begun_keeps_its_end() -> None:
    """As those of several tasks do: what is in it is no longer than it is."""
    steps = [Step(0, 30, "train", 1), Step(10, 40, "train", 2), Step(50, 60, "train", 3)]
    assert [30, 40, 10] == [step.time_ns for step in tile(steps)]


def test_a_further_loop_does_not_lengthen_the_last_step() -> None:
    """The last step of a loop ends by itself."""
    steps = [Step(0, 10, "train", 1), Step(90, 99, "train.2", 2)]
    assert steps == tile(steps)


def test_no_step_is_no_error() -> None:
    """Nothing tiles to nothing."""
    assert tile([]) == []


def test_short_runs_leave_fewer_steps_out() -> None:
    """Two steps stay out of averages, fewer below eight, none below four."""
    assert [warmup(count) for count in (0, 1, 2, 3, 4, 5, 6, 7, 8, 1000)] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]


names = st.lists(st.tuples(st.just("train"), st.integers(0, 3)), max_size=6)


@given(st.dictionaries(st.integers(0, 4), names, max_size=4))
def test_ranks_are_compared_by_the_order_of_their_steps(called: dict[int, list[tuple[str, int]]]) -> None:
    """Place by place, by brute force: it differs where two ranks that have it call it differently."""
    places = [{rank: own[k] for rank, own in called.items() if k < len(own)} for k in range(6)]
    compared = [place for place in places if len(place) > 1]
    different = [place for place in compared if any(a != b for a in place.values() for b in place.values())]

    found = disagreement(called)

    if not different:
        assert found is None
    else:
        assert Disagreement(different[0], len(different), len(compared)) == found


def test_a_rank_that_died_disagrees_with_nobody() -> None:
    """It has fewer steps, and calls those that it has as the others do."""
    assert disagreement({0: [("train", 1), ("train", 2)], 1: [("train", 1)], 2: []}) is None


def test_another_loop_is_another_step() -> None:
    """A rank that began to count anew is not in the same step as one that counts on."""
    found = disagreement({0: [("train", 1), ("train", 2)], 1: [("train", 1), ("train.2", 1)]})
    assert Disagreement({0: ("train", 2), 1: ("train.2", 1)}, 1, 2) == found
