"""NeMo-RL 0.7: its driver, ranks, rollouts and replay buffer, by the kit for single controllers.

Runs in all of these processes. Source: NeMo-RL 0.7.0 (81aa43dd), ``nemo_rl/algorithms/grpo.py`` (``setup``, 254;
``grpo_train``, 2131; ``async_grpo_train``, 3325), ``grpo_sync.py`` (371), ``ppo.py`` (187, 861),
``nemo_rl/utils/timer.py`` (91), ``logger.py`` (1012), ``nemo_rl/models/policy/lm_policy.py`` (498, 544),
``models/policy/workers``, ``models/automodel/train.py`` (302), ``nemo_rl/experience/rollouts.py``,
``algorithms/async_utils``. Requests are vLLM's and SGLang's, backwards and optimizer steps torch's and Megatron's.

Step N is the one that NeMo-RL logs as step N, from 1. It begins with the block of the timer ``total_step_time``, and
ends where the next one begins: NeMo-RL logs in between. A block that ends without a step, because it filled no batch,
goes on in the next one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, Final

from opentelemetry.trace import SpanContext, TraceFlags

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, BlockHook, CallbackHook, Hook, Integration, Kwargs, Memory, StageHook, Verified
from otel_rl.hooks.submitted import SubmittedHook
from otel_rl.metrics.naming import Series
from otel_rl.process.carrier import IN_USE, Carrier
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
    say,
    stage_of,
)
from otel_rl.single_controller.sample_groups import QUEUE, count_dropped, group_failed, lags_of, of_sample
from otel_rl.single_controller.tables import sync_hooks, sync_timers
from otel_rl.single_controller.tracked import name_numbers, numbers_of, record_numbers
from otel_rl.trace.stage import Stage, innermost

GRPO, PPO = "nemo_rl.algorithms.grpo", "nemo_rl.algorithms.ppo"
ROLLOUTS = "nemo_rl.experience.rollouts"
POLICIES = (
    ("nemo_rl.models.policy.lm_policy:Policy", ""),
    ("nemo_rl.models.policy.tq_policy:TQPolicy", "_from_meta"),
)
"""The policies of the driver; one of the data plane has methods of its own."""
STEP = "total_step_time"
OLD, REFERENCE = (vocabulary.LOGPROB_KIND, "old"), (vocabulary.LOGPROB_KIND, "ref")
ACTOR, CRITIC = (vocabulary.TRAIN_MODEL, "actor"), (vocabulary.TRAIN_MODEL, "critic")
WRITERS = ("gen", vocabulary.TOKENS_RESPONSE), ("env", vocabulary.TOKENS_ENVIRONMENT)
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
FORMAT = ((vocabulary.CHECKPOINT_FORMAT, "nemo_rl"),)


REFIT = ((vocabulary.SYNC_OPERATION, "refit"),)
PREPARE = sync_timers("prepare_for_generation", "prepare_for_lp_inference", "prepare_for_training")
TIMERS: Timers = {
    "data_processing": (vocabulary.SAMPLE_PROCESS, ()),
    "dynamic_sampling": (vocabulary.SAMPLE_PROCESS, ()),
    "prepare_for_generation/total": PREPARE["prepare_for_generation"],
    "generation": (vocabulary.SAMPLE, ((vocabulary.MODE, "train"),)),
    "exposed_generation": (vocabulary.IDLE, (QUEUE,)),
    "reward_calculation": (vocabulary.REWARD, ()),
    "logprob_inference_prep": PREPARE["prepare_for_lp_inference"],
    "value_inference": (vocabulary.VALUE, ()),
    "value_training_prep": PREPARE["prepare_for_training"],
    "value_training": (vocabulary.TRAIN, (CRITIC,)),
    "advantage_calculation": (vocabulary.ADVANTAGE, ()),
    "training_prep": PREPARE["prepare_for_training"],
    "policy_training": (vocabulary.TRAIN, (ACTOR,)),
    **sync_timers("recompute_kv_scales", "weight_sync"),
    "checkpointing": (vocabulary.CHECKPOINT, FORMAT),
    "total_validation_time": (vocabulary.EVALUATE, ((vocabulary.MODE, "eval"),)),
}
CANONICAL: Final[dict[str, Series]] = {
    "train/reward": (vocabulary.REWARD_SCORE, ()),
    "train/loss": (vocabulary.LOSS, ()),
    "train/grad_norm": (vocabulary.GRAD_NORM, ()),
    "train/lr": (vocabulary.LEARNING_RATE, ()),
    "train/kl_penalty": (vocabulary.KL_REFERENCE, ()),
    "train/mean_gen_tokens_per_sample": (vocabulary.RESPONSE_LENGTH, ()),
    "train/max_gen_tokens_per_sample": (vocabulary.RESPONSE_MAX, ()),
    "train/truncation_rate": (vocabulary.RESPONSE_CLIPPED, ()),
    "validation/accuracy": (vocabulary.EVAL_REWARD, ()),
}


@dataclass(eq=False)
class Nemo(Memory):
    """What a process of NeMo-RL remembers."""

    finished: int = 0
    """The last step that is over, as it is logged."""
    has_reference: bool = True
    """Whether the loss has a KL: without one, or with one in the rewards, NeMo-RL logs 0."""
    added: dict[int, tuple[Carrier | None, int]] = field(default_factory=dict)
    """In the replay buffer: who added a group, by its ``id()``, and the version of its weights."""


nemo = Nemo.keep("nemo")


def version_of_tree() -> str | None:
    """Return the version of the NeMo-RL that this process would import, as its ``package_info.py`` tells it.

    The distribution may be missing in the environments of its workers, and the one on the package index holds nothing.
    """
    spec = find_spec("nemo_rl")
    for place in () if spec is None else spec.submodule_search_locations or ():
        file = Path(place) / "package_info.py"
        if file.is_file():
            parts = dict(re.findall(r"^(MAJOR|MINOR|PATCH) = (\d+)$", file.read_text("utf-8"), re.MULTILINE))
            return ".".join(parts.get(part, "0") for part in ("MAJOR", "MINOR", "PATCH"))
    return None


# --- loop and steps ---------------------------------------------------------------------------------------------------


def _made(args: Args, kwargs: Kwargs) -> None:
    """Learn what is trained: ``setup(master_config, ...)`` of GRPO and PPO."""
    config = kwargs["master_config"]
    become_driver("nemo_rl", version_of_tree() or "", attempt("read", "what NeMo-RL trains", _job, config))


def _job(config: Any) -> dict[str, str]:
    name = PurePath(str(config.policy["model_name"]).rstrip("/")).name
    return {"algorithm": "GRPO" if hasattr(config, "grpo") else "PPO", "model_name": name}


def _begin_loop(counter: str, args: Args, kwargs: Kwargs) -> None:
    """Begin the loop of a function that gets its state as ``grpo_save_state`` or ``ppo_save_state``."""
    config = kwargs["master_config"]
    (saved,) = (value for name, value in kwargs.items() if name.endswith("_save_state"))
    nemo.finished = int(saved[counter])
    nemo.has_reference = config.loss_fn.reference_policy_kl_penalty > 0 and not config.loss_fn.use_kl_in_reward
    output = str(config.checkpointing["checkpoint_dir"])
    hooking.follow(kwargs["logger"])  # its class may be the user's
    begin_loop(kwargs["policy"], output, attempt("read", "the settings of NeMo-RL", _settings, config))


def _settings(config: Any) -> dict[str, Value]:
    """Return the settings that a report shows; a rank is one of those of the cluster."""
    rollout = config.grpo if hasattr(config, "grpo") else config.ppo
    policy, generation = config.policy, config.policy["generation"]
    group = int(rollout["num_generations_per_prompt"])
    samples = int(rollout["num_prompts_per_step"]) * group
    ranks = max(1, int(config.cluster["num_nodes"]) * int(config.cluster["gpus_per_node"]))
    known: dict[str, Any] = {
        vocabulary.SETTINGS_LEARNING_RATE: ((policy.get("optimizer") or {}).get("kwargs") or {}).get("lr"),
        vocabulary.SETTINGS_LIMIT: generation.get("max_new_tokens"),
        vocabulary.SETTINGS_STEPS: rollout["max_num_steps"],
        vocabulary.SETTINGS_TEMPERATURE: generation.get("temperature"),
        vocabulary.SETTINGS_KL: config.loss_fn.reference_policy_kl_penalty or None,
        vocabulary.SETTINGS_GRADIENT: policy.get("max_grad_norm"),
    }
    return {
        vocabulary.SETTINGS_SAMPLES: samples // ranks,
        vocabulary.SETTINGS_GROUP: group,
        vocabulary.SETTINGS_UPDATES: samples / int(policy["train_global_batch_size"]) * rollout.get("ppo_epochs", 1),
        **{name: value for name, value in known.items() if value is not None},
    }


def _timed(args: Args, kwargs: Kwargs) -> Stage | None:
    """Begin a step, or return the stage of a timer: ``time(self, label)``."""
    label = str(args[1])
    if driver.trainer is not None and label == STEP:
        begin_step(nemo.finished + 1)
    return None if driver.trainer is None else stage_of(TIMERS, label)


def _step_failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    """End the loop with a step that raised: ``async_grpo_train`` prints the exception and returns."""
    if driver.trainer is not None and args[1] == STEP:
        loop_failed(args, kwargs, error)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _log(args: Args, kwargs: Kwargs) -> None:
    """Record ``log_metrics(self, metrics, step, prefix="", step_metric=None, step_finished=False)``."""
    prefix = str(kwargs.get("prefix") or "")
    named = {f"{prefix}/{key}" if prefix else key: value for key, value in kwargs["metrics"].items()}
    canonical = _canonical(named)
    record_numbers(name_numbers(numbers_of(named, "NeMo-RL"), vocabulary.NEMO_RL, canonical.get, {"validation"}))
    if kwargs.get("step_finished"):
        nemo.finished = int(kwargs["step"])


def _canonical(named: Mapping[str, Any]) -> dict[str, Series]:
    """Return what means the same: with dynamic sampling the filtered rewards are those that are trained."""
    found = dict(CANONICAL)
    if not nemo.has_reference:
        del found["train/kl_penalty"]
    if "train/filtered_reward" in named:
        found["train/filtered_reward"] = found.pop("train/reward")
    return found


# --- ranks ------------------------------------------------------------------------------------------------------------


def _forward_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name the forward of a micro-batch by what it is for."""
    around = innermost()
    names = {vocabulary.TRAIN: vocabulary.FORWARD, vocabulary.LOGPROB: vocabulary.LOGPROB_FORWARD}
    return None if around is None else names.get(around.name)


