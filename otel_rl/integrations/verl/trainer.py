"""Trainers of verl: the driver of a job, which holds its steps and calls everybody else.

Source: verl 0.9.1, ``trainer/ppo/v1/trainer_base.py`` (``fit``, 412; ``step``, 533), ``trainer/ppo/ray_trainer.py``
(``fit``). Both bracket the parts of a step by ``marked_timer(name, ...)``, by which they become stages here. A step
begins with the timer ``step``, so logging and evaluation after that timer still belong to it. The legacy trainer waits
for a batch before that timer: that wait is the last of the step before, or of set-up.
"""

from __future__ import annotations

import inspect
from importlib.metadata import version
from pathlib import PurePath
from typing import Any

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, BlockHook, CallbackHook, Hook, Kwargs, StageHook
from otel_rl.integrations.verl import acting, ledger, logged_samples, replay_buffer, tracking
from otel_rl.integrations.verl.replay_buffer import rows_of
from otel_rl.process.hooked import hooking
from otel_rl.records import Value
from otel_rl.single_controller import driver as kit
from otel_rl.single_controller.sample_groups import QUEUE
from otel_rl.single_controller.tables import sync_hooks, sync_timers
from otel_rl.trace.stage import Stage

V1 = "verl.trainer.ppo.v1"
TRAINER = f"{V1}.trainer_base:PPOTrainer"
LEGACY = "verl.trainer.ppo.ray_trainer:RayPPOTrainer"
LEGACY_LOOPS = "verl.experimental.agent_loop.agent_loop:AgentLoopManager.generate_sequences"
MANAGER = "verl.checkpoint_engine.base:CheckpointEngineManager"
KIND, MODEL = vocabulary.LOGPROB_KIND, vocabulary.TRAIN_MODEL
DATA = (vocabulary.IDLE_REASON, "data")

TIMERS: kit.Timers = {
    "reward": (vocabulary.REWARD, ()),
    "old_log_prob": (vocabulary.LOGPROB, ((KIND, "old"),)),
    "ref": (vocabulary.LOGPROB, ((KIND, "ref"),)),
    "values": (vocabulary.VALUE, ()),
    "adv": (vocabulary.ADVANTAGE, ()),
    "update_critic": (vocabulary.TRAIN, ((MODEL, "critic"),)),
    "update_actor": (vocabulary.TRAIN, ((MODEL, "actor"),)),
    **sync_timers("update_weights", "switch_to_trainer", "switch_to_rollout"),
    "switch_wait": (vocabulary.IDLE, (QUEUE,)),
    "save_checkpoint": (vocabulary.CHECKPOINT, ((vocabulary.CHECKPOINT_FORMAT, "verl"),)),
    "testing": (vocabulary.EVALUATE, ()),
    "dump_rollout_generations": (vocabulary.LOG, ()),
}
"""``gen`` is none: it is the wait for samples and what follows it, or the agent loops and the sleep of the servers. Nor
are ``start_profile`` and ``stop_profile``, which take time only while verl's profiler is on.
"""
COUNTED = (
    "_compute_reward_colocate", "_compute_old_log_prob", "_compute_ref_log_prob", "_compute_values",
    "_update_critic", "_update_actor",
)  # fmt: skip
"""Methods inside a timer whose stage says how many samples and tokens it handles."""
OPERATIONS = "update_weights", "sleep_replicas", "wake_up_replicas", "abort_replicas", "resume_generation_replicas"


# --- loop and steps ---------------------------------------------------------------------------------------------------


def _made(args: Args, kwargs: Kwargs) -> None:
    """Learn what is trained, before anything of the set-up is recorded."""
    config = kwargs.get("config") or (args[1] if len(args) > 1 else None)
    kit.become_driver("verl", version("verl"), attempt("read", "what verl trains", _trained, config))


def _trained(config: Any) -> dict[str, str]:
    """Return algorithm and model of a job; a model's folder is named by its last part only."""
    path = str(config.actor_rollout_ref.model.path).rstrip("/")
    return {"algorithm": str(config.algorithm.adv_estimator).upper(), "model_name": PurePath(path).name}


def _settings_of(trainer: Any) -> dict[str, Value]:
    """Return the settings that a report shows; a rank is one of those that train."""
    config = trainer.config
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    prompts, group = int(config.data.train_batch_size), int(rollout.n)
    ranks = int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)
    poll_s = getattr(getattr(trainer, "replay_buffer", None), "poll_interval", None)
    return {
        **({} if poll_s is None else {vocabulary.SETTINGS_POLL: float(poll_s)}),
        vocabulary.SETTINGS_LEARNING_RATE: float(actor.optim.lr),
        vocabulary.SETTINGS_SAMPLES: prompts * group // ranks,
        vocabulary.SETTINGS_GROUP: group,
        vocabulary.SETTINGS_LIMIT: int(rollout.response_length),
        vocabulary.SETTINGS_UPDATES: prompts / int(actor.ppo_mini_batch_size) * int(actor.ppo_epochs),
        vocabulary.SETTINGS_STEPS: int(trainer.total_training_steps),
        **(attempt("read", "what holds verl's policy", _holding, config) or {}),
    }


