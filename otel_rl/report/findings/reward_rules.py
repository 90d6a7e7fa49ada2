"""How the reward goes, and what the rewards of a group teach."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.change import LEVELS, over_run, peak
from otel_rl.analysis.series.correlation import monotony
from otel_rl.analysis.series.onset import first_above, onset
from otel_rl.analysis.series.robust import high, level, median, noise
from otel_rl.analysis.summary import mean
from otel_rl.report.data.finding import Value
from otel_rl.report.findings.curves import DEAD, Curve, Learning
from otel_rl.report.findings.rule import Found, rule, whole
from otel_rl.runs.format import brief, count, plural, shorten, significant

FEW: Final = 15
"""A shorter run says nothing about a trend."""
MANY: Final = 50
"""A reward that does not move in so many steps is worth a word."""
AT_ONCE: Final = 0.2
"""A reward that never rose collapses if it had lost at most this much of its whole fall until then."""
LOST: Final = 0.3
"""A collapse leaves at most this much of what was gained."""
TREND: Final = 0.6
"""Rank correlation with time of what moves."""
QUARTER: Final = 0.25
NOISES: Final = 1.75
"""By so much noise the best of some evaluations is seldom above the last ones by chance."""
ALL: Final = 0.9
"""From this share of equal groups on a step teaches next to nothing."""
EQUAL_SHARE: Final = 0.8
DROPPED: Final = 0.2
"""From this share of dropped groups on much of the sampling is for nothing."""
ARRIVED: Final = 0.9
"""So much of its rise the reward has when it has come to its level."""
NEAR: Final = 0.6
"""So much of its way a score has come when it is said to have arrived."""
RECENT: Final = 10
HOLDING: Final = ("temperature", "kl_coefficient", "gradient_limit")
"""Settings that may hold a reward where it is."""
COLD: Final = 0.1
"""At this temperature a difference of two logits counts ten times: the answers of a group are nearly equal."""
STRONG: Final = 1.0
"""With this KL coefficient the best policy makes an answer that is a standard deviation better e times likelier."""
CLIPPED: Final = 0.1
"""Of gradients that are clipped a tenth is left at most."""
UNMOVED: Final = (
    "answers_nan", "groups_equal", "groups_mostly_equal", "gradient_vanished", "reward_constant", "reward_noisy",
    "policy_unchanged",
)  # fmt: skip
"""Findings that say why a reward does not move."""
NAME_WIDTH: Final = 24
NO_CHANGE: Final = 1e-6
"""A change below this part of a value is rounding."""


@rule(
    "alarm",
    reads=(v.REWARD_SCORE,),
    condition=f"the reward lost {whole(1 - LOST)} of its gain, or fell at once if it had none, and "
    f"{whole(QUARTER)} of its height, beyond noise, and stays low",
    window=f"the last fifth, against the highest of {LEVELS} levels, at least {FEW} steps; "
    "the sentence has the mean since it fell",
    sentence="The reward collapsed in step {step}: {best:brief} to {final:brief} (best until step {peak})"
    "[; of the functions only {function} fell ({function_before:brief} to {function_after:brief})].",
    advice="Go back to a checkpoint before that step; look at KL and learning rate there.",
    silenced_by=DEAD,
)
def reward_collapsed(learning: Learning, *, lost: float = LOST) -> Found | None:
    """Find a reward that fell from its peak by most of what it had gained, and stayed low."""
    curve = learning.curve(v.REWARD_SCORE)
    if len(curve) < FEW:
        return None
    top, best = peak(curve.values)
    end = top.stop
    start, final = curve.change.before, curve.change.after
    after_peak = onset([value < best / 2 + final / 2 for value in curve.values[end:]])
    if after_peak is None or final > start + lost * max(0.0, best - start):
        return None
    begin = end + after_peak
    scatter = max(curve.change.scatter, noise(curve.values[:begin]))  # what it fell to may be constant
    if best - final < max(4 * scatter, QUARTER * max(abs(best), abs(start))):
        return None
    has_risen = best - start > curve.change.scatter
    is_slow = not has_risen and best - level(curve.values[:begin]) > AT_ONCE * (best - final)
    is_sparse = median(curve.values[top]) < best / 2 + final / 2  # a few hits of a reward that is 0 in most steps
    if is_slow or is_sparse or len(curve) - begin < max(5, len(curve) // 10):
        return None
    step = curve.steps[begin]
    values = {"step": step, "best": best, "final": level(curve.values[begin:]), "peak": curve.steps[end - 1]}
    return Found({**values, **_fallen_function(learning, step)}, since=step)


@rule(
    "warning",
    reads=(v.REWARD_SCORE,),
    condition="the reward falls over the run, beyond noise and a tenth of its height",
    window=f"the last fifth, against the first twentieth; at least {2 * FEW} steps",
    sentence="The reward falls: {before:brief} to {after:brief} in {points:plural step}.",
    advice="Lower the learning rate; check the sign of the reward.",
    silenced_by=(*DEAD, "reward_collapsed"),
)
def reward_falls(learning: Learning) -> Found | None:
    """Find a reward that falls over the run."""
    curve = learning.curve(v.REWARD_SCORE)
    if len(curve) < 2 * FEW:
        return None
    moved = curve.change
    is_much = -moved.by > max(3 * moved.scatter, 0.1 * abs(moved.before))
    if not is_much or monotony(curve.values) > -0.7:
        return None
    return Found({"before": moved.before, "after": moved.after, "points": len(curve), "noun": _noun(learning, curve)})


@rule(
    "warning",
    reads=(v.REWARD_SCORE, v.GRAD_NORM),
    condition="the reward does not move beyond its noise. A setting that may hold it is named: a temperature of at "
    f"most {COLD}, a KL coefficient of {STRONG:.0f} or more, gradients clipped to {whole(CLIPPED)} in all steps",
    window=f"first and last third; at least {MANY} steps",
    sentence="The reward stays at {level:brief} in {points:plural step}, within its noise of {noise:brief}[: {held}].",
    advice="Change the setting that is named, if one is; raise the learning rate; look at whether the reward can tell "
    "answers apart.",
    silenced_by=(*DEAD, *UNMOVED),
)
def reward_flat(learning: Learning, *, steps: float = MANY) -> Found | None:
    """Find a reward that stays within its noise in a long run."""
    curve = learning.curve(v.REWARD_SCORE)
    if len(curve) < steps:
        return None
    moved = curve.change
    if abs(moved.by) > moved.least / 2 or abs(monotony(curve.values)) > TREND:
        return None
    values = {"level": mean(curve.values), "noise": moved.scatter, "points": len(curve)}
    return Found({**values, "noun": _noun(learning, curve), "held": _held(learning)})


@rule(
    "warning",
    reads=(v.EVAL_REWARD, v.REWARD_SCORE),
    condition=f"evaluations are below their best by {whole(QUARTER)} of what the training reward gained",
    window="the last quarter of the evaluations, two or more, against the best; "
    f"at least 4 evaluations and {FEW} steps",
    sentence="Evaluation reward falls since step {step} ({best:brief} to {last:brief}) "
    "while the training reward rises ({from:brief} to {to:brief}).",
    advice="Stop at the best evaluation; look for what the training reward pays besides.",
    silenced_by=(*DEAD, "reward_collapsed"),
)
def evaluation_falls(learning: Learning) -> Found | None:
    """Find an evaluation that gets worse while the training reward rises."""
    evaluation, reward = learning.curve(v.EVAL_REWARD), learning.curve(v.REWARD_SCORE)
    if len(evaluation) < 4 or len(reward) < FEW:
        return None
    values = evaluation.values
    recent = max(2, len(values) // 4)
    index = max(range(len(values)), key=values.__getitem__)
    fell = values[index] - max(values[-recent:])
    if (
        index >= len(values) - recent
        or not learning.is_gaining
        or over_run(reward.since(evaluation.steps[index])).is_fall
    ):
        return None
    if fell < max(QUARTER * reward.change.by, NOISES * noise(values)):
        return None
    rise = {"from": reward.change.before, "to": reward.change.after}
    step = evaluation.steps[index]
    return Found({"best": values[index], "step": step, "last": values[-1], **rise}, since=step)


@rule(
    "warning",
    reads=(v.FUNCTION_SCORE, v.FUNCTION_STD),
    condition="one of several reward functions gives all answers the same score, and had not risen to it",
    window="all steps; at least 10 at the end, and a fifth of all",
    sentence="Reward {name} gives every answer {value:brief} {when}: it teaches nothing.",
    advice="Look at what that reward function returns.",
    silenced_by=("reward_nan", "groups_equal"),
)
def function_constant(learning: Learning) -> Found | None:
    """Find one of several reward functions that gives all answers the same score."""
    deviations = learning.functions(v.FUNCTION_STD)
    for name, scores in learning.functions(v.FUNCTION_SCORE).items():
        if len(deviations) < 2 or name not in deviations:
            continue
        score, spread = scores.good(), deviations[name].good()
        start = _constant_since(score, spread)
        if start is None or len(score) - start < max(10, len(score) // 5) or _has_reached(score, start):
            continue
        when = f"since step {score.steps[start]}" if start else f"in all {plural(len(score), _noun(learning, score))}"
        values: dict[str, Value | None] = {"name": shorten(name, NAME_WIDTH), "value": score.values[-1], "when": when}
        return Found(values, since=score.steps[start])
    return None


@rule(
    "alarm",
    reads=(v.REWARD_ZERO_STD, v.REWARD_SCORE),
    condition=f"in {whole(ALL)} of the groups all rewards are equal to the end, while the reward is "
    "still below its best; not with a critic",
    window="all steps; at least 5 at the end, and a tenth of all",
    sentence="{when} all answers of a group get the same reward[ ({value:brief})]: advantages are 0, {nothing}.",
    advice="Look at what the reward function returns; make the prompts easier or harder.",
    silenced_by=DEAD,
)
def groups_equal(learning: Learning, *, limit: float = ALL) -> Found | None:
    """Find the step since which all groups have equal rewards, unless the reward had reached its end before."""
    equal = learning.equal_groups
    start = onset([value >= limit for value in equal.values])
    if start is None or len(equal) - start < max(5, len(equal) // 10) or _is_converged(learning, equal, start):
        return None
    step, total = equal.steps[start], plural(len(equal), _noun(learning, equal))
    rewards = learning.curve(v.REWARD_SCORE).since(step)
    is_same = bool(rewards) and max(rewards) - min(rewards) <= NO_CHANGE * abs(rewards[0])
    taught = sum(value >= limit for value in equal.values[start:])
    when = f"Since step {step}" if start else f"In all {total}"
    nothing = f"{taught} of {total} teach nothing" if start else "they teach nothing"
    return Found({"when": when, "value": rewards[0] if is_same else None, "nothing": nothing}, since=step)


@rule(
    "warning",
    reads=(v.REWARD_ZERO_STD, v.REWARD_SCORE),
    condition=f"{whole(EQUAL_SHARE)} of the groups of the last third have equal rewards, and the reward does not rise; "
    "not with a critic",
    window=f"the last third; at least {2 * FEW} steps",
    sentence="In {last:percent} of the groups all rewards are equal (first third: {first:percent}): they teach "
    "nothing.",
    advice="Make the prompts easier or harder, or the groups larger.",
    silenced_by=(*DEAD, "groups_equal"),
)
def groups_mostly_equal(learning: Learning, *, limit: float = EQUAL_SHARE) -> Found | None:
    """Find that most groups are equal in the last third of a run whose reward does not rise."""
    equal = learning.equal_groups
    if len(equal) < 2 * FEW or equal.third(2) < limit or learning.is_gaining:
        return None
    return Found({"last": equal.third(2), "first": equal.third(0)})


@rule(
    "note",
    reads=(v.REWARD_SCORE, v.REWARD_ZERO_STD),
    condition="no alarm and no warning holds",
    window="first twentieth and last fifth; groups by thirds",
    sentence="{text}",
    is_fallback=True,
)
def reward_course(learning: Learning) -> Found | None:
    """Describe how the reward went, and how many groups teach nothing."""
    curve = learning.curve(v.REWARD_SCORE)
    if not len(curve):
        return None
    if len(curve) == 1:
        return Found({"text": f"Reward {brief(curve.values[0])} in the only step."})
    text = _way(learning, curve) + _groups(learning)
    return Found({"text": text}, step=curve.steps[_arrival(curve)[1]] if _has_risen(curve) else None)


@rule(
    "note",
    reads=(v.LOSS,),
    condition="no alarm and no warning holds, and no reward was recorded",
    window="first twentieth and last fifth; of a short run first and last step",
    sentence="Loss {first:brief} to {last:brief} in {points:plural step}; no reward was recorded.",
    is_fallback=True,
)
def loss_course(learning: Learning) -> Found | None:
    """Describe how the loss went where there is no reward."""
    curve = learning.curve(v.LOSS)
    if not len(curve) or len(learning.curve(v.REWARD_SCORE)):
        return None
    ends = (curve.values[0], curve.values[-1]) if len(curve) < FEW else (curve.change.before, curve.change.after)
    return Found({"first": ends[0], "last": ends[1], "points": len(curve)})


def _held(learning: Learning) -> str | None:
    """Return which setting may hold a reward where it is."""
    temperature, coefficient, limit = (learning.settings.get(name) for name in HOLDING)
    norms = learning.curve(v.GRAD_NORM).values
    if temperature is not None and temperature <= COLD:
        return f"at a temperature of {brief(temperature)} answers hardly differ"
    if coefficient is not None and coefficient >= STRONG:
        return f"a KL coefficient of {brief(coefficient)} outweighs it"
    if limit and norms and min(norms) >= limit / CLIPPED:
        return f"gradients of {brief(median(norms))} are clipped to {brief(limit)} in all steps"
    return None


def _fallen_function(learning: Learning, step: int) -> dict[str, Value]:
    """Return the one of several functions whose score fell since a step."""
    falls = []
    for name, one in learning.functions(v.FUNCTION_SCORE).items():
        curve = one.good()
        before, after = level(curve.before(step)[-RECENT:]), level(curve.since(step))
        if before - after > 3 * noise(curve.values):
            falls.append((name, before, after))
    if len(learning.functions(v.FUNCTION_SCORE)) < 2 or len(falls) != 1:
        return {}
    name, before, after = falls[0]
    return {"function": shorten(name, NAME_WIDTH), "function_before": before, "function_after": after}


def _way(learning: Learning, curve: Curve) -> str:
    """Write from where to where: single values in a short run, levels in a long one, whose values are noisy."""
    moved = curve.change
    steps = plural(len(curve), _noun(learning, curve))
    if len(curve) < FEW:
        return f"Reward {brief(curve.values[0])} to {brief(curve.values[-1])} in {steps}."
    first, last = _digits(moved.before, moved.by), _digits(moved.after, moved.by)
    if _has_risen(curve):
        limit, where = _arrival(curve)
        return f"Reward {first} to {last}, first above {brief(limit)} in step {curve.steps[where]}."
    if moved.is_rise or moved.is_fall or abs(monotony(curve.values)) > TREND:
        return f"Reward {first} to {last} in {steps}."
    return f"Reward {brief(level(curve.values))}, within its noise of {brief(moved.scatter)} in {steps}."


def _has_risen(curve: Curve) -> bool:
    return len(curve) >= FEW and curve.change.by > 3 * curve.change.scatter


def _arrival(curve: Curve) -> tuple[float, int]:
    """Return the level at which a reward that rises has arrived, and the index where it first is above it."""
    limit = _rounded(curve.change.before + ARRIVED * curve.change.by, curve.change.by)
    return limit, first_above(curve.values, limit) or 0


def _groups(learning: Learning) -> str:
    equal = learning.equal_groups
    if len(equal) < 3 or equal.third(2) < 0.1:
        return ""
    late, early = (f"{100 * equal.third(which):.0f} %" for which in (2, 0))
    where = f"In {late} of the groups (last third; first third {early})"
    return f" {where} all answers got the same reward: they teach nothing."


def _digits(value: float, by: float) -> str:
    """Write a level with two digits of the change."""
    return f"{round(value, 2) + 0.0:.2f}" if _has_two_digits(value, by) else brief(value)


def _rounded(value: float, by: float) -> float:
    """Round a level as it is written."""
    return round(value, 2) if _has_two_digits(value, by) else significant(value, 3)


def _has_two_digits(value: float, by: float) -> bool:
    return abs(by) >= 0.1 and abs(value) < 10


def _constant_since(score: Curve, spread: Curve) -> int | None:
    """Return the index since when all answers of all steps have the same score."""
    if not score.values or len(score) != len(spread):
        return None
    final = score.values[-1]
    least = NO_CHANGE * max(abs(final), NO_CHANGE)
    pairs = zip(score.values, spread.values, strict=True)
    return onset([abs(value - final) <= least and abs(deviation) <= least for value, deviation in pairs])


def _has_reached(score: Curve, start: int) -> bool:
    """Return whether a score had risen close to its last value before it became constant there."""
    before = score.values[max(0, start - RECENT) : start]
    if len(before) < 3:
        return False
    first, final = median(score.values[:3]), score.values[-1]
    return final >= high(score.values, 0.9) and final > first and median(before) > first + NEAR * (final - first)


def _is_converged(learning: Learning, equal: Curve, start: int) -> bool:
    """Return whether groups became equal bit by bit while the reward came to its highest level."""
    reward, step = learning.curve(v.REWARD_SCORE), equal.steps[start]
    before, after = reward.before(step), reward.since(step)
    if len(before) < 3 or not after:
        return False
    first, final, recent = level(before[:3]), level(after), level(before[-3:])
    has_risen = final - first > noise(reward.values) and recent > first + NEAR * (final - first)
    is_best = final >= peak(reward.values)[1] - noise(reward.values)
    return has_risen and is_best and _has_narrowed(learning, equal, start)


def _has_narrowed(learning: Learning, equal: Curve, start: int) -> bool:
    """Return whether the rewards came closer to each other before a step."""
    spread = learning.curve(v.REWARD_STD).before(equal.steps[start])
    is_closer = len(spread) > 3 and median(spread[-3:]) < median(spread[: max(3, len(spread) // 2)]) / 2
    return is_closer or mean(equal.values[max(0, start - RECENT) : start]) >= 0.2


def _noun(learning: Learning, curve: Curve) -> str:
    return learning.noun(len(curve))


@rule(
    "warning",
    reads=(v.GROUPS_DROPPED, v.TRAJECTORY),
    condition=f"no step trains on {whole(DROPPED)} of the prompts that were sampled, or more",
    window="the whole run",
    sentence="{share:percent} of the {of:count} prompts that were sampled were dropped ({reasons}).",
    advice="Filtered: make the prompts easier or harder. Stale: sample less ahead. Surplus: start fewer at once. "
    "Failed: see what the rollouts raise.",
    silenced_by=DEAD,
)
def groups_dropped(learning: Learning, *, limit: float = DROPPED) -> Found | None:
    """Find that many prompts were sampled for nothing."""
    number = sum(learning.dropped.values())
    of = max(learning.groups, number)
    if not of or number < limit * of:
        return None
    reasons = sorted(learning.dropped.items(), key=lambda pair: (-pair[1], pair[0]))
    counts = [f"{count(times)} {reason}" for reason, times in reasons if times]
    return Found({"share": number / of, "of": of, "reasons": counts})
