"""Numbers that are asked for, by what they are asked for: correctness, stability, load balance and others."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.catalogue.demand import MEASURED, Canonical, Topic, kept, measured, missing, never, number, seam
from otel_rl.catalogue.numbers_of_rollouts import (
    ATTRIBUTE,
    DEVICE,
    LOAD,
    LOAD_OF_OWN,
    NO_LEDGER,
    RECORD,
    REQUEST,
    SAMPLED,
    SHOWN,
)

NPU: Final = measured("by the sidecar, by DCMI, with an endpoint; not run on a device")
SIDECAR: Final = measured("by the sidecar, with an endpoint")
LINES: Final = measured("a record a step, made of its numbers")
ROWS: Final = seam("transferqueue_utils._meta_to_realdata", "AgentLoopWorker._compute_score")

ROLL_SCORES: Final = "rlvr_pipeline.compute_advantage", "agentic_pipeline.agentic_compute_advantage"

CORRECTNESS: Final = Topic(
    "Correctness",
    (
        number(
            "shape checksum",
            v.LEDGER_SHAPE,
            unit="",
            trl=measured("at `rl.sample` and `rl.train.forward`"),
            verl=missing("its rows are of single samples, whose lengths they have"),
            roll=NO_LEDGER,
            own=SHOWN,
        ),
        number(
            "mask ratio",
            v.MASK_RATIO,
            trl=measured("at `rl.sample` and `rl.train.forward`"),
            verl=ROWS,
            roll=NO_LEDGER,
            own=SHOWN,
        ),
        number(
            "token alignment, rollout against training",
            *(v.LEDGER_FAULTS, v.LEDGER_TOKENS, v.LOGPROB_DIFFERENCE),
            trl=measured("of the tokens always, of log-probabilities with vLLM"),
            verl=ROWS,
            roll=NO_LEDGER,
            own=SHOWN,
        ),
        number(
            "sample and group id alignment",
            *(v.LEDGER_IDS, v.SAMPLE_ID, v.GROUP_ID),
            unit="",
            trl=missing("TRL has no ids; requests have the place in the rollout as theirs, the ledger has none"),
            verl=ROWS,
            roll=missing("spans have both ids; the ledger compares none"),
            own=measured("`otel_rl.observe` with `sample_ids`"),
        ),
        number(
            "NaN and Inf counts",
            *(v.NONFINITE, v.LEDGER_NONFINITE, v.REWARD_NONFINITE),
            trl=MEASURED,
            verl=measured("of every number; of tensors by the ledger"),
            roll=measured("of every number; not of tensors"),
            own=measured("of every number; of tensors by `otel_rl.observe`"),
        ),
    ),
)

STABILITY: Final = Topic(
    "Stability",
    (
        number("entropy", v.ENTROPY),
        number(
            "KL of new and old policy",
            v.KL_POLICY,
            trl=seam("AsyncGRPOTrainer.log", note="its `kl`; GRPO and RLOO compute none"),
        ),
        number("KL to the reference", v.KL_REFERENCE),
        number(
            "gradient norm of the actor", v.GRAD_NORM, trl=seam("Trainer._clip_grad_norm", "Trainer._get_grad_norm")
        ),
        number("clip fraction", v.CLIP_FRACTION),
        number("reward mean", v.REWARD_SCORE, own=SAMPLED),
        number(
            "reward max, min",
            v.REWARD_MAX,
            v.REWARD_MIN,
            means="of the samples",
            trl=seam("GRPOTrainer._calculate_rewards"),
        ),
        number(
            "reward standard deviation",
            v.REWARD_STD,
            verl=seam("utils.compute_advantage_for_multi_trajectories"),
            roll=seam(*ROLL_SCORES, note="of one domain"),
            own=SAMPLED,
        ),
        number(
            "groups of equal rewards",
            v.REWARD_ZERO_STD,
            verl=seam("utils.compute_advantage_for_multi_trajectories"),
            roll=seam(*ROLL_SCORES, note="of one domain"),
            own=SAMPLED,
        ),
        number(
            "critic's loss",
            Canonical(v.LOSS_TERM, ((v.LOSS_TYPE, "value"),)),
            trl=never("GRPO and RLOO have no critic"),
            own=RECORD,
        ),
        number(
            "SFT losses",
            means="loss on given answers",
            unit="",
            trl=never("GRPO and RLOO have none"),
            verl=never("PPO and GRPO have none; its SFT trainer is not recorded"),
            roll=never("no code of ROLL 0.3.0 writes them, though its documentation lists them"),
            own=RECORD,
        ),
        number("learning rate", v.LEARNING_RATE, trl=seam("AcceleratedOptimizer.step")),
        number(
            "critic's learning rate",
            means="of its first parameter group",
            unit="",
            trl=never("GRPO and RLOO have no critic"),
            verl=kept("critic/lr"),
            roll=kept("critic/lr"),
            own=RECORD,
        ),
        number(
            "sample weights",
            means="weights by which losses of samples are multiplied",
            unit="1",
            trl=kept("sampling/importance_sampling_ratio/{min,mean,max}", note="with vLLM and its correction"),
            verl=kept("rollout_corr/{rollout_is_mean,rollout_is_max,rollout_is_min}", note="with rollout correction"),
            roll=kept("actor/{sample_weights_mean,sample_weights_min,sample_weights_max}", note="RLVR"),
            own=RECORD,
        ),
        number(
            "valid-sample ratio",
            means="share of samples that the loss uses",
            unit="1",
            trl=never(
                "TRL prints none; it leaves out cut responses only, of which `completions/clipped_ratio` is the share"
            ),
            verl=kept(
                "rollout_corr/rollout_rs_<option>_seq_masked_fraction",
                note="the share that is left out, with rejection",
            ),
            roll=kept("actor/valid_sample_ratio", note="RLVR"),
            own=RECORD,
        ),
    ),
)

PERFORMANCE: Final = Topic(
    "Performance",
    (
        number("step time", v.STEP_TIME, v.LOOP, every=MEASURED),
        number(
            "stage time",
            where="every span, `rl.<stage>.duration`",
            unit="s",
            means="duration of a stage; the histogram of your own stages is `rl.stage.duration`",
            every=MEASURED,
        ),
        number(
            "tokens/s",
            v.TOKENS_RATE,
            v.SAMPLE_TOKENS,
            trl=MEASURED,
            verl=kept(
                "perf/throughput", note="beside `train` of each rank; of rollouts the rate of `rl.sample.tokens`"
            ),
            roll=kept("system/tps", note="beside `train` of each rank; of rollouts the rate of `rl.sample.tokens`"),
            own=ATTRIBUTE,
        ),
        number(
            "samples/s",
            v.SAMPLES_RATE,
            v.SAMPLES,
            trl=MEASURED,
            verl=measured("the rate of `rl.sample.samples`; `rl.throughput.samples` is not made"),
            roll=measured("the rate of `rl.sample.samples`; `rl.throughput.samples` is not made"),
            own=ATTRIBUTE,
        ),
        number(
            "MFU",
            v.MFU,
            trl=measured("on a CPU with `OTEL_RL_PEAK_FLOPS`"),
            verl=measured("with FSDP; `perf/mfu/actor` is verl's own"),
            roll=measured("with FSDP2"),
            own=SHOWN,
        ),
        number("SM activity", v.SM_ACTIVITY, needs="an NVIDIA device from Hopper on", every=SIDECAR),
        number("pipeline bubble", v.BUBBLE_RATIO, every=MEASURED, own=measured("`otel_rl.stage`, named `idle`")),
    ),
)

MEMORY: Final = Topic(
    "Memory",
    (
        number("allocated", v.ALLOCATED, needs=DEVICE, every=MEASURED),
        number("reserved", v.RESERVED, needs=DEVICE, every=MEASURED),
        number("fragmentation ratio", v.FRAGMENTATION, v.SLACK, needs=DEVICE, every=MEASURED),
        number("activation peak", v.ACTIVATION, v.ACTIVATION_PEAK, needs=DEVICE, every=MEASURED),
        number(
            "KV-cache peak in bytes",
            v.KV_BYTES_PEAK,
            every=LOAD,
            trl=measured("by vLLM or transformers"),
            own=measured("`otel_rl.requests.queue.record_kv_cache`"),
        ),
        number("communication-buffer peak", v.COMM_BUFFERS, needs=DEVICE, every=MEASURED),
        number("host RSS", v.RSS, every=MEASURED),
        number("host VMS", v.VMS, every=MEASURED),
    ),
)

BALANCE: Final = Topic(
    "Load balance",
    (
        number(
            "per-rank token count",
            v.TRAIN_TOKENS,
            trl=MEASURED,
            verl=measured("with FSDP; `global_seqlen/*` is verl's own"),
            roll=measured("with FSDP2; `global_seqlen/actor_train/*` is ROLL's own"),
            own=ATTRIBUTE,
        ),
        number("active time", Canonical(v.ACTIVITY_TIME, ((v.ACTIVITY, "active"),)), every=MEASURED),
        number("idle time", Canonical(v.ACTIVITY_TIME, ((v.ACTIVITY, "idle"),)), every=MEASURED),
        number(
            "queue depth of engines and groups",
            *(v.GROUPS, v.IN_FLIGHT, v.WAITING),
            trl=measured("of the engine"),
            verl=seam("ReplayBuffer._sync_metadata_from_transfer_queue", "LLMServerClient._acquire_server"),
            roll=seam("ReplayBuffer.commit", "GroupQueue.put", "PromptAffinityRouter.acquire"),
            own=LOAD_OF_OWN,
        ),
        number(
            "busy share of rollout servers",
            v.SAMPLE_SERVE,
            v.IN_FLIGHT,
            means="the rate of the sum of its durations, by server; calls that are open",
            trl=never("TRL's engine is in its ranks, or a server outside of the run"),
            verl=seam("*.generate", "LLMServerClient._acquire_server"),
            roll=seam("PromptAffinityRouter.acquire", note="and its servers' calls"),
            own=LOAD_OF_OWN,
        ),
        number(
            "Ray's object store, TransferQueue",
            means="bytes in use",
            unit="By",
            trl=never("TRL uses neither"),
            verl=never("Ray's own exporter has `ray_object_store_memory`; TransferQueue tells no size"),
            roll=never("Ray's own exporter has `ray_object_store_memory`"),
            own=RECORD,
        ),
        number(
            "straggler rank",
            v.STRAGGLER_COST,
            v.SKEW_WAIT,
            every=measured("by the report; as a metric with an endpoint"),
        ),
    ),
)

DATA: Final = Topic(
    "Data quality",
    (
        number(
            "prompt length mean, max, min",
            v.PROMPT_LENGTH,
            trl=measured("the histogram, by the engine's integration"),
            verl=kept("prompt_length/{mean,max,min}", note="beside the histogram"),
            roll=kept("{token,tokens}/prompt_length/{mean,max,min}", note="beside the histogram"),
            own=REQUEST,
        ),
        number("response length mean, max, min", v.RESPONSE_LENGTH, v.RESPONSE_MAX, v.RESPONSE_MIN, own=SAMPLED),
        number(
            "clip ratio",
            v.RESPONSE_CLIPPED,
            verl=measured("made of `response_length/clip_ratio` and `response_length/max`"),
            roll=missing("`token/total_response_length/clip` is a count of RLVR; its share is not made"),
            own=SAMPLED,
        ),
        number(
            "aborted ratio",
            Canonical(v.REQUEST_RATIO, ((v.OUTCOME_KIND, "aborted"),)),
            every=measured("of requests, by the engine's integration"),
            verl=kept("response/aborted_ratio", note="beside the share of requests"),
            own=REQUEST,
        ),
        number(
            "reward distribution",
            v.REWARD_DISTRIBUTION,
            trl=seam("GRPOTrainer._calculate_rewards"),
            verl=seam("utils.compute_advantage_for_multi_trajectories"),
            roll=seam(*ROLL_SCORES),
            own=missing("`otel_rl.record` makes gauges only"),
        ),
    ),
)

ASYNCHRONOUS: Final = Topic(
    "Asynchronous training",
    (
        number(
            "queue depth",
            v.GROUPS,
            trl=seam("_AsyncRolloutLoop._generate_one", note="groups that are sampled; GRPO and RLOO have no queue"),
            verl=seam("ReplayBuffer._sync_metadata_from_transfer_queue"),
            roll=seam("ReplayBuffer.commit", "GroupQueue.put"),
            own=RECORD,
        ),
        number(
            "policy lag",
            *(v.SAMPLE_LAG, v.SAMPLE_LAG_MAX, v.POLICY_LAG, v.POLICY_VERSION),
            trl=seam(
                "AsyncGRPOTrainer._log_step_metrics",
                note="of GRPO and RLOO `rl.policy.version` of rollouts and forwards differ by it",
            ),
            verl=seam("ReplayBufferAsync.sample"),
            roll=seam("DynamicSamplingScheduler.collect_items_as_batch", "GroupQueueManager.get_batch"),
            own=REQUEST,
        ),
        number(
            "stale-sample ratio",
            v.SAMPLE_STALE,
            trl=seam("AsyncGRPOTrainer._log_step_metrics", note="not of GRPO and RLOO"),
            verl=seam("ReplayBufferAsync.sample"),
            roll=seam("DynamicSamplingScheduler.collect_items_as_batch", "GroupQueueManager.get_batch"),
            own=RECORD,
        ),
    ),
)

HARDWARE: Final = Topic(
    "Hardware",
    (
        number("GPU utilisation", v.GPU_UTILIZATION, needs=DEVICE, every=SIDECAR),
        number("GPU memory use", v.GPU_MEMORY, needs=DEVICE, every=SIDECAR),
        number("Ascend NPU utilisation and memory use", v.GPU_UTILIZATION, v.GPU_MEMORY, needs=DEVICE, every=NPU),
    ),
)

LOGS: Final = Topic(
    "Log layers",
    (
        number(
            "training loop: epoch, step, elapsed",
            v.LOOP_LINE,
            unit="",
            every=LINES,
        ),
        number(
            "rollout: samples, reward, KL, length distribution",
            v.ROLLOUT_LINE,
            unit="",
            every=LINES,
        ),
        number(
            "update step: loss parts, clip ratio, gradient norm",
            v.UPDATE_LINE,
            unit="",
            every=LINES,
        ),
        number(
            "sample: a trajectory",
            v.SAMPLE_RECORD,
            unit="",
            trl=seam("GRPOTrainer._generate_and_score_completions"),
            verl=measured("where its driver computes its metrics"),
            roll=seam(*ROLL_SCORES, note="not where rows are single turns (step-wise)"),
            own=measured("`otel_rl.sample`"),
        ),
        number(
            "a user's own fields",
            v.LOOP_LINE,
            unit="",
            means="numbers of `otel_rl.record`, as `user.<name>` in the line of their step",
            every=LINES,
        ),
    ),
)

BY_CONCERN: Final = (
    CORRECTNESS, STABILITY, PERFORMANCE, MEMORY, BALANCE, DATA, ASYNCHRONOUS, HARDWARE, LOGS,
)  # fmt: skip
