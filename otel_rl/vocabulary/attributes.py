"""Attributes of spans."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import PROPOSAL, SEMCONV, attribute

ITERATION: Final = attribute(
    "rl.loop.iteration", "int", "span", "number of the step, as the framework logs it", PROPOSAL
)
LOOP_NAME: Final = attribute(
    "rl.loop.name", "string", "span", "`train`, then `train.2` for a further loop of one process"
)
LOOP_RESTART_OF: Final = attribute(
    "rl.loop.restart_of",
    "string",
    "span",
    "on the steps of a loop that does steps of an earlier loop of its process again: the name of that loop",
)
ROLLOUT_ID: Final = attribute("rl.rollout.id", "string", "span", "the rollout that a stage makes or consumes")
MODE: Final = attribute("rl.mode", "string", "span", "`train` or `eval`")
OUTER_TRACE: Final = attribute(
    "rl.outer.trace_id", "string", "span", "trace of the span of another library that surrounds the stage, in hex"
)
OUTER_SPAN: Final = attribute("rl.outer.span_id", "string", "span", "that span; stages below this one do not repeat it")
IDLE_REASON: Final = attribute(
    "rl.idle.reason",
    "string",
    "span",
    "for what: `data`, the data loader; `queue`, samples, a slot or an answer; `pipeline`, what a neighbour computes; "
    "`skew`, slower peers; a reason of one's own, which in metrics of bubbles is `other`, as is none",
)
LOGPROB_KIND: Final = attribute(
    "rl.logprob.kind", "string", "span", "`old` (policy at rollout) or `ref` (reference model)"
)
REWARD_FUNCTION: Final = attribute("rl.reward.function", "string", "span", "name of the reward function")
SAMPLE_BATCH_SIZE: Final = attribute(
    "rl.sample.batch_size", "int", "span", "samples of the rollout on this rank", PROPOSAL
)
TRAIN_BATCH_SIZE: Final = attribute("rl.train.batch_size", "int", "span", "samples of the micro-batch", PROPOSAL)
BATCH_SIZE: Final = attribute("rl.batch_size", "int", "span", "samples that the stage handled on this rank")
GROUP_SIZE: Final = attribute("rl.group.size", "int", "span", "samples of one prompt")
TOKENS: Final = attribute("rl.tokens", "int", "span", "tokens that the stage handled on this rank, padding excluded")
TOKENS_PROMPT: Final = attribute("rl.tokens.prompt", "int", "span", "of them prompt tokens")
TOKENS_RESPONSE: Final = attribute("rl.tokens.response", "int", "span", "of them tokens that the policy generated")
TOKENS_ENVIRONMENT: Final = attribute(
    "rl.tokens.environment", "int", "span", "of them tokens that a tool or an environment wrote into the responses"
)
TOKENS_PADDING: Final = attribute("rl.tokens.padding", "int", "span", "padding positions, counted apart")
OPTIMIZER_SKIPPED: Final = attribute(
    "rl.optimizer.skipped", "boolean", "span", "true where the optimizer skipped its update"
)
POLICY_VERSION: Final = attribute("rl.policy.version", "int", "span", "optimizer updates in the weights used")
SYNC_OPERATION: Final = attribute(
    "rl.sync.operation",
    "string",
    "span",
    "the engine's own name of what it does: `update_weights`, `sleep`, `wake_up`, ...",
)
CHECKPOINT_ASYNC: Final = attribute(
    "rl.checkpoint.async", "boolean", "span", "true where writing goes on in the background"
)
CHECKPOINT_FORMAT: Final = attribute(
    "rl.checkpoint.format", "string", "span", "`torch.save`, `dcp` or the framework's own"
)
CHECKPOINT_LOAD: Final = attribute(
    "rl.checkpoint.load", "boolean", "span", "true where a checkpoint is read; absent where one is written"
)
COMM_OPERATION: Final = attribute(
    "rl.comm.operation", "string", "span", "name of the collective as the caller called it"
)
COMM_BYTES: Final = attribute("rl.comm.bytes", "int", "span", "bytes of this rank's input, where a tensor shows them")
COMM_COUNT: Final = attribute("rl.comm.count", "int", "span", "collectives directly inside the stage")
COMM_TIME: Final = attribute("rl.comm.time", "double", "span", "seconds inside these collectives")
COMM_OMITTED: Final = attribute("rl.comm.omitted", "int", "span", "collectives of the stage that did not become spans")
COMM_HIDDEN: Final = attribute(
    "rl.comm.hidden",
    "boolean",
    "span",
    "true where collectives may run inside the stage that Python cannot see (compiled regions, DDP on a device)",
)
RSS_START: Final = attribute(
    "rl.memory.host.rss.start", "int", "span", "resident bytes of the process at the start, read at most 10 ms before"
)
RSS_END: Final = attribute(
    "rl.memory.host.rss.end", "int", "span", "resident bytes at the end, read at most 10 ms before"
)
VMS_START: Final = attribute("rl.memory.host.vms.start", "int", "span", "virtual bytes at the start")
VMS_END: Final = attribute("rl.memory.host.vms.end", "int", "span", "virtual bytes at the end")
RSS_PEAK: Final = attribute(
    "rl.memory.host.rss.peak", "int", "span", "on steps: the process's peak of resident bytes so far"
)
RSS_PEAK_EXACT: Final = attribute("rl.memory.host.rss.peak.exact", "boolean", "span", "true where this step raised it")
ALLOCATED_START: Final = attribute(
    "rl.memory.device.allocated.start", "int", "span", "bytes of live tensors at the start"
)
ALLOCATED_END: Final = attribute("rl.memory.device.allocated.end", "int", "span", "bytes of live tensors at the end")
RESERVED_START: Final = attribute(
    "rl.memory.device.reserved.start", "int", "span", "bytes held by the allocator, start"
)
RESERVED_END: Final = attribute("rl.memory.device.reserved.end", "int", "span", "bytes held by the allocator, end")
ALLOCATED_PEAK: Final = attribute(
    "rl.memory.device.allocated.peak", "int", "span", "peak of live bytes; a lower bound unless `.exact` is true"
)
ALLOCATED_PEAK_EXACT: Final = attribute(
    "rl.memory.device.allocated.peak.exact",
    "boolean",
    "span",
    "true where the stage raised the process's own peak",
)
RESERVED_PEAK: Final = attribute(
    "rl.memory.device.reserved.peak", "int", "span", "peak of reserved bytes; a lower bound unless `.exact` is true"
)
RESERVED_PEAK_EXACT: Final = attribute(
    "rl.memory.device.reserved.peak.exact",
    "boolean",
    "span",
    "true where the stage raised the process's own peak",
)
ACTIVATION_PEAK: Final = attribute(
    "rl.memory.device.activation.peak",
    "int",
    "span",
    "on backwards: peak of live bytes within the forward and the backward, less what was live at the forward's begin",
)
ACTIVATION_PEAK_EXACT: Final = attribute(
    "rl.memory.device.activation.peak.exact", "boolean", "span", "false: a lower bound"
)
TRUNCATED: Final = attribute(
    "rl.truncated",
    "boolean",
    "span",
    "true where a span's end is not that of its stage: a reader closed it at the last sign of life (its process died "
    "in it, or is in it still) or made the root that nobody journaled; its process ended "
    "(`sys.exit` in a step does that), or began a training of its own, while it was open; an optimizer's step raised, "
    "and with what error is not known",
)
CLOCK: Final = attribute(
    "rl.clock", "string", "span", "`host` where the duration of asynchronous device work is its launch"
)
DEVICE_TIME: Final = attribute(
    "rl.device.time",
    "double",
    "span",
    "seconds from when the device came to the stage's begin until it came to its end, on the stream that was current",
)
SCOPE_KEY: Final = attribute(
    "rl.scope",
    "string",
    "metric",
    "`global`: already reduced over ranks; `rank`: this rank's own; `node`, `run`: found by comparing the ranks whose "
    "journals could be read, those of a node or all",
)
ERROR_TYPE: Final = attribute(
    "error.type",
    "string",
    "span",
    "class of the exception that ended the stage; of `hw.errors` what became of the error",
    SEMCONV,
)
EXCEPTION_TYPE: Final = attribute("exception.type", "string", "span", "class of the exception", SEMCONV)
EXCEPTION_MESSAGE: Final = attribute(
    "exception.message", "string", "span", "its text; content, so only with OTEL_RL_CAPTURE_CONTENT", SEMCONV
)
EXCEPTION_STACKTRACE: Final = attribute(
    "exception.stacktrace", "string", "span", "its traceback; content, so only with OTEL_RL_CAPTURE_CONTENT", SEMCONV
)
