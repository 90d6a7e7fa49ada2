"""Whether the policy learns, and whether training is stable."""

from otel_rl import vocabulary as v
from scripts.boards.model import NATS, NUMBER, RATIO, TOKENS, Board, Panel, Row
from scripts.boards.queries import (
    RUN,
    TRAINING,
    by,
    counted,
    highest,
    is_,
    label_name,
    last,
    learnt,
    median,
    shown,
    spread,
)

FUNCTION, SIDE, TERM, VALUE_OF = map(label_name, (v.REWARD_FUNCTION, v.CLIP_SIDE, v.LOSS_TYPE, v.METRIC_NAME))

REWARD = Panel(
    "Reward: mean, deviation and extremes",
    "The reward of the samples, all functions together. A mean that rises while the deviation falls to 0 is a policy "
    "that no longer explores.",
    NUMBER,
    (
        learnt(v.REWARD_SCORE, "mean"),
        learnt(v.REWARD_STD, "deviation"),
        learnt(v.REWARD_MIN, "lowest"),
        learnt(v.REWARD_MAX, "highest"),
    ),
)
KL = Panel(
    "KL divergence",
    "From the reference model, and from the policy that made the rollouts. As a rule of thumb 0.01 to 0.05 is healthy "
    "and above 0.1 the steps are too large.",
    NATS,
    (learnt(v.KL_REFERENCE, "reference"), learnt(v.KL_POLICY, "policy")),
)
ENTROPY = Panel(
    "Entropy of the policy",
    "The mean over the tokens. It falls to 0 if the policy collapses to one answer.",
    NATS,
    (learnt(v.ENTROPY),),
)
GRAD_NORM = Panel(
    "Gradient norm before clipping",
    "The highest of the window. A peak far above the line of the other steps often comes before a divergence.",
    NUMBER,
    ((by((RUN,), highest(v.GRAD_NORM), "max"), shown((RUN,))),),
)
CLIPPED = Panel(
    "Share of tokens whose ratio was clipped",
    "In all, and at the low and the high side of the clip range.",
    RATIO,
    (learnt(v.CLIP_FRACTION, "all"), learnt(v.CLIP_SIDE_FRACTION, more=(SIDE,))),
)
LOSS = Panel(
    "Loss of the step",
    "All terms together, as the framework reports it. With GRPO it says little about success.",
    NUMBER,
    ((by((RUN,), last(v.LOSS), "avg"), shown((RUN,))),),
)
ACTOR = Panel(
    "Loss of the actor by term",
    "Policy, KL and entropy terms of the loss, where the framework reports them apart.",
    NUMBER,
    (
        (
            by((RUN, TERM), last(v.LOSS_TERM, is_(v.LOSS_TYPE, "policy", "kl_divergence", "entropy"), TRAINING), "avg"),
            shown((RUN, TERM)),
        ),
    ),
)
CRITIC = Panel(
    "Loss of the critic",
    "The value term of the loss. Only algorithms with a critic, such as PPO, have one.",
    NUMBER,
    ((by((RUN,), last(v.LOSS_TERM, is_(v.LOSS_TYPE, "value"), TRAINING), "avg"), shown((RUN,))),),
)

BOARD = Board(
    "learning",
    "RL learning",
    "Does the policy learn, and is training stable? Alerts, faults of batches and restarts are drawn over the panels.",
    (
        Row("Stability: read these six together", (REWARD, KL, ENTROPY, GRAD_NORM, CLIPPED, LOSS)),
        Row(
            "Parts of the loss",
            (
                ACTOR,
                CRITIC,
                Panel(
                    "Learning rate",
                    "Of the first group of parameters.",
                    "sci",
                    ((by((RUN,), last(v.LEARNING_RATE), "max"), shown((RUN,))),),
                ),
                Panel(
                    "Gradient norm over its median of an hour",
                    "Above 3 is unusual. It is far above 1 in the steps that a divergence begins with.",
                    NUMBER,
                    (
                        (
                            by(
                                (RUN,),
                                f"{highest(v.GRAD_NORM)} / {median(v.GRAD_NORM, span='1h')}",
                                "max",
                            ),
                            shown((RUN,)),
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Rewards",
            (
                Panel(
                    "Reward by function",
                    "The mean score of each reward function. One that rises alone may be a reward that is hacked.",
                    NUMBER,
                    (learnt(v.FUNCTION_SCORE, more=(FUNCTION,)),),
                ),
                Panel(
                    "Spread of the reward by function",
                    "The standard deviation of each function's scores. A function without a spread teaches nothing.",
                    NUMBER,
                    (learnt(v.FUNCTION_STD, more=(FUNCTION,)),),
                ),
                Panel(
                    "Share of groups whose rewards are equal",
                    "Such groups have an advantage of 0 and no gradient. Near 1 the batch teaches nothing.",
                    RATIO,
                    (learnt(v.REWARD_ZERO_STD),),
                ),
                Panel(
                    "Rewards of the samples",
                    "How many samples got which reward. A mean between two groups is the reward of nobody.",
                    NUMBER,
                    ((spread(v.REWARD_DISTRIBUTION, (), TRAINING), "samples"),),
                    kind="heatmap",
                ),
                Panel(
                    "Advantages of the response tokens",
                    "Lowest, mean and highest. If all are 0, nothing is learned.",
                    NUMBER,
                    (
                        learnt(v.ADVANTAGE_MIN, "lowest"),
                        learnt(v.ADVANTAGE_MEAN, "mean"),
                        learnt(v.ADVANTAGE_MAX, "highest"),
                    ),
                ),
                Panel(
                    "Reward of evaluations",
                    "The mean reward on the evaluation's prompts, one point per evaluation.",
                    NUMBER,
                    ((by((RUN,), last(v.EVAL_REWARD), "avg"), shown((RUN,))),),
                ),
            ),
        ),
        Row(
            "Responses and samples",
            (
                Panel(
                    "Length of the responses",
                    "Shortest, mean and longest of a step. A sudden rise or fall often comes with a reward that is "
                    "hacked.",
                    TOKENS,
                    (
                        learnt(v.RESPONSE_MIN, "shortest"),
                        learnt(v.RESPONSE_LENGTH, "mean"),
                        learnt(v.RESPONSE_MAX, "longest"),
                    ),
                ),
                Panel(
                    "Share of responses cut at the length limit",
                    "Their end is missing, so their reward says little. Raise the limit or shorten the task.",
                    RATIO,
                    (learnt(v.RESPONSE_CLIPPED),),
                ),
                Panel(
                    "Values that were not finite so far",
                    "NaN or infinite values by name. They are counted and never drawn.",
                    NUMBER,
                    (counted(v.NONFINITE, (RUN, VALUE_OF)),),
                ),
                Panel(
                    "Optimizer updates skipped so far",
                    "An update is skipped if its gradients are not finite, such as with mixed precision.",
                    NUMBER,
                    (counted(v.TRAIN_STEPS_SKIPPED, (RUN,)),),
                ),
            ),
        ),
    ),
)
