"""Which process emits which metric with which attributes: one table of ``docs/prometheus.md`` for each area."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_rl import vocabulary as v

Keys = tuple[str, ...]


@dataclass(frozen=True)
class Area:
    """Metrics that are emitted by the same kind of process."""

    title: str
    text: str
    """Who emits them, and what you need to know to query them."""
    attributes: Mapping[str, Keys]
    common: Keys = ()
    """Attributes that all its metrics have, too."""

    def keys(self, metric: str) -> Keys:
        return (*self.common, *self.attributes[metric])


def of(metrics: Keys, *attributes: str) -> dict[str, Keys]:
    return dict.fromkeys(metrics, attributes)


OF_STAGES: Final = {
    v.LOGPROB: (v.LOGPROB_KIND, v.MODE),
    v.REWARD: (v.REWARD_FUNCTION, v.MODE),
    v.IDLE: (v.IDLE_REASON, v.MODE),
    v.CHECKPOINT: (v.CHECKPOINT_LOAD,),
    v.EXECUTE_TOOL: (v.TOOL_NAME, v.MODE),
    v.TRAIN: (v.TRAIN_MODEL, v.MODE),
    v.SYNC: (v.SYNC_OPERATION, v.SYNC_STATES),
    **dict.fromkeys((v.LOOP, v.SETUP, v.TEARDOWN, v.OPTIMIZER, v.CLIP, v.CHECKPOINT_STAGING), ()),
}
"""Attributes of a stage's durations, if they have others than the mode."""

