"""Whether what is trained on is what was generated."""

from otel_rl import vocabulary as v
from scripts.boards.model import NATS, NUMBER, RATIO, TOKENS_RATE, Board, Panel, Row
from scripts.boards.queries import OF_RANK, RUN, by, counted, each, growth, label_name, last, shown

FAULT, BOUNDARY, KIND, FUNCTION, METRIC, REASON = map(
    label_name,
    (v.LEDGER_FAULT, v.LEDGER_BOUNDARY, v.TOKEN_KIND, v.REWARD_FUNCTION, v.METRIC_NAME, v.REASON),
)

BOARD = Board(
    "correctness",
    "RL correctness",
    "Are the samples that the loss uses those that were generated, with the same tokens, masks and probabilities?",
    (
        Row(
            "Batches",
            (
                Panel(
                    "Faults of batches so far",
                    "What ranks found by themselves: shapes, tokens, masks or ids that do not agree. Every fault needs "
                    "a look.",
                    NUMBER,
                    (counted(v.LEDGER_FAULTS, (*OF_RANK, FAULT)),),
                ),
                Panel(
                    "True positions of the masks",
                    "Their share by boundary. A jump means that prompts, padding or answers of tools are masked "
                    "otherwise.",
                    RATIO,
                    ((by((RUN, BOUNDARY), last(v.MASK_RATIO), "avg"), shown((RUN, BOUNDARY))),),
                ),
            ),
        ),
        Row(
            "Rollout and training agree",
            (
                Panel(
                    "Mean difference of log-probabilities",
                    "Of training and rollout, over the tokens of a step. Ten times the run's own past means stale or "
                    "differently sampled rollouts.",
                    NATS,
                    (each(v.LOGPROB_DIFFERENCE, (RUN, BOUNDARY)),),
                ),
                Panel(
                    "Largest difference of log-probabilities",
                    "Of one token in a step. Single large ones are usual with low precision.",
                    NATS,
                    (each(v.LOGPROB_MAX_DIFFERENCE, (RUN, BOUNDARY)),),
                ),
                Panel(
                    "Tokens that rollouts made",
                    "Per second and by kind, each sample once.",
                    TOKENS_RATE,
                    (growth(v.SAMPLE_TOKENS, (RUN, KIND)),),
                    stacked=True,
                ),
                Panel(
                    "Tokens that training used",
                    "Per second and by kind. The loss uses response; compare it with the rollouts' beside.",
                    TOKENS_RATE,
                    (growth(v.TRAIN_TOKENS, (RUN, KIND)),),
                    stacked=True,
                ),
            ),
        ),
        Row(
            "Numbers",
            (
                Panel(
                    "NaN and infinite values so far",
                    "Values that a framework or a user reported, by metric.",
                    NUMBER,
                    (counted(v.NONFINITE, (RUN, METRIC)),),
                ),
                Panel(
                    "Answers without a finite reward",
                    "By reward function: it gave NaN or infinity, or no function gave a number.",
                    NUMBER,
                    ((by((RUN, FUNCTION), last(v.REWARD_NONFINITE), "max"), shown((RUN, FUNCTION))),),
                ),
                Panel(
                    "Optimizer updates made and skipped",
                    "So far. Skipped updates leave the weights as they were.",
                    NUMBER,
                    (counted(v.TRAIN_STEPS, OF_RANK, "made"), counted(v.TRAIN_STEPS_SKIPPED, OF_RANK, "skipped")),
                ),
                Panel(
                    "Requests with impossible values so far",
                    "An engine reported times or counts that cannot be, by reason.",
                    NUMBER,
                    (counted(v.BAD_REQUESTS, (RUN, REASON)),),
                ),
            ),
        ),
    ),
)