def _holding(config: Any) -> dict[str, Value]:
    """Return the temperature, the coefficients of the KL in loss and reward together, and where gradients are cut."""
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    in_loss = float(actor.kl_loss_coef) if actor.use_kl_loss else 0.0
    in_reward = float(algorithm.kl_ctrl.kl_coef) if algorithm.use_kl_in_reward else 0.0
    limit = getattr(actor, "grad_clip", None)
    return {
        vocabulary.SETTINGS_TEMPERATURE: float(config.actor_rollout_ref.rollout.temperature),
        vocabulary.SETTINGS_KL: in_loss + in_reward,
        **({vocabulary.SETTINGS_GRADIENT: float(limit)} if limit else {}),
    }


def _follow(args: Args, kwargs: Kwargs, result: object) -> None:
    """Hook what a derived trainer overrides, ``fit`` above all; those of ``verl.experimental`` have other steps."""
    if not inspect.iscoroutinefunction(args[0].fit):
        hooking.follow(args[0])


def _begin_loop(args: Args, kwargs: Kwargs) -> None:
    settings = attempt("read", "the settings of verl", _settings_of, args[0])
    kit.begin_loop(args[0], str(args[0].config.trainer.default_local_dir), settings)
    attempt("begin", "the actions", acting.begin_actions, args[0])


def _begin_timer(args: Args, kwargs: Kwargs) -> Stage | None:
    """Begin a step, or return the stage of a timer that is one."""
    if kit.driver.trainer is None:
        return None
    if args[0] == "step":
        kit.begin_step(int(kit.driver.trainer.global_steps))
    return kit.stage_of(TIMERS, args[0])


# --- what a stage says ------------------------------------------------------------------------------------------------


def _say_rows(args: Args, kwargs: Kwargs) -> None:
    """Set on the open stage, a timer's, how much it handles."""
    kit.say(rows_of(args[1]))


def _say_balance(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return rows_of(args[1])


def _say_prompts(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {vocabulary.BATCH_SIZE: len(args[1])}


def _generated(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    return rows_of(result)


# --- hooks ------------------------------------------------------------------------------------------------------------


def _of_trainer(trainer: str) -> tuple[Hook, ...]:
    return (
        CallbackHook(target=f"{trainer}.__init__", before=_made, after=_follow),
        CallbackHook(target=f"{trainer}.fit", before=_begin_loop, after=acting.end_actions, failed=kit.loop_failed),
        StageHook(target=f"{trainer}._validate", stage=vocabulary.EVALUATE),
        StageHook(
            target=f"{trainer}._balance_batch",
            stage=vocabulary.SAMPLE_PROCESS,
            attributes=_say_balance,
            before=ledger.balanced if trainer == TRAINER else None,
        ),
        *(CallbackHook(target=f"{trainer}.{name}", before=_say_rows) for name in COUNTED),
    )


MODULES = (
    *(f"{V1}.trainer_{mode}" for mode in ("base", "sync", "colocate_async", "separate_async")),
    LEGACY.partition(":")[0],
    "verl.utils.profiler",
    "verl.utils.debug",
)
"""Each has imported the timer, or derived trainers import it from there."""

HOOKS: tuple[Hook, ...] = (
    *(BlockHook(target=f"{module}:marked_timer", begin=_begin_timer) for module in MODULES),
    *_of_trainer(TRAINER),
    *_of_trainer(LEGACY),
    StageHook(target=f"{TRAINER}._fetch_one_gen_batch", stage=vocabulary.IDLE, attributes=(DATA,)),
    StageHook(
        target=f"{TRAINER}._submit_batch_to_rollout",
        stage=vocabulary.SAMPLE_SUBMIT,
        attributes=_say_prompts,
        before=ledger.submitted,
    ),
    *replay_buffer.HOOKS,
    CallbackHook(target=f"{TRAINER}._compute_advantage", before=_say_rows),
    StageHook(target=LEGACY_LOOPS, stage=vocabulary.SAMPLE, attributes=_say_prompts, capture=_generated),
    StageHook(target=f"{TRAINER}._compute_metrics", stage=vocabulary.LOG, before=logged_samples.keep_names),
    *logged_samples.HOOKS,
    CallbackHook(target="verl.utils.tracking:Tracking.__init__", before=tracking.read_settings),
    StageHook(
        target="verl.utils.tracking:Tracking.log",
        stage=vocabulary.LOG,
        before=tracking.log_metrics,
        after=acting.after_log,
    ),
    *sync_hooks(MANAGER, *OPERATIONS),
)
