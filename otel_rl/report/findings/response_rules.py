"""Lengths of the responses: at the limit, paid for, or gone."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.correlation import step_by_step, together
from otel_rl.analysis.series.onset import onset
from otel_rl.analysis.series.robust import median
from otel_rl.analysis.summary import mean
from otel_rl.report.findings.curves import DEAD, Curve, Learning
from otel_rl.report.findings.rule import Found, rule, whole

FEW: Final = 15
TOGETHER: Final = 0.8
"""Correlation of levels from which on two numbers rise together."""
STEP_BY_STEP: Final = 0.85
"""Correlation of the changes from step to step: length alone makes the reward."""
HALF: Final = 0.5
MANY: Final = 0.9
EARLY: Final = 0.8
"""With this share in the first steps it was so from the beginning."""
SHORT: Final = 0.15
"""Collapsed responses have at most this part of their first length."""


@rule(
    "warning",
    reads=(v.REWARD_SCORE, v.RESPONSE_LENGTH, v.RESPONSE_CLIPPED),
    condition=f"reward and length rise together, also from step to step, and {whole(HALF)} of the responses are cut",
    window=f"all steps, at least {FEW}",
    sentence="Reward may be paying for length: both rise together (correlation {correlation:.2f}), "
    "{last:percent} of the responses are cut[ at {limit:count} tokens] (first third: {first:percent}).",
    advice="Read some long responses; test the reward function on padded ones.",
    silenced_by=DEAD,
)
def length_paid(learning: Learning) -> Found | None:
    """Find rewards and lengths that rise together until responses are cut."""
    reward, length = _same_steps(learning.curve(v.REWARD_SCORE), learning.curve(v.RESPONSE_LENGTH))
    cut = learning.curve(v.RESPONSE_CLIPPED)
    if len(reward) < FEW or not cut.values or not (reward.change.is_rise and length.change.is_rise):
        return None
    level = together(reward.values, length.values)
    by_step = step_by_step(reward.values, length.values)
    is_steep = length.change.after >= 2 * length.change.before and by_step >= HALF
    if level < TOGETHER or cut.third(2) < max(HALF, cut.third(0)) or (by_step < STEP_BY_STEP and not is_steep):
        return None
    shares = {"first": cut.third(0), "last": cut.third(2)}
    lengths = {"before": length.change.before, "after": length.change.after}
    return Found({"correlation": level, **lengths, **shares, "limit": _limit(learning)})


@rule(
    "warning",
    reads=(v.RESPONSE_CLIPPED, v.RESPONSE_MAX),
    condition=f"{whole(MANY)} of the responses are cut at the limit, from the first steps on",
    window="all steps, at least 5",
    sentence="{share:percent} of the responses are cut[ at {limit:count} tokens].",
    advice="Raise the limit (max_completion_length in TRL), or reward shorter answers.",
    silenced_by=("length_paid", "policy_collapse"),
)
def answers_cut(learning: Learning) -> Found | None:
    """Find that nearly all responses are cut from the first steps on."""
    cut = learning.curve(v.RESPONSE_CLIPPED)
    if len(cut) < 5:
        return None
    share, early = mean(cut.values), mean(cut.values[: max(5, len(cut) // 10)])
    return Found({"share": share, "limit": _limit(learning)}) if share >= MANY and early >= EARLY else None


@rule(
    "note",
    reads=(v.RESPONSE_CLIPPED, v.RESPONSE_MAX),
    condition=f"{whole(HALF)} of the responses of the last third are cut, and no alarm and no warning holds",
    window="first and last third",
    sentence="{last:percent} of the responses are cut[ at {limit:count} tokens] in the last third (first "
    "third: {first:percent}).",
    advice="Raise the limit if answers need more room.",
    is_fallback=True,
)
def answers_often_cut(learning: Learning) -> Found | None:
    """Find how many responses are cut where it is at least half."""
    cut = learning.curve(v.RESPONSE_CLIPPED)
    if len(cut) < 3 or cut.third(2) < HALF:
        return None
    return Found({"first": cut.third(0), "last": cut.third(2), "limit": _limit(learning)})


@rule(
    "warning",
    reads=(v.RESPONSE_LENGTH, v.REWARD_SCORE),
    condition=f"the responses stay below {whole(SHORT)} of their first length",
    window="all steps, against the first twentieth; at least 5 at the end",
    sentence="The responses shrank in step {step}: {before:brief} to {after:brief} tokens[ while the reward "
    "rises to {reward:.4g}].",
    advice="Read some responses; look at what the reward pays for short ones.",
    silenced_by=DEAD,
)
def answers_short(learning: Learning) -> Found | None:
    """Find responses that became a fraction of what they were, and stay so."""
    length = learning.curve(v.RESPONSE_LENGTH)
    early = median(length.values[: max(3, len(length) // 20)])
    start = onset([value <= max(SHORT * early, 1.0) for value in length.values])
    if not start or len(length) - start < 5 or early < 5:
        return None
    after = median(length.values[start:])
    reward = learning.curve(v.REWARD_SCORE)
    step = length.steps[start]
    rises_to = reward.change.after if learning.is_gaining else None
    return Found({"step": step, "before": early, "after": after, "reward": rises_to})


def _limit(learning: Learning) -> float | None:
    """Return the longest response, which is the limit where responses are cut."""
    return max(learning.curve(v.RESPONSE_MAX).values, default=None)


def _same_steps(left: Curve, right: Curve) -> tuple[Curve, Curve]:
    of_right = dict(zip(right.steps, right.values, strict=True))
    kept = [(step, x, of_right[step]) for step, x in zip(left.steps, left.values, strict=True) if step in of_right]
    steps = [step for step, _, _ in kept]
    return Curve(steps, [x for _, x, _ in kept]), Curve(steps, [y for _, _, y in kept])
