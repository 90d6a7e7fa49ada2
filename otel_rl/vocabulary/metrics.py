"""Metrics of training, and the attributes of their points."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import PROPOSAL, counter, gauge, histogram, label

DURATION_BOUNDARIES: Final = (0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0, 10000.0)
"""A millisecond to three hours: an RL stage lasts from one optimizer step to one long rollout.

Boundaries, here and below, are for stores without exponential histograms (``buckets``): each is a series.
"""

REWARD_BOUNDARIES: Final = (
    -100.0, -10.0, -5.0, -2.0, -1.0, -0.5, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 2.0, 5.0,
    10.0, 100.0,
)  # fmt: skip
"""Fine between 0 and 1, where most rewards are."""

STAGE: Final = label("rl.stage", "name of a user's own stage; of any stage in `rl.device.duration`")
TOKEN_KIND: Final = label("rl.token.kind", "`prompt`, `response` (generated), `environment` or `padding`")
WORK: Final = label("rl.work", "what was counted: `rollout` or `train`")
WALL: Final = label("rl.wall", "the wall time a rate was divided by: `step` or `cycle`")
LOSS_TYPE: Final = label("rl.loss.type", "`policy`, `value`, `kl_divergence`, `entropy`", PROPOSAL)
CLIP_SIDE: Final = label("rl.clip.side", "`low` or `high`")
METRIC_NAME: Final = label(
    "rl.metric.name",
    "for `rl.metric.nonfinite` the metric with the value; for a user's or framework's metric its name as written, if "
    "Prometheus changes it",
)

STAGE_DURATION: Final = histogram(
    "rl.stage.duration", "s", "duration of a user's stage by `rl.stage`", DURATION_BOUNDARIES
)
COMM_DURATION: Final = histogram(
    "rl.comm.duration", "s", "duration of collectives by `rl.comm.operation`", DURATION_BOUNDARIES
)
COMM_IO: Final = counter("rl.comm.io", "By", "bytes of this rank's inputs to collectives")
STEP_TIME: Final = gauge("rl.step.time", "s", "from this step's begin to the next one's; one point per step")
STEP_CPU_TIME: Final = gauge("rl.step.cpu.time", "s", "CPU time of the training thread in it; one point per step")
EPOCH: Final = gauge("rl.loop.epoch", "", "passes over the prompts so far, as the framework counts them")
TRAIN_TIME: Final = gauge("rl.train.time", "s", "step time without evaluation and checkpoint; one point per step")
SAMPLES: Final = counter("rl.sample.samples", "{sample}", "samples generated for training", PROPOSAL)
SAMPLE_TOKENS: Final = counter("rl.sample.tokens", "{token}", "rollout tokens by `rl.token.kind`, each sample once")
TRAIN_STEPS: Final = counter("rl.train.steps", "{step}", "optimizer updates made", PROPOSAL)
TRAIN_STEPS_SKIPPED: Final = counter("rl.train.steps.skipped", "{step}", "optimizer updates skipped")
TRAIN_TOKENS: Final = counter(
    "rl.train.tokens", "{token}", "tokens of training forwards by `rl.token.kind`; the loss uses `response`", PROPOSAL
)
TOKENS_RATE: Final = gauge(
    "rl.throughput.tokens",
    "{token}/s",
    "tokens per second, by `rl.work` and `rl.wall`: `rollout` counts prompts and responses, `train` what the loss uses",
)
SAMPLES_RATE: Final = gauge("rl.throughput.samples", "{sample}/s", "samples per second, by `rl.work` and `rl.wall`")
LOSS: Final = gauge("rl.train.loss", "", "loss of the step, all of its terms together", PROPOSAL)
LOSS_TERM: Final = gauge("rl.train.loss_term", "", "one term of the loss, by `rl.loss.type`")
GRAD_NORM: Final = gauge("rl.train.grad_norm", "", "gradient norm before clipping")
LEARNING_RATE: Final = gauge("rl.train.learning_rate", "", "learning rate of the first parameter group")
ENTROPY: Final = gauge("rl.train.entropy", "nat", "mean token entropy of the policy")
KL_REFERENCE: Final = gauge("rl.train.kl.reference", "nat", "KL divergence of policy and reference model")
KL_POLICY: Final = gauge("rl.train.kl.policy", "nat", "KL divergence of new and old policy")
CLIP_FRACTION: Final = gauge("rl.train.clip_fraction", "1", "share of tokens whose ratio was clipped")
CLIP_SIDE_FRACTION: Final = gauge(
    "rl.train.clip_side_fraction", "1", "share of tokens whose ratio was clipped on one side, by `rl.clip.side`"
)
REWARD_SCORE: Final = gauge("rl.reward.score", "", "reward, mean of the samples, of all functions together")
REWARD_STD: Final = gauge("rl.reward.std", "", "its standard deviation")
REWARD_MAX: Final = gauge("rl.reward.max", "", "the highest reward of a sample, of all functions together")
REWARD_MIN: Final = gauge("rl.reward.min", "", "the lowest one")
REWARD_DISTRIBUTION: Final = histogram(
    "rl.reward.distribution",
    "",
    "rewards of the samples, of all functions together; always with these boundaries, since rewards may be negative",
    REWARD_BOUNDARIES,
)
FUNCTION_SCORE: Final = gauge(
    "rl.reward.function.score", "", "score of one reward function, mean of the samples, by `rl.reward.function`"
)
FUNCTION_STD: Final = gauge("rl.reward.function.std", "", "standard deviation of such a score, by `rl.reward.function`")
REWARD_NONFINITE: Final = gauge(
    "rl.reward.nonfinite",
    "{answer}",
    "answers to which a reward function gave NaN or infinity, or to which no function gave a number",
)
REWARD_ZERO_STD: Final = gauge("rl.reward.group.zero_std", "1", "share of groups whose rewards are all equal")
ADVANTAGE_MEAN: Final = gauge("rl.advantage.mean", "", "advantage, mean of the response tokens")
ADVANTAGE_MAX: Final = gauge("rl.advantage.max", "", "the highest advantage of a response token")
ADVANTAGE_MIN: Final = gauge("rl.advantage.min", "", "the lowest one")
RESPONSE_LENGTH: Final = gauge("rl.sample.response.length", "{token}", "mean length of the responses")
RESPONSE_MIN: Final = gauge("rl.sample.response.min_length", "{token}", "length of the shortest response")
RESPONSE_MAX: Final = gauge("rl.sample.response.max_length", "{token}", "length of the longest response")
RESPONSE_CLIPPED: Final = gauge(
    "rl.sample.response.clipped",
    "1",
    "share of responses that ended at the length limit; TRL takes a padding token at the end for a stop token",
)
EVAL_REWARD: Final = gauge("rl.environment.reward.mean", "", "mean reward of the evaluation", PROPOSAL)
SETTABLE: Final = (
    REWARD_SCORE, REWARD_STD, REWARD_MAX, REWARD_MIN, EVAL_REWARD, REWARD_ZERO_STD, ADVANTAGE_MEAN, ADVANTAGE_MAX,
    ADVANTAGE_MIN, LOSS, GRAD_NORM, KL_REFERENCE, KL_POLICY, ENTROPY, CLIP_FRACTION, RESPONSE_LENGTH, RESPONSE_MIN,
    RESPONSE_MAX, RESPONSE_CLIPPED, LEARNING_RATE, EPOCH,
)  # fmt: skip
"""What a loop without a framework sets itself, with ``otel_rl.record``."""
NAMESPACES: Final = ("rl.", "gen_ai.", "hw.", "system.", "process.", "otel_rl.")
"""How names begin that no user may give to a number."""
USER: Final = "user."
"""How metrics begin that a user named."""
TRL: Final = "trl."
"""How metrics begin that TRL named."""
VERL: Final = "verl."
"""How metrics begin that verl named."""
ROLL: Final = "roll."
"""How metrics begin that ROLL named."""
OPENRLHF: Final = "openrlhf."
"""How metrics begin that OpenRLHF named."""
SKYRL: Final = "skyrl."
"""How metrics begin that SkyRL named."""
AREAL: Final = "areal."
"""How metrics begin that AReaL named."""
SLIME: Final = "slime."
"""How metrics begin that slime named."""
MILES: Final = "miles."
"""How metrics begin that miles named."""
NEMO_RL: Final = "nemo_rl."
"""How metrics begin that NeMo-RL named."""
PRIME_RL: Final = "prime_rl."
"""How metrics begin that prime-rl named."""
NONFINITE: Final = counter("rl.metric.nonfinite", "{value}", "per-step values that were NaN or infinite")
RSS: Final = gauge("rl.memory.host.rss", "By", "resident bytes at step end; of a process without steps every 10 s")
VMS: Final = gauge("rl.memory.host.vms", "By", "virtual bytes likewise")
ALLOCATED: Final = gauge("rl.memory.device.allocated", "By", "bytes of live tensors on the device at step end")
RESERVED: Final = gauge("rl.memory.device.reserved", "By", "bytes held by the device allocator at step end")
ACTIVE: Final = gauge("rl.memory.device.active", "By", "live bytes and those that a stream still uses, at step end")
REQUESTED: Final = gauge("rl.memory.device.requested", "By", "live bytes without rounding, at step end")
INACTIVE_SPLIT: Final = gauge(
    "rl.memory.device.inactive_split", "By", "free parts of blocks that stay reserved, at step end"
)
NON_TORCH: Final = gauge(
    "rl.memory.device.non_torch",
    "By",
    "bytes of the device in use outside of torch (communication, context, an engine's pool, other processes), at "
    "most once a second",
)
FRAGMENTATION: Final = gauge("rl.memory.device.fragmentation", "1", "inactive split / reserved")
SLACK: Final = gauge("rl.memory.device.slack", "1", "(reserved - allocated) / reserved")
ROUNDING: Final = gauge("rl.memory.device.rounding", "1", "1 - requested / allocated")
ACTIVATION: Final = gauge("rl.memory.device.activation", "By", "highest activation peak of the step's micro-batches")
COMM_BUFFERS: Final = gauge(
    "rl.memory.device.comm.estimate",
    "By",
    "estimated buffers of communicators: growth of memory outside of torch while process groups were made and first "
    "used",
)
DEVICE_DURATION: Final = histogram(
    "rl.device.duration",
    "s",
    "time on the device (`rl.device.time`) of every stage that it timed, by `rl.stage`; an outer stage includes its "
    "inner ones",
    DURATION_BOUNDARIES,
)
