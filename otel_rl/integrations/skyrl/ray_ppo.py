"""Trainers of SkyRL: the driver of a job, which holds its steps and calls everybody else.

Source: SkyRL 0.4.0, ``train/trainer.py`` (``RayPPOTrainer.train``, 262), ``train/fully_async_trainer.py``
(``FullyAsyncRayPPOTrainer.train``, 432), ``train/utils/utils.py`` (``Timer``, 49),
``backends/skyrl_train/workers/worker_dispatch.py``. Both trainers bracket the parts of a step by ``Timer(message)``, by
which they become stages here. SkyRL's callbacks are not used: the asynchronous trainer refuses them.

Step N is the one that SkyRL logs as global step N. It begins with the timer ``step``, so that logging, evaluation and
checkpoints after that timer still belong to it. A step of dynamic sampling has that timer several times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory, StageHook, installed_version
from otel_rl.process.hooked import hooking
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
from otel_rl.single_controller.sample_groups import QUEUE, count_dropped, lags_of, link_groups, show_groups
from otel_rl.single_controller.tables import sync_hooks, sync_timers
from otel_rl.single_controller.timers import enter_timer, leave_timer

TRAINER = "skyrl.train.trainer:RayPPOTrainer"
ASYNCHRONOUS = "skyrl.train.fully_async_trainer:FullyAsyncRayPPOTrainer"
TIMER = "skyrl.train.utils.utils:Timer"
DISPATCH = "skyrl.backends.skyrl_train.workers.worker_dispatch:WorkerDispatch"
CLIENT = "skyrl.backends.skyrl_train.inference_servers.remote_inference_client:RemoteInferenceClient"
IN_LOOP = (driver, "trainer")
KIND, MODEL, FORMAT = vocabulary.LOGPROB_KIND, vocabulary.TRAIN_MODEL, vocabulary.CHECKPOINT_FORMAT
STEP: Final = "step"
TIMERS: Final[Timers] = {
    "generate": (vocabulary.SAMPLE, ((vocabulary.MODE, "train"),)),
    "postprocess_generator_output": (vocabulary.SAMPLE_PROCESS, ()),
    "convert_to_training_input": (vocabulary.SAMPLE_PROCESS, ()),
    "apply_reward_kl_penalty": (vocabulary.REWARD, ((vocabulary.REWARD_FUNCTION, "kl_penalty"),)),
    "compute_advantages_and_returns": (vocabulary.ADVANTAGE, ()),
    "critic_train": (vocabulary.TRAIN, ((MODEL, "critic"),)),
    "policy_train": (vocabulary.TRAIN, ((MODEL, "actor"),)),
    "save_checkpoints": (vocabulary.CHECKPOINT, ((FORMAT, "skyrl"),)),
    "save_hf_model": (vocabulary.CHECKPOINT, ((FORMAT, "huggingface"),)),
    "load_checkpoints": (vocabulary.CHECKPOINT, ((FORMAT, "skyrl"), (vocabulary.CHECKPOINT_LOAD, True))),
    **sync_timers(
        "sync_weights", "sync_weights_to_inference_engines", "init_weight_sync_state", "update_ref_with_policy"
    ),
    "eval": (vocabulary.EVALUATE, ()),
    "log_train_results": (vocabulary.LOG, ()),
    "dump_data_batch": (vocabulary.LOG, ()),
}
"""``fwd_logprobs_values_reward`` is none: it holds the forwards of several models, each of which is a stage."""
COMPUTED: Final[dict[str, tuple[str, dict[str, Value]]]] = {
    "policy": (vocabulary.LOGPROB, {KIND: "old"}),
    "ref": (vocabulary.LOGPROB, {KIND: "ref"}),
    "critic": (vocabulary.VALUE, {}),
}
"""What the forward of a model computes."""


@dataclass(eq=False)
class RolloutWeights(Memory):
    """The weights that the rollout engines have."""

    version: int | None = None
    """How many updates are in them; None before they have any."""
    of_groups: dict[str, int] = field(default_factory=dict)
    """The version that each group began with, until a step takes it or leaves it out."""


rollout_weights = RolloutWeights.keep("rollout_weights")


# --- loop and steps ---------------------------------------------------------------------------------------------------


def _made(args: Args, kwargs: Kwargs) -> None:
    """Learn what is trained: ``__init__(self, cfg, tracker, tokenizer, train_dataset, ...)``."""
    become_driver("skyrl", installed_version("skyrl"), attempt("read", "what SkyRL trains", _job, args[1].trainer))


def _job(config: Any) -> dict[str, str]:
    name = PurePath(str(config.policy.model.path).rstrip("/")).name
    return {"algorithm": str(config.algorithm.advantage_estimator).upper(), "model_name": name}


def _follow(args: Args, kwargs: Kwargs, result: object) -> None:
    """Hook what derived trainers override, ``train`` above all, and what generators and trackers of one's own do."""
    trainer = args[0]
    for one in (trainer, trainer.generator, trainer.tracker):
        hooking.follow(one)


def _begin_loop(args: Args, kwargs: Kwargs) -> None:
    trainer = args[0]
    settings = attempt("read", "the settings of SkyRL", _settings, trainer)
    begin_loop(trainer, str(trainer.cfg.trainer.ckpt_path), settings)


