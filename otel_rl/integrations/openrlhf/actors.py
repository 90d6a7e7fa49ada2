"""Ranks of OpenRLHF: what each does in a stage of the driver's.

Source: OpenRLHF 0.11.2, ``trainer/ray/launcher.py``, ``trainer/ray/ppo_actor.py``, ``trainer/ray/ppo_critic.py``,
``models/actor.py``. Backwards, optimizer steps and the forwards of critics are DeepSpeed's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory, PendingAttributes, StageHook
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

COMPUTED: Final[dict[str, tuple[str, dict[str, Value]]]] = {
    "PolicyModelActor": (vocabulary.LOGPROB, {vocabulary.LOGPROB_KIND: "old"}),
    "ReferenceModelActor": (vocabulary.LOGPROB, {vocabulary.LOGPROB_KIND: "ref"}),
    "CriticModelActor": (vocabulary.VALUE, {}),
    "RewardModelActor": (vocabulary.REWARD, {vocabulary.REWARD_FUNCTION: "reward_model"}),
}
"""What the forward of an actor's class, or of a base of it, computes."""
FORMAT = ((vocabulary.CHECKPOINT_FORMAT, "openrlhf"),)
MOVES = "reload_states", "offload_states"


@dataclass(eq=False)
class Sharing(Memory):
    """How ranks of this group share their work."""

    ranks: int = 1
    """So many compute one micro-batch together, by ring attention and tensor parallelism."""


sharing = Sharing.keep("sharing")


def _joined(args: Args, kwargs: Kwargs) -> None:
    """Learn how ranks share their work: ``_setup_distributed(self, strategy)``."""
    settings = args[1].args.ds
    sharing.ranks = max(1, int(settings.ring_attn_size)) * max(1, int(settings.tensor_parallel_size))


# --- batches without training: execute_batch(self, method_name, all_data, start_idx, end_idx) -------------------------


def _computed(args: Args) -> tuple[str, dict[str, Value]]:
    known = (COMPUTED[base.__name__] for base in type(args[0]).__mro__ if base.__name__ in COMPUTED)
    return next(known, ("", {})) if args[1] == "forward" else ("", {})


def _batch_stage(args: Args, kwargs: Kwargs) -> str | None:
    return _computed(args)[0] or None


def _say_batch(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    _, said = _computed(args)
    _, _, data, begin, end = args[:5]
    return {**said, vocabulary.BATCH_SIZE: sum(map(len, data["sequences"][begin:end]))}


# --- forwards: Actor.forward(self, sequences, action_mask, attention_mask, ...) ---------------------------------------


def _say_forward(args: Args, kwargs: Kwargs) -> PendingAttributes:
    _, _, action, attention = args[:4]
    return describe_masks(Masks(attention, action))


def _forward_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    count_forward(sharing.ranks)


def _show_forward(args: Args, kwargs: Kwargs, result: Any) -> None:
    actor = args[0]
    output = result[0] if isinstance(result, tuple) else result
    show_mask(args[3], network_of(actor, actor.model, sharing.ranks), output, is_trained=is_updating())


HOOKS: tuple[Hook, ...] = (
    StageHook(
        target="openrlhf.models.actor:Actor.forward",
        stage=stage_of_forward,
        attributes=_say_forward,
        capture=_forward_made,
        after=_show_forward,
    ),
    *sync_hooks("openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer", "broadcast_to_vllm"),
)
ARRIVING: tuple[Hook, ...] = (
    # Ray copies what an actor's class inherits when it is decorated, which is before its module can be hooked.
    CallbackHook(target="BaseModelActor._setup_distributed", before=_joined),
    StageHook(target="BaseModelActor.execute_batch", stage=_batch_stage, attributes=_say_batch),
    *(StageHook(target=f"{kind}.init_model_from_pretrained", stage=vocabulary.SETUP_MODEL) for kind in COMPUTED),
    StageHook(target="PolicyModelActor.fit", stage=vocabulary.TRAIN, attributes=((vocabulary.TRAIN_MODEL, "actor"),)),
    StageHook(target="CriticModelActor.fit", stage=vocabulary.TRAIN, attributes=((vocabulary.TRAIN_MODEL, "critic"),)),
    *(
        StageHook(target=f"{kind}.save_checkpoint", stage=vocabulary.CHECKPOINT, attributes=FORMAT)
        for kind in ("PolicyModelActor", "CriticModelActor")
    ),
    *sync_hooks("PolicyModelActor", *MOVES),
    *sync_hooks("CriticModelActor", *MOVES),
)
