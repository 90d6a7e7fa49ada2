"""Lengths of the responses: at the limit, paid for, or gone."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.correlation import step_by_step, together
from otel_rl.analysis.series.onset import onset
from otel_rl.analysis.series.robust import median
from otel_rl.analysis.summary import mean
from otel_rl.report.findings.curves import Curve, Learning
from otel_rl.report.findings.rule import Found

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


def paid_for_length(learning: Learning) -> Found | None:
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


def answers_cut(learning: Learning) -> Found | None:
    """Find that nearly all responses are cut from the first steps on."""
    cut = learning.curve(v.RESPONSE_CLIPPED)
    if len(cut) < 5:
        return None
    share, early = mean(cut.values), mean(cut.values[: max(5, len(cut) // 10)])
    return Found({"share": share, "limit": _limit(learning)}) if share >= MANY and early >= EARLY else None


def cut_note(learning: Learning) -> Found | None:
    """Find how many responses are cut where it is at least half."""
    cut = learning.curve(v.RESPONSE_CLIPPED)
    if len(cut) < 3 or cut.third(2) < HALF:
        return None
    return Found({"first": cut.third(0), "last": cut.third(2), "limit": _limit(learning)})


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
    went = f" while the reward rises to {reward.change.after:.4g}" if learning.is_gaining else ""
    return Found({"step": step, "before": early, "after": after, "went": went})


def _limit(learning: Learning) -> str:
    """Write the longest response, which is the limit where responses are cut."""
    longest = learning.curve(v.RESPONSE_MAX)
    return f" at {max(longest.values):,.0f} tokens" if longest.values else ""


def _same_steps(left: Curve, right: Curve) -> tuple[Curve, Curve]:
    of_right = dict(zip(right.steps, right.values, strict=True))
    kept = [(step, x, of_right[step]) for step, x in zip(left.steps, left.values, strict=True) if step in of_right]
    steps = [step for step, _, _ in kept]
    return Curve(steps, [x for _, x, _ in kept]), Curve(steps, [y for _, _, y in kept])
