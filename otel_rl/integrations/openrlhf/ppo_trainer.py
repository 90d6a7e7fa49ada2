"""The trainer of OpenRLHF: the driver of a job, which holds its steps and calls everybody else.

Source: OpenRLHF 0.11.2, ``trainer/ppo_trainer.py`` (``fit``, 501; ``train_step``, 213),
``trainer/ppo_trainer_async.py`` (``TrainingActor.fit``, 208), ``trainer/ppo_utils/experience_maker.py``.

Step N is the one that OpenRLHF logs as global step N. A synchronous step begins when its prompts are there, an
asynchronous one when its batch has arrived: the wait for them is the end of the step before. Asynchronous batches are
traces of their own (``generation.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from pathlib import PurePath
from typing import Any

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory, StageHook, installed_version
from otel_rl.integrations.openrlhf.actors import COMPUTED, FORMAT
from otel_rl.integrations.openrlhf.logged_numbers import log_metrics, record_evaluation
from otel_rl.records import Value
from otel_rl.single_controller.driver import become_driver, begin_loop, begin_step, driver, end_loop, loop_failed
from otel_rl.single_controller.sample_groups import QUEUE, link_groups
from otel_rl.single_controller.tables import sync_hooks

BASE = "openrlhf.trainer.ppo_trainer:BasePPOTrainer"
MAKER = "openrlhf.trainer.ppo_utils.experience_maker:RemoteExperienceMaker"
BATCH = 4
"""So many parts a batch has in the queue; an evaluation has three."""


@dataclass(eq=False)
class StepsDone(Memory):
    """How far the training has come."""

    done: int = 0
    """The global step of OpenRLHF: how many steps are done."""
    taken: list[str] = field(default_factory=list)
    """Keys of the batches that were taken and not trained yet."""
    batches: int = 0
    """How many batches were taken."""


progress = StepsDone.keep("progress")


# --- loop and steps ---------------------------------------------------------------------------------------------------


def _made(args: Args, kwargs: Kwargs) -> None:
    """Learn what is trained: ``__init__(self, strategy, ...)``."""
    job = attempt("read", "what OpenRLHF trains", _job, args[1].args)
    become_driver("openrlhf", installed_version("openrlhf"), job)


def _job(config: Any) -> dict[str, str]:
    name = PurePath(str(config.actor.model_name_or_path).rstrip("/")).name
    return {"algorithm": str(config.algo.advantage.estimator).upper(), "model_name": name}


def _begin_loop(args: Args, kwargs: Kwargs) -> None:
    """Begin the loop: ``fit(self, global_step=0)``."""
    trainer = args[0]
    progress.done = int(args[1] if len(args) > 1 else 0)
    settings = attempt("read", "the settings of OpenRLHF", _settings, trainer)
    begin_loop(trainer, str(trainer.args.ckpt.output_dir), settings)


def _settings(trainer: Any) -> dict[str, Value]:
    """Return the settings that a report shows; a rank is one of those that train the actor."""
    config = trainer.args
    group = int(config.rollout.n_samples_per_prompt)
    samples = int(config.rollout.batch_size) * group
    ranks = max(1, int(config.actor.num_nodes) * int(config.actor.num_gpus_per_node))
    known: dict[str, Any] = {
        vocabulary.SETTINGS_LEARNING_RATE: config.actor.adam.lr if config.actor.optim == "adam" else None,
        vocabulary.SETTINGS_LIMIT: config.rollout.max_new_tokens,
        vocabulary.SETTINGS_STEPS: _planned_steps(trainer),
        vocabulary.SETTINGS_TEMPERATURE: config.rollout.temperature,
        vocabulary.SETTINGS_KL: config.algo.kl.init_coef if trainer.reference_model_group is not None else None,
        vocabulary.SETTINGS_GRADIENT: config.actor.max_norm or None,
    }
    return {
        vocabulary.SETTINGS_SAMPLES: samples // ranks,
        vocabulary.SETTINGS_GROUP: group,
        vocabulary.SETTINGS_UPDATES: samples / int(config.train.batch_size) * int(config.train.max_epochs),
        **{name: value for name, value in known.items() if value is not None},
    }


def _planned_steps(trainer: Any) -> int | None:
    """Return how many steps there will be, if it is known: ``max_steps`` counts updates, and a filter takes prompts."""
    config, prompts = trainer.args, getattr(trainer, "prompts_dataloader", None)
    if prompts is None or config.algo.dynamic_filtering_enable:
        return None
    return ceil(len(prompts) / int(config.rollout.batch_size)) * int(config.train.num_episodes)


def _resumed(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Learn where a synchronous training goes on: the states of its checkpoint count before ``global_step``."""
    progress.done = int(result["global_step"]) or progress.done


