"""Ranks of verl: what each does in a stage of the driver's.

Source: verl 0.9.1, ``workers/engine_workers.py``, ``workers/engine/fsdp/transformer_impl.py``. The critic is a
``TrainingWorker`` itself, the actor and the reference hold one each. Backwards and optimizer steps are those of torch.
"""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, StageHook
from otel_rl.integrations.verl import ledger, micro_batches
from otel_rl.records import Value
from otel_rl.single_controller.micro_batches import forward_stage
from otel_rl.single_controller.tables import sync_hooks
from otel_rl.trace.stage import innermost

WORKERS = "verl.workers.engine_workers"
ACTOR = f"{WORKERS}:ActorRolloutRefWorker"
TRAINING = f"{WORKERS}:TrainingWorker"
RECEIVER = "verl.checkpoint_engine.base:CheckpointEngineWorker"
"""Lives beside a rollout server that shares no device with a rank."""
DETACHED = "verl.experimental.separation.engine_workers:DetachActorWorker"
"""A rank that shares no device with a rollout server."""
FSDP = "verl.workers.engine.fsdp.transformer_impl"


def _shape(data: Any) -> dict[str, Value]:
    """Count samples and tokens, also those that fill up a batch: they cost as much. No value is read.

    Outside of ``TrainingWorker`` a batch of V1 has only keys and tags; its values are elsewhere.
    """
    said: dict[str, Value] = {vocabulary.BATCH_SIZE: len(data)}
    if not hasattr(data, "shape"):
        tags = data.custom_meta if hasattr(data, "custom_meta") else data.tags
        if tags and all("prompt_len" in tag for tag in tags):
            said[vocabulary.TOKENS] = sum(tag["prompt_len"] + tag["response_len"] for tag in tags)
        return said
    ids = data.get("input_ids")
    if ids is not None and ids.is_nested:
        said[vocabulary.TOKENS] = int(ids.values().numel())
    return said


def _say_logprob(kind: str) -> Any:
    def say(args: Args, kwargs: Kwargs) -> dict[str, Value]:
        said = args[1].keys() if hasattr(args[1], "shape") else getattr(args[1], "extra_info", ())
        is_reference = "no_lora_adapter" in said  # the actor without its adapter
        return {vocabulary.LOGPROB_KIND: "ref" if is_reference else kind, **_shape(args[1])}

    return say


def _say_batch(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return _shape(args[1])


def _say_train(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    model = "critic" if type(args[0]).__name__ == "TrainingWorker" else "actor"
    return {vocabulary.TRAIN_MODEL: model, **_shape(args[1])}


def _value_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name the critic's inference; that of an actor or a reference lies inside its log-probabilities."""
    stage = innermost()
    return None if stage is not None and stage.name == vocabulary.LOGPROB else vocabulary.VALUE


def _forward_stage(args: Args, kwargs: Kwargs) -> str | None:
    return forward_stage(is_trained=not args[3])


def _say_states(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Add to the synchronizing that is open how many bytes it hands on: ``convert_weight_keys(state_dict, model)``."""
    stage = innermost()
    if stage is not None and stage.name == vocabulary.SYNC:  # of the whole model: each rank hands it on
        size = sum(int(one.numel()) * int(one.element_size()) for one in result.values())
        known = (stage.attributes or {}).get(vocabulary.SYNC_BYTES)
        stage.set_attribute(vocabulary.SYNC_BYTES, size + (known if isinstance(known, int) else 0))


def _moves(function: str, operation: str, states: str) -> StageHook:
    """Return the hook of a function that loads or offloads model or optimizer, wherever an engine calls it."""
    said = (vocabulary.SYNC_OPERATION, operation), (vocabulary.SYNC_STATES, states)
    return StageHook(target=f"{FSDP}:{function}", stage=vocabulary.SYNC, attributes=said, optional=True)


HOOKS: tuple[Hook, ...] = (
    StageHook(target=f"{ACTOR}.init_model", stage=vocabulary.SETUP_MODEL),
    StageHook(target=f"{ACTOR}.compute_log_prob", stage=vocabulary.LOGPROB, attributes=_say_logprob("old")),
    StageHook(target=f"{ACTOR}.compute_ref_log_prob", stage=vocabulary.LOGPROB, attributes=_say_logprob("ref")),
    StageHook(target=f"{ACTOR}.update_actor", stage=vocabulary.TRAIN, attributes=_say_train),
    *(hook for owner in (ACTOR, RECEIVER) for hook in sync_hooks(owner, "update_weights")),
    *sync_hooks(DETACHED, "save_model_to_cpu", "restore_model_from_cpu"),
    *(
        StageHook(
            target=f"{owner}.save_checkpoint",
            stage=vocabulary.CHECKPOINT,
            attributes=((vocabulary.CHECKPOINT_FORMAT, "verl"),),
        )
        for owner in (ACTOR, TRAINING)
    ),
    StageHook(
        target=f"{TRAINING}.train_mini_batch", stage=vocabulary.TRAIN, attributes=_say_train, before=ledger.given
    ),
    StageHook(target=f"{TRAINING}.train_batch", stage=vocabulary.MINI_BATCH, attributes=_say_batch),
    StageHook(target=f"{TRAINING}.infer_batch", stage=_value_stage, attributes=_say_batch, before=ledger.given),
    CallbackHook(target=f"{FSDP}:FSDPEngine._build_fsdp_module", before=micro_batches.read_network, optional=True),
    StageHook(
        target=f"{FSDP}:FSDPEngineWithLMHead.forward_step",
        stage=_forward_stage,
        attributes=micro_batches.say_forward,
        capture=micro_batches.forward_made,
        after=micro_batches.show_forward,
    ),
    StageHook(target=f"{FSDP}:fsdp2_clip_grad_norm_", stage=vocabulary.CLIP, optional=True),
    _moves("load_fsdp_model_to_gpu", "load_states", "model"),
    _moves("load_fsdp_optimizer", "load_states", "optimizer"),
    _moves("offload_fsdp_model_to_cpu", "offload_states", "model"),
    _moves("offload_fsdp_optimizer", "offload_states", "optimizer"),
    CallbackHook(target=f"{FSDP}:convert_weight_keys", after=_say_states, optional=True),
)
