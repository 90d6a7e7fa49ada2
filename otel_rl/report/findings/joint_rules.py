"""What several numbers say together, and none of them alone: rules of LEARN."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.onset import onset
from otel_rl.analysis.series.robust import high, median, noise
from otel_rl.report.findings.curves import DEAD, Curve, Learning, gains_since, same_steps
from otel_rl.report.findings.rule import Found, rule, whole

FEWEST: Final = 5
FEW: Final = 15
BEYOND: Final = 3.0
"""Together, so many times the highest of the first third is enough; a single number needs more to be told."""
AGGRESSIVE: Final = 0.1
"""A KL below this, nat, is no divergence: the usual limits of health call it too high from here on."""
MOVED: Final = 0.25
"""An entropy has moved by this part of its level in the first third."""
UNCHANGED: Final = 10
"""Updates after which a policy has changed, at whatever learning rate."""
SAME: Final = 1e-6
"""A KL below this, nat, is the rounding of two equal policies."""
SEVERAL: Final = 2.0
"""From so many updates a rollout on, all but the first have a policy that is not that of the rollout."""
MOST_SHARE: Final = 0.9
POSITIVE: Final = 0.95
"""With this share of positive losses among 15 the sign is no chance."""
CONSTANT: Final = 1e-6
"""A change below this part of a reward is rounding."""
FADED: Final = 0.05
"""Without an advantage, this part of the gradient norm is at most left: that of the KL and entropy terms."""
NEAR: Final = 0.5
"""So much of its way a reward has come when it is said to have arrived."""
RECENT: Final = 5
HALF: Final = 0.5


@rule(
    "alarm",
    reads=(v.KL_REFERENCE, v.KL_POLICY, v.GRAD_NORM, v.ENTROPY, v.REWARD_SCORE),
    condition=f"KL (to the reference, or else the old policy) and gradient norm stay above {BEYOND:.0f} times the "
    f"highest of the first third, KL above {AGGRESSIVE} nat, the entropy has moved by {whole(MOVED)}, and no reward "
    "rises since",
    window=f"all steps, at least {FEW}, against the first third; at least {FEWEST} at the end",
    sentence="The policy diverges since step {step}: KL {kl_before:brief} to {kl_after:brief}, gradient norm "
    "{gradient_before:brief} to {gradient_after:brief}, entropy {before:brief} to {after:brief}.",
    advice="Go back to a checkpoint before that step; lower the learning rate, check advantages and rewards.",
    silenced_by=DEAD,
)
def divergence(
    learning: Learning, *, nat: float = AGGRESSIVE, times: float = BEYOND, moved: float = MOVED
) -> Found | None:
    """Find that KL, gradient norm and entropy leave their past together, for good and for nothing."""
    kind = v.KL_REFERENCE if len(learning.curve(v.KL_REFERENCE)) else v.KL_POLICY
    kl, gradient, entropy = same_steps(*map(learning.curve, (kind, v.GRAD_NORM, v.ENTROPY)))
    if len(kl) < FEW:
        return None
    third = len(kl) // 3
    most = max(nat, times * high(kl.values[:third], 0.95)), times * high(gradient.values[:third], 0.95)
    usual = median(entropy.values[:third])
    flags = [
        size > most[0] and norm > most[1] and abs(left - usual) > moved * abs(usual)
        for size, norm, left in zip(kl.values, gradient.values, entropy.values, strict=True)
    ]
    start = onset(flags)
    if start is None or len(kl) - start < FEWEST or gains_since(learning.curve(v.REWARD_SCORE), kl.steps[start]):
        return None
    values = {"kl": _ends(kl, start), "gradient": _ends(gradient, start)}
    pairs = {f"{name}_{when}": value for name, ends in values.items() for when, value in ends.items()}
    return Found({"step": kl.steps[start], **pairs, **_ends(entropy, start)}, since=kl.steps[start])


@rule(
    "alarm",
    reads=(v.KL_REFERENCE, v.KL_POLICY, v.GRAD_NORM, v.LEARNING_RATE, v.REWARD_SCORE),
    condition="the KL to the reference is 0 in all steps, or with several updates a rollout the KL to the old policy, "
    "though gradients and learning rates are not, and the reward does not rise",
    window=f"all steps, at least {UNCHANGED}",
    sentence="The policy does not change: its KL to the {whom} is 0 in all {steps:plural step}, at a learning rate of "
    "{rate:brief} and a gradient norm of {gradient:brief}.",
    advice="Check that the optimizer has the parameters of the model that is trained, and that its updates reach it.",
    silenced_by=DEAD,
)
def policy_unchanged(learning: Learning) -> Found | None:
    """Find updates that change nothing: of a policy that learns no KL stays exactly 0."""
    reference, old = learning.curve(v.KL_REFERENCE), learning.curve(v.KL_POLICY)
    is_several = learning.settings.get("updates_per_rollout", 1.0) >= SEVERAL
    kl, whom, limit = (reference, "reference", SAME) if len(reference) or not is_several else (old, "old policy", 0.0)
    rate, gradient = learning.curve(v.LEARNING_RATE), learning.curve(v.GRAD_NORM)
    used, norms = [value for value in rate.values if value > 0], [value for value in gradient.values if value > 0]
    if min(len(kl), len(used), len(norms)) < UNCHANGED or max(map(abs, kl.values)) > limit:
        return None
    if len(used) < MOST_SHARE * len(rate) or len(norms) < MOST_SHARE * len(gradient) or learning.is_gaining:
        return None
    return Found({"whom": whom, "steps": len(kl), "rate": median(used), "gradient": median(norms)})


@rule(
    "warning",
    reads=(v.LOSS_TERM, v.REWARD_SCORE),
    condition=f"the policy's part of the loss is positive in {whole(POSITIVE)} of the steps, by more than its noise, "
    "and the reward does not rise",
    window=f"the second half, at least {FEW} steps",
    sentence="The policy loss stays positive ({level:brief} in the last {steps:plural step}), and the reward does not "
    "rise.",
    advice="Check the sign of loss and advantages, how tokens are weighted, and the clip range.",
    silenced_by=(*DEAD, "groups_equal", "reward_constant"),
)
def policy_loss_positive(learning: Learning, *, limit: float = POSITIVE) -> Found | None:
    """Find a policy loss that stays above 0, where it should scatter around 0 or lie below."""
    loss = learning.loss_term("policy")
    half = loss.values[len(loss) // 2 :]
    if len(half) < FEW or learning.is_gaining or not len(learning.curve(v.REWARD_SCORE)):
        return None
    if sum(value > 0 for value in half) < limit * len(half) or median(half) <= noise(half):
        return None
    return Found({"level": median(half), "steps": len(half)})


@rule(
    "alarm",
    reads=(v.REWARD_SCORE, v.REWARD_STD, v.GRAD_NORM),
    condition="the reward stays exactly the same from some step on, without having risen to that bit by bit, and the "
    f"gradient norm below {whole(FADED)} of its past, or the spread of the rewards 0, where nobody counts equal groups",
    window="all steps; at least 5 at the end, and a tenth of all; 10 if it is all",
    sentence="The reward is exactly {value:brief} {when}[; the gradient norm fell from {gradient_before:brief} to "
    "{gradient_after:brief}]: nothing is learned any more.",
    advice="Look at what the reward function returns; if it is right, the prompts are too easy or too hard.",
    silenced_by=(*DEAD, "groups_equal", "answers_nan", "reward_collapsed"),
)
def reward_constant(learning: Learning) -> Found | None:
    """Find a reward that became a constant at once, and taught nothing since."""
    if len(learning.equal_groups):
        return None  # groups_equal knows more
    reward, spread = learning.curve(v.REWARD_SCORE), learning.curve(v.REWARD_STD)
    final = reward.values[-1] if len(reward) else 0.0
    start = onset([abs(value - final) <= CONSTANT * abs(final) for value in reward.values], 1.0)
    if start is None or len(reward) - start < max(FEWEST, len(reward) // 10) or _has_come_to(reward, start):
        return None
    step = reward.steps[start]
    gradient, spreads = learning.curve(v.GRAD_NORM), spread.since(step)
    before, after = median(gradient.before(step)), median(gradient.since(step))
    has_faded, is_one = after <= FADED * before, bool(spreads) and max(spreads) <= CONSTANT * abs(final)
    if not has_faded and not (is_one and (start or len(reward) >= UNCHANGED)):
        return None
    values = {"gradient_before": before, "gradient_after": after} if has_faded else {}
    return Found({"value": final, "when": f"since step {step}" if start else "in all steps", **values}, since=step)


@rule(
    "warning",
    reads=(v.REWARD_STD, v.REWARD_ZERO_STD, v.REWARD_SCORE),
    condition=f"the rewards of a step spread by more than {whole(HALF)} of their mean, {whole(HALF)} of the groups say "
    "nothing since their rewards are equal, and the reward does not rise",
    window=f"the last third; at least {2 * FEW} steps",
    sentence="Rewards are mostly noise: they spread by {spread:brief} around {mean:brief}, and in {equal:percent} of "
    "the groups all are equal.",
    advice="Sample more prompts a rollout, or larger groups: what is left of a step tells too little.",
    silenced_by=(*DEAD, "groups_equal", "groups_mostly_equal", "reward_constant", "answers_nan", "gradient_vanished"),
)
def reward_noisy(learning: Learning, *, spread_limit: float = HALF, equal_limit: float = HALF) -> Found | None:
    """Find rewards of few groups that tell answers apart, with a large spread, that lead nowhere."""
    spread, equal, reward = learning.curve(v.REWARD_STD), learning.equal_groups, learning.curve(v.REWARD_SCORE)
    if min(map(len, (spread, equal, reward))) < 2 * FEW or learning.is_gaining:
        return None
    width, level, share = spread.third(2), reward.third(2), equal.third(2)
    if width <= spread_limit * abs(level) or share < equal_limit:
        return None
    return Found({"spread": width, "mean": level, "equal": share})


def _has_come_to(reward: Curve, start: int) -> bool:
    """Return whether a reward may have risen to its last value before it became constant there.

    Two values do not tell, so they count as a rise.
    """
    before, final = reward.values[:start], reward.values[-1]
    first = min(before[:3], default=final)
    return final > first and (len(before) < 3 or median(before[-RECENT:]) >= first + NEAR * (final - first))


def _ends(curve: Curve, start: int) -> dict[str, float]:
    return {"before": median(curve.values[:start]), "after": median(curve.values[start:])}
