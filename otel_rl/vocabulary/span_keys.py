"""Keys of the attributes of spans."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import PROPOSAL, SEMCONV, attribute, label

ITERATION: Final = attribute("rl.loop.iteration", "int", "number of the step, as the framework logs it", PROPOSAL)
LOOP_NAME: Final = attribute("rl.loop.name", "string", "`train`, then `train.2` for a further loop of one process")
LOOP_RESTART_OF: Final = attribute(
    "rl.loop.restart_of", "string", "on steps that repeat those of an earlier loop: the name of that loop"
)
CPU_TIME: Final = attribute(
    "rl.cpu.time", "double", "of a container: CPU seconds of the thread that began it, unless another one ended it"
)
ROLLOUT_ID: Final = attribute("rl.rollout.id", "string", "the rollout that a stage makes or consumes")
MODE: Final = attribute("rl.mode", "string", "`train` or `eval`")
OUTER_TRACE: Final = attribute("rl.outer.trace_id", "string", "trace id of another library's span around it, in hex")
OUTER_SPAN: Final = attribute("rl.outer.span_id", "string", "the id of that span; stages below do not repeat it")
IDLE_REASON: Final = attribute(
    "rl.idle.reason",
    "string",
    "`data` (the loader), `queue` (samples, a slot, an answer), `pipeline` (a neighbour's result), `controller` (the "
    "driver's next call), `workers` (what a driver has called), `skew` (slower peers) or your own; bubbles count "
    "`workers`, your own and none as `other`",
)
LOGPROB_KIND: Final = attribute("rl.logprob.kind", "string", "`old` (policy at rollout) or `ref` (reference model)")
TRAIN_MODEL: Final = attribute("rl.train.model", "string", "`actor` or `critic`, where a framework trains both")
REWARD_FUNCTION: Final = attribute("rl.reward.function", "string", "name of the reward function")
SAMPLE_BATCH_SIZE: Final = attribute("rl.sample.batch_size", "int", "samples of the rollout on this rank", PROPOSAL)
TRAIN_BATCH_SIZE: Final = attribute("rl.train.batch_size", "int", "samples of the micro-batch", PROPOSAL)
BATCH_SIZE: Final = attribute("rl.batch_size", "int", "samples that the stage handled on this rank")
GROUP_SIZE: Final = attribute("rl.group.size", "int", "samples of one prompt")
TOKENS: Final = attribute("rl.tokens", "int", "tokens that the stage handled on this rank, padding excluded")
TOKENS_PROMPT: Final = attribute("rl.tokens.prompt", "int", "of them prompt tokens")
TOKENS_RESPONSE: Final = attribute("rl.tokens.response", "int", "of them tokens that the policy generated")
TOKENS_ENVIRONMENT: Final = attribute(
    "rl.tokens.environment", "int", "of them tokens that a tool or an environment wrote into the responses"
)
TOKENS_PADDING: Final = attribute("rl.tokens.padding", "int", "padding positions, counted apart")
SETTINGS: Final = "rl.settings."
"""How the attributes of set-up begin that say how the run is set."""
SETTINGS_LEARNING_RATE: Final = attribute(f"{SETTINGS}learning_rate", "double", "on set-up: highest learning rate")
SETTINGS_SAMPLES: Final = attribute(f"{SETTINGS}samples_per_rank", "int", "on set-up: samples of a rollout on one rank")
SETTINGS_GROUP: Final = attribute(f"{SETTINGS}group_size", "int", "on set-up: samples of one prompt")
SETTINGS_LIMIT: Final = attribute(f"{SETTINGS}response_limit", "int", "on set-up: tokens that a response may have")
SETTINGS_UPDATES: Final = attribute(
    f"{SETTINGS}updates_per_rollout", "double", "on set-up: optimizer updates that use one rollout"
)
SETTINGS_STEPS: Final = attribute(f"{SETTINGS}steps", "int", "on set-up: steps that are planned")
SETTINGS_POLL: Final = attribute(
    f"{SETTINGS}poll_interval", "double", "on set-up: s between two looks of a driver for samples"
)
SETTINGS_TEMPERATURE: Final = attribute(f"{SETTINGS}temperature", "double", "on set-up: temperature of the sampling")
SETTINGS_KL: Final = attribute(
    f"{SETTINGS}kl_coefficient", "double", "on set-up: by what the KL to the reference is multiplied; 0 without one"
)
SETTINGS_GRADIENT: Final = attribute(
    f"{SETTINGS}gradient_limit", "double", "on set-up: norm to which gradients are clipped"
)
ALL_SETTINGS: Final = (
    SETTINGS_LEARNING_RATE, SETTINGS_SAMPLES, SETTINGS_GROUP, SETTINGS_LIMIT, SETTINGS_UPDATES, SETTINGS_STEPS,
    SETTINGS_POLL, SETTINGS_TEMPERATURE, SETTINGS_KL, SETTINGS_GRADIENT,
)  # fmt: skip
OPTIMIZER_SKIPPED: Final = attribute("rl.optimizer.skipped", "boolean", "true if the optimizer skipped its update")
POLICY_VERSION: Final = attribute(
    "rl.policy.version", "int", "optimizer updates in the weights used; with verl the step after which they were synced"
)
SYNC_OPERATION: Final = attribute(
    "rl.sync.operation", "string", "the engine's own name of the operation: `update_weights`, `sleep`, `wake_up`, ..."
)
SYNC_STATES: Final = attribute("rl.sync.states", "string", "what is loaded or offloaded: `model` or `optimizer`")
SYNC_BYTES: Final = attribute("rl.sync.bytes", "int", "bytes of the weights that this rank hands on, if that is known")
CHECKPOINT_ASYNC: Final = attribute("rl.checkpoint.async", "boolean", "true if writing goes on in the background")
CHECKPOINT_FORMAT: Final = attribute(
    "rl.checkpoint.format", "string", "`torch.save`, `dcp`, or the framework whose own form it is"
)
CHECKPOINT_BYTES: Final = attribute(
    "rl.checkpoint.bytes", "int", "bytes of the files that this process wrote; with transformers those of the folder"
)
CHECKPOINT_LOAD: Final = attribute("rl.checkpoint.load", "boolean", "true if it is read; absent if it is written")
COMM_OPERATION: Final = attribute("rl.comm.operation", "string", "name of the collective, as called")
COMM_BYTES: Final = attribute("rl.comm.bytes", "int", "bytes of this rank's input, if a tensor shows them")
COMM_COUNT: Final = attribute("rl.comm.count", "int", "collectives directly inside the stage")
COMM_TIME: Final = attribute("rl.comm.time", "double", "seconds inside these collectives")
COMM_OMITTED: Final = attribute("rl.comm.omitted", "int", "collectives of the stage that did not become spans")
COMM_HIDDEN: Final = attribute(
    "rl.comm.hidden", "boolean", "true if there may be collectives that Python cannot see (compiled, DDP on a device)"
)
RSS_START: Final = attribute(
    "rl.memory.host.rss.start", "int", "resident bytes of the process at the start, read at most 10 ms before"
)
RSS_END: Final = attribute("rl.memory.host.rss.end", "int", "resident bytes at the end, read at most 10 ms before")
VMS_START: Final = attribute("rl.memory.host.vms.start", "int", "virtual bytes at the start")
VMS_END: Final = attribute("rl.memory.host.vms.end", "int", "virtual bytes at the end")
RSS_PEAK: Final = attribute("rl.memory.host.rss.peak", "int", "on steps: the process's peak of resident bytes so far")
RSS_PEAK_EXACT: Final = attribute("rl.memory.host.rss.peak.exact", "boolean", "true if this step raised it")
ALLOCATED_START: Final = attribute("rl.memory.device.allocated.start", "int", "bytes of live tensors at the start")
ALLOCATED_END: Final = attribute("rl.memory.device.allocated.end", "int", "bytes of live tensors at the end")
RESERVED_START: Final = attribute("rl.memory.device.reserved.start", "int", "bytes held by the allocator, start")
RESERVED_END: Final = attribute("rl.memory.device.reserved.end", "int", "bytes held by the allocator, end")
ALLOCATED_PEAK: Final = attribute(
    "rl.memory.device.allocated.peak", "int", "peak of live bytes; a lower bound unless `.exact` is true"
)
ALLOCATED_PEAK_EXACT: Final = attribute(
    "rl.memory.device.allocated.peak.exact", "boolean", "true if the stage raised the process's own peak"
)
RESERVED_PEAK: Final = attribute(
    "rl.memory.device.reserved.peak", "int", "peak of reserved bytes; a lower bound unless `.exact` is true"
)
RESERVED_PEAK_EXACT: Final = attribute(
    "rl.memory.device.reserved.peak.exact", "boolean", "true if the stage raised the process's own peak"
)
ACTIVATION_PEAK: Final = attribute(
    "rl.memory.device.activation.peak",
    "int",
    "on backwards: peak of forward and backward - live bytes at the forward's begin",
)
ACTIVATION_PEAK_EXACT: Final = attribute("rl.memory.device.activation.peak.exact", "boolean", "false: a lower bound")
TRUNCATED: Final = attribute(
    "rl.truncated",
    "boolean",
    "true if the stage did not end by itself: its process died, exited or is still in it, a reader made the missing "
    "root, or an optimizer's step raised an unknown error",
)
CLOCK: Final = attribute("rl.clock", "string", "`host` if the duration of asynchronous device work is only its launch")
DEVICE_TIME: Final = attribute(
    "rl.device.time", "double", "seconds between the stage's begin and end on the device, on the current stream"
)
SCOPE_KEY: Final = label(
    "rl.scope",
    "`global` (already reduced over ranks), `rank` (this rank's own), `node` or `run` (by comparing the ranks of a "
    "node or all, as far as their journals are readable)",
)
ERROR_TYPE: Final = attribute(
    "error.type", "string", "class of the exception that ended the stage; of `hw.errors` whether corrected", SEMCONV
)
EXCEPTION_TYPE: Final = attribute("exception.type", "string", "class of the exception", SEMCONV)
EXCEPTION_MESSAGE: Final = attribute(
    "exception.message", "string", "its text; only with OTEL_RL_CAPTURE_CONTENT, since it is content", SEMCONV
)
EXCEPTION_STACKTRACE: Final = attribute(
    "exception.stacktrace", "string", "its traceback; only with OTEL_RL_CAPTURE_CONTENT, since it is content", SEMCONV
)
