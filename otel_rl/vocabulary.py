"""Every telemetry name that otel_rl emits, spelled once.

Order of precedence: the OpenTelemetry ``rl.*`` proposal (semantic-conventions-genai #88), then ``gen_ai.*``, ``hw.*``,
``process.*`` and ``system.*``, then our own extension under ``rl.*``; what concerns otel_rl itself is ``otel_rl.*``.
Units are UCUM. Times are seconds, sizes bytes, ratios 0..1. ``docs/catalogue.md`` is generated from this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

SCOPE: Final = "otel_rl"
PROPOSAL: Final = "OpenTelemetry rl.* proposal (#88)"
SEMCONV: Final = "OpenTelemetry semantic conventions"
OURS: Final = "otel_rl"

ROWS: Final[list[Attribute | Stage | Metric | Event]] = []
"""Every row of this file in the order of definition; the catalogue is generated from it."""


@dataclass(frozen=True)
class Attribute:
    """One attribute key of a span, a resource, a log record or a metric point."""

    key: str
    type: Literal["string", "int", "double", "boolean", "string[]"]
    where: Literal["resource", "span", "metric", "log"]
    meaning: str
    source: str = OURS


@dataclass(frozen=True)
class Stage:
    """One span name."""

    name: str
    meaning: str
    source: str = OURS
    is_measured: bool = True

    @property
    def duration(self) -> str:
        """The histogram that counts the duration of every such span, sampled or not; empty where there is none."""
        return f"{self.name}.duration" if self.is_measured else ""


@dataclass(frozen=True)
class Metric:
    """One metric; ``boundaries`` only for a histogram."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    meaning: str
    source: str = OURS
    boundaries: tuple[float, ...] = ()


@dataclass(frozen=True)
class Event:
    """One log record, told apart by its ``event_name``."""

    name: str
    meaning: str
    source: str = OURS


def _attribute(
    key: str,
    type: Literal["string", "int", "double", "boolean", "string[]"],
    where: Literal["resource", "span", "metric", "log"],
    meaning: str,
    source: str = OURS,
) -> str:
    ROWS.append(Attribute(key, type, where, meaning, source))
    return key


def _stage(name: str, meaning: str, source: str = OURS, *, is_measured: bool = True) -> str:
    ROWS.append(Stage(name, meaning, source, is_measured))
    return name


def _metric(
    name: str,
    kind: Literal["counter", "gauge", "histogram"],
    unit: str,
    meaning: str,
    source: str = OURS,
    boundaries: tuple[float, ...] = (),
) -> str:
    ROWS.append(Metric(name, kind, unit, meaning, source, boundaries))
    return name


def _event(name: str, meaning: str, source: str = OURS) -> str:
    ROWS.append(Event(name, meaning, source))
    return name


# --- resource ---------------------------------------------------------------------------------------------------------

SERVICE_NAME: Final = _attribute(
    "service.name", "string", "resource", "OTEL_SERVICE_NAME, else `<system>-<role>`", SEMCONV
)
SERVICE_INSTANCE_ID: Final = _attribute(
    "service.instance.id", "string", "resource", "UUIDv5 of attempt, role, rank, pid and start time", SEMCONV
)
HOST_NAME: Final = _attribute("host.name", "string", "resource", "name of the node", SEMCONV)
PROCESS_PID: Final = _attribute("process.pid", "int", "resource", "process id", SEMCONV)
DISTRO_NAME: Final = _attribute("telemetry.distro.name", "string", "resource", "`otel_rl`", SEMCONV)
DISTRO_VERSION: Final = _attribute("telemetry.distro.version", "string", "resource", "version of otel_rl", SEMCONV)
SYSTEM: Final = _attribute("rl.system", "string", "resource", "the training framework, e.g. `trl`", PROPOSAL)
SYSTEM_VERSION: Final = _attribute("rl.system.version", "string", "resource", "its version", PROPOSAL)
RUN_ID: Final = _attribute("rl.run.id", "string", "resource", "the run's name; may repeat", PROPOSAL)
ALGORITHM: Final = _attribute("rl.algorithm", "string", "resource", "e.g. `GRPO`", PROPOSAL)
MODEL_NAME: Final = _attribute("rl.model.name", "string", "resource", "name of the trained model", PROPOSAL)
ATTEMPT_ID: Final = _attribute(
    "rl.attempt.id", "string", "resource", "random per start of the job, the same on every rank"
)
ROLE: Final = _attribute("rl.role", "string", "resource", "what the process does: `trainer`, `actor`, `rollout`, ...")
RANK: Final = _attribute("rl.rank", "int", "resource", "rank, unique within `rl.role`")
LOCAL_RANK: Final = _attribute("rl.local_rank", "int", "resource", "rank on the node")
WORLD_SIZE: Final = _attribute("rl.world_size", "int", "resource", "number of ranks of the role")

