"""Ranks of SkyRL: what each does in a stage of the driver's.

Source: SkyRL 0.4.0, ``backends/skyrl_train/workers/worker.py``, ``workers/model_wrapper.py`` (``HFModelWrapper``, 99).
Ray sends their classes by value, those of FSDP and of Megatron alike. A mini-batch is a call of ``forward_backward``
and one of ``optim_step``. Forwards are those of FSDP's policy and reference; a critic's class is made at run time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory, PendingAttributes, StageHook
from otel_rl.integrations.skyrl.ray_ppo import COMPUTED
from otel_rl.records import Value
from otel_rl.single_controller.micro_batches import (
    Masks,
    count_forward,
    describe_masks,
    is_updating,
    network_of,
    show_mask,
    stage_of_forward,
)
from otel_rl.single_controller.tables import sync_hooks

BASE = "DistributedTorchRayActor"
MODELS: Final = {"PolicyWorkerBase": "policy", "RefWorkerBase": "ref", "CriticWorkerBase": "critic"}
"""The model of the ranks of a class, or of a class derived from it."""
TRAINED: Final = (("PolicyWorkerBase", "actor"), ("CriticWorkerBase", "critic"))


@dataclass(eq=False)
class TrainedMicroBatch(Memory):
    """The micro-batch that is trained now."""

    experience: Any = None
    """Its ``loss_mask`` is true for each token that is trained; with the other tensors it is moved to the device."""


micro_batch = TrainedMicroBatch.keep("micro_batch")


# --- calls of the driver's --------------------------------------------------------------------------------------------


def _computed(args: Args) -> tuple[str, dict[str, Value]]:
    known = (MODELS[base.__name__] for base in type(args[0]).__mro__ if base.__name__ in MODELS)
    return COMPUTED.get(next(known, ""), ("", {}))


def _forward_only_stage(args: Args, kwargs: Kwargs) -> str | None:
    return _computed(args)[0] or None


def _say_forward_only(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Return what is computed, and of how much: ``forward(self, data, ...)``."""
    data = args[1] if len(args) > 1 else kwargs["data"]
    return {**_computed(args)[1], vocabulary.BATCH_SIZE: len(data)}


def _begin_micro_batch(args: Args, kwargs: Kwargs) -> None:
    """Keep the batch of ``_forward_backward_micro(self, experience, ...)``, whose mask the model does not get."""
    micro_batch.experience = args[1]


def _end_micro_batch(args: Args, kwargs: Kwargs, result: object) -> None:
    micro_batch.experience = None


# --- forwards: HFModelWrapper.forward(self, sequences, num_actions, attention_mask, ...) ------------------------------


def _say_forward(args: Args, kwargs: Kwargs) -> PendingAttributes:
    trained = micro_batch.experience.loss_mask if micro_batch.experience is not None and is_updating() else None
    return describe_masks(Masks(args[3], trained), is_packed=bool(args[0].remove_microbatch_padding))


def _forward_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    count_forward(args[0].sequence_parallel_size)


def _show_forward(args: Args, kwargs: Kwargs, result: Any) -> None:
    wrapper = args[0]
    output = result[0] if isinstance(result, tuple) else result
    network = network_of(wrapper, wrapper.model, wrapper.sequence_parallel_size)
    show_mask(args[3], network, output, is_trained=is_updating())


HOOKS: tuple[Hook, ...] = (
    StageHook(
        target="skyrl.backends.skyrl_train.workers.model_wrapper:HFModelWrapper.forward",
        stage=stage_of_forward,
        attributes=_say_forward,
        capture=_forward_made,
        after=_show_forward,
    ),
)
ARRIVING: tuple[Hook, ...] = (
    StageHook(target=f"{BASE}.init_model", stage=vocabulary.SETUP_MODEL),
    StageHook(target=f"{BASE}.forward", stage=_forward_only_stage, attributes=_say_forward_only),
    *(
        StageHook(target=f"{kind}.{name}", stage=vocabulary.TRAIN, attributes=((vocabulary.TRAIN_MODEL, model),))
        for kind, model in TRAINED
        for name in ("forward_backward", "optim_step")
    ),
    CallbackHook(
        target="PolicyWorkerBase._forward_backward_micro",
        before=_begin_micro_batch,
        after=_end_micro_batch,
        failed=_end_micro_batch,
    ),
    StageHook(
        target=f"{BASE}.save_checkpoint",
        stage=vocabulary.CHECKPOINT,
        attributes=((vocabulary.CHECKPOINT_FORMAT, "skyrl"),),
    ),
    *sync_hooks("PolicyWorkerBase", "broadcast_to_inference_engines"),
    *sync_hooks(BASE, "offload_to_cpu", "backload_to_gpu"),
)
