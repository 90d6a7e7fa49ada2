"""TRL: GRPO and RLOO — rollout, log-probabilities, advantage, forward, weight sync, TRL's own metrics.

Runs in every rank. Source: trl 1.16, ``trainer/grpo_trainer.py`` and ``rloo_trainer.py``. TrlRollout
post-processing and advantage are inline there: their stages last from the end of one call to the begin of the next. The
loop itself (steps, data wait, optimizer, evaluation) is that of transformers and accelerate. The parts of a rollout are
in ``generating``, rewards in ``rewards``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from otel_rl import vocabulary
from otel_rl.actions.memory import acting
from otel_rl.guard import attempt
from otel_rl.hooks import Args, CallbackHook, CollectiveHook, Hook, Integration, Kwargs, StageHook, Verified
from otel_rl.integrations.trl import async_grpo, generating, models, online_dpo, rewards, scored, weight_sync
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.integrations.trl.models import hides_collectives, is_reference
from otel_rl.integrations.trl.rollouts import (
    EVAL,
    SERVER,
    TRAIN,
    Sampling,
    TrlRollout,
    group_size,
    mode_of,
    policy_version,
)
from otel_rl.integrations.trl.run_settings import identify, is_identified, say_settings
from otel_rl.integrations.trl.trainer_metrics import (
    CANONICAL,
    EVALUATION,
    evaluation_metrics,
    keep_loss,
    say_logged_loss,
    step_metrics,
)
from otel_rl.probes import deferred
from otel_rl.probes.deferred import deferral
from otel_rl.records import Count, PendingAttributes, Point, Value
from otel_rl.requests.memory import generation
from otel_rl.trace.gap import begin_between, end_between
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import current_stage
from otel_rl.trace.throughput import Throughput
from otel_rl.trace.training import training

CHECKPOINTS = ((vocabulary.CHECKPOINT_FORMAT, "transformers"),)
TRAINERS = {"grpo_trainer": "GRPOTrainer", "rloo_trainer": "RLOOTrainer"}


def _trainer_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    identify(args, kwargs, result)
    attempt("read", "the model of a trainer", models.read_networks, args[0])


def _begin_training(args: Args, kwargs: Kwargs) -> None:
    """Identify a trainer whose constructor was not hooked: another library made its class anew from TRL's source."""
    if not is_identified():
        _trainer_made(args, kwargs, None)
    if not training.inner:
        acting.keys = {name: key for key, (name, labels) in CANONICAL.items() if not labels}
        rollouts.losses, rollouts.scored, training.step_over = [], {}, _step_over
        attempt("read", "the settings of a trainer", say_settings, args[0])


# --- rollout ----------------------------------------------------------------------------------------------------------


def _end_gap(*_: object) -> None:
    end_between()


def _begin_rollout(args: Args, kwargs: Kwargs) -> None:
    end_between()
    trainer, prompts = args[0], args[1]
    rollouts.mode = ""
    mode = rollouts.mode = mode_of(trainer)
    generation.sampling = Sampling(
        trainer, prompts, mode=mode, policy=policy_version(trainer), size=group_size(trainer, mode)
    )