# --- spans: structure -------------------------------------------------------------------------------------------------

LOOP: Final = _stage("rl.loop", "root of a step's trace: one iteration of the loop; emitted by rank 0 only", PROPOSAL)
RANK_SPAN: Final = _stage(
    "rl.rank", "container of one rank in a step's trace; the span is named `rl.rank 3`", is_measured=False
)
SETUP: Final = _stage("rl.setup", "from the start of the process to its first step: import, load, engine start")
TEARDOWN: Final = _stage("rl.teardown", "from the end of the last step to the end of the loop")

# --- spans: stages ----------------------------------------------------------------------------------------------------

IDLE: Final = _stage("rl.idle", "a bubble: this rank waits; `rl.idle.reason` says for what")
SAMPLE: Final = _stage("rl.sample", "generating rollouts", PROPOSAL)
SAMPLE_PROCESS: Final = _stage("rl.sample.process", "rollout post-processing: padding, masks, shuffling, splitting")
LOGPROB: Final = _stage("rl.logprob", "log-probabilities of given tokens; `rl.logprob.kind` says of which policy")
VALUE: Final = _stage("rl.value", "values by the critic")
REWARD: Final = _stage("rl.reward", "rewards; a child per reward function is named `rl.reward accuracy`", PROPOSAL)
ADVANTAGE: Final = _stage("rl.advantage", "advantages (and returns) from rewards")
TRAIN: Final = _stage("rl.train", "the policy update, where the framework has one call for it", PROPOSAL)
FORWARD: Final = _stage("rl.train.forward", "forward and loss of one micro-batch")
BACKWARD: Final = _stage("rl.train.backward", "backward of one micro-batch")
CLIP: Final = _stage("rl.train.clip", "gradient clipping")
OPTIMIZER: Final = _stage("rl.train.optimizer", "optimizer step")
COMM: Final = _stage(
    "rl.train.comm", "one collective or a metric's gather, among the longest of its stage", is_measured=False
)
SYNC: Final = _stage("rl.sync", "new weights to the rollout engine", PROPOSAL)
CHECKPOINT: Final = _stage("rl.checkpoint", "writing a checkpoint")
CHECKPOINT_STAGING: Final = _stage(
    "rl.checkpoint.staging", "the part of an asynchronous checkpoint that blocks training"
)
EVALUATE: Final = _stage("rl.evaluate", "evaluation")
LOG: Final = _stage("rl.log", "logging, metrics and callbacks of the framework and its user")
OTHER: Final = _stage(
    "rl.other", "time of a step under no stage; computed by readers, never emitted as a span", is_measured=False
)

# --- spans: attributes ------------------------------------------------------------------------------------------------

