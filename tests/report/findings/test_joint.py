"""What the rules say of several numbers together, and of what rollouts give to training; each at its limit."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest

from otel_rl import vocabulary as v
from otel_rl.report.findings.curves import Learning, Numbers
from tests.report.findings.synthetic import healthy, learn, since

LENGTH = 60
STEPS = range(LENGTH)
STILL = [0.3 + 0.05 * (step * 7 % 5 - 2) for step in STEPS]
"""A reward that goes nowhere."""
RUN = healthy(LENGTH)


def of(name: str, values: Sequence[float], **qualifiers: str) -> Numbers:
    """Make a series with attributes by the names of the vocabulary."""
    return Numbers(
        name, {getattr(v, key): value for key, value in qualifiers.items()}, [*range(1, len(values) + 1)], values
    )


def raised(series: Mapping[str, Sequence[float]], *more: Numbers, **how: object) -> dict[str, str]:
    """Return the sentences of all that is no note, by rule."""
    found = learn(series, *more, **how)  # type: ignore[arg-type]
    return {one.rule: one.sentence for one in found if one.severity != "note"}


def changed(**series: Sequence[float]) -> dict[str, Sequence[float]]:
    """Return a healthy run in which some series, by the names of the vocabulary, are others."""
    return {**RUN, **{getattr(v, name): values for name, values in series.items()}}


# --- divergence


def diverging(times: float, left: float) -> dict[str, Sequence[float]]:
    """Let the gradient grow to a multiple of its highest, and the entropy move, from step 41 on."""
    chance = random.Random(3)
    early = [0.5 * math.exp(chance.gauss(0, 0.3)) for _ in STEPS]
    return changed(
        KL_REFERENCE=since([0.05 + step / 1000 for step in STEPS], 41, 0.9, 1.2, 1.0),
        GRAD_NORM=since(early, 41, times * max(early), 1.1 * times * max(early)),
        ENTROPY=since([2.0 - step / 400 for step in STEPS], 41, left),
        REWARD_SCORE=STILL,
    )


def test_kl_gradient_and_entropy_together_are_a_divergence() -> None:
    """Before what each of them alone would need; it is said once."""
    assert raised(diverging(3.5, 3.2))["divergence"] == (
        "The policy diverges since step 41: KL 0.0695 to 1, gradient norm 0.47 to 3.25, entropy 1.95 to 3.2."
    )
    old = {(v.KL_POLICY if name == v.KL_REFERENCE else name): of_name for name, of_name in diverging(3.5, 3.2).items()}
    assert "divergence" in raised(old)
    assert list(raised(diverging(20, 0.9))) == ["divergence", "reward_flat"]


@pytest.mark.parametrize(("times", "left"), [(2.5, 3.2), (3.5, 2.3), (3.5, 1.6)])
def test_two_of_the_three_are_none(times: float, left: float) -> None:
    """A gradient below three times its highest, or an entropy that moved by less than a quarter."""
    assert "divergence" not in raised(diverging(times, left))


def test_a_policy_that_learns_does_not_diverge() -> None:
    """Its reward rises while all three move."""
    assert "divergence" not in raised(
        {**diverging(3.5, 0.9), v.REWARD_SCORE: since(STILL, 41, *[0.6 + i / 40 for i in range(20)])}
    )


# --- a policy that does not change


@pytest.mark.parametrize(("kl", "is_found"), [(0.0, True), (9e-7, True), (2e-6, False)])
def test_updates_that_change_nothing_are_found(kl: float, is_found: bool) -> None:
    """By a KL that is 0 but for rounding."""
    found = raised(changed(KL_REFERENCE=[kl] * LENGTH, REWARD_SCORE=STILL))
    assert is_found == ("policy_unchanged" in found)
    if is_found:
        assert found["policy_unchanged"].startswith(
            "The policy does not change: its KL to the reference is 0 in all 60 "
        )
        assert "reward_flat" not in found


def test_without_a_learning_rate_or_a_gradient_nothing_has_to_change() -> None:
    """Nor in the first steps."""
    still = changed(KL_REFERENCE=[0.0] * LENGTH, REWARD_SCORE=STILL)
    assert "policy_unchanged" not in raised({**still, v.LEARNING_RATE: since([1e-6] * LENGTH, 20, 0.0)})
    assert "policy_unchanged" not in raised({**still, v.GRAD_NORM: since([0.5] * LENGTH, 20, 0.0)})
    assert "policy_unchanged" not in raised({name: values[:9] for name, values in still.items()})


def test_the_kl_to_the_old_policy_tells_only_with_several_updates_a_rollout() -> None:
    """With one it is 0 by design."""
    run = {name: values for name, values in RUN.items() if name != v.KL_REFERENCE}
    old = of(v.KL_POLICY, [0.0] * LENGTH)
    flat = {**run, v.REWARD_SCORE: STILL}
    assert "policy_unchanged" in raised(flat, old, settings={"updates_per_rollout": 2.0})
    assert "policy_unchanged" not in raised(flat, old, settings={"updates_per_rollout": 1.0})
    assert not raised(run, old, settings={"updates_per_rollout": 2.0})
    assert not raised(run, old, settings={"updates_per_rollout": 1.0})
    assert not raised(run, of(v.KL_POLICY, [1e-9] * LENGTH), settings={"updates_per_rollout": 2.0})


# --- policy loss


def policy_loss(level: float, width: float = 0.05) -> Numbers:
    chance = random.Random(5)
    return of(v.LOSS_TERM, [level + chance.gauss(0, width) for _ in STEPS], LOSS_TYPE="policy")


def test_a_policy_loss_that_stays_positive_is_found_where_nothing_is_learned() -> None:
    """Beyond its noise; a value loss is always positive."""
    flat = changed(REWARD_SCORE=STILL)
    assert raised(flat, policy_loss(0.2))["policy_loss_positive"].startswith("The policy loss stays positive (0.2")
    assert "policy_loss_positive" not in raised(flat, policy_loss(0.04))
    assert "policy_loss_positive" not in raised(flat, policy_loss(0.0))
    assert "policy_loss_positive" not in raised(flat, of(v.LOSS_TERM, [0.5] * LENGTH, LOSS_TYPE="value"))
    assert not raised(RUN, policy_loss(0.2))


# --- rewards


def constant(step: int, value: float, gradient: float) -> dict[str, Sequence[float]]:
    """Return a run whose reward is constant from a step on; who records it knows neither groups nor a spread."""
    run = changed(REWARD_SCORE=since(STILL, step, value), GRAD_NORM=since([0.8] * LENGTH, step, gradient))
    return {name: values for name, values in run.items() if name not in (v.REWARD_ZERO_STD, v.REWARD_STD)}


def test_a_constant_reward_is_no_success() -> None:
    """Though the last value may be the highest: the gradient is gone with it."""
    assert raised(constant(5, 1.0, 0.0005)) == {
        "reward_constant": "The reward is exactly 1 since step 5; the gradient norm fell from 0.8 to 0.0005: "
        "nothing is learned any more."
    }
    assert "reward_constant" not in raised(constant(5, 1.0, 0.05))
    short = {name: values[:14] for name, values in constant(4, 1.0, 0.0005).items()}
    assert "reward_constant" in raised(short)
    assert "reward_constant" not in raised({name: values[:7] for name, values in short.items()})


def test_a_reward_that_rose_to_its_end_may_stay_there() -> None:
    """All is learned."""
    rising = [min(1.0, 0.3 + step / 40) for step in STEPS]
    assert not raised({**constant(40, 1.0, 0.0005), v.REWARD_SCORE: rising})
    for quick in ([0.4, 0.8, 0.95], [0.25, 0.75]):
        run = constant(1 + len(quick), 1.0, 0.0005)
        assert not raised({**run, v.REWARD_SCORE: [*quick, *[1.0] * (LENGTH - len(quick))]})


def test_a_reward_that_was_always_the_same_needs_another_sign() -> None:
    """It may be normalized."""
    always = {v.REWARD_SCORE: [0.0] * LENGTH, v.GRAD_NORM: [0.5] * LENGTH}
    assert "reward_constant" not in raised(always)
    assert "reward_constant" not in raised({**always, v.REWARD_STD: [1.0] * LENGTH})
    equal = raised({**always, v.REWARD_STD: [0.0] * LENGTH})
    assert "reward_constant" not in raised({**always, v.REWARD_STD: [0.0] * LENGTH, v.REWARD_ZERO_STD: [0.0] * LENGTH})
    assert equal == {"reward_constant": "The reward is exactly 0 in all steps: nothing is learned any more."}


@pytest.mark.parametrize(("spread", "equal", "is_found"), [(0.16, 0.5, True), (0.14, 0.5, False), (0.16, 0.45, False)])
def test_a_reward_of_noise_is_found(spread: float, equal: float, is_found: bool) -> None:
    """By its spread and its equal groups, where it does not rise."""
    run = changed(REWARD_SCORE=STILL, REWARD_STD=[spread] * LENGTH, REWARD_ZERO_STD=[equal] * LENGTH)
    assert list(raised(run)) == (["reward_noisy"] if is_found else ["reward_flat"])
    assert not raised({**run, v.REWARD_SCORE: RUN[v.REWARD_SCORE]})


@pytest.mark.parametrize(
    ("setting", "value", "held"),
    [
        ("temperature", 0.02, "at a temperature of 0.02 answers hardly differ"),
        ("temperature", 0.2, ""),
        ("kl_coefficient", 2.0, "a KL coefficient of 2 outweighs it"),
        ("kl_coefficient", 0.5, ""),
        ("gradient_limit", 0.001, "gradients of 0.452 are clipped to 0.001 in all steps"),
        ("gradient_limit", 0.1, ""),
    ],
)
def test_a_flat_reward_names_the_setting_that_holds_it(setting: str, value: float, held: str) -> None:
    """In one sentence."""
    sentence = raised(changed(REWARD_SCORE=STILL), settings={setting: value})["reward_flat"]
    assert sentence == f"The reward stays at 0.3 in 60 steps, within its noise of 0.105{f': {held}' if held else ''}."


def test_a_temperature_near_0_makes_a_policy_certain_and_no_learning_rate_does() -> None:
    """The rate is not blamed."""
    gone = changed(ENTROPY=since([2.9] * LENGTH, 5, 0.01), REWARD_SCORE=STILL)
    assert raised(gone, settings={"temperature": 0.02})["policy_collapse"].endswith("to 0.01; temperature 0.02.")
    assert "learning rate" in raised(gone, settings={"temperature": 1.0})["policy_collapse"]


# --- what rollouts give


APART = [0.006, 0.005, 0.006, 0.006, 0.057, 0.108, 0.165, 0.196, 0.189, 0.2, 0.236, 0.225]
"""An engine that keeps the weights of step 4."""


def differing(values: Sequence[float], boundary: str = "rl.logprob", **how: object) -> list[str]:
    short = {name: of_name[: len(values)] for name, of_name in RUN.items()}
    lag = of(v.SAMPLE_LAG, [float(x) for x in how.pop("lag", [])])  # type: ignore[attr-defined]
    return list(raised(short, of(v.LOGPROB_DIFFERENCE, values, LEDGER_BOUNDARY=boundary), lag, **how).values())


def test_rollouts_of_another_policy_are_found() -> None:
    """Since the step in which the weights were not handed over; also at the batch that a driver gives to its ranks."""
    said = ["Rollout and training disagree since step 5: log-probabilities differ by 0.193 nat a token, 0.006 before."]
    assert said == differing(APART) == differing(APART, "rl.train", is_led=True) == differing(APART, "rl.logprob old")
    assert [] == differing(APART, "rl.train") == differing(APART, "rl.train.forward", is_led=True)
    assert (
        []
        == differing([min(0.049, value) for value in APART])
        == differing([4.9 * 0.02 if i > 4 else 0.02 for i in range(12)])
    )
    assert [] == differing(APART, lag=[0] * 4 + [1] * 8)
    assert said == differing(APART, lag=[0] * 12)
    assert [] == differing(APART[:6])


def test_rollouts_that_never_fit_are_found() -> None:
    """As at another temperature; where samples are older than the policy that is no wonder."""
    hot = [0.055, 0.06, 0.116, 0.09, 0.08]
    assert differing(hot) == [
        "Rollout and training disagree: log-probabilities differ by 0.08 nat a token in all 5 steps "
        "(engines and trainers that fit: below 0.05)."
    ]
    assert [] == differing([0.04] * 5) == differing(hot, lag=[1] * 5) == differing(hot, "rl.train.forward")


def test_a_lag_that_grows_is_found() -> None:
    """One that is bounded is how asynchronous training works."""
    grows = of(v.SAMPLE_LAG, [step // 10 for step in STEPS])
    assert raised(RUN, grows) == {
        "lag_grows": "Samples become older from step to step: 0.25 updates behind the policy at first, 4.5 in the end."
    }
    assert not raised(RUN, of(v.SAMPLE_LAG, [0, 0, 1, *[2] * 57]))
    assert not raised(RUN, of(v.SAMPLE_LAG, [float(step % 4) for step in STEPS]))
    assert not raised(RUN, of(v.SAMPLE_LAG, [step / 70 for step in STEPS]))


@pytest.mark.parametrize(("kind", "how"), [("aborted", "are aborted"), ("timed_out", "time out"), ("error", "fail")])
def test_requests_that_end_badly_more_and_more_are_found(kind: str, how: str) -> None:
    """From a tenth of all on."""
    rising = [max(0.0, (step - 20) / 200) for step in STEPS]
    ratio = of(v.REQUEST_RATIO, rising, OUTCOME_KIND=kind)
    sentence = f"More and more requests of rollouts {how}: 15 % in the last third, 0 % in the first."
    assert raised(RUN, ratio) == {"requests_worse": sentence}
    assert not raised(RUN, of(v.REQUEST_RATIO, [value / 2 for value in rising], OUTCOME_KIND=kind))
    assert not raised(RUN, of(v.REQUEST_RATIO, rising, OUTCOME_KIND=kind, MODE="eval"))
    assert not raised(RUN, of(v.REQUEST_RATIO, rising, OUTCOME_KIND="clipped"))


def test_asynchronous_rollouts_abort_requests_by_design() -> None:
    """They begin again with newer weights."""
    ratio = of(v.REQUEST_RATIO, [max(0.0, (step - 20) / 200) for step in STEPS], OUTCOME_KIND="aborted")
    assert not raised(RUN, ratio, of(v.SAMPLE_LAG, [1.0] * LENGTH))


# --- lengths


def test_responses_that_are_cut_more_and_more_are_found() -> None:
    """Unless the reward rises with it, which a note tells."""
    cut = [min(1.0, 0.2 + step / 60) for step in STEPS]
    found = raised(changed(RESPONSE_CLIPPED=cut, REWARD_SCORE=STILL))
    assert found["cut_rises"] == (
        "More and more responses are cut at 200 tokens: 97 % in the last third, 36 % in the first, and the reward does "
        "not rise."
    )
    assert not raised(changed(RESPONSE_CLIPPED=cut))
    assert "cut_rises" not in raised(changed(RESPONSE_CLIPPED=[0.4 + step / 250 for step in STEPS], REWARD_SCORE=STILL))


def test_a_limit_that_is_lowered_is_found() -> None:
    """Whatever the reward does; responses that grow into their limit are longer than before, not shorter."""
    half = LENGTH // 2
    cut, longest = [0.1] * half + [0.9] * half, [200.0] * half + [100.0] * half
    assert raised(changed(RESPONSE_CLIPPED=cut, RESPONSE_MAX=longest))["limit_lowered"] == (
        f"The limit of the responses was lowered in step {half + 1}: 90 % are cut at 100 tokens since then. Before, "
        "10 % were cut, and the longest had 200."
    )
    growing = [100.0] * half + [200.0] * half
    often_before = [0.65] * half + [0.85] * half
    outlier = [200.0, *[100.0] * (LENGTH - 1)]
    for change in (
        {"RESPONSE_MAX": growing},
        {"RESPONSE_MAX": outlier},
        {"RESPONSE_CLIPPED": often_before},
        {"RESPONSE_MAX": [160.0] * LENGTH},
    ):
        run = {"RESPONSE_CLIPPED": cut, "RESPONSE_MAX": longest} | change
        assert "limit_lowered" not in raised(changed(**run))


def test_a_limit_is_lowered_also_where_no_more_can_be_cut() -> None:
    """It is told with the limit that is, not with the one of before."""
    half = LENGTH // 2
    found = raised(changed(RESPONSE_CLIPPED=[0.9] * LENGTH, RESPONSE_MAX=[200.0] * half + [100.0] * half))
    assert list(found) == ["limit_lowered"]
    assert "90 % are cut at 100 tokens since then. Before, 90 % were cut" in found["limit_lowered"]


@pytest.mark.parametrize(("steady", "is_found"), [(5, True), (4, False)])
def test_what_is_cut_at_no_limit_tells_of_none(steady: int, is_found: bool) -> None:
    """As by a number of turns, or by the room that prompts leave: the longest responses differ."""
    half = LENGTH // 2
    shorter = [100.0 - (step % (2 * steady) == 0) for step in range(half)]
    run = changed(RESPONSE_CLIPPED=[0.1] * half + [0.9] * half, RESPONSE_MAX=[200.0] * half + shorter)
    assert is_found == ("limit_lowered" in raised(run))
    turns = [60.0 + step for step in range(half - 6)] + [100.0, 101.0, 99.0, 100.0, 98.0, 100.0]
    run[v.RESPONSE_MAX] = [200.0] * half + turns
    assert "limit_lowered" not in raised(run)


@pytest.mark.parametrize(("length", "is_found"), [(96.0, True), (94.0, False)])
def test_lengths_at_the_limit_tell_of_cut_responses(length: float, is_found: bool) -> None:
    """Where nobody counts these."""
    run = changed(RESPONSE_LENGTH=[length] * LENGTH)
    uncounted = {name: values for name, values in run.items() if name != v.RESPONSE_CLIPPED}
    assert is_found == ("answers_at_limit" in raised(uncounted, settings={"response_limit": 100.0}))
    assert not raised(run, settings={"response_limit": 100.0})
    assert not raised(uncounted)


def test_a_limit_that_no_response_comes_near_is_a_note() -> None:
    """It costs memory, and answers may end too early."""
    notes = [one.sentence for one in learn(RUN, settings={"response_limit": 4000.0})]
    assert "No response of the last third is longer than 200 tokens, at a limit of 4,000." in notes
    assert len(learn(RUN, settings={"response_limit": 3999.0})) == len(notes) - 1


# --- healthy ones


@pytest.mark.parametrize("length", [1, 3, 5, 15, 30, 100, 500])
@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_run_with_all_numbers_is_silent(length: int, seed: int) -> None:
    """A policy loss around 0, a lag of one or two, engines that differ by kernels, some aborts."""
    chance = random.Random(f"{length} {seed}")

    def around(level: float, width: float, low: float = -math.inf) -> list[float]:
        return [max(low, chance.gauss(level, width)) for _ in range(length)]

    more = (
        of(v.LOSS_TERM, around(0.0, 0.05), LOSS_TYPE="policy"),
        of(v.LOSS_TERM, around(1.0, 0.1, 0), LOSS_TYPE="value"),
        of(v.KL_POLICY, around(1e-3, 3e-4, 0)),
        of(v.SAMPLE_LAG, [min(2.0, step) for step in range(length)]),
        of(v.LOGPROB_DIFFERENCE, around(0.02, 0.005, 0), LEDGER_BOUNDARY="rl.logprob old"),
        of(v.LOGPROB_DIFFERENCE, around(0.2, 0.05, 0), LEDGER_BOUNDARY="rl.train.forward"),
        of(v.REQUEST_RATIO, around(0.02, 0.02, 0), OUTCOME_KIND="aborted"),
        of(v.REQUEST_RATIO, around(0.3, 0.1, 0), OUTCOME_KIND="clipped"),
    )
    settings = {"temperature": 1.0, "kl_coefficient": 0.04, "gradient_limit": 1.0, "response_limit": 200.0}
    assert not raised(healthy(length, seed), *more, settings={**settings, "updates_per_rollout": 2.0})


def test_missing_values_raise_nothing() -> None:
    """NaN in every third step of each series but one is said as that, and as nothing else."""
    holes = {
        name: [math.nan if step % 3 == 1 else value for step, value in enumerate(values)]
        for name, values in RUN.items()
        if name in (v.RESPONSE_LENGTH, v.RESPONSE_CLIPPED, v.REWARD_STD, v.REWARD_ZERO_STD, v.LEARNING_RATE)
    }
    assert not raised({**RUN, **holes})
    assert Learning().loss_term("policy").values == ()
