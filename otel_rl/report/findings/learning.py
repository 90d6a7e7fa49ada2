"""Whether the model learns: the rules of LEARN."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.findings.curves import Learning
from otel_rl.report.findings.joint_rules import (
    divergence,
    policy_loss_positive,
    policy_unchanged,
    reward_constant,
    reward_noisy,
)
from otel_rl.report.findings.nan_rules import (
    answers_nan,
    function_nan,
    nan_at_times,
    rank_nan,
    reward_nan,
    some_answers_nan,
    update_nan,
)
from otel_rl.report.findings.policy_rules import (
    entropy_collapse,
    gradient_explosion,
    gradient_spikes,
    gradient_vanished,
    kl_explosion,
    lag_grows,
    learning_rate_zero,
    learning_rate_zero_since,
    loss_rises,
    policy_collapse,
    rollout_apart,
    rollout_drifts,
)
from otel_rl.report.findings.response_rules import (
    answers_at_limit,
    answers_cut,
    answers_far_below_limit,
    answers_often_cut,
    answers_short,
    cut_rises,
    length_paid,
    limit_lowered,
    requests_worse,
)
from otel_rl.report.findings.reward_rules import (
    evaluation_falls,
    function_constant,
    groups_dropped,
    groups_equal,
    groups_mostly_equal,
    loss_course,
    reward_collapsed,
    reward_course,
    reward_falls,
    reward_flat,
)
from otel_rl.report.findings.rule import Found, Rule, rule


@rule(
    "note",
    reads=(v.REWARD_SCORE, v.LOSS),
    condition="neither a reward nor a loss was recorded",
    window="all steps",
    sentence="No reward and no loss of training were recorded.",
    is_fallback=True,
)
def learning_unknown(learning: Learning) -> Found | None:
    return None if learning.curve(v.REWARD_SCORE).values or learning.curve(v.LOSS).values else Found()


LEARN: Final[tuple[Rule[Learning], ...]] = (
    reward_nan,
    update_nan,
    rank_nan,
    learning_rate_zero,
    answers_nan,
    policy_collapse,
    divergence,
    reward_collapsed,
    groups_equal,
    reward_constant,
    policy_unchanged,
    gradient_vanished,
    rollout_drifts,
    rollout_apart,
    gradient_explosion,
    kl_explosion,
    entropy_collapse,
    length_paid,
    evaluation_falls,
    groups_mostly_equal,
    reward_noisy,
    some_answers_nan,
    function_nan,
    function_constant,
    answers_cut,
    answers_at_limit,
    limit_lowered,
    cut_rises,
    answers_short,
    requests_worse,
    lag_grows,
    nan_at_times,
    groups_dropped,
    gradient_spikes,
    learning_rate_zero_since,
    reward_falls,
    policy_loss_positive,
    loss_rises,
    reward_flat,
    reward_course,
    loss_course,
    answers_often_cut,
    answers_far_below_limit,
    learning_unknown,
)
"""In docs/findings.md in this order, and in a report of those with the same severity, too: causes before symptoms."""