ITERATION: Final = _attribute(
    "rl.loop.iteration", "int", "span", "number of the step, as the framework logs it", PROPOSAL
)
LOOP_NAME: Final = _attribute(
    "rl.loop.name", "string", "span", "`train`, then `train.2` for a further loop of one process"
)
ROLLOUT_ID: Final = _attribute("rl.rollout.id", "string", "span", "the rollout that a stage makes or consumes")
MODE: Final = _attribute("rl.mode", "string", "span", "`train` or `eval`")
IDLE_REASON: Final = _attribute("rl.idle.reason", "string", "span", "`data`: waiting for the data loader")
LOGPROB_KIND: Final = _attribute(
    "rl.logprob.kind", "string", "span", "`old` (policy at rollout) or `ref` (reference model)"
)
REWARD_FUNCTION: Final = _attribute("rl.reward.function", "string", "span", "name of the reward function")
SAMPLE_BATCH_SIZE: Final = _attribute(
    "rl.sample.batch_size", "int", "span", "samples of the rollout on this rank", PROPOSAL
)
TRAIN_BATCH_SIZE: Final = _attribute("rl.train.batch_size", "int", "span", "samples of the micro-batch", PROPOSAL)
BATCH_SIZE: Final = _attribute("rl.batch_size", "int", "span", "samples that the stage handled on this rank")
GROUP_SIZE: Final = _attribute("rl.group.size", "int", "span", "samples of one prompt")
TOKENS: Final = _attribute("rl.tokens", "int", "span", "tokens that the stage handled on this rank, padding excluded")
TOKENS_PROMPT: Final = _attribute("rl.tokens.prompt", "int", "span", "of them prompt tokens")
TOKENS_RESPONSE: Final = _attribute("rl.tokens.response", "int", "span", "of them response tokens")
TOKENS_PADDING: Final = _attribute("rl.tokens.padding", "int", "span", "padding positions, counted apart")
OPTIMIZER_SKIPPED: Final = _attribute(
    "rl.optimizer.skipped", "boolean", "span", "true where the optimizer skipped its update"
)
POLICY_VERSION: Final = _attribute("rl.policy.version", "int", "span", "optimizer updates in the weights used")
CHECKPOINT_ASYNC: Final = _attribute(
    "rl.checkpoint.async", "boolean", "span", "true where writing goes on in the background"
)
CHECKPOINT_FORMAT: Final = _attribute(
    "rl.checkpoint.format", "string", "span", "`torch.save`, `dcp` or the framework's own"
)
COMM_OPERATION: Final = _attribute(
    "rl.comm.operation", "string", "span", "name of the collective as the caller called it"
)
COMM_BYTES: Final = _attribute("rl.comm.bytes", "int", "span", "bytes of this rank's input, where a tensor shows them")
COMM_COUNT: Final = _attribute("rl.comm.count", "int", "span", "collectives directly inside the stage")
COMM_TIME: Final = _attribute("rl.comm.time", "double", "span", "seconds inside these collectives")
COMM_OMITTED: Final = _attribute("rl.comm.omitted", "int", "span", "collectives of the stage that did not become spans")
COMM_HIDDEN: Final = _attribute(
    "rl.comm.hidden",
    "boolean",
    "span",
    "true where collectives run inside the stage that Python cannot see (DDP, FSDP)",
)
RSS_START: Final = _attribute(
    "rl.memory.host.rss.start", "int", "span", "resident bytes of the process at the start, read at most 10 ms before"
)
RSS_END: Final = _attribute(
    "rl.memory.host.rss.end", "int", "span", "resident bytes at the end, read at most 10 ms before"
)
VMS_START: Final = _attribute("rl.memory.host.vms.start", "int", "span", "virtual bytes at the start")
VMS_END: Final = _attribute("rl.memory.host.vms.end", "int", "span", "virtual bytes at the end")
RSS_PEAK: Final = _attribute(
    "rl.memory.host.rss.peak", "int", "span", "on steps: the process's peak of resident bytes so far"
)
RSS_PEAK_EXACT: Final = _attribute("rl.memory.host.rss.peak.exact", "boolean", "span", "true where this step raised it")
ALLOCATED_START: Final = _attribute(
    "rl.memory.device.allocated.start", "int", "span", "bytes of live tensors at the start"
)
ALLOCATED_END: Final = _attribute("rl.memory.device.allocated.end", "int", "span", "bytes of live tensors at the end")
RESERVED_START: Final = _attribute(
    "rl.memory.device.reserved.start", "int", "span", "bytes held by the allocator, start"
)
RESERVED_END: Final = _attribute("rl.memory.device.reserved.end", "int", "span", "bytes held by the allocator, end")
ALLOCATED_PEAK: Final = _attribute(
    "rl.memory.device.allocated.peak", "int", "span", "peak of live bytes; a lower bound unless `.exact` is true"
)
ALLOCATED_PEAK_EXACT: Final = _attribute(
    "rl.memory.device.allocated.peak.exact", "boolean", "span", "true where the stage raised the process's own peak"
)
RESERVED_PEAK: Final = _attribute(
    "rl.memory.device.reserved.peak", "int", "span", "peak of reserved bytes; a lower bound unless `.exact` is true"
)
RESERVED_PEAK_EXACT: Final = _attribute(
    "rl.memory.device.reserved.peak.exact", "boolean", "span", "true where the stage raised the process's own peak"
)
TRUNCATED: Final = _attribute(
    "rl.truncated", "boolean", "span", "true where a reader closed a span that its writer left open"
)
CLOCK: Final = _attribute(
    "rl.clock", "string", "span", "`host` where the duration of asynchronous device work is its launch"
)
SCOPE_KEY: Final = _attribute(
    "rl.scope", "string", "metric", "`global`: already reduced over ranks; `rank`: this rank's own"
)
ERROR_TYPE: Final = _attribute("error.type", "string", "span", "class of the exception that ended the stage", SEMCONV)
EXCEPTION_TYPE: Final = _attribute("exception.type", "string", "span", "class of the exception", SEMCONV)
EXCEPTION_MESSAGE: Final = _attribute(
    "exception.message", "string", "span", "its text; content, so only with OTEL_RL_CAPTURE_CONTENT", SEMCONV
)
EXCEPTION_STACKTRACE: Final = _attribute(
    "exception.stacktrace", "string", "span", "its traceback; content, so only with OTEL_RL_CAPTURE_CONTENT", SEMCONV
)

