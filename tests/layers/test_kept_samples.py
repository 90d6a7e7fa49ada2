"""Which samples are kept: within the limit whatever comes, and the same however the flusher's cycles cut the step."""

from __future__ import annotations

from math import inf, nan

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.layers.kept_samples import SPARE, FinishedSample, StepSamples, kinds, mean_and_spread, quantiles

NUMBERS = st.one_of(st.none(), st.floats(), st.integers(-3, 3).map(float))
FINISHES = st.sampled_from(["", "stop", "length", "abort", "timeout", "error"])
ROWS = st.lists(st.tuples(st.text(max_size=3), NUMBERS, st.one_of(st.none(), st.integers(0, 9)), FINISHES), max_size=80)


def finished(rows: list[tuple[str, float | None, int | None, str]]) -> list[FinishedSample]:
    """Make samples of id, reward, length and how they ended."""
    return [FinishedSample(row[0], reward=row[1], response_tokens=row[2], finish=row[3]) for row in rows]


@given(ROWS, st.integers(0, 40), st.integers(1, 7))
def test_the_bound_holds_and_cuts_change_nothing(
    rows: list[tuple[str, float | None, int | None, str]], limit: int, times: int
) -> None:
    """At most the limit; all if they fit; of more the same ones as without leaving any out before the end."""
    many = rows * times
    whole, cut = (StepSamples(limit, "train 7") for _ in range(2))
    whole.add(finished(many))
    whole_waiting = list(whole._waiting)
    for sample in finished(many):
        cut.add([sample])
        if cut.count % 11 == 0:  # as if the flusher had to leave out at any time
            kept = {one.number: one for kind in kinds(cut._waiting, limit).values() for one in kind}
            cut._waiting = [kept[number] for number in sorted(kept)] if limit and cut.count > limit else cut._waiting
    chosen = [(sample.number, why) for sample, why in whole.chosen(limit)]
    assert len(chosen) <= limit
    assert chosen == sorted(chosen)
    if len(many) <= limit:
        assert [(number, "") for number in range(len(many))] == chosen
    else:
        assert [(sample.number, why) for sample, why in cut.chosen(limit)] == chosen
        assert limit == len(chosen)
        failed = [one.number for one in whole_waiting if one.is_failed]
        assert set(failed[: min(limit, max(1, limit // 4))]) <= {number for number, _ in chosen}
    assert (whole.count, whole.lengths, whole.finishes) == (cut.count, cut.lengths, cut.finishes)


def test_what_waits_is_bounded() -> None:
    """However many samples a step has."""
    samples, most = StepSamples(16, "train 1"), 0
    for number in range(20_000):
        samples.add([FinishedSample(str(number), reward=number % 7, response_tokens=number, prompt="p" * 10)])
        most = max(most, len(samples._waiting))
    assert most <= 4 * 16 + SPARE
    assert (20_000, 16) == (samples.count, len(samples.chosen(16)))


def test_a_repetition_keeps_the_same() -> None:
    """The sample by hash depends on step and id alone; another step keeps others."""
    kept = []
    for seed, order in (("train 1", 1), ("train 1", -1), ("train 2", 1)):
        samples = StepSamples(50, seed)
        samples.add(FinishedSample(f"s{number}") for number in range(1_000)[::order])
        kept.append({sample.id for sample, why in samples.chosen(50) if "sample" in why})
    assert len(kept[0] & kept[1]) >= 48  # the longest of equal lengths is the first that came
    assert len(kept[0] & kept[2]) < 20


def test_failures_are_those_without_a_number() -> None:
    """A reward that is NaN, an error, and what the engine gave up."""
    samples = [{"reward": nan}, {"error": "E"}, {"finish": "abort"}, {"finish": "length"}, {"reward": 0.0}]
    assert [True, True, True, False, False] == [FinishedSample(**one).is_failed for one in samples]  # type: ignore[arg-type]


def test_mean_and_spread() -> None:
    """Of one value there is no spread; what is too large is infinite and raises nothing."""
    assert ((2.0, 0.0), (2.0, 1.0)) == (mean_and_spread([2.0]), mean_and_spread([1.0, 2.0, 3.0]))
    assert (0.0, inf) == mean_and_spread([1.7e308, -1.7e308])


def test_quantiles() -> None:
    """Of one length it is that one; of 1 to 100 the percentages themselves."""
    assert ([7] * 5, [5, 25, 50, 75, 95]) == (quantiles([7]), quantiles(list(range(100, 0, -1))))
