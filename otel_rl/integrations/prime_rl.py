"""Record prime-rl 0.8: its trainer, orchestrator and launcher, which are programs of their own and share no Ray.

Runs in each of them. Source: prime-rl 0.8.1.dev67 (559b4477), ``prime_rl/entrypoints/rl.py`` (``rl_local``, 111),
``trainer/rl/train.py``, ``trainer/rl/data.py`` (159), ``trainer/model.py`` (1314, 1431), ``trainer/utils.py`` (88),
``trainer/ckpt.py`` (254), ``transports/weights``, ``orchestrator/orchestrator.py`` (619),
``orchestrator/dispatcher.py`` (491, 603, 637), ``orchestrator/envs.py`` (93), ``utils/client.py`` (89),
``monitors/__init__.py``, ``utils/utils.py`` (``clean_exit``, 41). Backwards and optimizer steps are torch's, requests
vLLM's.

The ranks of the trainer hold the steps: step N begins when a rank asks for batch N. The orchestrator has none: each
group of episodes, each batch that it ships and each update of the engines is a trace of its own. The step links to its
batch, and the batch to its groups: both programs count batches.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.guard import attempt
from otel_rl.hooks import Args, CallbackHook, Hook, Integration, Kwargs, Memory, StageHook, Verified, installed_version
from otel_rl.hooks.submitted import SubmittedHook
from otel_rl.metrics.naming import Series
from otel_rl.process.carrier import Carrier
from otel_rl.process.state import state
from otel_rl.records import Count, Deferred, Measured, Point, Value
from otel_rl.single_controller.driver import begin_loop, begin_step, driver, loop_failed
from otel_rl.single_controller.reward_records import equal_groups, spread_of_rewards
from otel_rl.single_controller.sample_groups import (
    QUEUE,
    count_dropped,
    lags_of,
    link_groups,
    of_sample,
    sample_counts,
)
from otel_rl.single_controller.tracked import extremes_at, name_numbers, numbers_of, record_numbers
from otel_rl.trace.apart import open_apart
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, innermost
from otel_rl.trace.tree import close_phase

DISPATCHER = "prime_rl.orchestrator.dispatcher:Dispatcher"
LOADER = "prime_rl.trainer.rl.data:DataLoader"
BROADCASTS = (
    "prime_rl.transports.weights.filesystem:FileSystemWeightBroadcast",
    "prime_rl.transports.weights.nccl:NCCLWeightBroadcast",
    "prime_rl.transports.weights.nixl.nixl:NIXLWeightBroadcast",
)
ORCHESTRATOR: Final = "orchestrator"
"""The role, and what precedes the names of its own numbers: those of the trainer may have the same."""
PROGRAMS: Final = {"Orchestrator": ORCHESTRATOR, "EnvServer": "environment", "Inference": "rollout"}
"""The roles of programs without steps, by their titles: they must not pass for rank 0 of the trainer."""
CANONICAL: Final[dict[str, Series]] = {
    "optim/lr": (vocabulary.LEARNING_RATE, ()),
    "optim/grad_norm": (vocabulary.GRAD_NORM, ()),
    "entropy/all/mean": (vocabulary.ENTROPY, ()),
}
TRAINED = re.compile(r"train/agg/effective/[^/]+/(reward|num_output_tokens)/mean")
EVALUATED = re.compile(r"eval/[^/]+/effective/[^/]+/reward/mean")


@dataclass(eq=False)
class PrimeRl(Memory):
    """What a process of prime-rl remembers."""

    config: Any = None
    """Its configuration."""
    step: int = 0
    """The step that begins next, in a rank."""
    batch: int = 0
    """The batch that is being shipped, in the orchestrator."""
    evaluations: int = 0
    """The environments that are evaluated, each by itself, in the orchestrator."""
    groups: dict[Any, Stage] = field(default_factory=dict)
    """The open groups by id, in the orchestrator."""
    named: tuple[str, ...] = ()
    """The variables that were set for the programs of a launcher."""


prime = PrimeRl.keep("prime")


# --- launcher ---------------------------------------------------------------------------------------------------------


def _launch(args: Args, kwargs: Kwargs) -> None:
    """Let all programs of a launch be of one attempt: ``rl_local(config)`` starts them with its environment."""
    if state.identity.known:
        state.inherit(role="launcher")
        known = {"OTEL_RL_RUN_ID": state.identity.run_id, "OTEL_RL_ATTEMPT_ID": state.identity.attempt_id}
        missing = {name: value for name, value in known.items() if name not in os.environ}
        os.environ.update(missing)
        prime.named = tuple(missing)


def _launched(args: Args, kwargs: Kwargs, result: object) -> None:
    for name in prime.named:
        os.environ.pop(name, None)
    prime.named = ()


def _titled(args: Args, kwargs: Kwargs) -> None:
    """Learn which program this is: each calls ``set_proc_title(name)`` first."""
    role = PROGRAMS.get(str(args[0]))
    if role is not None:
        state.inherit(kind="worker", role=role)
    if role == "environment":  # its workers inherit the attempt, and have no title
        os.environ.setdefault("OTEL_RL_PROCESS_KIND", "worker")


def _configured(args: Args, kwargs: Kwargs) -> None:
    """Learn what is trained: ``monitors.setup(..., run_config, ..., eval_env_names)``."""
    prime.config = config = kwargs.get("run_config")
    prime.evaluations = len(kwargs.get("eval_env_names") or ())
    state.identify(
        system="prime_rl",
        system_version=installed_version("prime-rl"),
        model_name=attempt("read", "what prime-rl trains", _model_name, config) or "",
    )


def _failed(args: Args, kwargs: Kwargs) -> None:
    """End the step, or the set-up, with the exception that ends the program; the orchestrator has neither.

    ``clean_exit`` calls ``wandb.finish(exit_code=1)`` while it handles that, and then exits: nobody else sees it.
    """
    error = sys.exc_info()[1]
    if prime.config is None or not kwargs.get("exit_code") or error is None:
        return
    if state.identity.role == ORCHESTRATOR:
        stage = Stage(vocabulary.SAMPLE, {vocabulary.MODE: "train"}, coarse=True)
        open_apart(stage, ORCHESTRATOR, None)
        stage.__exit__(type(error), error, error.__traceback__)
    elif tracing.loop is None:
        close_phase(monotonic_ns(), error)
    else:
        loop_failed(args, kwargs, error)


def _model_name(config: Any) -> str:
    return PurePath(str(config.model.name).rstrip("/")).name


# --- trainer ----------------------------------------------------------------------------------------------------------


def _begin_loop(args: Args, kwargs: Kwargs) -> None:
    """Begin the loop: ``DataLoader(output_dir, start_step, dp_world_size, config)`` is made right before it."""
    loader, output, prime.step = args[0], args[1], int(args[2])
    begin_loop(loader, str(output), attempt("read", "the settings of prime-rl", _settings, prime.config))


def _settings(config: Any) -> dict[str, Value]:
    known: dict[str, Any] = {
        vocabulary.SETTINGS_LEARNING_RATE: config.optim.lr,
        vocabulary.SETTINGS_STEPS: config.max_steps,
        vocabulary.SETTINGS_GRADIENT: config.optim.max_norm,
    }
    return {name: value for name, value in known.items() if value is not None}


def _begin_step(args: Args, kwargs: Kwargs) -> None:
    """Begin a step with the wait for its batch, and link it to that: ``wait_for_batch(self)``."""
    if driver.trainer is args[0]:
        begin_step(prime.step)
        link_groups([(f"batch-{prime.step}", None)])
        prime.step += 1


# --- orchestrator: groups and episodes --------------------------------------------------------------------------------


def _schedule(args: Args, kwargs: Kwargs) -> None:
    """Make a group current while one of its episodes is started: ``schedule_group_episode(self, group_id, group)``."""
    _, key, group = args[:3]
    close_phase(monotonic_ns())  # the set-up of a process without steps ends with its first work
    stage = prime.groups.get(key)
    if stage is not None:
        return stage.make_current()
    said: dict[str, Value] = {
        vocabulary.MODE: str(group.kind),
        vocabulary.GROUP_ID: str(key),
        vocabulary.BATCH_SIZE: int(group.target_episodes),
        vocabulary.POLICY_VERSION: int(group.policy_version_at_start),
    }
    stage = prime.groups[key] = Stage(vocabulary.SAMPLE_GROUP, said, coarse=True)
    open_apart(stage, str(key), None)


def _scheduled(args: Args, kwargs: Kwargs, result: object) -> None:
    stage = prime.groups.get(args[1])
    if stage is not None:
        stage.leave()


def _end_groups(args: Args, kwargs: Kwargs, result: object) -> None:
    """End the groups that the dispatcher, ``self``, has no more."""
    for key in [key for key in prime.groups if key not in args[0].groups]:
        prime.groups.pop(key).__exit__(None, None, None)


def _drop(args: Args, kwargs: Kwargs) -> None:
    """Count a group that is dropped: ``drop_group(self, group_id, *, reason)``. Half of one may be trained."""
    group, is_stale = args[0].groups.get(args[1]), kwargs["reason"] == "stale"
    if group is not None and (is_stale or not group.emitted):
        count_dropped(1, "stale" if is_stale else "surplus", str(group.kind))


def _admitted(args: Args, kwargs: Kwargs, result: object) -> None:
    """Count a group of failed episodes, or one that the curriculum rejects: ``_admit(self, group)``."""
    if all(trace.has_error for episode in args[1] for trace in episode.traces):
        count_dropped(1, "failed", "train")
    elif not result:
        count_dropped(1, "filtered", "train")


def _ran(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Describe an episode: ``Env.run`` returns a failed one, too."""
    said: dict[str, Value] = {vocabulary.TOKENS_RESPONSE: sum(int(trace.num_output_tokens) for trace in result.traces)}
    errors = [error for one in (result, *result.traces) for error in one.errors]
    stage = innermost()
    if errors and stage is not None:
        stage.status = (2, "")
        said[vocabulary.ERROR_TYPE] = str(errors[0].type)
    return said