# --- metrics ----------------------------------------------------------------------------------------------------------

DURATION_BOUNDARIES: Final = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0,
    100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0,
)  # fmt: skip
"""Half a millisecond to three hours: an RL stage lasts from one optimizer step to one long rollout."""

STAGE: Final = _attribute("rl.stage", "string", "metric", "name of a user's own stage")
TOKEN_KIND: Final = _attribute("rl.token.kind", "string", "metric", "`prompt`, `response` or `padding`")
WORK: Final = _attribute("rl.work", "string", "metric", "what was counted: `rollout` or `train`")
WALL: Final = _attribute("rl.wall", "string", "metric", "the wall time a rate was divided by: `step`")
STATISTIC: Final = _attribute("rl.statistic", "string", "metric", "`mean`, `min`, `max` or `std`")
LOSS_TYPE: Final = _attribute(
    "rl.loss.type", "string", "metric", "`total`, `policy`, `value`, `kl_divergence`, `entropy`", PROPOSAL
)
CLIP_SIDE: Final = _attribute("rl.clip.side", "string", "metric", "`low`, `high` or `region`")
METRIC_NAME: Final = _attribute("rl.metric.name", "string", "metric", "the metric that a value belonged to")
SIGNAL: Final = _attribute("otel_rl.signal", "string", "metric", "`traces`, `metrics` or `logs`")
REASON: Final = _attribute("otel_rl.reason", "string", "metric", "why: a word of docs/failures.md")

