"""Lengths of the responses, at the limit, paid for, or gone; and requests that end without one."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.correlation import step_by_step, together
from otel_rl.analysis.series.onset import onset
from otel_rl.analysis.series.robust import median
from otel_rl.analysis.summary import mean
from otel_rl.report.findings.curves import DEAD, Learning, same_steps
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
RISEN: Final = 0.25
"""A share of cut responses has risen by this much of all of them."""
FULL: Final = 0.95
"""A mean length at this part of the limit leaves no room for answers that end by themselves."""
LOWERED: Final = 0.75
"""Responses that reach a limit are at most this part as long as the longest were before it was lowered."""
STAYS: Final = 5
"""Steps with a lower limit until it is one."""
STEADY: Final = 0.8
"""In this part of the steps the longest response has the length of the one before: a limit cuts them all there."""
UNUSED: Final = 0.05
LONG: Final = 100
"""Below such a limit, tokens, a small part of it says nothing."""
ENDED_BADLY: Final = {"aborted": "are aborted", "timed_out": "time out", "error": "fail"}
BADLY: Final = 0.1
"""So many more of the requests than before end without an answer."""
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
    reward, length = same_steps(learning.curve(v.REWARD_SCORE), learning.curve(v.RESPONSE_LENGTH))
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
    silenced_by=("length_paid", "policy_collapse", "limit_lowered"),
)
def answers_cut(learning: Learning, *, limit: float = MANY) -> Found | None:
    """Find that nearly all responses are cut from the first steps on."""
    cut = learning.curve(v.RESPONSE_CLIPPED)
    if len(cut) < 5:
        return None
    share, early = mean(cut.values), mean(cut.values[: max(5, len(cut) // 10)])
    return Found({"share": share, "limit": _limit(learning)}) if share >= limit and early >= EARLY else None


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
def answers_often_cut(learning: Learning, *, limit: float = HALF) -> Found | None:
    """Find how many responses are cut where it is at least half."""
    cut = learning.curve(v.RESPONSE_CLIPPED)
    if len(cut) < 3 or cut.third(2) < limit:
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
    return Found({"step": step, "before": early, "after": after, "reward": rises_to}, since=step)


@rule(
    "warning",
    reads=(v.RESPONSE_CLIPPED, v.RESPONSE_LENGTH, v.RESPONSE_MAX, v.REWARD_SCORE),
    condition=f"the share of cut responses rises by {whole(RISEN)} of all, to {whole(HALF)} or more, and the "
    "reward does not",
    window=f"first and last third; at least {FEW} steps",
    sentence="More and more responses are cut[ at {limit:count} tokens]: {last:percent} in the last third, "
    "{first:percent} in the first, and the reward does not rise.",
    advice="Look at why answers do not end: raise the limit, check the stop tokens, or reward shorter answers.",
    silenced_by=(*DEAD, "length_paid", "answers_cut", "limit_lowered"),
)
def cut_rises(learning: Learning, *, limit: float = HALF, rise: float = RISEN) -> Found | None:
    """Find responses that run into the limit more and more often, for nothing."""
    cut = learning.curve(v.RESPONSE_CLIPPED)
    if len(cut) < FEW or not cut.change.is_rise or learning.is_gaining or not len(learning.curve(v.REWARD_SCORE)):
        return None
    first, last = cut.third(0), cut.third(2)
    return (
        Found({"first": first, "last": last, "limit": _limit(learning)}) if last >= max(limit, first + rise) else None
    )


@rule(
    "warning",
    reads=(v.RESPONSE_CLIPPED, v.RESPONSE_MAX),
    condition=f"from some step on no response has more than {whole(LOWERED)} of the tokens that the longest had "
    f"before, the longest of most steps are equal, and {whole(HALF)} are cut: {whole(RISEN)} more than before, or "
    f"{whole(MANY)}",
    window=f"all steps; at least {STAYS} at the beginning, and at the end",
    sentence="The limit of the responses was lowered in step {step}: {after:percent} are cut at {limit:count} tokens "
    "since then. Before, {before:percent} were cut, and the longest had {longest:count}.",
    advice="Find what changed the limit (max_completion_length in TRL): a resume, a schedule, or longer prompts.",
    silenced_by=("policy_collapse",),
)
def limit_lowered(learning: Learning, *, limit: float = HALF, rise: float = RISEN) -> Found | None:
    """Find responses that are cut since one step, and shorter than before: growth would make them longer.

    Where no limit cuts them, but the number of turns or a word that ends them, the longest differ from step to step.
    """
    cut, longest = same_steps(learning.curve(v.RESPONSE_CLIPPED), learning.curve(v.RESPONSE_MAX))
    if len(cut) <= STAYS:
        return None
    now = median(longest.values[-STAYS:])
    start = onset([value <= now for value in longest.values])
    if not start or start < STAYS or len(cut) - start < STAYS:
        return None
    before, after, once = mean(cut.values[:start]), mean(cut.values[start:]), max(longest.values[:start])
    if after < max(limit, min(before + rise, MANY)) or now > LOWERED * once:
        return None
    if mean([one == last for last, one in pairwise(longest.values[start:])]) < STEADY:
        return None
    step = cut.steps[start]
    return Found({"step": step, "before": before, "after": after, "limit": now, "longest": once}, since=step)


@rule(
    "warning",
    reads=(v.RESPONSE_LENGTH, v.RESPONSE_CLIPPED),
    condition=f"the mean response is as long as {whole(FULL)} of the limit, from the first steps on, where nobody "
    "counts the responses that are cut",
    window="all steps, at least 5",
    sentence="Responses are {length:brief} tokens long in the mean, at a limit of {limit:count}: most are cut.",
    advice="Raise the limit (max_completion_length in TRL), or reward shorter answers.",
    silenced_by=("policy_collapse",),
)
def answers_at_limit(learning: Learning, *, full: float = FULL) -> Found | None:
    """Find that nearly all responses must be cut, from their lengths and the settings."""
    length, limit = learning.curve(v.RESPONSE_LENGTH), learning.settings.get("response_limit", 0.0)
    if len(length) < 5 or limit <= 1 or len(learning.curve(v.RESPONSE_CLIPPED)):
        return None
    is_full = onset([value >= full * limit for value in length.values]) == 0
    return Found({"length": mean(length.values), "limit": limit}) if is_full else None


@rule(
    "note",
    reads=(v.RESPONSE_MAX, v.RESPONSE_LENGTH),
    condition=f"no response of the last third is longer than {whole(UNUSED)} of a limit of {LONG} tokens or more, and "
    "no alarm and no warning holds",
    window="the last third",
    sentence="No response of the last third is longer than {longest:count} tokens, at a limit of {limit:count}.",
    advice="Look at whether answers end too early; a lower limit leaves more memory to the engine.",
    is_fallback=True,
)
def answers_far_below_limit(learning: Learning, *, used: float = UNUSED) -> Found | None:
    """Tell that the limit is of no use."""
    longest, limit = learning.curve(v.RESPONSE_MAX), learning.settings.get("response_limit", 0.0)
    if len(longest) < 3 or limit < LONG:
        return None
    most = max(longest.values[-(len(longest) // 3) :])
    return Found({"longest": most, "limit": limit}) if most <= used * limit else None


@rule(
    "warning",
    reads=(v.REQUEST_RATIO,),
    condition=f"the share of requests that are aborted, time out or fail rises by {whole(BADLY)} of all or more",
    window=f"first and last third; at least {FEW} rollouts",
    sentence="More and more requests of rollouts {how}: {last:percent} in the last third, {first:percent} in the "
    "first.",
    advice="Read the log of the engine; look at its time-outs, and at what aborts requests.",
)
def requests_worse(learning: Learning, *, rise: float = BADLY) -> Found | None:
    """Find that rollouts lose more and more of their requests; asynchronous ones abort some by design."""
    is_ahead = any(learning.curve(v.SAMPLE_LAG).values)
    for one in learning.all_of(v.REQUEST_RATIO):
        kind, curve = one.qualifiers.get(v.OUTCOME_KIND, ""), one.good()
        if kind not in ENDED_BADLY or len(curve) < FEW or (kind == "aborted" and is_ahead):
            continue
        first, last = curve.third(0), curve.third(2)
        if curve.change.is_rise and last >= first + rise:
            return Found({"how": ENDED_BADLY[kind], "first": first, "last": last})
    return None


def _limit(learning: Learning) -> float | None:
    """Return the longest response, which is the limit where responses are cut."""
    return max(learning.curve(v.RESPONSE_MAX).values, default=None)
