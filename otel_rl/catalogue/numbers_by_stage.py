"""Numbers that are asked for, by the stage that has them; those of rollouts and rewards have a file of their own."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.catalogue.demand import (
    MEASURED,
    Canonical,
    Topic,
    kept,
    key,
    measured,
    missing,
    never,
    number,
    seam,
    stage,
)
from otel_rl.catalogue.numbers_of_rollouts import ATTRIBUTE, DEVICE, NO_LEDGER, RECORD, REWARD, ROLLOUT, SHOWN

NO_CRITIC: Final = never("GRPO and RLOO have no critic")
BACKWARD: Final = seam("autograd.backward")
OPTIMIZERS: Final = measured("torch's optimizers")
NO_STATE: Final = never("TRL moves no state of training between devices")


def part(of: str) -> Canonical:
    return Canonical(v.LOSS_TERM, ((v.LOSS_TYPE, of),))


def side(of: str) -> Canonical:
    return Canonical(v.CLIP_SIDE_FRACTION, ((v.CLIP_SIDE, of),))


LOGPROB: Final = Topic(
    "Old and reference log-probabilities",
    (
        number(
            "log-probability time", v.LOGPROB, every=stage(), trl=seam("GRPOTrainer._get_per_token_logps_and_entropies")
        ),
        number(
            "log-probability micro-batch tokens",
            v.TOKENS,
            unit="{token}",
            means="`rl.tokens` of `rl.logprob.forward`; without such stages of `rl.logprob`",
            trl=seam("GRPOTrainer._get_per_token_logps_and_entropies", note="of the whole call"),
            verl=seam("FSDPEngineWithLMHead.forward_step", note="FSDP only"),
            roll=seam("FSDP2InferStrategy._fsdp2_forward", note="FSDP2 only; else of the batch of a rank"),
            own=ATTRIBUTE,
        ),
        number(
            "log-probability forward time",
            v.LOGPROB_FORWARD,
            v.LOGPROB,
            means="of each micro-batch; without such stages the part of `rl.logprob` in which the network computes",
            trl=seam("GRPOTrainer._get_per_token_logps_and_entropies"),
            verl=seam("FSDPEngineWithLMHead.forward_step", note="FSDP only"),
            roll=seam(
                "FSDP2InferStrategy._fsdp2_forward",
                note="FSDP2 only; all of it in `roll.time/<cluster>/compute_log_probs/execute`",
            ),
            own=stage(),
        ),
        number(
            "log-probability activation peak",
            v.ALLOCATED_PEAK,
            v.ALLOCATED_START,
            unit="By",
            means="peak of live bytes in `rl.logprob`, less those at its begin",
            needs=DEVICE,
            every=MEASURED,
        ),
        number(
            "shape of the log-probabilities",
            v.LEDGER_SHAPE,
            v.LEDGER_SUMS,
            v.LEDGER_MISFIT,
            unit="",
            means="checksum of a batch's shape, lengths of each sample; arrays that do not fit the others",
            trl=measured("with the rollout, at `rl.sample`: old and reference ones must fit it"),
            verl=seam("transferqueue_utils._meta_to_realdata", "transferqueue_utils._update_meta_with_output"),
            roll=NO_LEDGER,
            own=SHOWN,
        ),
        number(
            "response mask ratio",
            v.MASK_RATIO,
            trl=measured("at `rl.sample` and `rl.train.forward`"),
            verl=seam("transferqueue_utils._meta_to_realdata", note="at `rl.logprob`, `rl.value` and `rl.train`"),
            roll=NO_LEDGER,
            own=SHOWN,
        ),
    ),
)

ADVANTAGE: Final = Topic(
    "Values and advantages",
    (
        number("value time", v.VALUE, every=stage(), trl=NO_CRITIC),
        number(
            "advantage time",
            v.ADVANTAGE,
            every=stage(),
            trl=seam("GRPOTrainer._calculate_rewards", note="from its end on"),
        ),
        number(
            "value mean, max, min",
            means="of the response tokens",
            unit="",
            trl=NO_CRITIC,
            verl=kept("critic/values/{mean,max,min}"),
            roll=kept("critic/values/{mean,max,min}"),
            own=RECORD,
        ),
        number(
            "return mean, max, min",
            means="of the response tokens",
            unit="",
            trl=never("GRPO and RLOO make no returns"),
            verl=kept("critic/returns/{mean,max,min}"),
            roll=kept("critic/returns/{mean,max,min}"),
            own=RECORD,
        ),
        number(
            "advantage mean, max, min",
            v.ADVANTAGE_MEAN,
            v.ADVANTAGE_MAX,
            v.ADVANTAGE_MIN,
            means="of the response tokens",
            trl=seam("GRPOTrainer._generate_and_score_completions", note="of each rank"),
        ),
    ),
)

UPDATE: Final = Topic(
    "Update of actor and critic",
    (
        number("update time", v.TRAIN, every=stage(), trl=never("TRL has no call for it; its parts are stages")),
        number(
            "forward time",
            v.FORWARD,
            every=stage(),
            verl=seam("FSDPEngineWithLMHead.forward_step", note="FSDP only"),
            roll=seam("FSDP2InferStrategy._fsdp2_forward", note="FSDP2 only"),
        ),
        number("backward time", v.BACKWARD, every=BACKWARD, own=stage()),
        number(
            "optimizer time",
            v.OPTIMIZER,
            every=OPTIMIZERS,
            trl=seam("AcceleratedOptimizer.step"),
            own=stage(),
        ),
        number(
            "gradient clipping time",
            v.CLIP,
            trl=seam("Trainer._clip_grad_norm"),
            verl=seam("transformer_impl.fsdp2_clip_grad_norm_", note="FSDP2; FSDP1 by torch's own method"),
            roll=seam("FSDP2TrainStrategy._clip_grad_norm", note="FSDP2 only"),
            own=stage(),
        ),
        number(
            "communication time", v.COMM_DURATION, v.COMM_TIME, every=measured("collectives of `torch.distributed`")
        ),
        number("gradient norm", v.GRAD_NORM, trl=seam("Trainer._clip_grad_norm", "Trainer._get_grad_norm")),
        number(
            "loss: policy",
            part("policy"),
            means="the policy's term of the loss",
            trl=key("with an entropy bonus; else it is the loss"),
            own=RECORD,
        ),
        number(
            "loss: KL",
            v.KL_REFERENCE,
            means="KL divergence of policy and reference; by its coefficient a part of the loss",
        ),
        number("loss: entropy", v.ENTROPY, means="mean token entropy; by its coefficient a part of the loss"),
        number("loss: value", part("value"), means="the critic's term of the loss", trl=NO_CRITIC, own=RECORD),
        number("loss: total", v.LOSS, trl=seam("GRPOTrainer.compute_loss")),
        number(
            "critic's gradient norm",
            means="before clipping",
            unit="",
            trl=NO_CRITIC,
            verl=kept("critic/grad_norm"),
            roll=kept("critic/grad_norm"),
            own=RECORD,
        ),
        number(
            "critic's explained variance",
            means="1 - Var(return - value) / Var(return)",
            unit="1",
            trl=NO_CRITIC,
            verl=kept("critic/vf_explained_var"),
            roll=never("ROLL prints `critic/error` alone"),
            own=RECORD,
        ),
        number(
            "clip fraction high",
            side("high"),
            verl=never("verl prints none; `actor/pg_clipfrac_lower` is that of dual clipping"),
            roll=kept("actor/ppo_ratio_high_clipfrac", note="another meaning"),
            own=RECORD,
        ),
        number(
            "clip fraction low",
            side("low"),
            verl=never("verl prints none; `actor/pg_clipfrac_lower` is that of dual clipping"),
            roll=kept("actor/ppo_ratio_low_clipfrac", note="another meaning"),
            own=RECORD,
        ),
        number(
            "ratio mean, max, min",
            means="probability by the new policy over that by the old",
            unit="1",
            trl=never("TRL prints none of new over old policy; the tensor is local to its loss"),
            verl=never("verl prints none of new over old policy; the tensor is local to its loss"),
            roll=kept("actor/{ratio_mean,ratio_max,ratio_min}"),
            own=RECORD,
        ),
        number(
            "update micro-batch tokens",
            v.TRAIN_TOKENS,
            v.TOKENS,
            trl=seam("GRPOTrainer.compute_loss"),
            verl=seam("FSDPEngineWithLMHead.forward_step", note="FSDP only"),
            roll=seam("FSDP2InferStrategy._fsdp2_forward", note="FSDP2 only; Megatron: of the mini-batch"),
            own=ATTRIBUTE,
        ),
    ),
)

SYNC: Final = Topic(
    "Weight sync, loading and offloading",
    (
        number("sync total time", v.SYNC, v.SYNC_OPERATION, every=stage(), trl=stage("with vLLM")),
        number(
            "sync execute time",
            means="the part of a call between loading and offloading",
            unit="s",
            trl=NO_STATE,
            verl=never("verl times none; it is the call's stage without the `rl.sync` inside"),
            roll=kept("time/<cluster>/<method>/execute", note="of each rank, measured here"),
            own=RECORD,
        ),
        number(
            "onload time",
            v.SYNC,
            v.SYNC_OPERATION,
            means="`rl.sync` of the operation `load_states`",
            trl=NO_STATE,
            verl=seam(
                "transformer_impl.load_fsdp_model_to_gpu",
                "transformer_impl.load_fsdp_optimizer",
                note="by `rl.sync.states`; inside of `update_weights` they are part of it",
            ),
            roll=kept("time/<cluster>/<method>/onload", note="and `rl.sync` `load_states`"),
            own=stage(),
        ),
        number(
            "offload time",
            v.SYNC,
            v.SYNC_OPERATION,
            means="`rl.sync` of the operation `offload_states`",
            trl=NO_STATE,
            verl=seam(
                "transformer_impl.offload_fsdp_model_to_cpu",
                "transformer_impl.offload_fsdp_optimizer",
                note="by `rl.sync.states`; inside of `update_weights` they are part of it",
            ),
            roll=kept("time/<cluster>/<method>/offload", note="and `rl.sync` `offload_states`"),
            own=stage(),
        ),
        number(
            "sync bytes",
            v.SYNC_BYTES,
            unit="By",
            trl=seam(
                "VLLMClient.update_named_params",
                "VLLMGeneration._iter_named_params",
                "WeightTransferClient.send_weights",
                note="with vLLM; no adapter that vLLM reads from a disk",
            ),
            verl=seam("transformer_impl.convert_weight_keys", note="FSDP only; collectives inside: `rl.comm.bytes`"),
            roll=missing(
                "no hook adds up the buckets that its ranks broadcast; collectives inside have `rl.comm.bytes`"
            ),
            own=RECORD,
        ),
    ),
)

CHECKPOINT: Final = Topic(
    "Checkpoint and validation",
    (
        number("checkpoint time, synchronous part", v.CHECKPOINT, v.CHECKPOINT_STAGING, every=stage()),
        number(
            "checkpoint time, background part",
            v.CHECKPOINT,
            v.CHECKPOINT_ASYNC,
            means="`rl.checkpoint` with `rl.checkpoint.async`",
            every=measured("of `torch.distributed.checkpoint.async_save`"),
        ),
        number(
            "checkpoint bytes",
            v.CHECKPOINT_BYTES,
            unit="By",
            trl=seam("Trainer._save_checkpoint", note="of the folder, on the process that saves"),
            verl=measured("what `torch.save` writes: model, optimizer and rest of each rank"),
            roll=measured("what `torch.distributed.checkpoint.save` writes, with FSDP2; not the model beside it"),
            own=measured("what `torch.save` and `torch.distributed.checkpoint.save` write"),
        ),
        number(
            "checkpoint path kind",
            v.CHECKPOINT_FORMAT,
            unit="",
            trl=seam("GRPOTrainer._save_checkpoint", note="`transformers`"),
            verl=seam("ActorRolloutRefWorker.save_checkpoint", note="`verl`"),
            roll=seam("BasePipeline.do_checkpoint", note="`roll`"),
            own=measured("by `torch.save`, or `torch.distributed.checkpoint`"),
        ),
        number("validation time", v.EVALUATE, every=stage()),
        number(
            "validation score mean",
            v.EVAL_REWARD,
            trl=measured("`reward` of an evaluation"),
            verl=key("of one data source"),
        ),
        number(
            "validation score max, min",
            Canonical(v.REWARD_MAX, ((v.MODE, "eval"),)),
            Canonical(v.REWARD_MIN, ((v.MODE, "eval"),)),
            means="of the samples",
            trl=seam("GRPOTrainer._calculate_rewards"),
            verl=never("verl prints means; its `best@<n>` and `worst@<n>` are over the answers to a prompt"),
            roll=kept("val/score/{max,min}", note="agentic; RLVR prints none"),
            own=RECORD,
        ),
    ),
)

EVERY: Final = Topic(
    "Every stage",
    (
        number(
            "start and end",
            where="every span, `rl.<stage>.duration`",
            unit="s",
            means="times of each span; the histogram counts all, sampled or not",
            every=MEASURED,
        ),
        number(
            "memory allocated, at start and end",
            v.ALLOCATED_START,
            v.ALLOCATED_END,
            unit="By",
            needs=DEVICE,
            every=MEASURED,
        ),
        number(
            "memory reserved, at start and end",
            v.RESERVED_START,
            v.RESERVED_END,
            unit="By",
            needs=DEVICE,
            every=MEASURED,
        ),
        number("memory peak of both", v.ALLOCATED_PEAK, v.RESERVED_PEAK, unit="By", needs=DEVICE, every=MEASURED),
        number(
            "memory peak as fraction of the device",
            v.ALLOCATED_PEAK,
            v.GPU_MEMORY_LIMIT,
            unit="1",
            means="the peak of a span, by the device's memory, which the sidecar reads",
            needs=DEVICE,
            every=MEASURED,
            roll=kept("memory/<cluster>/<method>/end/onload/{max_allocated_frac,max_reserved_frac}/<device>"),
        ),
        number(
            "memory before and after loading and offloading",
            v.ALLOCATED_START,
            v.ALLOCATED_END,
            means="of `rl.sync`; ROLL's own names have GiB",
            unit="By",
            needs=DEVICE,
            trl=NO_STATE,
            verl=measured("at both ends of the `rl.sync` of loading and offloading"),
            roll=kept(
                "memory/<cluster>/<method>/{start,end}/{offload,onload}/"
                "{allocated,reserved,max_allocated,max_reserved}/<device>"
            ),
            own=measured("a stage `sync` around it"),
        ),
        number(
            "host RSS and VMS, at start and end",
            *(v.RSS_START, v.RSS_END, v.VMS_START, v.VMS_END),
            unit="By",
            every=MEASURED,
            roll=kept("memory/cpu/<cluster>/<method>/{start,end}/{rss,vms}", note="GiB, beside ours"),
        ),
        number(
            "tokens and samples handled",
            v.TOKENS,
            v.BATCH_SIZE,
            unit="{token}",
            trl=MEASURED,
            verl=measured("but for `rl.sync` and `rl.evaluate`; `rl.reward` has samples only"),
            roll=measured("but for `rl.sync` and `rl.evaluate`"),
            own=ATTRIBUTE,
        ),
        number(
            "rank, role, device", v.RANK, v.ROLE, v.HW_ID, unit="", means="resource of each process", every=MEASURED
        ),
    ),
)

BY_STAGE: Final = (ROLLOUT, REWARD, LOGPROB, ADVANTAGE, UPDATE, SYNC, CHECKPOINT, EVERY)
