"""TRL's OnlineDPO: two answers to each prompt, their rewards, the reference, the update, its own metrics.

Runs in every rank. Source: trl 1.16, ``experimental/online_dpo/online_dpo_trainer.py`` (``training_step``, 1141;
``_generate``, 947; ``_forward``, 1104). A step generates, scores and trains in one function: the policy's
log-probabilities are the forward of its update. What it calls entropy and KL are sums over a sequence, so neither
has a canonical name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, StageHook
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.integrations.trl.run_settings import identify, is_identified
from otel_rl.integrations.trl.trainer_metrics import keep_loss, step_metrics
from otel_rl.probes import deferred
from otel_rl.records import Count, Value
from otel_rl.trace.training import training
from otel_rl.trace.tree import say_of_setup

TRAINER = "trl.experimental.online_dpo.online_dpo_trainer:OnlineDPOTrainer"
ANSWERS = 2
"""Answers to each prompt."""


def _begin_training(args: Args, kwargs: Kwargs) -> None:
    if not is_identified():
        identify(args, kwargs, None)
    if not training.inner:
        rollouts.losses, training.step_over = [], _measured
        attempt("read", "the settings of a trainer", _say_settings, args[0])


def _say_settings(trainer: Any) -> None:
    said: dict[str, Value] = {
        vocabulary.SETTINGS_GROUP: ANSWERS,
        vocabulary.SETTINGS_SAMPLES: ANSWERS * int(trainer.args.per_device_train_batch_size),
        vocabulary.SETTINGS_LIMIT: int(trainer.args.max_new_tokens),
        vocabulary.SETTINGS_TEMPERATURE: float(trainer.args.temperature),
    }
    say_of_setup(said)


# --- rollout ----------------------------------------------------------------------------------------------------------


def _say_rollout(prompts: Any) -> dict[str, Value]:
    return {
        vocabulary.MODE: "train",
        vocabulary.GROUP_SIZE: ANSWERS,
        vocabulary.SAMPLE_BATCH_SIZE: ANSWERS * len(prompts),
    }


def _say_local(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return _say_rollout(args[2])


def _say_served(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return _say_rollout(args[1])


def _generated(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count what was generated, as its masks say."""
    throughput, masks = training.throughput, (result[1], result[3])
    if throughput is None:
        return
    samples = len(result[3])

    def use(values: list[float]) -> Iterator[Count]:
        return throughput.count_rollout(samples, *map(int, values))

    deferred.read(masks, use)


# --- log-probabilities and rewards ------------------------------------------------------------------------------------


def _forward_stage(args: Args, kwargs: Kwargs) -> str:
    import torch

    return vocabulary.FORWARD if torch.is_grad_enabled() else vocabulary.LOGPROB


def _say_forward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    import torch

    said: dict[str, Value] = {vocabulary.MODE: "train"}
    if not torch.is_grad_enabled():
        return {**said, vocabulary.LOGPROB_KIND: "ref", vocabulary.BATCH_SIZE: len(args[2])}
    throughput, masks = training.throughput, (args[3], args[5])
    if throughput is not None:
        positions = sum(mask.numel() for mask in masks)

        def use(values: list[float]) -> Iterator[Count]:
            prompt, response = map(int, values)
            return throughput.count_forward(prompt, response, positions - prompt - response)

        deferred.read(masks, use)
    return {**said, vocabulary.TRAIN_BATCH_SIZE: len(args[2]), vocabulary.GROUP_SIZE: ANSWERS}


def _forward_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    import torch

    if torch.is_grad_enabled():
        training.forward = {vocabulary.MODE: "train", vocabulary.TRAIN_BATCH_SIZE: len(args[2])}


def _say_rewards(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    names = [getattr(function, "__name__", type(function).__name__) for function in args[0].reward_funcs]
    count = len(args[1] if len(args) > 1 else kwargs["prompts"])
    return {vocabulary.MODE: "train", vocabulary.BATCH_SIZE: count, vocabulary.REWARD_FUNCTION: ", ".join(names)}


def _trained(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Keep the loss of a micro-batch, which is scaled already."""
    keep_loss(result)


def _measured(trainer: Any) -> None:
    training.forward = None
    step_metrics(trainer)


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target=f"{TRAINER}.__init__", after=identify),
    CallbackHook(target=f"{TRAINER}.get_train_dataloader", before=_begin_training),
    StageHook(target=f"{TRAINER}._generate", stage=vocabulary.SAMPLE, attributes=_say_local, after=_generated),
    StageHook(target=f"{TRAINER}._generate_vllm", stage=vocabulary.SAMPLE, attributes=_say_served, after=_generated),
    StageHook(target=f"{TRAINER}._move_model_to_vllm", stage=vocabulary.SYNC),
    StageHook(target=f"{TRAINER}._forward", stage=_forward_stage, attributes=_say_forward, capture=_forward_made),
    StageHook(target=f"{TRAINER}._calculate_rewards_from_functions", stage=vocabulary.REWARD, attributes=_say_rewards),
    CallbackHook(target=f"{TRAINER}.training_step", after=_trained),
    StageHook(
        target=f"{TRAINER}._save_checkpoint",
        stage=vocabulary.CHECKPOINT,
        attributes=((vocabulary.CHECKPOINT_FORMAT, "transformers"),),
    ),
)