CRITICS = "DTensorValueWorkerV2Impl", "MegatronValueWorkerImpl"
WORKERS = "DTensorPolicyWorkerImpl", "DTensorPolicyWorkerV2Impl", "MegatronPolicyWorkerImpl"
MOVES = "prepare_for_lp_inference", "prepare_for_training", "offload_before_refit", "offload_after_refit"
TRANSFERS = "stream_weights_via_ipc_zmq", "broadcast_weights_for_collective"


def _worker_hooks(kind: str) -> tuple[Hook, ...]:
    return (
        StageHook(target=f"{kind}.train", stage=vocabulary.TRAIN, attributes=(ACTOR,)),
        StageHook(target=f"{kind}.get_logprobs", stage=vocabulary.LOGPROB, attributes=(OLD,)),
        *sync_hooks(kind, *MOVES, *TRANSFERS),
    )


# --- rollouts ---------------------------------------------------------------------------------------------------------


def _submitted(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    return None, str(_say_group(args, kwargs)[vocabulary.GROUP_ID])


def _say_group(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Describe ``_run_prompt_group_worker(self, repeated_batch, generation, target, prompt_idx)``.

    A group is known by the version that it is for and its place in its batch.
    """
    _, batch, version, target, place = args[:5]
    sizes = {vocabulary.BATCH_SIZE: int(batch.size), vocabulary.POLICY_VERSION: int(version)}
    return {vocabulary.MODE: "train", vocabulary.GROUP_ID: f"group-{target}-{place}", **sizes}


def _say_sample(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Describe ``run_sample_multi_turn_rollout(sample_idx, ...)``; in a group it is one of that."""
    return {**of_sample(args, kwargs), vocabulary.SAMPLE_ID: str(args[0])}


def _sampled(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    measured = result[1]
    said: dict[str, Value] = {
        vocabulary.TOKENS_RESPONSE: int(measured["assistant_tokens"]),
        vocabulary.TOKENS_ENVIRONMENT: int(measured["env_tokens"]),
    }
    return said | ({vocabulary.FINISH_REASONS: ("length",)} if measured["truncated"] else {})


def _answered(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Describe an answer: ``async_generate_response_for_sample_turn`` returns its tokens second."""
    return {vocabulary.TOKENS_RESPONSE: len(result[1])}


def _rolled_out(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Describe a rollout without trajectories: ``run_multi_turn_rollout`` returns its batch and means of samples."""
    around, (batch, means) = innermost(), result
    if around is not None and around.name == vocabulary.SAMPLE:
        tokens = {key: round(means[f"mean_{who}_tokens_per_sample"] * batch.size) for who, key in WRITERS}
        say({vocabulary.BATCH_SIZE: int(batch.size), **tokens})


def _filtered(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count what ``dynamic_sampling`` drops: groups of equal rewards, of which its cache has none, and a surplus."""
    config = kwargs["master_config"].grpo
    if config["use_dynamic_sampling"]:
        before, after = (0 if cache is None else cache.size for cache in (kwargs.get("batch_cache"), result[2]))
        surplus = result[3].get("dynamic_sampling_num_discarded_valid_samples", 0)
        for samples, reason in ((kwargs["repeated_batch"].size + before - after, "filtered"), (surplus, "surplus")):
            count_dropped(samples // config["num_generations_per_prompt"], reason, "train")


def _say_reward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Describe ``calculate_rewards(batch, task_to_env)``, the environment by its task; several by their number."""
    tasks = list(args[0]["task_name"])
    names = {str(task) for task in tasks}  # each mixture would be a series of metrics
    name = f"{len(names)} tasks" if len(names) != 1 else names.pop()
    return {**of_sample(args, kwargs), vocabulary.REWARD_FUNCTION: name, vocabulary.BATCH_SIZE: len(tasks)}


# --- replay buffer ----------------------------------------------------------------------------------------------------


def _added(args: Args, kwargs: Kwargs, result: object) -> None:
    """Keep who added a group: ``add(self, trajectory, weight_version, target_weight_version)``."""
    if result == "success":
        nemo.added[id(args[1])] = IN_USE.get(), int(args[2])


def _taken(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Link to the groups of a step: ``sample(self, num_prompt_groups, current_weight_version, max_age_steps)``."""
    stage, newest, lags = innermost(), int(kwargs["current_weight_version"]), []
    taken = [] if result is None else result["trajectories"]
    known = [(one, *nemo.added.pop(id(one))) for one in taken if id(one) in nemo.added]
    for trajectory, carrier, version in known:
        lags += [newest - version] * int(trajectory["batch"].size)
        if carrier is not None and stage is not None and carrier.is_sampled:
            group = SpanContext(carrier.trace_id, carrier.span_id, is_remote=True, trace_flags=SAMPLED)
            stage.add_link(group, {vocabulary.POLICY_LAG: newest - version})
    return lags_of(lags if len(known) == len(taken) else (), newest)  # those of a checkpoint are not known


HOOKS: tuple[Hook, ...] = (
    *(CallbackHook(target=f"{module}:setup", before=_made, by_name=True) for module in (GRPO, PPO)),
    *(
        CallbackHook(
            target=target, before=partial(_begin_loop, counter), after=end_loop, failed=loop_failed, by_name=True
        )
        for target, counter in (
            (f"{GRPO}:grpo_train", "total_steps"),
            (f"{GRPO}:async_grpo_train", "current_step"),
            ("nemo_rl.algorithms.grpo_sync:grpo_train_sync", "total_steps"),
            (f"{PPO}:ppo_train", "total_steps"),
        )
    ),
    BlockHook(target="nemo_rl.utils.timer:Timer.time", begin=_timed, failed=_step_failed),
    StageHook(target=f"{GRPO}:refit_policy_generation", stage=vocabulary.SYNC, attributes=REFIT),
    *(
        StageHook(target=f"{policy}.get_{kind}logprobs{source}", stage=vocabulary.LOGPROB, attributes=(said,))
        for policy, source in POLICIES
        for kind, said in (("", OLD), ("reference_policy_", REFERENCE))
    ),
    StageHook(target="nemo_rl.utils.logger:Logger.log_metrics", stage=vocabulary.LOG, before=_log, by_name=True),
    StageHook(target="nemo_rl.models.automodel.train:forward_with_post_processing_fn", stage=_forward_stage),
    CallbackHook(target=f"{GRPO}:dynamic_sampling", after=_filtered, by_name=True),
    CallbackHook(target=f"{ROLLOUTS}:run_multi_turn_rollout", after=_rolled_out),
    *(
        CallbackHook(target=f"{ROLLOUTS}:run_async_{kind}_rollout", failed=group_failed)
        for kind in ("multi_turn", "nemo_gym")
    ),
    StageHook(target=f"{ROLLOUTS}:generate_responses", stage=vocabulary.SAMPLE_GENERATE),
    StageHook(target=f"{ROLLOUTS}:calculate_rewards", stage=vocabulary.REWARD, attributes=_say_reward),
    *(
        StageHook(target=f"{ROLLOUTS}:{name}", stage=stage, attributes=describe, capture=capture)
        for name, stage, describe, capture in (
            ("run_sample_multi_turn_rollout", vocabulary.TRAJECTORY, _say_sample, _sampled),
            ("async_generate_response_for_sample_turn", vocabulary.SAMPLE_TURN, of_sample, _answered),
        )
    ),
)
ARRIVING: tuple[Hook, ...] = (
    *(hook for kind in WORKERS for hook in _worker_hooks(kind)),
    *(
        StageHook(target=f"{kind}.save_checkpoint", stage=vocabulary.CHECKPOINT, attributes=FORMAT)
        for kind in WORKERS[:2]
    ),
    *(StageHook(target=f"{kind}.train", stage=vocabulary.TRAIN, attributes=(CRITIC,)) for kind in CRITICS),
    *(StageHook(target=f"{kind}.get_values", stage=vocabulary.VALUE) for kind in CRITICS),
    StageHook(
        target="AbstractPolicyWorker.get_reference_policy_logprobs", stage=vocabulary.LOGPROB, attributes=(REFERENCE,)
    ),
    SubmittedHook(
        target="AsyncTrajectoryCollector._run_prompt_group_worker",
        stage=vocabulary.SAMPLE_GROUP,
        attributes=_say_group,
        submitted=_submitted,
    ),
    CallbackHook(target="ReplayBufferImpl.add", after=_added),
    StageHook(target="ReplayBufferImpl.sample", stage=vocabulary.SAMPLE_PROCESS, capture=_taken, by_name=True),
)
ROLES = (
    *((kind, "critic") for kind in CRITICS),
    ("AbstractPolicyWorker", "actor"),
    ("BaseVllmGenerationWorker", "rollout"),
    ("AsyncTrajectoryCollector", "collector"),
    ("ReplayBufferImpl", "replay_buffer"),
    ("EnvironmentInterface", "environment"),
)
INTEGRATION = Integration(
    name="nemo_rl",
    package="nemo-rl",
    supports=">=0.7,<0.8",
    records="GRPO and PPO: one trace a step across the driver, ranks and rollouts, also of asynchronous training",
    verified=Verified.PACKAGE,
    version=version_of_tree,
    needs=("ray", "torch"),
    hooks=HOOKS,
    arriving=ARRIVING,
    roles=ROLES,
    memory=driver,
)