AREAS: Final = (
    Area(
        "Steps and work",
        "From every trainer rank. A gauge has one point per step, at its end.",
        {
            **of((v.STEP_TIME, v.STEP_CPU_TIME, v.TRAIN_TIME, v.SAMPLES, v.TRAIN_STEPS, v.TRAIN_STEPS_SKIPPED)),
            **of((v.SAMPLES_OMITTED,)),
            **of((v.SAMPLE_TOKENS, v.TRAIN_TOKENS), v.TOKEN_KIND),
            **of((v.TOKENS_RATE, v.SAMPLES_RATE), v.WORK, v.WALL),
            **of((v.SAMPLE_PADDING,), v.MODE),
            **of((v.FLOPS,), v.FLOPS_STAGE, v.FLOPS_FORMULA, v.LOGPROB_KIND),
            **of((v.FLOPS_RATE,), v.FLOPS_SCOPE, v.FLOPS_FORMULA, v.CLOCK),
            **of((v.MFU,), v.FLOPS_SCOPE, v.FLOPS_FORMULA, v.CLOCK, v.FLOPS_PEAK, v.FLOPS_PEAK_SOURCE),
        },
    ),
    Area(
        "Stages and collectives",
        "From every rank and worker: one histogram of durations per stage, sampled or not. Those that raised have "
        "`error_type`.",
        {
            **{
                row.duration: (*OF_STAGES.get(row.name, (v.MODE,)), v.ERROR_TYPE)
                for row in v.STAGES.values()
                if row.duration
            },
            **of((v.STAGE_DURATION,), v.STAGE, v.MODE, v.ERROR_TYPE),
            **of(
                (v.DEVICE_DURATION, v.COMM_EXPOSED_TIME),
                *(v.STAGE, v.LOGPROB_KIND, v.REWARD_FUNCTION, v.TRAIN_MODEL, v.SYNC_OPERATION, v.MODE),
            ),
            **of((v.COMM_DURATION, v.COMM_IO), v.COMM_OPERATION, v.COMM_GROUP_KIND, v.COMM_ASYNC, v.CLOCK),
        },
    ),
    Area(
        "Where the time goes",
        "From every rank, about itself. The sidecar adds what needs several ranks, under the labels of the rank: waits "
        "for slower peers (also as bubbles of the reason `skew`) and the cost of slow ranks.",
        {
            **of((v.GOODPUT_TIME,), v.GOODPUT_KIND),
            **of((v.ACTIVITY_TIME,), v.ACTIVITY),
            **of((v.BUBBLE_RATIO,), v.IDLE_REASON, v.BUBBLE_DENOMINATOR, v.SCOPE_KEY),
            **of((v.SKEW_WAIT,), v.SCOPE_KEY),
            **of((v.STRAGGLER_COST,), v.STAGE, v.SCOPE_KEY),
        },
    ),
    Area(
        "Learning",
        "What the framework reports. From rank 0 alone if `rl_scope` is `global`, else from every rank.",
        {
            **of((v.REWARD_SCORE, v.REWARD_STD, v.REWARD_ZERO_STD, v.EVAL_REWARD), v.SCOPE_KEY, v.MODE),
            **of((v.REWARD_MAX, v.REWARD_MIN, v.REWARD_DISTRIBUTION), v.SCOPE_KEY, v.MODE),
            **of((v.ADVANTAGE_MEAN, v.ADVANTAGE_MAX, v.ADVANTAGE_MIN), v.SCOPE_KEY),
            **of((v.FUNCTION_SCORE, v.FUNCTION_STD), v.REWARD_FUNCTION, v.SCOPE_KEY, v.MODE),
            **of((v.REWARD_NONFINITE,), v.REWARD_FUNCTION, v.SCOPE_KEY, v.MODE),
            **of((v.LOSS, v.GRAD_NORM, v.LEARNING_RATE, v.EPOCH), v.SCOPE_KEY),
            **of((v.LOSS_TERM,), v.LOSS_TYPE, v.SCOPE_KEY, v.MODE),
            **of((v.ENTROPY, v.KL_REFERENCE, v.KL_POLICY, v.CLIP_FRACTION), v.SCOPE_KEY, v.MODE),
            **of((v.CLIP_SIDE_FRACTION,), v.CLIP_SIDE, v.SCOPE_KEY, v.MODE),
            **of((v.RESPONSE_LENGTH, v.RESPONSE_MIN, v.RESPONSE_MAX, v.RESPONSE_CLIPPED), v.SCOPE_KEY, v.MODE),
            **of((v.NONFINITE,), v.METRIC_NAME),
            **of((v.LEDGER_FAULTS,), v.LEDGER_FAULT),
            **of((v.LOGPROB_DIFFERENCE, v.LOGPROB_MAX_DIFFERENCE, v.MASK_RATIO), v.LEDGER_BOUNDARY),
        },
    ),
    Area(
        "Memory of a process",
        "From every trainer rank, one point per step. Host memory also comes from processes that work for its steps.",
        {
            **of((v.RSS, v.VMS, v.ALLOCATED, v.RESERVED, v.ACTIVE, v.REQUESTED, v.INACTIVE_SPLIT, v.NON_TORCH)),
            **of((v.FRAGMENTATION, v.SLACK, v.ROUNDING, v.ACTIVATION, v.COMM_BUFFERS)),
        },
    ),
    Area(
        "Rollout requests",
        "From the process that hosts or calls the engine. `rl_mode` is `eval` for evaluations, else absent.",
        {
            **of((v.TTFT, v.TPOT, v.REQUEST_DURATION, v.QUEUE_TIME, v.PREFILL_TIME)),
            **of((v.PROMPT_LENGTH, v.OUTPUT_LENGTH, v.CACHED_LENGTH)),
            **of((v.REQUESTS,), v.FINISH),
            **of((v.ABORTED, v.TIMED_OUT, v.CLIPPED)),
            **of((v.REQUEST_ERRORS,), v.FAILURE),
            **of((v.PREEMPTIONS,)),
        },
        (v.OPERATION, v.PROVIDER, v.REQUEST_MODEL, v.REPLICA, v.SUBMISSION, v.MODE),
    ),
    Area(
        "Rollouts",
        "From the process that hosts or calls the engine. A gauge has one point per rollout.",
        {
            **of((v.ROLLOUT_WALL, v.ROLLOUT_BUBBLE), v.MODE),
            **of((v.TAIL,), v.SLOWEST, v.MODE),
            **of((v.REQUEST_RATIO,), v.OUTCOME_KIND, v.MODE),
            **of((v.OMITTED,), v.MODE),
            **of((v.BAD_REQUESTS,), v.REASON),
            **of((v.GROUPS,), v.GROUP_STATE, v.MODE),
            **of((v.GROUPS_DROPPED,), v.DROPPED_BECAUSE, v.MODE),
            **of((v.SAMPLE_LAG, v.SAMPLE_LAG_MAX, v.SAMPLE_STALE)),
            **of((v.IN_FLIGHT,), v.REPLICA),
        },
    ),
    Area(
        "Engines",
        "From the process that hosts the engine, if the engine has such numbers.",
        of((v.RUNNING, v.WAITING, v.KV_USAGE, v.KV_PEAK, v.KV_BYTES, v.KV_BYTES_PEAK, v.ENGINE_PREEMPTIONS)),
        (v.PROVIDER, v.REPLICA),
    ),
    Area(
        "Event loops",
        "From every process that runs asyncio event loops, once a second, if you set `OTEL_RL_EVENT_LOOP_LAG=true`.",
        of((v.EVENT_LOOP_LAG,)),
    ),
    Area(
        "The node",
        "From the sidecar, every five seconds. Two runs on one node report the same: `max by (host_name)` counts it "
        "once.",
        {
            **of((v.CPU_UTILIZATION, v.CPU_LOAD, v.NODE_MEMORY, v.NODE_MEMORY_LIMIT)),
            **of((v.NETWORK_IO,), v.NETWORK_DIRECTION),
        },
    ),
    Area(
        "Devices",
        "From the sidecar, every five seconds. Two runs on one node report the same devices: "
        "`max by (host_name, hw_id)` counts each once.",
        {
            **of((v.GPU_UTILIZATION, v.POWER, v.ENERGY, v.TEMPERATURE)),
            **of((v.GPU_MEMORY, v.GPU_MEMORY_LIMIT), v.HW_PARENT),
            **of((v.SM_ACTIVITY, v.TENSOR_ACTIVITY, v.DRAM_UTILIZATION), v.HW_PARENT),
            **of((v.GPU_IO,), v.LINK, v.NETWORK_DIRECTION),
            **of((v.PCIE_THROUGHPUT,), v.NETWORK_DIRECTION),
            **of((v.HW_CLOCK,), v.CLOCK_TYPE),
            **of((v.THROTTLE,), v.THROTTLE_REASON),
            **of((v.HW_ERRORS,), v.ERROR_TYPE),
            **of((v.XID,), v.XID_CODE),
            **of((v.HW_STATUS,), v.HW_STATE),
        },
        (v.HW_ID, v.HW_NAME, v.HW_TYPE),
    ),
    Area(
        "Stalls",
        "From the sidecar of the node on which the last link is, every five seconds.",
        of((v.STALL_ACTIVE,)),
        (v.ROLE, v.STAGE),
    ),
    Area(
        "Findings",
        "From the sidecar that sees the whole run, every five seconds: for each rule that has found something. For "
        "stalls, and of calls, from that of each node.",
        {
            **of((v.FINDING_ACTIVE,), v.FINDING_RULE, v.FINDING_KIND, v.FINDING_SEVERITY, v.FINDING_SENTENCE),
            **of((v.FINDING_CALLS,), v.OUTCOME),
        },
    ),
    Area(
        "Actions",
        "From every rank of a trainer with actions (docs/actions.md), and for calls from the sidecar.",
        of((v.ACTIONS,)),
        (v.ACTION_NAME, v.ACTION_KIND, v.ACTION_OUTCOME),
    ),
    Area(
        "otel_rl itself: recording",
        "From every process that records.",
        {
            **of((v.SELF_RECORDED, v.SELF_ENCODED, v.SELF_JOURNALED), v.SIGNAL),
            **of((v.SELF_DROPPED,), v.SIGNAL, v.REASON),
            **of((v.SELF_CHANGED, v.SELF_ERRORS), v.REASON),
            **of((v.SELF_BYTES,)),
        },
    ),
    Area(
        "otel_rl itself: shipping",
        "From the sidecar.",
        {
            **of((v.SELF_WAITING, v.SELF_OLDEST, v.SELF_WRITERS)),
            **of((v.SELF_FETCHED,), v.SIGNAL),
            **of((v.SELF_SHIPPED,), v.SIGNAL, v.OUTCOME),
            **of((v.SELF_RETRIED,), v.SIGNAL, v.OUTCOME, v.REASON),
            **of((v.SELF_DERIVED,), v.OUTCOME),
        },
    ),
)
