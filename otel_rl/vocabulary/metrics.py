"""Metrics of training, and the attributes of their points."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import OURS, PROPOSAL, attribute, metric

DURATION_BOUNDARIES: Final = (0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0, 10000.0)
"""A millisecond to three hours: an RL stage lasts from one optimizer step to one long rollout.

Boundaries, here and below, are for stores without exponential histograms (``buckets``): each is a series.
"""

STAGE: Final = attribute(
    "rl.stage", "string", "metric", "name of a user's own stage; of any stage in `rl.device.duration`"
)
TOKEN_KIND: Final = attribute(
    "rl.token.kind", "string", "metric", "`prompt`, `response` (generated), `environment` or `padding`"
)
WORK: Final = attribute("rl.work", "string", "metric", "what was counted: `rollout` or `train`")
WALL: Final = attribute("rl.wall", "string", "metric", "the wall time a rate was divided by: `step` or `cycle`")
LOSS_TYPE: Final = attribute(
    "rl.loss.type", "string", "metric", "`policy`, `value`, `kl_divergence`, `entropy`", PROPOSAL
)
CLIP_SIDE: Final = attribute("rl.clip.side", "string", "metric", "`low` or `high`")
METRIC_NAME: Final = attribute(
    "rl.metric.name",
    "string",
    "metric",
    "of `rl.metric.nonfinite` the metric that a value belonged to; of a number that a user or a framework named, its "
    "name as they wrote it, where Prometheus writes another one",
)

STAGE_DURATION: Final = metric(
    "rl.stage.duration", "histogram", "s", "duration of a user's own stage, by `rl.stage`", OURS, DURATION_BOUNDARIES
)
COMM_DURATION: Final = metric(
    "rl.comm.duration",
    "histogram",
    "s",
    "duration of every collective, by `rl.comm.operation`",
    OURS,
    DURATION_BOUNDARIES,
)
COMM_IO: Final = metric("rl.comm.io", "counter", "By", "bytes of this rank's inputs to collectives")
STEP_TIME: Final = metric("rl.step.time", "gauge", "s", "from this step's begin to the next one's; one point per step")
TRAIN_TIME: Final = metric(
    "rl.train.time", "gauge", "s", "step time without evaluation and checkpoint; one point per step"
)
SAMPLES: Final = metric("rl.sample.samples", "counter", "{sample}", "samples generated for training", PROPOSAL)
SAMPLE_TOKENS: Final = metric(
    "rl.sample.tokens", "counter", "{token}", "rollout tokens, by `rl.token.kind`: each generated sample once"
)
TRAIN_STEPS: Final = metric("rl.train.steps", "counter", "{step}", "optimizer updates made", PROPOSAL)
TRAIN_STEPS_SKIPPED: Final = metric("rl.train.steps.skipped", "counter", "{step}", "optimizer updates skipped")
TRAIN_TOKENS: Final = metric(
    "rl.train.tokens",
    "counter",
    "{token}",
    "tokens of every training forward, by `rl.token.kind`; the loss uses those of the kind `response`",
    PROPOSAL,
)
TOKENS_RATE: Final = metric(
    "rl.throughput.tokens",
    "gauge",
    "{token}/s",
    "tokens per second, by `rl.work` and `rl.wall`; `rollout`: prompts and what was generated, `train`: those that the "
    "loss uses",
)
SAMPLES_RATE: Final = metric(
    "rl.throughput.samples", "gauge", "{sample}/s", "samples per second, by `rl.work` and `rl.wall`"
)
LOSS: Final = metric("rl.train.loss", "gauge", "", "loss of the step, all of its terms together", PROPOSAL)
LOSS_TERM: Final = metric("rl.train.loss_term", "gauge", "", "one term of the loss, by `rl.loss.type`")
GRAD_NORM: Final = metric("rl.train.grad_norm", "gauge", "", "gradient norm before clipping")
LEARNING_RATE: Final = metric("rl.train.learning_rate", "gauge", "", "learning rate of the first parameter group")
ENTROPY: Final = metric("rl.train.entropy", "gauge", "nat", "mean token entropy of the policy")
KL_REFERENCE: Final = metric("rl.train.kl.reference", "gauge", "nat", "KL divergence of policy and reference model")
KL_POLICY: Final = metric("rl.train.kl.policy", "gauge", "nat", "KL divergence of new and old policy")
CLIP_FRACTION: Final = metric("rl.train.clip_fraction", "gauge", "1", "share of tokens whose ratio was clipped")
CLIP_SIDE_FRACTION: Final = metric(
    "rl.train.clip_side_fraction",
    "gauge",
    "1",
    "share of tokens whose ratio was clipped on one side, by `rl.clip.side`",
)
REWARD_SCORE: Final = metric("rl.reward.score", "gauge", "", "reward, mean of the samples, of all functions together")
REWARD_STD: Final = metric("rl.reward.std", "gauge", "", "its standard deviation")
FUNCTION_SCORE: Final = metric(
    "rl.reward.function.score",
    "gauge",
    "",
    "score of one reward function, mean of the samples, by `rl.reward.function`",
)
FUNCTION_STD: Final = metric(
    "rl.reward.function.std", "gauge", "", "standard deviation of such a score, by `rl.reward.function`"
)
REWARD_ZERO_STD: Final = metric("rl.reward.group.zero_std", "gauge", "1", "share of groups whose rewards are all equal")
RESPONSE_LENGTH: Final = metric("rl.sample.response.length", "gauge", "{token}", "mean length of the responses")
RESPONSE_MIN: Final = metric("rl.sample.response.min_length", "gauge", "{token}", "length of the shortest response")
RESPONSE_MAX: Final = metric("rl.sample.response.max_length", "gauge", "{token}", "length of the longest response")
RESPONSE_CLIPPED: Final = metric(
    "rl.sample.response.clipped", "gauge", "1", "share of responses cut at the length limit"
)
EVAL_REWARD: Final = metric("rl.environment.reward.mean", "gauge", "", "mean reward of the evaluation", PROPOSAL)
SETTABLE: Final = (
    REWARD_SCORE, REWARD_STD, EVAL_REWARD, REWARD_ZERO_STD, LOSS, GRAD_NORM, KL_REFERENCE, KL_POLICY, ENTROPY,
    CLIP_FRACTION, RESPONSE_LENGTH, RESPONSE_MIN, RESPONSE_MAX, RESPONSE_CLIPPED, LEARNING_RATE,
)  # fmt: skip
"""What a loop without a framework sets itself, with ``otel_rl.record``."""
NAMESPACES: Final = ("rl.", "gen_ai.", "hw.", "system.", "process.", "otel_rl.")
"""How names begin that no user may give to a number."""
USER: Final = "user."
"""How metrics begin that a user named."""
TRL: Final = "trl."
"""How metrics begin that TRL named."""
NONFINITE: Final = metric("rl.metric.nonfinite", "counter", "{value}", "per-step values that were NaN or infinite")
RSS: Final = metric("rl.memory.host.rss", "gauge", "By", "resident bytes at step end")
VMS: Final = metric("rl.memory.host.vms", "gauge", "By", "virtual bytes at step end")
ALLOCATED: Final = metric(
    "rl.memory.device.allocated", "gauge", "By", "bytes of live tensors on the device at step end"
)
RESERVED: Final = metric("rl.memory.device.reserved", "gauge", "By", "bytes held by the device allocator at step end")
ACTIVE: Final = metric(
    "rl.memory.device.active", "gauge", "By", "live bytes and those that a stream still uses, at step end"
)
REQUESTED: Final = metric("rl.memory.device.requested", "gauge", "By", "live bytes as they were asked for, at step end")
INACTIVE_SPLIT: Final = metric(
    "rl.memory.device.inactive_split", "gauge", "By", "free parts of blocks that cannot be given back, at step end"
)
NON_TORCH: Final = metric(
    "rl.memory.device.non_torch",
    "gauge",
    "By",
    "of the device in use below torch (communication, context, an engine's pool, other processes), at step end; at "
    "most once a second",
)
FRAGMENTATION: Final = metric("rl.memory.device.fragmentation", "gauge", "1", "inactive split / reserved")
SLACK: Final = metric("rl.memory.device.slack", "gauge", "1", "(reserved - allocated) / reserved")
ROUNDING: Final = metric("rl.memory.device.rounding", "gauge", "1", "1 - requested / allocated")
ACTIVATION: Final = metric(
    "rl.memory.device.activation", "gauge", "By", "highest activation peak of the step's micro-batches"
)
COMM_BUFFERS: Final = metric(
    "rl.memory.device.comm.estimate",
    "gauge",
    "By",
    "estimate of the buffers of communicators: what non-torch memory grew by while process groups were made and first "
    "used",
)
DEVICE_DURATION: Final = metric(
    "rl.device.duration",
    "histogram",
    "s",
    "time on the device of every stage that it timed (`rl.device.time`), by `rl.stage`; that of an outer stage holds "
    "those of the stages inside it",
    OURS,
    DURATION_BOUNDARIES,
)
