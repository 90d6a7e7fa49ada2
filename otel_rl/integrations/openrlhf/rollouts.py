"""Rollouts of OpenRLHF: batches, groups, trajectories, turns and rewards.

Source: OpenRLHF 0.11.2, ``trainer/ppo_utils/samples_generator.py``, ``trainer/ppo_trainer_async.py``
(``GenerateSamplesActor.fit``, 106), ``trainer/ray/vllm_engine.py``, ``utils/agent.py``.

A synchronous trainer generates in its own process. ``GenerateSamplesActor`` of an asynchronous one has no steps: each
batch that it puts into the queue is a trace of its own, whose key is its place there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory, StageHook
from otel_rl.hooks.submitted import SubmittedHook
from otel_rl.integrations.openrlhf.trainer import BATCH, batch_key, begin_next_step
from otel_rl.process.carrier import IN_USE, Carrier
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.records import Count, Deferred, Value
from otel_rl.single_controller.sample_groups import count_dropped, of_sample, sample_counts
from otel_rl.single_controller.tables import sync_hooks

GENERATOR = "openrlhf.trainer.ppo_utils.samples_generator:SamplesGenerator"
AGENT = "openrlhf.utils.agent"
EXECUTORS = "AgentExecutorBase", "SingleTurnAgentExecutor", "MultiTurnAgentExecutor"
TRAIN = (vocabulary.MODE, "train")


@dataclass(eq=False)
class Generating(Memory):
    """What a process that generates, or serves rollouts, remembers."""

    generator: Any = None
    """The ``GenerateSamplesActor`` whose ``fit`` goes on."""
    batches: int = 0
    """How many batches it has put into the queue."""
    executor: Any = None
    """The executor of this server, once what its class overrides is hooked."""


generating = Generating.keep("generating")


# --- batches ----------------------------------------------------------------------------------------------------------


def _began(args: Args, kwargs: Kwargs) -> None:
    generating.generator = args[0]


def _put(args: Args, kwargs: Kwargs, result: object) -> None:
    """Count a batch: ``Queue.put(self, item, ...)`` of Ray, by which evaluations and the end go, too."""
    is_ours = args[0] is getattr(generating.generator, "rollout_queue", args)
    generating.batches += is_ours and isinstance(args[1], tuple) and len(args[1]) == BATCH


def _submitted(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    """Begin the step of a synchronous batch, or name an asynchronous one."""
    begin_next_step()
    return None, None if generating.generator is None else batch_key(generating.batches + 1)


def _evaluated(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    return None, f"evaluation-{args[0]._last_eval_step}"


def _generated(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Count a batch that is complete: ``generate_samples`` returns its samples first."""
    samples = result[0]
    state.add(Deferred(_count, ([(one.action_mask, one.attention_mask) for one in samples],)))
    return {vocabulary.SAMPLE_BATCH_SIZE: len(samples)}


def _count(masks: list[tuple[Any, Any]]) -> tuple[Count, ...]:
    """Count samples and tokens, in the flusher; what others write after the policy began is the environment's."""
    written = sum(int(action.sum()) for action, _ in masks)
    begun = sum(int(action.flatten().nonzero()[0]) + 1 for action, _ in masks if action.any())
    whole = sum(int(attended.sum()) for action, attended in masks if action.any())
    return sample_counts(len(masks), begun, written, whole - begun - written)


def _filtered(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count prompts whose rewards are out of range: ``_generate_vllm(self, ...)`` replaces them by others."""
    if kwargs.get("dynamic_filtering"):
        samples, prompts, _ = result
        group = kwargs.get("n_samples_per_prompt") or args[0].args.rollout.n_samples_per_prompt
        count_dropped(prompts - len(samples) // int(group), "filtered", "train")


# --- a group, its trajectories and turns, in a server -----------------------------------------------------------------


def _follow_executor(args: Args, kwargs: Kwargs) -> None:
    """Hook what the class of an executor overrides; it may be of the user's own."""
    executor = args[0].executor
    if generating.executor is not executor:
        generating.executor = executor
        hooking.follow(executor)


def _say_mode(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    used = IN_USE.get()
    return {} if used is None or not used.mode else {vocabulary.MODE: used.mode}


def _describe_trajectory(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Say what became of a conversation, whose tokens and ranges of the policy's own ``execute`` returns."""
    ranges = result["action_ranges"]
    written, whole = sum(end - begin for begin, end in ranges), len(result["observation_tokens"])
    prompt = ranges[0][0] if ranges else whole
    said: dict[str, Value] = {
        vocabulary.TOKENS_PROMPT: prompt,
        vocabulary.TOKENS_RESPONSE: written,
        vocabulary.TOKENS_ENVIRONMENT: whole - prompt - written,
    }
    return said | ({vocabulary.FINISH_REASONS: ("length",)} if result.get("truncated") else {})


def _say_turn(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {**of_sample(args, kwargs), vocabulary.TOKENS_PROMPT: len(args[1])}


def _answered(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    (answer,) = result.outputs
    said: dict[str, Value] = {vocabulary.TOKENS_RESPONSE: len(answer.token_ids)}
    return said | ({vocabulary.FINISH_REASONS: (str(answer.finish_reason),)} if answer.finish_reason else {})


def _say_reward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    function = args[0].reward_func
    name = "remote" if function is None else getattr(function, "__name__", type(function).__name__)
    return {**of_sample(args, kwargs), vocabulary.REWARD_FUNCTION: name, vocabulary.BATCH_SIZE: len(args[1])}


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target="ray.util.queue:Queue.put", after=_put),
    SubmittedHook(
        target=f"{GENERATOR}.generate_samples",
        stage=vocabulary.SAMPLE,
        attributes=(TRAIN,),
        submitted=_submitted,
        capture=_generated,
    ),
    StageHook(
        target=f"{GENERATOR}.generate_eval_samples", stage=vocabulary.SAMPLE, attributes=((vocabulary.MODE, "eval"),)
    ),
    CallbackHook(target=f"{GENERATOR}._generate_vllm", after=_filtered),
    StageHook(target=f"{GENERATOR}._dispatch_prompts_to_vllm", stage=vocabulary.SAMPLE_SUBMIT),
    *(
        StageHook(
            target=f"{AGENT}:{kind}.execute",
            stage=vocabulary.TRAJECTORY,
            attributes=of_sample,
            capture=_describe_trajectory,
        )
        for kind in EXECUTORS
    ),
    *(
        StageHook(
            target=f"{AGENT}:SingleTurnAgentExecutor._fetch_rewards_via_{way}",
            stage=vocabulary.REWARD,
            attributes=_say_reward,
        )
        for way in ("func", "http")
    ),
)
ARRIVING: tuple[Hook, ...] = (
    CallbackHook(target="GenerateSamplesActor.fit", before=_began),
    SubmittedHook(target="GenerateSamplesActor._run_eval", stage=vocabulary.EVALUATE, submitted=_evaluated),
    StageHook(
        target="RolloutRayActor.generate_responses",
        stage=vocabulary.SAMPLE_GROUP,
        before=_follow_executor,
        attributes=_say_mode,
    ),
    StageHook(target="RolloutRayActor.generate", stage=vocabulary.SAMPLE_TURN, attributes=_say_turn, capture=_answered),
    *sync_hooks("RolloutRayActor", "sleep", "wake_up", "pause_generation", "resume_generation", "reset_prefix_cache"),
)
