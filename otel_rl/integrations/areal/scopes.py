"""Trainers of AReaL, and the parts of a step that its tracer brackets.

Source: AReaL 1.0.4, ``trainer/rl_trainer.py`` (``PPOTrainer.train``, 552), ``utils/perf_tracer.py`` (``trace_scope``,
1860), ``engine/fsdp_engine.py``. ``trace_scope(name, args=...)`` is called whether AReaL's own tracing is on or not, by
``@trace_perf`` as well. Names that begin with ``train.`` are the trainer's; ``rpc.`` and a method is a worker's call.
Without a controller (``AREAL_SPMD_MODE``) each rank has a trainer, and there are no calls.

Step N is AReaL's global step N, of which the first is 0. It begins where it waits for its batch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, BlockHook, CallbackHook, Hook, Kwargs, StageHook, installed_version
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.single_controller.driver import (
    Timers,
    become_driver,
    begin_loop,
    begin_step,
    driver,
    end_loop,
    loop_failed,
    stage_of,
)
from otel_rl.single_controller.micro_batches import forward_stage
from otel_rl.single_controller.sample_groups import QUEUE
from otel_rl.single_controller.tables import follow_made
from otel_rl.trace.stage import Stage, innermost

TRAINER = "areal.trainer.rl_trainer:PPOTrainer"
KIND, MODEL, OPERATION = vocabulary.LOGPROB_KIND, vocabulary.TRAIN_MODEL, vocabulary.SYNC_OPERATION
STEP: Final = "train.rollout"
FORWARD: Final = "fsdp_engine.forward"
MOVES: Final = (
    *(f"{role}_{move}" for role in ("actor", "critic", "ref", "teacher", "rollout") for move in ("onload", "offload")),
    *(f"rollout_{move}" for move in ("pause", "pause_generation", "continue_generation", "resume")),
)
TRAINERS: Final[Timers] = {
    STEP: (vocabulary.IDLE, (QUEUE,)),
    "train.compute_values": (vocabulary.VALUE, ()),
    "train.ref_logp": (vocabulary.LOGPROB, ((KIND, "ref"),)),
    "train.teacher_logp": (vocabulary.LOGPROB, ((KIND, "teacher"),)),
    "train.recompute_logp": (vocabulary.LOGPROB, ((KIND, "old"),)),
    "train.compute_advantage": (vocabulary.ADVANTAGE, ()),
    "train.ppo_update": (vocabulary.TRAIN, ((MODEL, "actor"),)),
    "train.critic_ppo_update": (vocabulary.TRAIN, ((MODEL, "critic"),)),
    "train.update_weights": (vocabulary.SYNC, ((OPERATION, "update_weights"),)),
    "train.log_stats": (vocabulary.LOG, ()),
    **{f"train.{move}": (vocabulary.SYNC, ((OPERATION, move),)) for move in MOVES},
}
"""``train.save``, ``.checkpoint`` and ``.eval`` are none: they are in each step, and do nothing in most of them."""
CALLS: Final[Timers] = {
    "rpc.initialize": (vocabulary.SETUP_MODEL, ()),
    "rpc.compute_values": (vocabulary.VALUE, ()),
    "ppo_critic.compute_values": (vocabulary.VALUE, ()),
    "rpc.compute_logp": (vocabulary.LOGPROB, ()),
    "ppo_actor.compute_logp": (vocabulary.LOGPROB, ()),
    "rpc.compute_advantages": (vocabulary.ADVANTAGE, ()),
    "ppo_actor.compute_advantages": (vocabulary.ADVANTAGE, ()),
    "rpc.ppo_update": (vocabulary.TRAIN, ()),
    "ppo_actor.ppo_update": (vocabulary.TRAIN, ((MODEL, "actor"),)),
    "ppo_critic.ppo_update": (vocabulary.TRAIN, ((MODEL, "critic"),)),
    **{
        f"rpc.{name}": (vocabulary.SYNC, ((OPERATION, name),))
        for name in ("update_weights", "onload", "offload", "pause_generation", "continue_generation")
    },
}
"""What a worker is called for, by its method; and what lies in it, which Ray's workers have without it."""
SAID: Final = {vocabulary.LOGPROB: (KIND, {"ref": "ref", "teacher": "teacher"}, "old"),
               vocabulary.TRAIN: (MODEL, {"critic": "critic"}, "actor")}  # fmt: skip
"""What the role of the engine says of such a stage: attribute, values by role, and that of the other roles."""