def begin_next_step() -> None:
    """Begin the step that a generation is for."""
    if driver.trainer is not None:
        begin_step(progress.done + 1)


def _begin_step(args: Args, kwargs: Kwargs) -> None:
    """Begin the step of a batch, unless its generation has: ``train_step(self, rollout_samples, global_step)``."""
    progress.done = int(args[2])
    begin_next_step()
    link_groups((key, None) for key in progress.taken)
    progress.taken.clear()


def _trained(args: Args, kwargs: Kwargs, result: Any) -> None:
    progress.done = int(result[1])


# --- queue of asynchronous training -----------------------------------------------------------------------------------


def _wait_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name the wait for a batch: ``Queue.get(self, block, timeout)`` of Ray, which others use as well."""
    return vocabulary.IDLE if args[0] is getattr(driver.trainer, "rollout_queue", args) else None


def _taken(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Note a batch, whose key is its place in the queue; or record the numbers of an evaluation."""
    if args[0] is not getattr(driver.trainer, "rollout_queue", args) or not isinstance(result, tuple):
        return
    if len(result) == BATCH:
        progress.batches += 1
        progress.taken.append(batch_key(progress.batches))
    else:
        record_evaluation(result[2])


def batch_key(number: int) -> str:
    """Name a batch by its place in the queue, which the generator and the trainer both count."""
    return f"batch-{number}"


# --- parts of a step --------------------------------------------------------------------------------------------------

GROUPS = {
    "actor_model_group": "PolicyModelActor",
    "initial_model_group": "ReferenceModelActor",
    "critic_model_group": "CriticModelActor",
    "reward_model_group": "RewardModelActor",
}
"""The class of the ranks of each group."""


def _model(args: Args) -> tuple[str, dict[str, Value]]:
    """Return what is computed, if this waits for it: ``_dispatch_forward(self, group, sync_condition, **kwargs)``."""
    maker, group, waits = args[:3]
    found = (COMPUTED[kind] for name, kind in GROUPS.items() if waits and getattr(maker, name) is group)
    return next(found, ("", {}))


def _forward_stage(args: Args, kwargs: Kwargs) -> str | None:
    return _model(args)[0] or None


def _say_forward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return dict(_model(args)[1])


def _checkpoint_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name a checkpoint in the steps that write one: ``save_logs_and_checkpoints`` is called in each."""
    trainer, step = args[:2]
    return vocabulary.CHECKPOINT if step % trainer.args.ckpt.save_steps == 0 else None


def _best_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name the checkpoint of the best evaluation so far: ``save_best_checkpoint(self, eval_metrics, global_step)``."""
    trainer, metrics = args[:2]
    first = min((key for key in metrics or () if key.endswith("_pass1")), default="")
    value = (metrics or {}).get(trainer.best_eval_metric_key or first)
    return None if value is None or value <= trainer.best_eval_metric_value else vocabulary.CHECKPOINT


def _evaluated(args: Args, kwargs: Kwargs, result: Any) -> None:
    record_evaluation(result)


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target=f"{BASE}.__init__", before=_made),
    CallbackHook(target=f"{BASE}.init_checkpoint_states", after=_resumed),
    CallbackHook(target=f"{BASE}.train_step", before=_begin_step, after=_trained),
    StageHook(target="ray.util.queue:Queue.get", stage=_wait_stage, attributes=(QUEUE,), after=_taken),
    StageHook(target=f"{MAKER}.split_rollout_samples", stage=vocabulary.SAMPLE_PROCESS),
    StageHook(target=f"{MAKER}._dispatch_forward", stage=_forward_stage, attributes=_say_forward),
    StageHook(
        target=f"{MAKER}._flatten_results", stage=vocabulary.IDLE, attributes=((vocabulary.IDLE_REASON, "workers"),)
    ),
    StageHook(target=f"{BASE}.ppo_train", stage=vocabulary.TRAIN),
    *sync_hooks(BASE, "broadcast_to_vllm"),
    StageHook(
        target=f"{BASE}.save_logs_and_checkpoints", before=log_metrics, stage=_checkpoint_stage, attributes=FORMAT
    ),
    StageHook(target=f"{BASE}.save_best_checkpoint", stage=_best_stage, attributes=FORMAT),
)
ARRIVING: tuple[Hook, ...] = (
    CallbackHook(target="PPOTrainer.fit", before=_begin_loop, after=end_loop, failed=loop_failed),
    CallbackHook(target="TrainingActor.fit", before=_begin_loop, after=end_loop, failed=loop_failed),
    StageHook(target="PPOTrainer.evaluate", stage=vocabulary.EVALUATE, after=_evaluated),
)
