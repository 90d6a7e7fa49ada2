"""Rollouts of OpenRLHF: batches, groups, trajectories, turns and rewards.

Source: OpenRLHF 0.11.2, ``trainer/ppo_utils/samples_generator.py``, ``trainer/ppo_trainer_async.py``
(``GenerateSamplesActor.fit``, 106), ``trainer/ray/vllm_engine.py``, ``utils/agent.py``.

A synchronous trainer generates in its own process. ``GenerateSamplesActor`` of an asynchronous one has no steps: each
batch that it puts into the queue is a trace of its own, whose key is its place there. A generation begins when its
prompts are there: at the end of the data there are none, and so there is no step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory, StageHook
from otel_rl.hooks.submitted import SubmittedHook
from otel_rl.integrations.openrlhf.ppo_trainer import BATCH, batch_key, begin_next_step
from otel_rl.process.carrier import IN_USE, Carrier
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.records import Count, Deferred, Value
from otel_rl.single_controller.sample_groups import count_dropped, of_sample, sample_counts
from otel_rl.single_controller.tables import sync_hooks
from otel_rl.trace.apart import link_apart, open_apart
from otel_rl.trace.stage import Stage, innermost

SAMPLES = "openrlhf.trainer.ppo_utils.samples_generator"
GENERATOR = f"{SAMPLES}:SamplesGenerator"
AGENT = "openrlhf.utils.agent"
EXECUTORS = "AgentExecutorBase", "SingleTurnAgentExecutor", "MultiTurnAgentExecutor"


@dataclass(eq=False)
class BatchesMade(Memory):
    """What a process that generates, or serves rollouts, remembers."""

    generator: Any = None
    """The ``GenerateSamplesActor`` whose ``fit`` goes on."""
    batches: int = 0
    """How many batches it has put into the queue."""
    generated: str = ""
    """The key of the batch that was generated last."""
    stage: Stage | None = None
    """The generation that goes on."""
    executor: Any = None
    """The executor of this server, once what its class overrides is hooked."""


generating = BatchesMade.keep("generating")


# --- batches ----------------------------------------------------------------------------------------------------------


def _began(args: Args, kwargs: Kwargs) -> None:
    generating.generator = args[0]


def _put(args: Args, kwargs: Kwargs, result: object) -> None:
    """Count a batch: ``Queue.put(self, item, ...)`` of Ray, by which evaluations and the end go, too."""
    is_ours = args[0] is getattr(generating.generator, "rollout_queue", args)
    generating.batches += is_ours and isinstance(args[1], tuple) and len(args[1]) == BATCH


def _collected(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Begin a generation, and the step that it is for: ``_collect_prompt_batch`` returns prompts first.

    Later calls of the same generation replace prompts that were filtered. An evaluation has its stage already.
    """
    around = innermost()
    if not result[0] or generating.stage is not None or (around is not None and around.name == vocabulary.SAMPLE):
        return
    begin_next_step()
    stage = generating.stage = Stage(vocabulary.SAMPLE, {vocabulary.MODE: "train"}, coarse=True)
    if generating.generator is None:
        stage.open()
    else:
        generating.generated = batch_key(generating.batches + 1)
        open_apart(stage, generating.generated, None)


def _generated(args: Args, kwargs: Kwargs, result: Any) -> None:
    """End a generation, and count prompts that were replaced since their rewards are out of range."""
    _end_generation()
    if kwargs.get("dynamic_filtering"):
        samples, prompts, _ = result
        group = kwargs.get("n_samples_per_prompt") or args[0].args.rollout.n_samples_per_prompt
        count_dropped(prompts - len(samples) // int(group), "filtered", "train")


def _failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    _end_generation(error)


def _end_generation(error: BaseException | None = None) -> None:
    stage, generating.stage = generating.stage, None
    if stage is not None:
        if error is not None:
            stage.fail(error)
        stage.close(monotonic_ns())


def _evaluated(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    return None, f"evaluation-{args[0]._last_eval_step}"


def _taken(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count the samples that are trained next: ``generate_samples`` returns them first; others wait for later steps.

    A batch of such others has a trace, too, which its step links to: an empty one that links to their generation's.
    """
    if generating.generator is not None and result[0] and not result[2]:
        stage = Stage(vocabulary.SAMPLE, {vocabulary.MODE: "train"}, coarse=True)
        open_apart(stage, batch_key(generating.batches + 1), None)
        link_apart(stage, {generating.generated: {}})
        stage.close(monotonic_ns())
    state.add(Deferred(_count, ([(one.action_mask, one.attention_mask) for one in result[0]],)))


def _count(masks: list[tuple[Any, Any]]) -> tuple[Count, ...]:
    """Count samples and tokens, in the flusher; what others write after the policy began is the environment's."""
    written = sum(int(action.sum()) for action, _ in masks)
    begun = sum(int(action.flatten().nonzero()[0]) + 1 for action, _ in masks if action.any())
    whole = sum(int(attended.sum()) for action, attended in masks if action.any())
    return sample_counts(len(masks), begun, written, whole - begun - written)


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
    """Describe a conversation: ``execute`` returns its tokens, and the ranges that the policy wrote."""
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
    CallbackHook(target=f"{GENERATOR}.generate_samples", after=_taken),
    StageHook(
        target=f"{GENERATOR}.generate_eval_samples", stage=vocabulary.SAMPLE, attributes=((vocabulary.MODE, "eval"),)
    ),
    CallbackHook(target=f"{SAMPLES}:_collect_prompt_batch", after=_collected),
    CallbackHook(target=f"{GENERATOR}._generate_vllm", after=_generated, failed=_failed),
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
