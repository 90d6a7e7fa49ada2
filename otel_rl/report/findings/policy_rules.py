"""The policy and its updates: entropy, gradients, KL, learning rate, loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.change import change
from otel_rl.analysis.series.correlation import monotony
from otel_rl.analysis.series.onset import onset
from otel_rl.analysis.series.rising import rise
from otel_rl.analysis.series.robust import high, level, mad, median
from otel_rl.report.findings.curves import DEAD, NOT_A_NUMBER, Curve, Learning, gains_since
from otel_rl.report.findings.rule import Found, rule, whole
from otel_rl.runs.format import brief, percent, plural

FEWEST: Final = 5
FEW: Final = 15
GONE: Final = 0.05
"""A collapsed policy has at most this part of its first entropy."""
LOW: Final = 0.15
HALF: Final = 0.5
"""A collapse begins below this part of the first entropy."""
ZERO: Final = 1e-3
"""A gradient below this part of the earlier ones counts as none."""
ABRUPT: Final = 5
"""Steps in which no policy learns to be certain."""
SPIKE: Final = 10.0
"""A spike is so many times as high as nearly all gradients of the first third."""
DEVIATIONS: Final = 20.0
APART: Final = 0.05
"""Healthy engines and trainers differ by 0.01 to 0.04 nat a token: kernels and precision."""
TIMES: Final = 5.0
"""Kernels and precision stay what they are; a policy that learns moves their difference by less than this."""
SAMPLED_WITH: Final = (v.SAMPLE, v.LOGPROB)
"""Boundaries at which the policy is still that of the rollout, where no driver says what was computed before."""
COLD: Final = 0.1
"""At this temperature a difference of two logits counts ten times: hardly anything is left to chance."""
OLDER: Final = 1.0
"""Updates by which the samples have become older."""


@rule(
    "alarm",
    reads=(v.ENTROPY, v.GRAD_NORM, v.LEARNING_RATE, v.REWARD_SCORE),
    condition=f"the entropy stays below {whole(GONE)} of its first values, at once or without a gain in reward",
    window=f"all steps, at least {FEWEST}, against the first three",
    sentence="The policy collapsed in step {step}: entropy {before:.2f} to {after:.2f}[, then gradient 0 "
    "in {zeros} of {gradients:plural step}][; learning rate {rate:brief}][; temperature {temperature:brief}].",
    advice="Lower the learning rate and start again from before that step.",
    silenced_by=NOT_A_NUMBER,
)
def policy_collapse(learning: Learning, *, limit: float = GONE) -> Found | None:
    """Find an entropy that is gone to the end, at once or without a gain in reward."""
    entropy = learning.curve(v.ENTROPY)
    start = _low_since(entropy, limit)
    if start is None or (learning.is_gaining and entropy.values[max(0, start - ABRUPT)] < _early(entropy) / 2):
        return None
    began = _low_since(entropy, HALF)
    step = entropy.steps[start if began is None else began]
    values = {"step": step, "before": _early(entropy), "after": max(0.0, median(entropy.since(step)))}
    return Found({**values, **_no_gradient(learning, step), **_driven_by(learning, step)}, since=step)


@rule(
    "warning",
    reads=(v.ENTROPY, v.REWARD_SCORE),
    condition=f"the entropy stays below {whole(LOW)} of its first values without a gain in reward",
    window=f"all steps, at least {FEW}, against the first three",
    sentence="The entropy fell from {before:.2f} to {after:.2f} (since step {step}), and the reward did not rise.",
    advice="Raise the temperature or the entropy bonus, or lower the learning rate.",
    silenced_by=(*DEAD, "divergence"),
)
def entropy_collapse(learning: Learning, *, limit: float = LOW) -> Found | None:
    """Find an entropy that stays low, without a gain in reward."""
    entropy = learning.curve(v.ENTROPY)
    start = _low_since(entropy, limit)
    if start is None or learning.is_gaining or len(entropy) < FEW:
        return None
    step = entropy.steps[start]
    values = {"step": step, "before": _early(entropy), "after": max(0.0, median(entropy.since(step)))}
    return Found(values, since=step)


@rule(
    "alarm",
    reads=(v.GRAD_NORM, v.REWARD_SCORE),
    condition=f"the gradient norm stays below {percent(ZERO)} of its past without a gain in reward",
    window=f"all steps, at least {FEWEST}, against the first third",
    sentence="The gradient is 0 {when}: nothing is learned.",
    advice="Look at frozen parameters, the loss mask and the advantages.",
    silenced_by=(*DEAD, "groups_equal", "reward_constant"),
)
def gradient_vanished(learning: Learning) -> Found | None:
    """Find a gradient that is 0 to the end, compared with itself."""
    gradient = learning.curve(v.GRAD_NORM)
    if len(gradient) < FEWEST or learning.is_gaining:
        return None
    flags = _zeros(gradient)
    start = onset(flags)
    if start is None or len(gradient) - start < max(FEWEST, len(gradient) // 10):
        return None
    of = f"{sum(flags[start:])} of {plural(len(gradient), 'step')}"
    since = f"since step {gradient.steps[start]} ({of}), {brief(median(gradient.values[:start]))} before"
    return Found({"when": since if start else f"in {of}"}, since=gradient.steps[start])


@rule(
    "warning",
    reads=(v.GRAD_NORM,),
    condition=f"the gradient norm stays above {SPIKE:.0f} times the highest of the first third",
    window=f"all steps, at least {2 * FEW}, against the first third",
    sentence="The gradient norm exploded in step {step}: {before:brief} to {after:brief}, and stays there.",
    advice="Lower the learning rate or clip the gradient.",
    silenced_by=(*DEAD, "divergence"),
)
def gradient_explosion(learning: Learning) -> Found | None:
    """Find gradients that stay far above all of the first third."""
    gradient = learning.curve(v.GRAD_NORM)
    if len(gradient) < 2 * FEW:
        return None
    limit = _spike_limit(gradient)
    start = onset([value > limit for value in gradient.values], 0.5)
    if start is None or len(gradient) - start < FEWEST or median(gradient.values[start:]) <= limit:
        return None
    values = {"before": median(gradient.values[:start]), "after": median(gradient.values[start:])}
    return Found({**values, "step": gradient.steps[start]}, since=gradient.steps[start])


@rule(
    "warning",
    reads=(v.GRAD_NORM,),
    condition=f"gradient norms are above {SPIKE:.0f} times the highest of the first third, again and again",
    window=f"all steps, at least {2 * FEW}, against the first third",
    sentence="The gradient norm spikes in {count:count} of {total:plural step} (first in {first}): "
    "up to {top:brief}, usually {usual:brief}.",
    advice="Clip the gradient, or lower the learning rate.",
    silenced_by=(*DEAD, "divergence", "gradient_explosion"),
)
def gradient_spikes(learning: Learning) -> Found | None:
    """Find gradients that are far above all of the first third, again and again."""
    gradient = learning.curve(v.GRAD_NORM)
    if len(gradient) < 2 * FEW:
        return None
    limit = _spike_limit(gradient)
    where = [index for index, value in enumerate(gradient.values) if value > limit]
    if len(where) < max(3, len(gradient) // 100):
        return None
    values = {"count": len(where), "total": len(gradient), "first": gradient.steps[where[0]]}
    top = max(gradient.values[index] for index in where)
    return Found({**values, "top": top, "usual": median(gradient.values)}, step=gradient.steps[where[0]])


@rule(
    "warning",
    reads=(v.KL_REFERENCE, v.ENTROPY, v.REWARD_SCORE),
    condition="the KL to the reference grows beyond the first entropy, and the reward does not rise with it",
    window=f"the second half, against the middle; at least {2 * FEW} steps",
    sentence="KL to the reference grows from {middle:brief} to {end:brief} since step {step}[ while the reward "
    "went from {reward_before:brief} to {reward_after:brief}].",
    advice="Raise the KL coefficient or lower the learning rate.",
    silenced_by=(*DEAD, "divergence"),
)
def kl_explosion(learning: Learning) -> Found | None:
    """Find a KL that grows to more than the first entropy and does not pay in reward."""
    kl, reward = learning.curve(v.KL_REFERENCE), learning.curve(v.REWARD_SCORE)
    if len(kl) < 2 * FEW:
        return None
    half, tenth = kl.values[len(kl) // 2 :], max(3, len(kl) // 10)
    end, middle = median(kl.values[-tenth:]), median(kl.values[len(kl) // 3 : len(kl) // 3 + tenth])
    # a nat where no entropy was recorded: more than half of what a choice between three tokens tells
    scale = _early(learning.curve(v.ENTROPY)) if learning.curve(v.ENTROPY).values else 1.0
    if end < max(scale, 2 * middle) or max(monotony(half), monotony(kl.values)) < 0.6:
        return None
    start = onset([value > middle + (end - middle) / 4 for value in kl.values], 0.8)
    step = kl.steps[len(kl) // 2 if start is None else start]
    before, after = reward.before(step)[-FEW:], reward.since(step)[-tenth:]
    if gains_since(reward, step) or _is_higher(before, after):
        return None
    went = {"reward_before": level(before), "reward_after": level(after)} if before and after else {}
    return Found({"middle": middle, "end": end, "step": step, **went}, since=step)


@rule(
    "alarm",
    reads=(v.LEARNING_RATE,),
    condition="the learning rate is 0 in all steps",
    window="all steps, at least 3",
    sentence="The learning rate is 0 in all {steps:plural step}: nothing can be learned.",
    advice="Set a learning rate; look at its schedule and warm-up.",
)
def learning_rate_zero(learning: Learning) -> Found | None:
    """Find a learning rate that is 0 in all steps."""
    rate = learning.curve(v.LEARNING_RATE)
    if len(rate) < 3 or any(rate.values):
        return None
    return Found({"steps": len(rate)})


@rule(
    "warning",
    reads=(v.LEARNING_RATE,),
    condition="the learning rate is 0 in the last fifth of the steps",
    window="all steps; at least 10 at the end",
    sentence="The learning rate is 0 since step {step}: {count:count} of {total:plural step} learn nothing.",
    advice="Look at the schedule: it ends before the training does.",
    silenced_by=("learning_rate_zero",),
)
def learning_rate_zero_since(learning: Learning) -> Found | None:
    """Find a learning rate that is 0 long before the end."""
    rate = learning.curve(v.LEARNING_RATE)
    start = onset([value == 0 for value in rate.values], 1.0)
    if not start or len(rate) - start < max(10, len(rate) // 5):
        return None
    step = rate.steps[start]
    return Found({"step": step, "count": len(rate) - start, "total": len(rate)}, since=step)


@rule(
    "warning",
    reads=(v.LOSS, v.LEARNING_RATE, v.REWARD_SCORE),
    condition="the loss rises over the run without a gain in reward",
    window=f"the last fifth, against the first twentieth; at least {2 * FEW} steps",
    sentence="The loss rises: {before:brief} to {after:brief} in {total:plural step}[ at learning rate {rate:brief}].",
    advice="Lower the learning rate.",
    silenced_by=(*DEAD, "reward_collapsed", "reward_falls", "groups_equal", "kl_explosion", "divergence"),
)
def loss_rises(learning: Learning) -> Found | None:
    """Find a loss that rises, at a learning rate that does not fall, without a gain in reward."""
    loss, rate = learning.curve(v.LOSS), learning.curve(v.LEARNING_RATE)
    if len(loss) < 2 * FEW or learning.is_gaining or monotony(loss.values) < 0.9:
        return None
    moved = loss.change
    if not moved.is_rise or moved.by < max(3 * moved.scatter, 0.5 * abs(moved.before)):
        return None
    at_rate = median(rate.values) if rate.values else None
    return Found({"before": moved.before, "after": moved.after, "total": len(loss), "rate": at_rate})


@rule(
    "warning",
    reads=(v.LOGPROB_DIFFERENCE, v.SAMPLE_LAG),
    condition=f"log-probabilities of rollout and training stay {TIMES:.0f} times as far apart as in the first steps, "
    f"and by {APART} nat or more, and no lag of the samples grew with it",
    window="all steps, against the first three; at least 3 at the end",
    sentence="Rollout and training disagree since step {step}: log-probabilities differ by {after:brief} nat a token, "
    "{before:brief} before.",
    advice="Check that new weights reach the engine, and that temperature and top-p are the same on both sides.",
)
def rollout_drifts(learning: Learning, *, nat: float = APART, times: float = TIMES) -> Found | None:
    """Find samples that come from another policy than the one that is trained, since some step."""
    for apart in _differences(learning):
        limit = max(nat, times * max(apart.values[:3], default=0.0))
        start = onset([value >= limit for value in apart.values])
        if start is None or start < 3 or len(apart) - start < 3:
            continue
        lag, step = learning.curve(v.SAMPLE_LAG), apart.steps[start]
        if not median(lag.since(step)) > median(lag.before(step)):
            values = {"before": median(apart.values[:start]), "after": median(apart.values[start:])}
            return Found({"step": step, **values}, since=step)
    return None


@rule(
    "warning",
    reads=(v.LOGPROB_DIFFERENCE, v.SAMPLE_LAG),
    condition=f"log-probabilities of rollout and training differ by {APART} nat or more from the first steps on, and "
    "no samples are older than the policy",
    window="all steps, at least 3",
    sentence="Rollout and training disagree: log-probabilities differ by {apart:brief} nat a token in all "
    "{steps:plural step} (engines and trainers that fit: below {limit:brief}).",
    advice="Check that temperature, top-p, precision and the weights are the same on both sides.",
    silenced_by=("rollout_drifts",),
)
def rollout_apart(learning: Learning, *, nat: float = APART) -> Found | None:
    """Find samples that never come from the policy that is trained; a lag would explain that."""
    if any(learning.curve(v.SAMPLE_LAG).values):
        return None
    for apart in _differences(learning):
        if len(apart) >= 3 and onset([value >= nat for value in apart.values]) == 0:
            return Found({"apart": median(apart.values), "steps": len(apart), "limit": nat})
    return None


@rule(
    "warning",
    reads=(v.SAMPLE_LAG,),
    condition=f"the samples become older from step to step, by {OLDER:.0f} update or more",
    window="all steps, at least 15: first and last third",
    sentence="Samples become older from step to step: {first:.3g} updates behind the policy at first, {last:.3g} in "
    "the end.",
    advice="Train more often, sample less ahead, or drop samples that are too old.",
)
def lag_grows(learning: Learning, *, updates: float = OLDER) -> Found | None:
    """Find a lag that has no bound."""
    lag = learning.curve(v.SAMPLE_LAG)
    risen = rise(lag.values) if len(lag) >= FEW else None
    if risen is None or risen.last - risen.first < updates:
        return None
    return Found({"first": risen.first, "last": risen.last})


def _differences(learning: Learning) -> Iterator[Curve]:
    """Return how far rollout and training are apart, by boundary, where only kernels and precision should differ."""
    boundaries = (*SAMPLED_WITH, v.TRAIN) if learning.is_led else SAMPLED_WITH
    for one in learning.all_of(v.LOGPROB_DIFFERENCE):
        if one.qualifiers.get(v.LEDGER_BOUNDARY, "").partition(" ")[0] in boundaries:
            yield one.good()


def _early(curve: Curve) -> float:
    return max(curve.values[:3], default=0.0)


def _low_since(entropy: Curve, share: float) -> int | None:
    """Return the index since when the entropy stays below a share of its first values."""
    if len(entropy) < FEWEST or _early(entropy) <= 0:
        return None
    limit = share * _early(entropy)
    start = onset([value <= limit for value in entropy.values])
    return start if start and len(entropy) - start >= FEWEST else None


def _driven_by(learning: Learning, step: int) -> dict[str, float | None]:
    """Return what may make a policy certain: a temperature near 0, or else the learning rate."""
    temperature = learning.settings.get("temperature")
    if temperature is not None and temperature <= COLD:
        return {"temperature": temperature, "rate": None}
    used = [value for value in learning.curve(v.LEARNING_RATE).before(step + 1) if value > 0]
    return {"rate": max(used, default=None), "temperature": None}


def _zeros(gradient: Curve) -> list[bool]:
    limit = ZERO * max(0.0, high(gradient.values[: max(3, len(gradient) // 3)], 0.5))
    first = max(gradient.values[:3])
    return [value <= max(limit, ZERO * first) for value in gradient.values]


def _no_gradient(learning: Learning, step: int) -> dict[str, int | None]:
    """Return in how many steps of all the gradient is 0 since a step, if in most."""
    gradient = learning.curve(v.GRAD_NORM)
    if not gradient.values:
        return {"zeros": None}
    zeros = [is_zero for one, is_zero in zip(gradient.steps, _zeros(gradient), strict=True) if one >= step]
    is_gone = 2 * sum(zeros) > len(zeros)
    return {"zeros": sum(zeros) if is_gone else None, "gradients": len(gradient)}


def _spike_limit(gradient: Curve) -> float:
    known = [value for value in gradient.values if value > 0]  # without an advantage there is none
    early = known[: max(1, len(known) // 3)]
    return math.inf if not early else max(SPIKE * high(early, 0.95), median(early) + DEVIATIONS * mad(early))


def _is_higher(before: Sequence[float], after: Sequence[float]) -> bool:
    return change([*before, *after], slice(0, len(before)), slice(len(before), None)).is_rise