# --- orchestrator: batches --------------------------------------------------------------------------------------------


def _submitted(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    """Name a batch by its step: ``finalize_train_batch(self, batch)``."""
    prime.batch = int(args[0].progress.step)
    return None, f"batch-{prime.batch}"


def _shipped(args: Args, kwargs: Kwargs, result: object) -> dict[str, Value]:
    """Link a batch to its groups and count it, if it was shipped: it trains policy N - 1 in step N."""
    orchestrator, batch = args[:2]
    if int(orchestrator.progress.step) <= prime.batch:
        return {}
    newest, lags, episodes = prime.batch - 1, [], list(batch.cohort)
    taken: list[tuple[str, int | None]] = []
    for episode in episodes:
        policy = episode.run.work.policy
        lag = None if policy is None else max(0, newest - int(policy.start))
        taken.append((str(episode.group.id), lag))
        lags += [] if lag is None else [lag] * len(episode.traces)
    link_groups(taken, innermost())
    rewards = [float(trace.reward) for one in episodes for trace in one.traces]
    state.add(Deferred(_count, ([(one.token_ids, one.mask) for one in batch.samples],)))
    state.add(Deferred(_record_rewards, (rewards, _arrived(batch.episodes), state.now())))
    return {vocabulary.SAMPLE_BATCH_SIZE: len(batch.samples), **lags_of(lags, newest=newest)}


def _count(samples: list[tuple[list[int], list[bool]]]) -> tuple[Count, ...]:
    """Count samples and tokens, in the flusher; what is not trained after the policy began is the environment's."""
    written = sum(map(sum, (mask for _, mask in samples)))
    begun = sum(mask.index(True) for _, mask in samples if True in mask)
    whole = sum(len(tokens) for tokens, mask in samples if True in mask)
    return sample_counts(len(samples), begun, written, whole - begun - written)


def _arrived(window: Any) -> list[tuple[float, str]]:
    """Return rewards and groups of what arrived since the last batch: groups of equal rewards are not shipped."""
    return [
        (float(trace.reward), f"{episode.group.id} {trace.agent.name}")
        for episode in window
        if episode.id not in window.cancelled
        for trace in episode.traces
        if trace.agent.trainable and not trace.has_error
    ]


def _record_rewards(rewards: list[float], arrived: list[tuple[float, str]], time_ns: int) -> Iterator[Point | Measured]:
    import numpy as np

    if rewards:
        yield from spread_of_rewards(np.asarray(rewards), time_ns)
    if arrived:
        values, groups = zip(*arrived, strict=True)
        yield from equal_groups(np.asarray(values), np.asarray(groups), time_ns)


def _update(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    """Name an update of the engines by its version: ``update_weights(self, weight_dir, lora_name, step)``."""
    return None, f"weights-{args[3]}"


# --- numbers ----------------------------------------------------------------------------------------------------------


def _log_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name the logging of a step or a batch: ``log(data, step, ...)`` is called for each episode, too."""
    return None if innermost() is None and tracing.container is None else vocabulary.LOG


def _log(args: Args, kwargs: Kwargs) -> None:
    """Record numbers once; every rank has them, and the first one logs them."""
    data = args[0]
    if isinstance(data, dict) and int(os.environ.get("RANK", "0")) == 0:
        prefix = f"{ORCHESTRATOR}/" if state.identity.role == ORCHESTRATOR else ""
        numbers = {key: number for key, number in numbers_of(data, "prime-rl").items() if key != "step"}
        canonical = _canonical(numbers)
        own = {key if key in canonical else prefix + key: number for key, number in numbers.items()}
        record_numbers(name_numbers(own, vocabulary.PRIME_RL, canonical.get, {"eval", f"{ORCHESTRATOR}/eval"}))


def _canonical(numbers: Mapping[str, Any]) -> dict[str, Series]:
    """Return what means the same: of all environments, if one agent is trained; of evaluations, if they are of one."""
    found = dict(CANONICAL)
    trained = [key for key in numbers if TRAINED.fullmatch(key)]
    for key in trained if len(trained) == 2 else ():
        if key.endswith("/reward/mean"):
            found[key] = (vocabulary.REWARD_SCORE, ())
        else:
            found[key] = (vocabulary.RESPONSE_LENGTH, ())
            found |= extremes_at(key.removesuffix("/mean"), vocabulary.RESPONSE_MAX, vocabulary.RESPONSE_MIN)
    evaluated = [key for key in numbers if EVALUATED.fullmatch(key)] if prime.evaluations < 2 else []
    return found | ({evaluated[0]: (vocabulary.EVAL_REWARD, ())} if len(evaluated) == 1 else {})


HOOKS: tuple[Hook, ...] = (
    CallbackHook(
        target="prime_rl.entrypoints.rl:rl_local",
        before=_launch,
        after=_launched,
        failed=_launched,
    ),
    CallbackHook(target="prime_rl.utils.process:set_proc_title", before=_titled),
    CallbackHook(target="prime_rl.monitors:setup", before=_configured, by_name=True),
    CallbackHook(target="wandb:finish", before=_failed),
    StageHook(target="prime_rl.monitors:log", stage=_log_stage, before=_log),
    # --- the ranks of the trainer ---
    StageHook(target="prime_rl.trainer.model:setup_model", stage=vocabulary.SETUP_MODEL),
    CallbackHook(target=f"{LOADER}.__init__", before=_begin_loop),
    StageHook(target=f"{LOADER}.wait_for_batch", stage=vocabulary.IDLE, attributes=(QUEUE,), before=_begin_step),
    StageHook(target=f"{LOADER}.get_batch", stage=vocabulary.SAMPLE_PROCESS),
    StageHook(target="prime_rl.trainer.model:forward", stage=vocabulary.FORWARD),
    StageHook(target="prime_rl.trainer.utils:clip_grad_norm_", stage=vocabulary.CLIP),
    *(
        StageHook(
            target=f"{kind}.broadcast_weights",
            stage=vocabulary.SYNC,
            attributes=((vocabulary.SYNC_OPERATION, "broadcast_weights"),),
        )
        for kind in BROADCASTS
    ),
    StageHook(
        target="prime_rl.trainer.ckpt:CheckpointManager.save",
        stage=vocabulary.CHECKPOINT,
        attributes=((vocabulary.CHECKPOINT_FORMAT, "prime_rl"),),
    ),
    # --- the orchestrator ---
    CallbackHook(
        target=f"{DISPATCHER}.schedule_group_episode",
        before=_schedule,
        after=_scheduled,
        failed=_scheduled,
    ),
    CallbackHook(target=f"{DISPATCHER}.emit_episode", after=_end_groups),
    CallbackHook(target=f"{DISPATCHER}.drop_group", before=_drop, after=_end_groups),
    CallbackHook(target=f"{DISPATCHER}.cancel_inflight_train_episodes", after=_end_groups),
    CallbackHook(target=f"{DISPATCHER}.cancel_inflight_episodes", after=_end_groups),
    StageHook(
        target="prime_rl.orchestrator.envs:Env.run", stage=vocabulary.TRAJECTORY, attributes=of_sample, capture=_ran
    ),
    CallbackHook(target="prime_rl.orchestrator.train_sink:TrainSink._admit", after=_admitted),
    SubmittedHook(
        target="prime_rl.orchestrator.orchestrator:Orchestrator.finalize_train_batch",
        stage=vocabulary.SAMPLE,
        attributes=((vocabulary.MODE, "train"),),
        submitted=_submitted,
        capture=_shipped,
    ),
    SubmittedHook(
        target="prime_rl.utils.client:InferencePool.update_weights",
        stage=vocabulary.SYNC,
        attributes=((vocabulary.SYNC_OPERATION, "update_weights"),),
        submitted=_update,
    ),
)
INTEGRATION = Integration(
    name="prime_rl",
    package="prime-rl",
    supports=">=0.8,<0.9",
    records="one trace a step across the ranks of the trainer; groups and batches of the orchestrator, linked",
    verified=Verified.PACKAGE,
    needs=("torch",),
    hooks=HOOKS,
    memory=prime,
)
