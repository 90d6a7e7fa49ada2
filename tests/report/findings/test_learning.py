"""What the rules of learning say of made-up runs."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl import vocabulary as v
from otel_rl.report.data.finding import Finding
from otel_rl.report.findings.curves import Learning, Numbers
from otel_rl.report.findings.judge import apply
from otel_rl.report.findings.learning import LEARN
from tests.report.findings.synthetic import first, healthy, learn, numbers, since

NAN = math.nan
LENGTH = 60
STEPS = range(LENGTH)
STILL = [0.3 + 0.05 * (step * 7 % 5 - 2) for step in STEPS]
"""A reward that goes nowhere."""
RISING = [0.5 + step / 200 + 0.05 * (step * 7 % 5 - 2) for step in STEPS]

Findings = list[Finding]


def changed(**series: list[float]) -> Findings:
    """Judge a healthy run in which some series, by the names of the vocabulary, are others."""
    return learn(healthy(LENGTH) | {getattr(v, name): values for name, values in series.items()})


def with_functions(*more: Numbers) -> Findings:
    """Judge a healthy run with a reward function and what a test says of others."""
    run = healthy(LENGTH)
    digits = (
        numbers(v.FUNCTION_SCORE, run[v.REWARD_SCORE], "digits"),
        numbers(v.FUNCTION_STD, run[v.REWARD_STD], "digits"),
    )
    return learn(run, *digits, *more, answers=8)


def judge(scores: list[float], deviations: list[float]) -> Findings:
    """Judge a healthy run with a second reward function."""
    return with_functions(numbers(v.FUNCTION_SCORE, scores, "judge"), numbers(v.FUNCTION_STD, deviations, "judge"))


def original(name: str) -> list[float]:
    """Return a series of the healthy run."""
    return healthy(LENGTH)[getattr(v, name)]


def nan_from_21() -> Findings:
    """Make the only reward function return NaN."""
    run = healthy(LENGTH)
    run[v.REWARD_SCORE] = since(run[v.REWARD_SCORE], 21, NAN)
    run[v.GRAD_NORM] = since(run[v.GRAD_NORM], 21, 0.01, 0.012)
    return learn(run, numbers(v.FUNCTION_SCORE, run[v.REWARD_SCORE], "digits"))


def nan_on_rank_1() -> Findings:
    """Make the loss of one rank NaN."""
    run = healthy(LENGTH)
    of_rank_1 = numbers(v.LOSS, since(run[v.LOSS], 13, NAN), rank=1)
    return learn(run, numbers(v.LOSS, run[v.LOSS], rank=0), of_rank_1)


def one_nan_of_eight() -> Findings:
    """Give all answers 1, and one of eight NaN."""
    run = healthy(LENGTH) | {
        v.REWARD_SCORE: [1.0] * LENGTH, v.REWARD_ZERO_STD: [1.0] * LENGTH, v.GRAD_NORM: [0.0] * LENGTH
    }  # fmt: skip
    scores = numbers(v.FUNCTION_SCORE, run[v.REWARD_SCORE], "digits")
    return learn(run, scores, numbers(v.REWARD_NONFINITE, [1.0] * LENGTH, "digits"), answers=8)


def some_nan_on_rank_1() -> Findings:
    """Give one of the eight answers of rank 1 NaN from step 31 on, none of rank 0."""
    bad = since([0.0] * LENGTH, 31, 1.0)
    ranks = [numbers(v.REWARD_NONFINITE, values, "digits", rank) for rank, values in enumerate([[0.0] * LENGTH, bad])]
    return with_functions(numbers(v.REWARD_NONFINITE, [value / 2 for value in bad], "digits"), *ranks)


def high_rate() -> Findings:
    """Collapse at once, with a gradient in every fourth step."""
    return changed(
        ENTROPY=since(original("ENTROPY"), 2, 0.01, 0.0),
        GRAD_NORM=since(original("GRAD_NORM"), 2, 0.0, 0.0, 0.0, 0.3),
        REWARD_ZERO_STD=since(original("REWARD_ZERO_STD"), 2, 1.0, 1.0, 1.0, 0.0),
        REWARD_SCORE=since(original("REWARD_SCORE"), 2, 0.1, 0.12, 0.11),
        LEARNING_RATE=[2 * (1 - step / LENGTH) for step in STEPS],
    )


def equal_from_11() -> Findings:
    """Give all answers 0.5."""
    return changed(
        REWARD_SCORE=since(original("REWARD_SCORE"), 11, 0.5),
        REWARD_ZERO_STD=since(original("REWARD_ZERO_STD"), 11, 1.0),
        REWARD_STD=since(original("REWARD_STD"), 11, 0.0),
        GRAD_NORM=since(original("GRAD_NORM"), 11, 0.0001),
    )


def paid_for_length() -> Findings:
    """Give a token a point."""
    rewards = original("REWARD_SCORE")
    cut = [max(0.0, reward - 0.1) for reward in rewards]
    lengths = [32 * reward for reward in rewards]
    return changed(RESPONSE_LENGTH=lengths, RESPONSE_CLIPPED=cut, RESPONSE_MAX=[32.0] * LENGTH)


def collapsed_in_function() -> Findings:
    """Make one of two functions give nothing since step 40, and both together their sum."""
    scores = original("REWARD_SCORE")
    second = since([0.8 + 0.01 * (step % 3) for step in STEPS], 40, 0.0, 0.01)
    run = healthy(LENGTH) | {v.REWARD_SCORE: [x + y for x, y in zip(scores, second, strict=True)]}
    return learn(run, numbers(v.FUNCTION_SCORE, scores, "digits"), numbers(v.FUNCTION_SCORE, second, "judge"))


CASES: dict[str, tuple[Callable[[], Findings], str, str]] = {
    "reward NaN": (
        nan_from_21,
        "alarm",
        "Reward digits is NaN since step 21 (40 of 60 steps): "
        "nothing has been learned since (gradient 0.409 to 0.011).",
    ),
    "reward NaN in all steps": (
        lambda: changed(REWARD_SCORE=[NAN] * LENGTH),
        "alarm",
        "The reward is NaN in all 60 steps: nothing is learned.",
    ),
    "reward NaN at times": (
        lambda: changed(REWARD_SCORE=[NAN if step in {3, 40} else 0.5 + step / 120 for step in STEPS]),
        "warning",
        "Reward was NaN in 2 of 60 steps, first in step 4, last in step 41.",
    ),
    "reward NaN once": (
        lambda: changed(REWARD_SCORE=[NAN if step == 40 else 0.5 + step / 120 for step in STEPS]),
        "warning",
        "Reward was NaN in 1 of 60 steps, step 41.",
    ),
    "loss NaN": (
        lambda: changed(LOSS=since(original("LOSS"), 31, NAN), GRAD_NORM=since(original("GRAD_NORM"), 31, NAN)),
        "alarm",
        "Loss is NaN since step 31 (30 of 60 steps); gradient norm is, too: the weights may be lost.",
    ),
    "loss NaN on one rank": (
        nan_on_rank_1,
        "alarm",
        "Loss of rank 1 is NaN since step 13 (48 of 60 steps), and a number on the others.",
    ),
    "one answer of eight NaN": (
        one_nan_of_eight,
        "alarm",
        "Reward digits gave NaN for 1 of 8 answers, in 60 of 60 steps.",
    ),
    "answers NaN on one rank": (
        some_nan_on_rank_1,
        "warning",
        "Reward digits gave NaN for 1 of 8 answers on rank 1, in 30 of 60 steps (first in step 31).",
    ),
    "function NaN": (
        lambda: with_functions(numbers(v.FUNCTION_SCORE, since([0.5] * LENGTH, 31, NAN), "judge")),
        "warning",
        "Reward judge gives no answer a number since step 31 (30 of 60 steps): the other rewards count alone.",
    ),
    "function constant": (
        lambda: judge([0.3] * LENGTH, [0.0] * LENGTH),
        "warning",
        "Reward judge gives every answer 0.3 in all 60 steps: it teaches nothing.",
    ),
    "function constant from step 20": (
        lambda: judge(since(RISING, 20, 0.0), since([0.2] * LENGTH, 20, 0.0)),
        "warning",
        "Reward judge gives every answer 0 since step 20: it teaches nothing.",
    ),
    "equal rewards": (
        equal_from_11,
        "alarm",
        "Since step 11 all answers of a group get the same reward (0.5): "
        "advantages are 0, 50 of 60 steps teach nothing.",
    ),
    "equal rewards in all steps": (
        lambda: changed(REWARD_SCORE=[0.0] * LENGTH, REWARD_ZERO_STD=[1.0] * LENGTH),
        "alarm",
        "In all 60 steps all answers of a group get the same reward (0): advantages are 0, they teach nothing.",
    ),
    "mostly equal rewards": (
        lambda: changed(REWARD_SCORE=STILL, REWARD_ZERO_STD=[(1, 0.5, 1, 1, 1)[step % 5] for step in STEPS]),
        "warning",
        "In 90 % of the groups all rewards are equal (first third: 90 %): they teach nothing.",
    ),
    "learning rate times 1000": (
        high_rate,
        "alarm",
        "The policy collapsed in step 2: entropy 3.03 to 0.01, then gradient 0 in 44 of 60 steps; learning rate 2.",
    ),
    "entropy": (
        lambda: changed(ENTROPY=[3 - 2.8 * min(1, step / 40) for step in STEPS], REWARD_SCORE=STILL),
        "warning",
        "The entropy fell from 3.00 to 0.20 (since step 38), and the reward did not rise.",
    ),
    "reward collapse": (
        lambda: changed(REWARD_SCORE=since(original("REWARD_SCORE"), 46, 0.05, 0.1)),
        "alarm",
        "The reward collapsed in step 46: 0.892 to 0.0731 (best until step 42).",
    ),
    "reward collapse by one function": (
        collapsed_in_function,
        "alarm",
        "The reward collapsed in step 40: 1.65 to 0.913 (best until step 39); "
        "of the functions only judge fell (0.811 to 0.00471).",
    ),
    "reward falls": (
        lambda: changed(REWARD_SCORE=[0.7 - step / 240 + 0.03 * (step * 7 % 5 - 2) for step in STEPS]),
        "warning",
        "The reward falls: 0.696 to 0.477 in 60 steps.",
    ),
    "reward flat": (
        lambda: changed(REWARD_SCORE=STILL),
        "warning",
        "The reward stays at 0.3 in 60 steps, within its noise of 0.105.",
    ),
    "evaluation falls": (
        lambda: learn(healthy(LENGTH), numbers(v.EVAL_REWARD, [0.3, 0.6, 0.5, 0.35, 0.3], every=12)),
        "warning",
        "Evaluation reward falls since step 24 (0.6 to 0.3) while the training reward rises (0.199 to 0.904).",
    ),
    "gradient explodes": (
        lambda: changed(GRAD_NORM=since(original("GRAD_NORM"), 41, 50.0, 80.0, 60.0)),
        "warning",
        "The gradient norm exploded in step 41: 0.452 to 60, and stays there.",
    ),
    "gradient spikes": (
        lambda: changed(GRAD_NORM=[90.0 if step in {30, 41, 50, 55} else 0.5 for step in STEPS]),
        "warning",
        "The gradient norm spikes in 4 of 60 steps (first in 31): up to 90, usually 0.5.",
    ),
    "gradient vanishes": (
        lambda: changed(GRAD_NORM=since([0.5] * LENGTH, 31, 0.0), REWARD_SCORE=STILL),
        "alarm",
        "The gradient is 0 since step 31 (30 of 60 steps), 0.5 before: nothing is learned.",
    ),
    "no gradient ever": (
        lambda: changed(GRAD_NORM=[0.0] * LENGTH, REWARD_SCORE=STILL),
        "alarm",
        "The gradient is 0 in 60 of 60 steps: nothing is learned.",
    ),
    "KL explodes": (
        lambda: changed(
            KL_REFERENCE=[math.exp(step / 12) / 10 for step in STEPS],
            REWARD_SCORE=[0.5 + 0.05 * (step * 7 % 5 - 2) - 0.1 * (step > 40) for step in STEPS],
        ),
        "warning",
        "KL to the reference grows from 0.653 to 11.1 since step 43 while the reward went from 0.492 to 0.408.",
    ),
    "learning rate 0": (
        lambda: changed(LEARNING_RATE=[0.0] * LENGTH, REWARD_SCORE=STILL),
        "alarm",
        "The learning rate is 0 in all 60 steps: nothing can be learned.",
    ),
    "learning rate 0 too early": (
        lambda: changed(LEARNING_RATE=since([1e-4] * LENGTH, 31, 0.0)),
        "warning",
        "The learning rate is 0 since step 31: 30 of 60 steps learn nothing.",
    ),
    "loss rises": (
        lambda: learn({v.LOSS: [1 + step / 20 for step in STEPS], v.LEARNING_RATE: [0.1] * LENGTH}),
        "warning",
        "The loss rises: 1.05 to 3.67 in 60 steps at learning rate 0.1.",
    ),
    "length is paid": (
        paid_for_length,
        "warning",
        "Reward may be paying for length: both rise together (correlation 1.00), "
        "81 % of the responses are cut at 32 tokens (first third: 26 %).",
    ),
    "limit too small": (
        lambda: changed(RESPONSE_CLIPPED=[0.95, 1.0, 0.9, 1.0] * 15, RESPONSE_MAX=[3.0] * LENGTH),
        "warning",
        "96 % of the responses are cut at 3 tokens.",
    ),
    "answers vanish": (
        lambda: changed(RESPONSE_LENGTH=since([100.0] * LENGTH, 31, 1.0, 2.0), REWARD_SCORE=STILL),
        "warning",
        "The responses shrank in step 31: 100 to 1.5 tokens.",
    ),
    "many answers cut": (
        lambda: changed(RESPONSE_CLIPPED=[0.5 + step / 240 for step in STEPS])[1:],
        "note",
        "71 % of the responses are cut at 200 tokens in the last third (first third: 54 %).",
    ),
    "no reward": (
        lambda: learn({v.LOSS: [3 - step / 30 for step in STEPS]}),
        "note",
        "Loss 2.97 to 1.22 in 60 steps; no reward was recorded.",
    ),
    "nothing": (lambda: learn({}), "note", "No reward and no loss of training were recorded."),
    "one step": (lambda: learn({v.REWARD_SCORE: [0.5]}), "note", "Reward 0.5 in the only step."),
    "healthy": (
        lambda: learn(healthy(LENGTH)),
        "note",
        "Reward 0.20 to 0.90, first above 0.83 in step 34.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_sentence_says_what_is_wrong(case: str) -> None:
    """With its numbers, and on no more than two lines of a terminal."""
    make, severity, sentence = CASES[case]
    assert first(make()) == (severity, sentence)
    assert len(sentence) <= 160


@pytest.mark.parametrize(
    ("make", "rules"),
    [
        (nan_from_21, ["reward_nan"]),
        (high_rate, ["policy_collapse"]),
        (one_nan_of_eight, ["answers_nan", "groups_equal"]),
        (equal_from_11, ["groups_equal"]),
        (paid_for_length, ["length_paid"]),
    ],
)
def test_a_cause_silences_its_symptoms(make: Callable[[], Findings], rules: list[str]) -> None:
    """Gradients, groups and lengths of a run whose reward is NaN say nothing of their own."""
    assert [one.rule for one in make()] == rules


def sparse(seed: int) -> list[float]:
    """Make a reward that is 0 but for a few hits, as of a hard task with few answers."""
    chance = random.Random(seed)
    return [float(chance.random() < 0.05) / 8 for _ in range(120)]


UNUSUAL: dict[str, Callable[[int], Findings]] = {
    "gradients of 0 until the first advantage": lambda seed: learn(
        healthy(90, seed) | {v.GRAD_NORM: [0.0] * 40 + healthy(90, seed)[v.GRAD_NORM][40:]}
    ),
    "a noisy evaluation": lambda seed: learn(
        healthy(120, seed),
        numbers(v.EVAL_REWARD, [random.Random(f"{seed} {place}").gauss(0.5, 0.1) for place in range(24)], every=5),
    ),
    "KL and reward that rise": lambda seed: learn(
        healthy(LENGTH, seed) | {v.KL_REFERENCE: [step / 6 for step in STEPS]}
    ),
}


@pytest.mark.parametrize("case", UNUSUAL)
@pytest.mark.parametrize("seed", range(5))
def test_an_unusual_healthy_run_is_no_problem(case: str, seed: int) -> None:
    """Neither an alarm nor a warning."""
    assert {one.severity for one in UNUSUAL[case](seed)} == {"note"}


def test_no_number_is_a_negative_zero() -> None:
    """As a loss without advantages, an entropy of one choice, or a level that is rounded."""
    said = [
        first(learn({v.REWARD_SCORE: [-0.0, -0.0]})),
        first(learn({v.LOSS: [-0.0, 0.1]})),
        first(changed(ENTROPY=since(original("ENTROPY"), 2, -1e-9))),
        first(changed(REWARD_SCORE=[step / LENGTH - 0.018 for step in STEPS])),
    ]
    assert not [sentence for _, sentence in said if re.search(r"-0(\.0+)?(?![.\d])", sentence)]


def test_a_reward_of_few_hits_did_not_collapse() -> None:
    """Three hits close to each other are no level."""
    found = [one.rule for seed in range(20) for one in learn({v.REWARD_SCORE: sparse(seed)})]
    assert found.count("reward_collapsed") <= 1


def test_a_reward_that_may_be_rising_is_not_called_flat() -> None:
    """It rises by two standard errors: too little to say so, too much to deny it."""
    rewards = [0.35 + step / 480 + 0.25 * math.sin(2.4 * step) for step in STEPS]
    assert [one.rule for one in changed(REWARD_SCORE=rewards)] == ["reward_course"]


@pytest.mark.parametrize("length", [1, 2, 3, 10, 30, 60, 240, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_run_has_only_notes(length: int, seed: int) -> None:
    """However long it is."""
    assert {"note"} == {one.severity for one in learn(healthy(length, seed))}


def test_groups_of_a_reward_at_its_end_join_the_sentence() -> None:
    """They become equal bit by bit, and that is no fault."""
    chance = random.Random(1)
    equal = [float(chance.random() < max(0.0, (step - 80) / 160)) for step in range(240)]
    assert first(learn(healthy(240) | {v.REWARD_ZERO_STD: equal})) == (
        "note",
        "Reward 0.21 to 0.90, first above 0.83 in step 124. "
        "In 69 % of the groups (last third; first third 0 %) all answers got the same reward: they teach nothing.",
    )


def test_a_reward_that_reached_its_end_quickly_is_no_fault() -> None:
    """All groups are equal from step 11 on: the rewards had come closer before."""
    run = healthy(LENGTH)
    run[v.REWARD_SCORE] = [min(1.0, 0.4 + 0.06 * step) for step in STEPS]
    run[v.REWARD_STD] = [max(0.0, 0.25 - 0.025 * step) for step in STEPS]
    run[v.REWARD_ZERO_STD] = since([0.0] * LENGTH, 11, 1.0)
    assert {"note"} == {one.severity for one in learn(run)}


def test_a_function_may_judge_some_answers_only() -> None:
    """TRL makes NaN of None, which is not counted."""
    scores = [0.5 + 0.1 * (step % 3) for step in STEPS]
    others = numbers(v.FUNCTION_SCORE, scores, "judge"), numbers(v.REWARD_NONFINITE, [0.0] * LENGTH, "judge")
    assert {"note"} == {one.severity for one in with_functions(*others)}


def test_a_function_that_rose_to_its_best_may_stay_there() -> None:
    """All answers have learned it."""
    found = judge([min(1.0, step / 30) for step in STEPS], since([0.2] * LENGTH, 31, 0.0))
    assert {"note"} == {one.severity for one in found}


def test_a_reward_that_never_rose_falls_or_collapses() -> None:
    """A slow fall from the first step on is no collapse; a sudden one is."""
    slow = [0.9 - 0.8 * min(1.0, step / 40) + 0.01 * (step * 7 % 5 - 2) for step in STEPS]
    at_once = [0.9 + 0.01 * (step * 7 % 5 - 2) if step < 40 else 0.1 for step in STEPS]
    assert ["reward_falls", "reward_collapsed"] == [changed(REWARD_SCORE=run)[0].rule for run in (slow, at_once)]


@pytest.mark.parametrize(("algorithm", "expected"), [("", True), ("GRPO", True), ("GAE", False), ("PPO", False)])
def test_equal_groups_teach_with_a_critic(algorithm: str, expected: bool) -> None:
    """Its values are the baseline, not the mean of a group."""
    run = healthy(LENGTH) | {v.REWARD_SCORE: [0.5] * LENGTH, v.REWARD_ZERO_STD: [1.0] * LENGTH}
    assert expected == ("groups_equal" in {one.rule for one in learn(run, algorithm=algorithm)})


def test_a_constant_after_noise_is_no_collapse() -> None:
    """Equal rewards have no noise: what is beyond it is measured before them."""
    noisy = [0.65 + (0.15 if step % 2 else -0.15) for step in STEPS]
    run = healthy(LENGTH) | {v.REWARD_SCORE: since(noisy, 11, 0.5), v.REWARD_ZERO_STD: since([0.0] * LENGTH, 11, 1.0)}
    assert [one.rule for one in learn(run)] == ["groups_equal"]


def test_a_loss_scaler_may_look_for_its_scale() -> None:
    """Infinite gradients of the first steps are skipped by design."""
    found = changed(GRAD_NORM=[math.inf] * 3 + original("GRAD_NORM")[3:])
    assert {"note"} == {one.severity for one in found}


def test_rewards_of_some_steps_are_those_of_rollouts() -> None:
    """With two updates a rollout, half of the steps have a reward."""
    run = healthy(LENGTH) | {v.REWARD_SCORE: since(healthy(30)[v.REWARD_SCORE], 11, NAN)}
    assert "since step 11 (20 of 30 rollouts)" in learn(run)[0].sentence


def test_the_number_of_a_step_is_that_of_the_framework() -> None:
    """A step without one is counted."""
    values = since([0.5] * 20, 11, NAN)
    for steps, step in (([*range(100, 120)], 110), ([None] * 20, 11)):
        found = apply(LEARN, "learn", Learning(series=[Numbers(v.REWARD_SCORE, {}, steps, values)]))
        assert f"since step {step} " in found[0].sentence


NAMES = sorted({name for rule in LEARN for name in rule.reads})
FLOATS = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40)
REPEATED = st.tuples(FLOATS, st.integers(1, 5)).map(lambda made: made[0] * made[1])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), REPEATED), st.sampled_from([None, 0.0, 8.0]))
def test_no_numbers_raise(series: dict[str, list[float]], answers: float | None) -> None:
    """Whatever is recorded, there is something to say, without NaN among its numbers."""
    more = [
        numbers(name, values, function, rank)
        for name, values in series.items()
        for function in ("one", "two")
        for rank in (None, 0, 1)
        if name.startswith("rl.reward.") and values
    ]
    found = learn(series, *more, answers=answers)
    assert found
    assert all(one.sentence and not re.search(r"\bnan\b", one.sentence) for one in found)


def test_rules_are_named_once() -> None:
    """Also where one silences another."""
    names = [rule.name for rule in LEARN]
    assert len(names) == len(set(names))
    assert {name for rule in LEARN for name in rule.silenced_by} <= set(names)


def test_many_dropped_groups_are_told_with_their_reasons() -> None:
    """From a fifth of what was sampled on; groups that were dropped before a sample was complete count, too."""

    def told(groups: int, **dropped: int) -> list[str]:
        found = apply(LEARN, "learn", Learning(groups=groups, dropped=dropped))
        return [one.sentence for one in found if one.rule == "groups_dropped"]

    both = "40 % of the 10 prompts that were sampled were dropped (3 filtered and 1 stale)."
    assert told(10, stale=1, filtered=3, failed=0) == [both]
    assert told(10, filtered=1) == told(10) == told(0) == []
    assert told(0, failed=2) == ["100 % of the 2 prompts that were sampled were dropped (2 failed)."]
