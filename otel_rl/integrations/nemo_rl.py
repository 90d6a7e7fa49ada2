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
from otel_rl.single_controller.sample_groups import QUEUE, lags_of, of_sample
from otel_rl.single_controller.tables import sync_hooks
from otel_rl.single_controller.tracked import name_numbers, numbers_of, record_numbers
from otel_rl.trace.stage import Stage, current_stage, innermost

GRPO, PPO = "nemo_rl.algorithms.grpo", "nemo_rl.algorithms.ppo"
ROLLOUTS = "nemo_rl.experience.rollouts"
POLICY = "nemo_rl.models.policy.lm_policy:Policy"
STEP = "total_step_time"
OLD, REFERENCE = (vocabulary.LOGPROB_KIND, "old"), (vocabulary.LOGPROB_KIND, "ref")
ACTOR, CRITIC = (vocabulary.TRAIN_MODEL, "actor"), (vocabulary.TRAIN_MODEL, "critic")
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
FORMAT = ((vocabulary.CHECKPOINT_FORMAT, "nemo_rl"),)


def _sync(operation: str) -> tuple[str, tuple[tuple[str, Value], ...]]:
    return vocabulary.SYNC, ((vocabulary.SYNC_OPERATION, operation),)


TIMERS: Timers = {
    "data_processing": (vocabulary.SAMPLE_PROCESS, ()),
    "dynamic_sampling": (vocabulary.SAMPLE_PROCESS, ()),
    "prepare_for_generation/total": _sync("prepare_for_generation"),
    "generation": (vocabulary.SAMPLE, ((vocabulary.MODE, "train"),)),
    "exposed_generation": (vocabulary.IDLE, (QUEUE,)),
    "reward_calculation": (vocabulary.REWARD, ()),
    "logprob_inference_prep": _sync("prepare_for_lp_inference"),
    "value_inference": (vocabulary.VALUE, ()),
    "value_training_prep": _sync("prepare_for_training"),
    "value_training": (vocabulary.TRAIN, (CRITIC,)),
    "advantage_calculation": (vocabulary.ADVANTAGE, ()),
    "training_prep": _sync("prepare_for_training"),
    "policy_training": (vocabulary.TRAIN, (ACTOR,)),
    "recompute_kv_scales": _sync("recompute_kv_scales"),
    "weight_sync": _sync("weight_sync"),
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
    """Whether the loss has a KL; without one 0 is logged."""
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
    become_driver("nemo_rl", version_of_tree() or "", attempt("read", "what NeMo-RL trains", _job, args[0]))


def _job(config: Any) -> dict[str, str]:
    name = PurePath(str(config.policy["model_name"]).rstrip("/")).name
    return {"algorithm": "GRPO" if hasattr(config, "grpo") else "PPO", "model_name": name}


def _begin_sync(args: Args, kwargs: Kwargs) -> None:
    """Begin the loop of a function that gets its state as ``grpo_save_state`` or ``ppo_save_state``."""
    _begin_loop(kwargs, "total_steps")


def _begin_async(args: Args, kwargs: Kwargs) -> None:
    """Begin the loop of ``async_grpo_train``, which counts in one epoch."""
    _begin_loop(kwargs, "current_step")


def _begin_loop(known: Kwargs, counter: str) -> None:
    config = known["master_config"]
    (saved,) = (value for name, value in known.items() if name.endswith("_save_state"))
    nemo.finished = int(saved[counter])
    nemo.has_reference = bool(config.loss_fn.reference_policy_kl_penalty)
    output = str(config.checkpointing["checkpoint_dir"])
    begin_loop(known["policy"], output, attempt("read", "the settings of NeMo-RL", _settings, config))


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


def _refit_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name the transfer of weights to the engines where no timer does, as before a validation."""
    around = current_stage()
    return None if around is not None and around.name == vocabulary.SYNC else vocabulary.SYNC


# --- numbers ----------------------------------------------------------------------------------------------------------


def _log(args: Args, kwargs: Kwargs) -> None:
    """Record ``log_metrics(self, metrics, step, prefix="", step_metric=None, step_finished=False)``."""
    prefix = str(kwargs.get("prefix") or "")
    named = {f"{prefix}/{key}" if prefix else key: value for key, value in kwargs["metrics"].items()}
    canonical = _canonical(named)
    record_numbers(name_numbers(numbers_of(named, "NeMo-RL"), vocabulary.NEMO_RL, canonical.get, {"validation"}))


def _canonical(named: Mapping[str, Any]) -> dict[str, Series]:
    """Return what means the same: with dynamic sampling the filtered rewards are those that are trained."""
    found = dict(CANONICAL)
    if not nemo.has_reference:
        del found["train/kl_penalty"]
    if "train/filtered_reward" in named:
        found["train/filtered_reward"] = found.pop("train/reward")
    return found


def _logged(args: Args, kwargs: Kwargs, result: object) -> None:
    """Learn that a step is over."""
    if kwargs.get("step_finished"):
        nemo.finished = int(kwargs["step"])


# --- ranks ------------------------------------------------------------------------------------------------------------


def _logprob_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name log-probabilities, unless those of the reference call for them."""
    around = innermost()
    return None if around is not None and around.name == vocabulary.LOGPROB else vocabulary.LOGPROB


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
        StageHook(target=f"{kind}.get_logprobs", stage=_logprob_stage, attributes=(OLD,)),
        *sync_hooks(kind, *MOVES, *TRANSFERS),
    )