def is_spmd() -> bool:
    """Return whether each rank has a trainer of its own."""
    return os.environ.get("AREAL_SPMD_MODE", "").lower() in ("1", "true")


# --- loop and steps ---------------------------------------------------------------------------------------------------


def _made(args: Args, kwargs: Kwargs) -> None:
    """Learn what is trained: ``__init__(self, config, ...)``."""
    job = attempt("read", "what AReaL trains", _job, args[1]) or {}
    if is_spmd():
        state.identify(system="areal", system_version=installed_version("areal"), **job)
    else:
        become_driver("areal", installed_version("areal"), job)


def _job(config: Any) -> dict[str, str]:
    return {"algorithm": "PPO", "model_name": PurePath(str(config.actor.path).rstrip("/")).name}


def _begin_loop(args: Args, kwargs: Kwargs) -> None:
    trainer = args[0]
    settings = attempt("read", "the settings of AReaL", _settings, trainer)
    begin_loop(trainer, f"{trainer.config.experiment_name}/{trainer.config.trial_name}", settings)


def _settings(trainer: Any) -> dict[str, Value]:
    """Return the settings that a report shows; a rank is one of those that train the actor."""
    config = trainer.config
    actor, generating = config.actor, config.gconfig
    samples = int(config.train_dataset.batch_size) * int(generating.n_samples)
    steps = int(config.total_train_epochs) * len(trainer.train_dataloader)
    most = config.total_train_steps
    known: dict[str, Any] = {
        vocabulary.SETTINGS_TEMPERATURE: generating.temperature,
        vocabulary.SETTINGS_KL: actor.kl_ctl if trainer.ref is not None else None,
        vocabulary.SETTINGS_GRADIENT: actor.optimizer.gradient_clipping or None,
    }
    return {
        vocabulary.SETTINGS_LEARNING_RATE: float(actor.optimizer.lr),
        vocabulary.SETTINGS_SAMPLES: samples // int(trainer.actor_alloc.parallel.world_size),
        vocabulary.SETTINGS_GROUP: int(generating.n_samples),
        vocabulary.SETTINGS_LIMIT: int(generating.max_new_tokens),
        vocabulary.SETTINGS_UPDATES: float(actor.ppo_n_minibatches),
        vocabulary.SETTINGS_STEPS: steps if most is None else min(steps, int(most)),
        **{name: float(value) for name, value in known.items() if value is not None},
    }


def _begin_scope(args: Args, kwargs: Kwargs) -> Stage | None:
    """Begin a step, or return the stage of a scope: ``trace_scope(name, *, args=None, ...)``."""
    name = str(args[0])
    if name in TRAINERS:
        if driver.trainer is None:
            return None
        if name == STEP:
            begin_step(int(kwargs["args"]["global_step"]))
        return stage_of(TRAINERS, name)
    around = innermost()
    if name == FORWARD and around is not None:
        stage = forward_stage(is_trained=around.name == vocabulary.TRAIN)
        return Stage(stage, None, coarse=True) if stage else None
    return _call_stage(name, kwargs.get("args") or {})


def _call_stage(name: str, said: Mapping[str, Any]) -> Stage | None:
    """Return the stage of a call of a worker, whose engine is named by role and rank, as in ``ref/0``."""
    stage = stage_of(CALLS, name)
    if stage is not None and stage.name in SAID and "engine" in said:
        attribute, values, other = SAID[stage.name]
        stage.set_attribute(attribute, values.get(str(said["engine"]).partition("/")[0], other))
    return stage


def _save_format(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Return the form of what ``save(self, meta)`` writes."""
    return {vocabulary.CHECKPOINT_FORMAT: str(args[1].weight_format)}


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target=f"{TRAINER}.__init__", before=_made, after=follow_made),
    CallbackHook(target=f"{TRAINER}.train", before=_begin_loop, after=end_loop, failed=loop_failed),
    BlockHook(target="areal.utils.perf_tracer:trace_scope", begin=_begin_scope),
    StageHook(target=f"{TRAINER}._evaluate_fn", stage=vocabulary.EVALUATE),
    *(
        StageHook(target=f"areal.{owner}.save", stage=vocabulary.CHECKPOINT, attributes=_save_format)
        for owner in (
            "infra.controller.train_controller:TrainController",
            "engine.fsdp_engine:FSDPEngine",
            "engine.megatron_engine:MegatronEngine",
        )
    ),
)