STAGE_DURATION: Final = _metric(
    "rl.stage.duration", "histogram", "s", "duration of a user's own stage, by `rl.stage`", OURS, DURATION_BOUNDARIES
)
COMM_DURATION: Final = _metric(
    "rl.comm.duration",
    "histogram",
    "s",
    "duration of every collective, by `rl.comm.operation`",
    OURS,
    DURATION_BOUNDARIES,
)
COMM_IO: Final = _metric("rl.comm.io", "counter", "By", "bytes of this rank's inputs to collectives")
STEP_TIME: Final = _metric("rl.step.time", "gauge", "s", "from this step's begin to the next one's; one point per step")
TRAIN_TIME: Final = _metric(
    "rl.train.time", "gauge", "s", "step time without evaluation and checkpoint; one point per step"
)
SAMPLES: Final = _metric("rl.sample.samples", "counter", "{sample}", "samples generated for training", PROPOSAL)
SAMPLE_TOKENS: Final = _metric("rl.sample.tokens", "counter", "{token}", "rollout tokens: each generated sample once")
TRAIN_STEPS: Final = _metric("rl.train.steps", "counter", "{step}", "optimizer updates made", PROPOSAL)
TRAIN_STEPS_SKIPPED: Final = _metric("rl.train.steps.skipped", "counter", "{step}", "optimizer updates skipped")
TRAIN_TOKENS: Final = _metric("rl.train.tokens", "counter", "{token}", "tokens of every training forward", PROPOSAL)
TOKENS_RATE: Final = _metric(
    "rl.throughput.tokens", "gauge", "{token}/s", "tokens per second, by `rl.work` and `rl.wall`"
)
SAMPLES_RATE: Final = _metric(
    "rl.throughput.samples", "gauge", "{sample}/s", "samples per second, by `rl.work` and `rl.wall`"
)
LOSS: Final = _metric("rl.train.loss", "gauge", "1", "loss of the step, by `rl.loss.type`", PROPOSAL)
GRAD_NORM: Final = _metric("rl.train.grad_norm", "gauge", "1", "gradient norm before clipping")
LEARNING_RATE: Final = _metric("rl.train.learning_rate", "gauge", "1", "learning rate of the first parameter group")
ENTROPY: Final = _metric("rl.train.entropy", "gauge", "nat", "mean token entropy of the policy")
KL_REFERENCE: Final = _metric("rl.train.kl.reference", "gauge", "nat", "KL divergence of policy and reference model")
KL_POLICY: Final = _metric("rl.train.kl.policy", "gauge", "nat", "KL divergence of new and old policy")
CLIP_FRACTION: Final = _metric("rl.train.clip_fraction", "gauge", "1", "share of tokens whose ratio was clipped")
REWARD_SCORE: Final = _metric("rl.reward.score", "gauge", "1", "reward, by `rl.statistic` and `rl.reward.function`")
REWARD_ZERO_STD: Final = _metric(
    "rl.reward.group.zero_std", "gauge", "1", "share of groups whose rewards are all equal"
)
RESPONSE_LENGTH: Final = _metric("rl.sample.response.length", "gauge", "{token}", "response length, by `rl.statistic`")
RESPONSE_CLIPPED: Final = _metric(
    "rl.sample.response.clipped", "gauge", "1", "share of responses cut at the length limit"
)
EVAL_REWARD: Final = _metric("rl.environment.reward.mean", "gauge", "1", "mean reward of the evaluation", PROPOSAL)
NONFINITE: Final = _metric("rl.metric.nonfinite", "counter", "{value}", "per-step values that were NaN or infinite")
RSS: Final = _metric("rl.memory.host.rss", "gauge", "By", "resident bytes at step end")
VMS: Final = _metric("rl.memory.host.vms", "gauge", "By", "virtual bytes at step end")
ALLOCATED: Final = _metric(
    "rl.memory.device.allocated", "gauge", "By", "bytes of live tensors on the device at step end"
)
RESERVED: Final = _metric("rl.memory.device.reserved", "gauge", "By", "bytes held by the device allocator at step end")

SELF_RECORDED: Final = _metric("otel_rl.recorded", "counter", "{record}", "spans, points and logs recorded, by signal")
SELF_DROPPED: Final = _metric("otel_rl.dropped", "counter", "{record}", "records given up, by signal and reason")
SELF_ERRORS: Final = _metric(
    "otel_rl.errors", "counter", "{error}", "errors of otel_rl itself, by reason; the host never sees them"
)
SELF_BYTES: Final = _metric("otel_rl.journal.bytes", "counter", "By", "bytes written to the journal")