# --- rollouts ---------------------------------------------------------------------------------------------------------


def _submitted(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    """Name a group of asynchronous training by the version that it is for and its place in its batch."""
    return None, _group_key(args)


def _group_key(args: Args) -> str:
    """Return the key of ``_run_prompt_group_worker(self, repeated_batch, generation, target, prompt_idx)``."""
    _, _, _, target, place = args[:5]
    return f"group-{target}-{place}"


def _say_group(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {
        vocabulary.MODE: "train",
        vocabulary.GROUP_ID: _group_key(args),
        vocabulary.BATCH_SIZE: int(args[1].size),
        vocabulary.POLICY_VERSION: int(args[2]),
    }


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


def _say_reward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Describe ``calculate_rewards(batch, task_to_env)``: the environments of a batch by the names of their tasks."""
    tasks = list(args[0]["task_name"])
    names = ", ".join(sorted({str(task) for task in tasks}))
    return {**of_sample(args, kwargs), vocabulary.REWARD_FUNCTION: names, vocabulary.BATCH_SIZE: len(tasks)}


# --- replay buffer ----------------------------------------------------------------------------------------------------


def _added(args: Args, kwargs: Kwargs, result: object) -> None:
    """Keep who added a group: ``add(self, trajectory, weight_version, target_weight_version)``."""
    if result == "success":
        nemo.added[id(args[1])] = IN_USE.get(), int(args[2])


def _taken(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Link to the groups of a step: ``sample(self, num_prompt_groups, current_weight_version, max_age_steps)``."""
    stage, newest, lags = innermost(), int(kwargs["current_weight_version"]), []
    for trajectory in () if result is None else result["trajectories"]:
        carrier, version = nemo.added.pop(id(trajectory), (None, newest))
        lags += [newest - version] * int(trajectory["batch"].size)
        if carrier is not None and stage is not None and carrier.is_sampled:
            group = SpanContext(carrier.trace_id, carrier.span_id, is_remote=True, trace_flags=SAMPLED)
            stage.add_link(group, {vocabulary.POLICY_LAG: newest - version})
    return lags_of(lags, newest=newest)


HOOKS: tuple[Hook, ...] = (
    *(CallbackHook(target=f"{module}:setup", before=_made) for module in (GRPO, PPO)),
    *(
        CallbackHook(target=target, before=begin, after=end_loop, failed=loop_failed, by_name=True)
        for target, begin in (
            (f"{GRPO}:grpo_train", _begin_sync),
            (f"{GRPO}:async_grpo_train", _begin_async),
            ("nemo_rl.algorithms.grpo_sync:grpo_train_sync", _begin_sync),
            (f"{PPO}:ppo_train", _begin_sync),
        )
    ),
    BlockHook(target="nemo_rl.utils.timer:Timer.time", begin=_timed),
    StageHook(
        target=f"{GRPO}:refit_policy_generation",
        stage=_refit_stage,
        attributes=((vocabulary.SYNC_OPERATION, "refit"),),
    ),
    StageHook(target=f"{POLICY}.get_logprobs", stage=vocabulary.LOGPROB, attributes=(OLD,)),
    StageHook(target=f"{POLICY}.get_reference_policy_logprobs", stage=vocabulary.LOGPROB, attributes=(REFERENCE,)),
    StageHook(
        target="nemo_rl.utils.logger:Logger.log_metrics",
        stage=vocabulary.LOG,
        before=_log,
        after=_logged,
        by_name=True,
    ),
    StageHook(target="nemo_rl.models.automodel.train:forward_with_post_processing_fn", stage=_forward_stage),
    StageHook(target=f"{ROLLOUTS}:generate_responses", stage=vocabulary.SAMPLE_GENERATE),
    StageHook(
        target=f"{ROLLOUTS}:run_sample_multi_turn_rollout",
        stage=vocabulary.TRAJECTORY,
        attributes=_say_sample,
        capture=_sampled,
    ),
    StageHook(
        target=f"{ROLLOUTS}:async_generate_response_for_sample_turn",
        stage=vocabulary.SAMPLE_TURN,
        attributes=of_sample,
        capture=_answered,
    ),
    StageHook(target=f"{ROLLOUTS}:calculate_rewards", stage=vocabulary.REWARD, attributes=_say_reward),
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
