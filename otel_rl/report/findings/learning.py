"""Whether the model learns: the rules."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.change import LEVELS
from otel_rl.report.findings import nan_rules, policy_rules, response_rules, reward_rules
from otel_rl.report.findings.curves import Learning
from otel_rl.report.findings.rule import Found, Rule, whole
from otel_rl.runs.format import percent


def _nothing(learning: Learning) -> Found | None:
    return None if learning.curve(v.REWARD_SCORE).values or learning.curve(v.LOSS).values else Found()


NOT_A_NUMBER: Final = ("reward_nan", "update_nan", "learning_rate_zero")
DEAD: Final = (*NOT_A_NUMBER, "policy_collapse")
"""Findings that explain whatever else a run does."""

ALARMS: Final[tuple[Rule[Learning], ...]] = (
    Rule(
        name="reward_nan",
        severity="alarm",
        reads=(v.REWARD_SCORE, v.FUNCTION_SCORE, v.GRAD_NORM),
        condition="the reward is NaN or infinite from some step to the end",
        window="all steps",
        find=nan_rules.reward_nan,
        sentence="{who} is {is} {when}{lost}.",
        advice="Find the answer that the reward function cannot score.",
    ),
    Rule(
        name="update_nan",
        severity="alarm",
        reads=nan_rules.UPDATE,
        condition="loss, gradient norm, entropy or KL is NaN or infinite from some step to the end",
        window="all steps",
        find=nan_rules.update_nan,
        sentence="{who} is {is} {when}{too}: the weights may be lost.",
        advice="Go back to a checkpoint before that step; try a lower learning rate.",
    ),
    Rule(
        name="rank_nan",
        severity="alarm",
        reads=(v.REWARD_SCORE, *nan_rules.UPDATE),
        condition="a value is NaN or infinite to the end on some ranks, and a number on others",
        window="all steps, by rank",
        find=nan_rules.rank_nan,
        sentence="{who} of {ranks} is {is} {when}, and a number on the others.",
        advice="Look at the data and the device of that rank.",
        silenced_by=("reward_nan", "update_nan"),
    ),
    Rule(
        name="learning_rate_zero",
        severity="alarm",
        reads=(v.LEARNING_RATE,),
        condition="the learning rate is 0 in all steps",
        window="all steps, at least 3",
        find=policy_rules.rate_zero,
        sentence="The learning rate is 0 in all {steps}: nothing can be learned.",
        advice="Set a learning rate; look at its schedule and warm-up.",
    ),
    Rule(
        name="answers_nan",
        severity="alarm",
        reads=(v.REWARD_NONFINITE, v.FUNCTION_SCORE),
        condition=f"the only reward function gives at least {whole(nan_rules.MANY)} of the answers NaN or infinity",
        window="all steps",
        find=nan_rules.answers_nan,
        sentence="Reward {name} gave NaN for {bad} answers{rank}, in {count:count} of {of:plural step}{first}.",
        advice="Find the answers that the reward function cannot score.",
        silenced_by=("reward_nan",),
    ),
    Rule(
        name="policy_collapse",
        severity="alarm",
        reads=(v.ENTROPY, v.GRAD_NORM, v.LEARNING_RATE, v.REWARD_SCORE),
        condition=f"the entropy stays below {whole(policy_rules.GONE)} of its first values, at once or without a gain "
        "in reward",
        window=f"all steps, at least {policy_rules.FEWEST}, against the first three",
        find=policy_rules.policy_collapse,
        sentence="The policy collapsed in step {step}: entropy {before:.2f} to {after:.2f}{gradient}{rate}.",
        advice="Lower the learning rate and start again from before that step.",
        silenced_by=NOT_A_NUMBER,
    ),
    Rule(
        name="reward_collapsed",
        severity="alarm",
        reads=(v.REWARD_SCORE,),
        condition=f"the reward lost {whole(1 - reward_rules.LOST)} of its gain, or fell at once if it had none, and "
        f"{whole(reward_rules.QUARTER)} of its height, beyond noise, and stays low",
        window=f"the last fifth, against the highest of {LEVELS} levels, at least {reward_rules.FEW} steps; "
        "the sentence has the mean since it fell",
        find=reward_rules.reward_collapsed,
        sentence="The reward collapsed in step {step}: {best:brief} to {final:brief} (best until step {peak}){by}.",
        advice="Go back to a checkpoint before that step; look at KL and learning rate there.",
        silenced_by=DEAD,
    ),
    Rule(
        name="groups_equal",
        severity="alarm",
        reads=(v.REWARD_ZERO_STD, v.REWARD_SCORE),
        condition=f"in {whole(reward_rules.ALL)} of the groups all rewards are equal to the end, while the reward is "
        "still below its best",
        window="all steps; at least 5 at the end, and a tenth of all",
        find=reward_rules.groups_equal,
        sentence="{when} all answers of a group get the same reward{value}: advantages are 0, {nothing}.",
        advice="Look at what the reward function returns; make the prompts easier or harder.",
        silenced_by=DEAD,
    ),
    Rule(
        name="gradient_vanished",
        severity="alarm",
        reads=(v.GRAD_NORM, v.REWARD_SCORE),
        condition=f"the gradient norm stays below {percent(policy_rules.ZERO)} of its past without a gain in reward",
        window=f"all steps, at least {policy_rules.FEWEST}, against the first third",
        find=policy_rules.gradient_vanished,
        sentence="The gradient is 0 {when}: nothing is learned.",
        advice="Look at frozen parameters, the loss mask and the advantages.",
        silenced_by=(*DEAD, "groups_equal"),
    ),
)

WARNINGS: Final[tuple[Rule[Learning], ...]] = (
    Rule(
        name="gradient_explosion",
        severity="warning",
        reads=(v.GRAD_NORM,),
        condition=f"the gradient norm stays above {policy_rules.SPIKE:.0f} times the highest of the first third",
        window=f"all steps, at least {2 * policy_rules.FEW}, against the first third",
        find=policy_rules.gradient_explosion,
        sentence="The gradient norm exploded in step {step}: {before:brief} to {after:brief}, and stays there.",
        advice="Lower the learning rate or clip the gradient.",
        silenced_by=DEAD,
    ),
    Rule(
        name="kl_explosion",
        severity="warning",
        reads=(v.KL_REFERENCE, v.ENTROPY, v.REWARD_SCORE),
        condition="the KL to the reference grows beyond the first entropy, and the reward does not rise with it",
        window=f"the second half, against the middle; at least {2 * policy_rules.FEW} steps",
        find=policy_rules.kl_explosion,
        sentence="KL to the reference grows from {middle:brief} to {end:brief} since step {step}{paid}.",
        advice="Raise the KL coefficient or lower the learning rate.",
        silenced_by=DEAD,
    ),
    Rule(
        name="entropy_collapse",
        severity="warning",
        reads=(v.ENTROPY, v.REWARD_SCORE),
        condition=f"the entropy stays below {whole(policy_rules.LOW)} of its first values without a gain in reward",
        window=f"all steps, at least {policy_rules.FEW}, against the first three",
        find=policy_rules.entropy_collapse,
        sentence="The entropy fell from {before:.2f} to {after:.2f} (since step {step}), and the reward did not rise.",
        advice="Raise the temperature or the entropy bonus, or lower the learning rate.",
        silenced_by=DEAD,
    ),
    Rule(
        name="length_paid",
        severity="warning",
        reads=(v.REWARD_SCORE, v.RESPONSE_LENGTH, v.RESPONSE_CLIPPED),
        condition=f"reward and length rise together, also from step to step, and {whole(response_rules.HALF)} of the "
        "responses are cut",
        window=f"all steps, at least {response_rules.FEW}",
        find=response_rules.paid_for_length,
        sentence=(
            "Reward may be paying for length: both rise together (correlation {correlation:.2f}), "
            "{last:percent} of the responses are cut{limit} (first third: {first:percent})."
        ),
        advice="Read some long responses; test the reward function on padded ones.",
        silenced_by=DEAD,
    ),
    Rule(
        name="evaluation_falls",
        severity="warning",
        reads=(v.EVAL_REWARD, v.REWARD_SCORE),
        condition=f"evaluations are below their best by {whole(reward_rules.QUARTER)} of what the training reward "
        "gained",
        window=(
            "the last quarter of the evaluations, two or more, against the best; "
            f"at least 4 evaluations and {reward_rules.FEW} steps"
        ),
        find=reward_rules.evaluation_falls,
        sentence=(
            "Evaluation reward falls since step {step} ({best:brief} to {last:brief}) "
            "while the training reward rises ({from:brief} to {to:brief})."
        ),
        advice="Stop at the best evaluation; look for what the training reward pays besides.",
        silenced_by=(*DEAD, "reward_collapsed"),
    ),
    Rule(
        name="groups_mostly_equal",
        severity="warning",
        reads=(v.REWARD_ZERO_STD, v.REWARD_SCORE),
        condition=f"{whole(reward_rules.MOST)} of the groups of the last third have equal rewards, and the reward "
        "does not rise",
        window=f"the last third; at least {2 * reward_rules.FEW} steps",
        find=reward_rules.groups_mostly_equal,
        sentence=(
            "In {last:percent} of the groups all rewards are equal (first third: {first:percent}): they teach nothing."
        ),
        advice="Make the prompts easier or harder, or the groups larger.",
        silenced_by=(*DEAD, "groups_equal"),
    ),
    Rule(
        name="some_answers_nan",
        severity="warning",
        reads=(v.REWARD_NONFINITE, v.FUNCTION_SCORE),
        condition=f"a reward function gives less than {whole(nan_rules.MANY)} of the answers NaN or infinity, or is "
        "one of several",
        window="all steps",
        find=nan_rules.some_answers_nan,
        sentence="Reward {name} gave NaN for {bad} answers{rank}, in {count:count} of {of:plural step}{first}.",
        advice="Find the answers that the reward function cannot score.",
        silenced_by=("reward_nan", "function_nan"),
    ),
    Rule(
        name="function_nan",
        severity="warning",
        reads=(v.FUNCTION_SCORE,),
        condition="one of several reward functions gives no answer a number to the end",
        window="all steps; at least 5 at the end",
        find=nan_rules.function_nan,
        sentence="Reward {name} gives no answer a number {when}: the other rewards count alone.",
        advice="Look at what that reward function returns.",
        silenced_by=("reward_nan",),
    ),
    Rule(
        name="function_constant",
        severity="warning",
        reads=(v.FUNCTION_SCORE, v.FUNCTION_STD),
        condition="one of several reward functions gives all answers the same score, and had not risen to it",
        window="all steps; at least 10 at the end, and a fifth of all",
        find=reward_rules.function_constant,
        sentence="Reward {name} gives every answer {value:brief} {when}: it teaches nothing.",
        advice="Look at what that reward function returns.",
        silenced_by=("reward_nan", "groups_equal"),
    ),
    Rule(
        name="answers_cut",
        severity="warning",
        reads=(v.RESPONSE_CLIPPED, v.RESPONSE_MAX),
        condition=f"{whole(response_rules.MANY)} of the responses are cut at the limit, from the first steps on",
        window="all steps, at least 5",
        find=response_rules.answers_cut,
        sentence="{share:percent} of the responses are cut{limit}.",
        advice="Raise the limit (max_completion_length in TRL), or reward shorter answers.",
        silenced_by=("length_paid", "policy_collapse"),
    ),
    Rule(
        name="answers_short",
        severity="warning",
        reads=(v.RESPONSE_LENGTH, v.REWARD_SCORE),
        condition=f"the responses stay below {whole(response_rules.SHORT)} of their first length",
        window="all steps, against the first twentieth; at least 5 at the end",
        find=response_rules.answers_short,
        sentence="The responses shrank in step {step}: {before:brief} to {after:brief} tokens{went}.",
        advice="Read some responses; look at what the reward pays for short ones.",
        silenced_by=DEAD,
    ),
    Rule(
        name="nan_at_times",
        severity="warning",
        reads=(v.REWARD_SCORE, *nan_rules.UPDATE),
        condition="reward or a value of the update is NaN or infinite in some steps, and a number again at the end",
        window="all steps; of gradients after the tenth",
        find=nan_rules.nan_at_times,
        sentence="{who} was {is} in {count:count} of {steps}, {where}.",
        advice="Look at the batches of those steps.",
        silenced_by=("reward_nan", "update_nan"),
    ),
    Rule(
        name="groups_dropped",
        severity="warning",
        reads=(v.GROUPS_DROPPED, v.TRAJECTORY),
        condition=f"no step trains on {whole(reward_rules.DROPPED)} of the prompts that were sampled, or more",
        window="the whole run",
        find=reward_rules.groups_dropped,
        sentence="{share:percent} of the {of:count} prompts that were sampled were dropped ({reasons}).",
        advice="Filtered: make the prompts easier or harder. Stale: sample less ahead. Surplus: start fewer at once.",
        silenced_by=DEAD,
    ),
    Rule(
        name="gradient_spikes",
        severity="warning",
        reads=(v.GRAD_NORM,),
        condition=f"gradient norms are above {policy_rules.SPIKE:.0f} times the highest of the first third, again and "
        "again",
        window=f"all steps, at least {2 * policy_rules.FEW}, against the first third",
        find=policy_rules.gradient_spikes,
        sentence=(
            "The gradient norm spikes in {count:count} of {total:plural step} (first in {first}): "
            "up to {top:brief}, usually {usual:brief}."
        ),
        advice="Clip the gradient, or lower the learning rate.",
        silenced_by=(*DEAD, "gradient_explosion"),
    ),
    Rule(
        name="learning_rate_zero_since",
        severity="warning",
        reads=(v.LEARNING_RATE,),
        condition="the learning rate is 0 in the last fifth of the steps",
        window="all steps; at least 10 at the end",
        find=policy_rules.rate_zero_since,
        sentence="The learning rate is 0 since step {step}: {count:count} of {total:plural step} learn nothing.",
        advice="Look at the schedule: it ends before the training does.",
        silenced_by=("learning_rate_zero",),
    ),
    Rule(
        name="reward_falls",
        severity="warning",
        reads=(v.REWARD_SCORE,),
        condition="the reward falls over the run, beyond noise and a tenth of its height",
        window=f"the last fifth, against the first twentieth; at least {2 * reward_rules.FEW} steps",
        find=reward_rules.reward_falls,
        sentence="The reward falls: {before:brief} to {after:brief} in {points:plural step}.",
        advice="Lower the learning rate; check the sign of the reward.",
        silenced_by=(*DEAD, "reward_collapsed"),
    ),
    Rule(
        name="loss_rises",
        severity="warning",
        reads=(v.LOSS, v.LEARNING_RATE, v.REWARD_SCORE),
        condition="the loss rises over the run without a gain in reward",
        window=f"the last fifth, against the first twentieth; at least {2 * policy_rules.FEW} steps",
        find=policy_rules.loss_rises,
        sentence="The loss rises: {before:brief} to {after:brief} in {total:plural step}{rate}.",
        advice="Lower the learning rate.",
        silenced_by=(*DEAD, "reward_collapsed", "reward_falls", "groups_equal", "kl_explosion"),
    ),
    Rule(
        name="reward_flat",
        severity="warning",
        reads=(v.REWARD_SCORE,),
        condition="the reward does not move beyond its noise",
        window=f"first and last third; at least {reward_rules.MANY} steps",
        find=reward_rules.reward_flat,
        sentence="The reward stays at {level:brief} in {points:plural step}, within its noise of {noise:brief}.",
        advice="Raise the learning rate, or look at whether the reward can tell answers apart.",
        silenced_by=(*DEAD, "answers_nan", "groups_equal", "groups_mostly_equal", "gradient_vanished"),
    ),
)

NOTES: Final[tuple[Rule[Learning], ...]] = (
    Rule(
        name="reward_course",
        severity="note",
        reads=(v.REWARD_SCORE, v.REWARD_ZERO_STD),
        condition="no alarm and no warning holds",
        window="first twentieth and last fifth; groups by thirds",
        find=reward_rules.reward_note,
        sentence="{text}",
        is_fallback=True,
    ),
    Rule(
        name="loss_course",
        severity="note",
        reads=(v.LOSS,),
        condition="no alarm and no warning holds, and no reward was recorded",
        window="first twentieth and last fifth; of a short run first and last step",
        find=reward_rules.loss_note,
        sentence="Loss {first:brief} to {last:brief} in {points:plural step}; no reward was recorded.",
        is_fallback=True,
    ),
    Rule(
        name="answers_often_cut",
        severity="note",
        reads=(v.RESPONSE_CLIPPED, v.RESPONSE_MAX),
        condition=f"{whole(response_rules.HALF)} of the responses of the last third are cut, and no alarm and no "
        "warning holds",
        window="first and last third",
        find=response_rules.cut_note,
        sentence="{last:percent} of the responses are cut{limit} in the last third (first third: {first:percent}).",
        advice="Raise the limit if answers need more room.",
        is_fallback=True,
    ),
    Rule(
        name="learning_unknown",
        severity="note",
        reads=(v.REWARD_SCORE, v.LOSS),
        condition="neither a reward nor a loss was recorded",
        window="all steps",
        find=_nothing,
        sentence="No reward and no loss of training were recorded.",
        is_fallback=True,
    ),
)

LEARN: Final[tuple[Rule[Learning], ...]] = (*ALARMS, *WARNINGS, *NOTES)
"""In docs/findings.md in this order, and in a report of those with the same severity, too: causes before symptoms."""