SELF_SHIPPED: Final = _metric(
    "otel_rl.ship.records", "counter", "{record}", "records by signal and by what became of them at the other side"
)
SELF_WAITING: Final = _metric("otel_rl.ship.waiting", "gauge", "By", "journaled bytes that are still to be sent")
SELF_OLDEST: Final = _metric("otel_rl.ship.oldest_age", "gauge", "s", "age of the oldest record that waits to be sent")

OUTCOME: Final = _attribute(
    "otel_rl.outcome",
    "string",
    "metric",
    "`shipped`, `rejected` (partial success), `refused`, `left_out` (beyond the share of a trace) or `damaged`",
)
HW_ID: Final = _attribute("hw.id", "string", "metric", "the device's own id", SEMCONV)
HW_NAME: Final = _attribute("hw.name", "string", "metric", "the device's product name", SEMCONV)
HW_TYPE: Final = _attribute("hw.type", "string", "metric", "`gpu`", SEMCONV)
CLOCK_TYPE: Final = _attribute("hw.gpu.clock.type", "string", "metric", "`sm` or `memory`")
NETWORK_DIRECTION: Final = _attribute("network.io.direction", "string", "metric", "`receive` or `transmit`", SEMCONV)

CPU_UTILIZATION: Final = _metric("system.cpu.utilization", "gauge", "1", "share of all cores in use", SEMCONV)
CPU_LOAD: Final = _metric("system.linux.cpu.load_1m", "gauge", "{thread}", "load average of a minute", SEMCONV)
SYSTEM_MEMORY: Final = _metric("system.memory.usage", "gauge", "By", "memory of the node in use", SEMCONV)
SYSTEM_MEMORY_LIMIT: Final = _metric("system.memory.limit", "gauge", "By", "memory of the node", SEMCONV)
NETWORK_IO: Final = _metric("system.network.io", "counter", "By", "bytes by `network.io.direction`", SEMCONV)
GPU_UTILIZATION: Final = _metric(
    "hw.gpu.utilization", "gauge", "1", "share of time in which a kernel ran; no measure of how busy it was", SEMCONV
)
GPU_MEMORY: Final = _metric("hw.gpu.memory.usage", "gauge", "By", "device memory in use, by all processes", SEMCONV)
GPU_MEMORY_LIMIT: Final = _metric("hw.gpu.memory.limit", "gauge", "By", "device memory", SEMCONV)
POWER: Final = _metric("hw.power", "gauge", "W", "power drawn by the device", SEMCONV)
TEMPERATURE: Final = _metric("hw.temperature", "gauge", "Cel", "temperature of the device", SEMCONV)
GPU_CLOCK: Final = _metric("hw.gpu.clock", "gauge", "Hz", "clock by `hw.gpu.clock.type`")

# --- logs -------------------------------------------------------------------------------------------------------------

OPEN: Final = _event(
    "rl.stage.open", "a stage that was open when the journal was written; its end, if any, is its span"
)
OUT_OF_MEMORY: Final = _event(
    "rl.memory.exhausted", "an out-of-memory error, with the memory and the tokens of every open stage"
)
CLOCK_STEPPED: Final = _event(
    "otel_rl.clock.stepped", "the wall clock jumped against the monotonic one; times are re-anchored"
)

START_TIME: Final = _attribute("otel_rl.start_time", "int", "log", "when the open stage began, ns since 1970")
PARENT_ID: Final = _attribute("otel_rl.parent_id", "string", "log", "span id of the open stage's parent, 16 hex digits")

STAGES: Final = {row.name: row for row in ROWS if isinstance(row, Stage)}
METRICS: Final = {row.name: row for row in ROWS if isinstance(row, Metric)}
ATTRIBUTES: Final = {row.key: row for row in ROWS if isinstance(row, Attribute)}
EVENTS: Final = {row.name: row for row in ROWS if isinstance(row, Event)}
SHORT_NAMES: Final = {name.removeprefix("rl."): name for name in STAGES}
"""What ``otel_rl.stage("reward")`` opens: ``rl.reward``; a name that is not here stays as the user wrote it."""