def _settings(trainer: Any) -> dict[str, Value]:
    """Return the settings that a report shows; a rank is one of those that train the policy."""
    config, generator = trainer.cfg.trainer, trainer.cfg.generator
    group = int(generator.n_samples_per_prompt)
    ranks = int(config.placement.policy_num_nodes) * int(config.placement.policy_num_gpus_per_node)
    algorithm, optimizer = config.algorithm, config.policy.optimizer_config
    has_kl = algorithm.use_kl_loss or algorithm.use_kl_in_reward
    known: dict[str, Any] = {
        vocabulary.SETTINGS_STEPS: trainer.total_training_steps,
        vocabulary.SETTINGS_TEMPERATURE: generator.sampling_params.temperature,
        vocabulary.SETTINGS_KL: algorithm.kl_loss_coef if has_kl else None,
        vocabulary.SETTINGS_GRADIENT: optimizer.max_grad_norm or None,
    }
    updates = int(config.train_batch_size) / int(config.policy_mini_batch_size) * int(config.update_epochs_per_batch)
    return {
        vocabulary.SETTINGS_LEARNING_RATE: float(optimizer.lr),
        vocabulary.SETTINGS_SAMPLES: int(config.train_batch_size) * group // ranks,
        vocabulary.SETTINGS_GROUP: group,
        vocabulary.SETTINGS_LIMIT: int(generator.sampling_params.max_generate_length),
        vocabulary.SETTINGS_UPDATES: updates,
        **{name: value for name, value in known.items() if value is not None},
    }


def _enter(args: Args, kwargs: Kwargs) -> None:
    """Begin a step, or the stage of a timer."""
    name = str(args[0].message)
    if name == STEP:
        begin_step(int(driver.trainer.global_step))
    enter_timer(args[0], stage_of(TIMERS, name))


def _leave(args: Args, kwargs: Kwargs, result: object) -> None:
    leave_timer(*args)


# --- parts of a step --------------------------------------------------------------------------------------------------


def _forward_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name what a model computes: ``forward(self, model, data, ...)``, and with parts that are staged already."""
    return COMPUTED.get(args[1], ("", {}))[0] or None


def _say_forward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return dict(COMPUTED[args[1]][1])


def _synchronized(args: Args, kwargs: Kwargs, result: object) -> None:
    """Note what the engines have: a step's weights are handed over while its number is the trainer's."""
    rollout_weights.version = int(driver.trainer.global_step)


def is_asynchronous(trainer: Any) -> bool:
    """Return whether a trainer generates each group apart, while it trains."""
    return hasattr(trainer, "max_staleness_steps")


def group_key(uid: Any) -> str:
    """Name a group by the epoch and the uid of its prompt, which is the same in each epoch."""
    trainer = driver.trainer
    return f"{trainer.epoch if is_asynchronous(trainer) else trainer._current_epoch}-{uid}"


def ends_of(output: Any) -> list[bool]:
    """Return for each row of an output whether a sample ends: one of step-wise training has a row for each turn."""
    return output.get("is_last_step") or [True] * len(output["response_ids"])


def _show_queue(args: Args, kwargs: Kwargs) -> None:
    """Show the groups, before ``_collect_generation_mini_batch(self, buffer, all_generators_done)`` waits for some."""
    running = args[0]._staleness_manager._stat.running
    show_groups({"running": running, "finished": args[1].qsize()}, "train")


def _taken(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Link the step to its groups; step N has the policy of version N - 1.

    What SkyRL takes for the step of a group is one too low where that begins after the weights of the step were handed
    over, in its evaluation or checkpoint.
    """
    kept, dropped, is_exhausted = result
    newest = int(args[0].global_step) - 1
    begun = [(one, _begun(one)) for one in kept]
    for one in dropped:
        _begun(one)
    count_dropped(len(dropped), "filtered", "train")
    if is_exhausted:  # no step trains on what is left
        count_dropped(len(kept), "surplus", "train")
        return {}
    lags = [(one.uid, newest - version) for one, version in begun for _ in range(sum(ends_of(one.generator_output)))]
    link_groups((group_key(uid), lag) for uid, lag in lags)
    return lags_of((lag for _, lag in lags), newest)


def _begun(group: Any) -> int:
    """Return the version of the weights that a group began with."""
    known = rollout_weights.of_groups.pop(group_key(group.uid), None)
    return int(group.global_step_when_scheduled) - 1 if known is None else known


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target=f"{TRAINER}.__init__", before=_made, after=_follow),
    CallbackHook(target=f"{TRAINER}.train", before=_begin_loop, after=end_loop, failed=loop_failed),
    *(CallbackHook(target=f"{TIMER}.{name}", before=_enter, during=IN_LOOP) for name in ("__enter__", "__aenter__")),
    *(CallbackHook(target=f"{TIMER}.{name}", after=_leave, during=IN_LOOP) for name in ("__exit__", "__aexit__")),
    *(
        StageHook(target=f"{DISPATCH}.{name}", stage=_forward_stage, attributes=_say_forward, during=IN_LOOP)
        for name in ("forward", "forward_from_staged")
    ),
    CallbackHook(target=f"{DISPATCH}.save_weights_for_sampler", after=_synchronized, during=IN_LOOP),
    *sync_hooks(CLIENT, "sleep", "wake_up"),
    StageHook(
        target=f"{ASYNCHRONOUS}._collect_generation_mini_batch",
        stage=vocabulary.IDLE,
        attributes=(QUEUE,),
        before=_show_queue,
        capture=_taken,
    ),
)