def _say_rollout(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    sampling = generation.sampling
    if sampling is None:
        return {}
    said: dict[str, Value] = {
        vocabulary.MODE: sampling.mode,
        vocabulary.POLICY_VERSION: sampling.policy,
        vocabulary.GROUP_SIZE: sampling.size,
    }
    if sampling.rows:
        said[vocabulary.SAMPLE_BATCH_SIZE] = sampling.rows
    return said


def _begin_scoring(args: Args, kwargs: Kwargs) -> None:
    """Begin the reset of environments, which comes before the rollout."""
    if getattr(args[0], "environment_factories", None):
        begin_between(vocabulary.ENVIRONMENT_RESET, {vocabulary.MODE: mode_of(args[0])})


def _describe_rollout(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Count the tokens of this rank from the token ids themselves: exact, and no device is read.

    GRPO gives a mask too, where a tool or an environment may have written parts of the responses.
    """
    end_between()  # decoding, where no gather followed
    if deferral.pending:  # TRL has read the tokens: the numbers of its requests are there too
        deferred.resolve()
    prompts, responses, mask = result[0], result[1], result[2] if len(result) > 3 else None
    mode = mode_of(args[0])
    prompt, written = sum(map(len, prompts)), sum(map(len, responses))
    response = written if mask is None else int(sum(map(sum, mask)))
    rollout = rollouts.open[mode] = TrlRollout(current_stage(), prompt + written)
    if mode is TRAIN:
        attempt("keep", "samples", scored.keep_generated, rollout.span, generation.sampling, result)
        if training.throughput is not None:
            training.throughput.rollout(len(responses), prompt, response, written - response)
    described: dict[str, Value] = {
        vocabulary.MODE: mode,
        vocabulary.ROLLOUT_ID: rollout.id,
        vocabulary.SAMPLE_BATCH_SIZE: len(responses),
        vocabulary.TOKENS: prompt + written,
        vocabulary.TOKENS_PROMPT: prompt,
        vocabulary.TOKENS_RESPONSE: response,
    }
    if mask is not None:
        described[vocabulary.TOKENS_ENVIRONMENT] = written - response
    return described


def _end_rollout(args: Args, kwargs: Kwargs, result: Any) -> None:
    generation.sampling = None
    _begin_processing(args, kwargs, result)


def _begin_processing(args: Args, kwargs: Kwargs, result: Any) -> None:
    begin_between(vocabulary.SAMPLE_PROCESS, {vocabulary.MODE: mode_of(args[0])})


def _scored(args: Args, kwargs: Kwargs, result: Any) -> None:
    if mode_of(args[0]) == TRAIN:
        attempt("observe", "a rollout", models.observe_rollout, result)
        attempt("record", "samples", scored.record_samples, args[0], result)
        attempt("record", "advantages", rewards.record_advantages, result)
    _begin_processing(args, kwargs, result)
    rollouts.mode = ""


def _rollout_failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    rollouts.rewarding = rollouts.generated = generation.sampling = None
    rollouts.mode = ""
    end_between(error)


# --- log-probabilities ------------------------------------------------------------------------------------------------


def _logprob_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Return no stage for training log-probabilities, which are part of the forward.

    Where another library's function computes the loss, and is not hooked, they are the forward.
    """
    stage = current_stage()
    if stage is not None and stage.name == vocabulary.FORWARD:
        return None
    end_between()
    return vocabulary.FORWARD if _is_of_loss() else vocabulary.LOGPROB


def _is_of_loss() -> bool:
    """Return whether log-probabilities are those of a loss: TRL computes others without gradients, while it scores."""
    import torch

    return torch.is_grad_enabled() or bool(training.evaluating and not rollouts.mode)


def _say_logprob(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    trainer, model, input_ids = args[0], args[1], args[2]
    mode, shape = mode_of(trainer), input_ids.shape
    if _is_of_loss():
        of_loss: dict[str, Value] = {vocabulary.MODE: mode, vocabulary.TRAIN_BATCH_SIZE: shape[0]}
        _consume(of_loss, mode)
        return of_loss
    said: dict[str, Value] = {
        vocabulary.MODE: mode,
        vocabulary.LOGPROB_KIND: "ref" if is_reference(trainer, model) else "old",
        vocabulary.BATCH_SIZE: shape[0],
    }
    rollout = rollouts.open.get(mode)
    if rollout is not None:
        said[vocabulary.ROLLOUT_ID] = rollout.id
        said[vocabulary.TOKENS] = rollout.tokens
        said[vocabulary.TOKENS_PADDING] = max(shape.numel() - rollout.tokens, 0)
    if hides_collectives(model):
        said[vocabulary.COMM_HIDDEN] = True
    if rollout is not None and trainer.mask_truncated_completions:
        return _say_unmasked(said, args[3] if len(args) > 3 else kwargs["attention_mask"])
    return said


def _say_unmasked(known: dict[str, Value], mask: Any) -> PendingAttributes:
    """Leave out the tokens of truncated responses, which TRL masks; their number follows from the device."""
    said, positions = PendingAttributes(known), mask.numel()

    def use(values: list[float]) -> Iterable[Count | Point]:
        said[vocabulary.TOKENS] = int(values[0])
        said[vocabulary.TOKENS_PADDING] = positions - int(values[0])
        said.is_complete = True
        return ()

    said.is_complete = not deferred.read((mask,), use)
    return said


def _logprob_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    stage = current_stage()
    said = (stage and stage.attributes) or {}
    kind = said.get(vocabulary.LOGPROB_KIND)
    if said.get(vocabulary.MODE) == TRAIN and kind is not None:
        attempt("observe", "log-probabilities", models.observe_logprobs, args[0], *args[3:5], kind == "ref")


# --- advantage --------------------------------------------------------------------------------------------------------


def _begin_advantage(args: Args, kwargs: Kwargs, result: Any) -> None:
    rewards.end_rewards(args, kwargs, result)
    attempt("keep", "texts of samples", scored.keep_texts, args)
    begin_between(vocabulary.ADVANTAGE, {vocabulary.MODE: mode_of(args[0]), vocabulary.BATCH_SIZE: len(args[2])})


def _advantage_over(args: Args, kwargs: Kwargs) -> None:
    """End the advantages: the first ``gather_object`` after the rewards collects texts for the log."""
    between = tracing.between
    if between is not None and between.name == vocabulary.ADVANTAGE and between.attributes:
        begin_between(vocabulary.LOG_GATHER, {vocabulary.MODE: between.attributes[vocabulary.MODE]})


# --- update -----------------------------------------------------------------------------------------------------------


def _begin_forward(args: Args, kwargs: Kwargs) -> None:
    deferred.resolve()
    end_between()
    rollouts.mode = ""
    training.forward = None


def _say_forward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Describe the micro-batch before its forward, which may run out of memory; its masks follow from the device."""
    trainer, model, inputs = args[0], args[1], args[2]
    prompt_mask, completion_mask = inputs["prompt_mask"], inputs["completion_mask"]
    mode = mode_of(trainer)
    said = PendingAttributes(
        {
            vocabulary.MODE: mode,
            vocabulary.TRAIN_BATCH_SIZE: completion_mask.shape[0],
            vocabulary.GROUP_SIZE: group_size(trainer, mode),
            vocabulary.POLICY_VERSION: policy_version(trainer),
        }
    )
    if hides_collectives(model):
        said[vocabulary.COMM_HIDDEN] = True
    positions, tool_mask = prompt_mask.numel() + completion_mask.numel(), inputs.get("tool_mask")
    masks = [prompt_mask, completion_mask]
    if tool_mask is not None:
        masks.append(completion_mask * tool_mask)  # the tokens that the loss uses

    def use(values: list[float]) -> Iterable[Count | Point]:
        prompt, written, response = int(values[0]), int(values[1]), int(values[-1])
        said[vocabulary.TOKENS] = prompt + written
        said[vocabulary.TOKENS_PROMPT] = prompt
        said[vocabulary.TOKENS_RESPONSE] = response
        if tool_mask is not None:
            said[vocabulary.TOKENS_ENVIRONMENT] = written - response
        said[vocabulary.TOKENS_PADDING] = positions - prompt - written
        said.is_complete = True
        return ()

    said.is_complete = not deferred.read(masks, use)
    _consume(said, mode)
    return said


def _forward_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count the tokens of a forward that has returned, once they are known."""
    stage, throughput = current_stage(), training.throughput
    said = (stage and stage.attributes) or {}
    if said.get(vocabulary.MODE) != TRAIN:
        return
    if throughput is not None:
        deferred.follow(partial(_count_forward, throughput, said))
    training.forward = said
    keep_loss(result)
    attempt("observe", "a micro-batch", models.observe_forward, args[0], args[2], result)


def _count_forward(throughput: Throughput, said: Mapping[str, Any], _: list[float]) -> Iterable[Count]:
    if vocabulary.TOKENS not in said:
        return ()
    kinds = (vocabulary.TOKENS_PROMPT, vocabulary.TOKENS_RESPONSE, vocabulary.TOKENS_PADDING)
    prompt, response, padding = (said[kind] for kind in kinds)
    return throughput.count_forward(prompt, response, padding, said.get(vocabulary.TOKENS_ENVIRONMENT, 0))


def _consume(said: dict[str, Value], mode: str) -> None:
    """Name the rollout that this micro-batch comes from; another step that uses it again links to it."""
    rollout, container = rollouts.open.get(mode), tracing.container
    if rollout is None:
        return
    said[vocabulary.ROLLOUT_ID] = rollout.id
    if rollout.span is not None and container is not None and rollout.span.trace is not container.trace:
        links = container.links or []
        if all(link.span_id != rollout.span.span_id for link in links):
            container.add_link(rollout.span.get_span_context())


def _step_over(trainer: Any) -> None:
    """Record TRL's metrics of the step: after ``on_step_end`` they are complete, and its log has not cleared them."""
    training.forward = None
    rewards.record_scored(TRAIN, ())
    if hasattr(trainer, "_metrics"):
        step_metrics(trainer)


def _before_log(args: Args, kwargs: Kwargs) -> None:
    if mode_of(args[0]) == EVAL:
        rewards.record_scored(EVAL, (EVALUATION,))
        evaluation_metrics(args[0])
    elif not training.inner:
        say_logged_loss(args[0], args[1])


def _hooks(module: str, trainer: str) -> tuple[Hook, ...]:
    at = f"trl.trainer.{module}:{trainer}"
    return (
        CallbackHook(target=f"{at}.__init__", after=_trainer_made),
        CallbackHook(target=f"{at}.get_train_dataloader", before=_begin_training),
        CallbackHook(target=f"{at}._prepare_inputs", after=_end_gap, failed=_rollout_failed),
        StageHook(
            target=f"{at}._generate",
            stage=vocabulary.SAMPLE,
            attributes=_say_rollout,
            before=_begin_rollout,
            capture=_describe_rollout,
            after=_end_rollout,
        ),
        *generating.hooks(at),
        StageHook(
            target=f"{at}._get_per_token_logps_and_entropies",
            stage=_logprob_stage,
            attributes=_say_logprob,
            capture=_logprob_made,
        ),
        StageHook(
            target=f"{at}._calculate_rewards",
            stage=vocabulary.REWARD,
            attributes=rewards.say_rewards,
            before=rewards.begin_rewards,
            after=_begin_advantage,
        ),
        CollectiveHook(target=f"trl.trainer.{module}:gather_object", before=_advantage_over),
        CollectiveHook(target=f"trl.trainer.{module}:gather"),
        CallbackHook(
            target=f"{at}._generate_and_score_completions",
            before=_begin_scoring,
            after=_scored,
            failed=_rollout_failed,
        ),
        StageHook(
            target=f"{at}.compute_loss",
            stage=vocabulary.FORWARD,
            attributes=_say_forward,
            before=_begin_forward,
            capture=_forward_made,
        ),
        StageHook(target=f"{at}.log", stage=vocabulary.LOG, before=_before_log),
        StageHook(target=f"{at}._save_checkpoint", stage=vocabulary.CHECKPOINT, attributes=CHECKPOINTS),
    )


INTEGRATION = Integration(
    name="trl",
    package="trl",
    supports=">=1.16,<2",
    records="GRPO, RLOO, AsyncGRPO and OnlineDPO, also trainers that you derive from them",
    verified=Verified.REAL,
    needs=("torch", "accelerate", "transformers", "transformers_generate"),
    hooks=(
        *(hook for module, trainer in TRAINERS.items() for hook in _hooks(module, trainer)),
        *async_grpo.HOOKS,
        *online_dpo.HOOKS,
        *rewards.HOOKS,
        *weight_sync.HOOKS,
        generating.VLLM,
        StageHook(
            target="trl.generation.vllm_generation:VLLMGeneration.sync_weights",
            stage=vocabulary.SYNC,
            before=_end_gap,
        ),
        SERVER,
    ),
    memory=rollouts,
)
