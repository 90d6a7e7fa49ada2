"""TRL: GRPO and RLOO — rollout, rewards, log-probabilities, advantage, forward, weight sync, TRL's own metrics.

Runs in every rank. Source: trl 1.16, ``trainer/grpo_trainer.py`` and ``rloo_trainer.py``. Rollout
post-processing and advantage are inline there: they are taken from the end of one call to the begin of the next. The
loop itself (steps, data wait, optimizer, evaluation) is ``transformers.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks.install import Hook
from otel_rl.integrations.trl import model as trl_model
from otel_rl.integrations.trl import rollouts, tools
from otel_rl.integrations.trl.metrics import evaluation_metrics, keep_loss, step_metrics
from otel_rl.integrations.trl.rollouts import EVAL, SERVER_HOOKS, TRAIN, Rollout, Sampling, mode_of, policy_version
from otel_rl.probes import deferred
from otel_rl.probes.deferred import deferral
from otel_rl.process.identity import identifying, training_of
from otel_rl.process.state import state
from otel_rl.records import Count, PendingAttributes, Point, Value
from otel_rl.requests.memory import generation
from otel_rl.trace.gap import begin_between, end_between
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, current_stage

PACKAGE = "trl"
SUPPORTS = ">=1.16,<2"

TRAINERS = {"grpo_trainer": "GRPOTrainer", "rloo_trainer": "RLOOTrainer"}
HIDING = ("DeepSpeedEngine",)
"""Models in whose forward collectives run that Python may not see; those of DDP, FSDP1 and FSDP2 are seen."""

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def _trainer_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Tell the resource what is trained."""
    from importlib.metadata import version

    state.identify(system=PACKAGE, system_version=version(PACKAGE), **training_of(args[0]))
    attempt("read", "the model of a trainer", trl_model.see, args[0])


def _begin_training(args: Args, kwargs: Kwargs) -> None:
    """Tell it of a trainer whose constructor was not hooked: another library made its class anew from TRL's source."""
    if identifying.learned.get("system") != PACKAGE:
        _trainer_made(args, kwargs, None)


# --- rollout ----------------------------------------------------------------------------------------------------------


def _end_between(args: Args, kwargs: Kwargs) -> None:
    end_between()


def _begin_rollout(args: Args, kwargs: Kwargs) -> None:
    end_between()
    trainer, prompts = args[0], args[1]
    state.training.mode = ""
    mode = state.training.mode = mode_of(trainer)
    generation.sampling = Sampling(
        trainer, prompts, mode=mode, policy=policy_version(trainer), size=_group_size(trainer, mode)
    )


def _say_rollout(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Say what is known before; requests may be counted before their rollout ends, as training or as evaluation."""
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
    """Environments are reset before the rollout."""
    if getattr(args[0], "environment_factories", None):
        begin_between(vocabulary.ENVIRONMENT_RESET, {vocabulary.MODE: mode_of(args[0])})


def _describe_rollout(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Count the tokens of this rank from the token ids themselves: exact, and no device is read.

    GRPO gives a mask too, where a tool or an environment may have written parts of the responses.
    """
    if deferral.pending:  # TRL has read the tokens: the numbers of its requests are there too
        deferred.resolve()
    prompts, responses, mask = result[0], result[1], result[2] if len(result) > 3 else None
    mode = mode_of(args[0])
    prompt, written = sum(map(len, prompts)), sum(map(len, responses))
    response = written if mask is None else int(sum(map(sum, mask)))
    rollout = state.training.rollouts[mode] = Rollout(current_stage(), prompt + written)
    if mode is TRAIN and state.training.throughput is not None:
        state.training.throughput.rollout(len(responses), prompt, response, written - response)
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


def _group_size(trainer: Any, mode: str) -> int:
    size = trainer.num_generations if mode is TRAIN else getattr(trainer, "num_generations_eval", 0)
    return int(size or trainer.num_generations)


def _end_rollout(args: Args, kwargs: Kwargs, result: Any) -> None:
    generation.sampling = None
    _begin_processing(args, kwargs, result)


def _begin_processing(args: Args, kwargs: Kwargs, result: Any) -> None:
    begin_between(vocabulary.SAMPLE_PROCESS, {vocabulary.MODE: mode_of(args[0])})


def _scored(args: Args, kwargs: Kwargs, result: Any) -> None:
    if mode_of(args[0]) == TRAIN:
        attempt("observe", "a rollout", trl_model.see_rollout, result)
    _begin_processing(args, kwargs, result)
    state.training.mode = ""


def _rollout_failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    state.training.rewarding = generation.sampling = None
    state.training.mode = ""
    end_between(error)


# --- log-probabilities ------------------------------------------------------------------------------------------------


def _logprob_stage(args: Args, kwargs: Kwargs) -> str | None:
    """The same method serves old, reference and training log-probabilities; the last are part of the forward.

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

    return torch.is_grad_enabled() or bool(state.training.evaluating and not state.training.mode)


def _say_logprob(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    trainer, model, input_ids = args[0], args[1], args[2]
    mode, shape = mode_of(trainer), input_ids.shape
    if _is_of_loss():
        of_loss: dict[str, Value] = {vocabulary.MODE: mode, vocabulary.TRAIN_BATCH_SIZE: shape[0]}
        _consume(of_loss, mode)
        return of_loss
    said: dict[str, Value] = {
        vocabulary.MODE: mode,
        vocabulary.LOGPROB_KIND: "ref" if _is_reference(trainer, model) else "old",
        vocabulary.BATCH_SIZE: shape[0],
    }
    rollout = state.training.rollouts.get(mode)
    if rollout is not None:
        said[vocabulary.ROLLOUT_ID] = rollout.id
        said[vocabulary.TOKENS] = rollout.tokens
        said[vocabulary.TOKENS_PADDING] = max(shape.numel() - rollout.tokens, 0)
    if state.identity.world_size > 1 and _hides_collectives(model):
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
        is_reference = kind == "ref"
        attempt("observe", "log-probabilities", trl_model.see_logprobs, args[0], *args[3:5], is_reference)


def _is_reference(trainer: Any, model: Any) -> bool:
    """The reference is a model of its own, or the policy with its adapter off (or its adapter ``ref`` on).

    The first layer of an adapter says which; a whole model has a method of the same name.
    """
    if trainer.ref_model is not None:
        return model is trainer.ref_model
    for module in model.modules() if hasattr(getattr(trainer, "model", None), "peft_config") else ():
        is_off = getattr(module, "disable_adapters", None)
        if isinstance(is_off, bool):
            return is_off or "ref" in module.active_adapters
    return False


def _hides_collectives(model: Any) -> bool:
    return any(cls.__name__ in HIDING for cls in type(model).__mro__)


# --- rewards and advantage --------------------------------------------------------------------------------------------


def _begin_rewards(args: Args, kwargs: Kwargs) -> None:
    end_between()
    state.training.mode = mode_of(args[0])
    state.training.rewarding = {}


def _say_rewards(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {vocabulary.MODE: mode_of(args[0]), vocabulary.BATCH_SIZE: len(args[2])}


def _begin_advantage(args: Args, kwargs: Kwargs, result: Any) -> None:
    state.training.rewarding = None
    begin_between(vocabulary.ADVANTAGE, {vocabulary.MODE: mode_of(args[0]), vocabulary.BATCH_SIZE: len(args[2])})


def _advantage_over(args: Args, kwargs: Kwargs) -> None:
    """The first ``gather_object`` after the rewards collects texts for the log: the advantages are done."""
    between = tracing.between
    if between is not None and between.attributes and between.name == vocabulary.ADVANTAGE:
        begin_between(vocabulary.LOG, {vocabulary.MODE: between.attributes[vocabulary.MODE]})


def _begin_function(args: Args, kwargs: Kwargs, result: Any) -> None:
    """TRL times every reward function, the asynchronous ones in their own tasks: a span each."""
    rewarding, function = state.training.rewarding, str(args[0].name).partition(".")[2]
    if rewarding is None or function == "_calculate_rewards":
        return
    attributes: dict[str, Value] = {vocabulary.REWARD_FUNCTION: function, vocabulary.MODE: state.training.mode}
    rewarding[args[0]] = Stage(f"{vocabulary.REWARD} {function}", attributes, coarse=True).__enter__()


def _end_function(args: Args, kwargs: Kwargs) -> None:
    span = state.training.rewarding and state.training.rewarding.pop(args[0], None)
    if span:
        error = args[2] if len(args) > 2 else None
        span.__exit__(type(error) if error is not None else None, error, None)


# --- update -----------------------------------------------------------------------------------------------------------


def _begin_forward(args: Args, kwargs: Kwargs) -> None:
    deferred.resolve()
    end_between()
    state.training.mode = ""
    state.training.forward = None


def _say_forward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Describe the micro-batch before its forward, which may run out of memory; its masks follow from the device."""
    trainer, model, inputs = args[0], args[1], args[2]
    prompt_mask, completion_mask = inputs["prompt_mask"], inputs["completion_mask"]
    mode = mode_of(trainer)
    said = PendingAttributes(
        {
            vocabulary.MODE: mode,
            vocabulary.TRAIN_BATCH_SIZE: completion_mask.shape[0],
            vocabulary.GROUP_SIZE: _group_size(trainer, mode),
            vocabulary.POLICY_VERSION: policy_version(trainer),
        }
    )
    if state.identity.world_size > 1 and _hides_collectives(model):
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

    if not deferred.read(masks, use):
        said.is_complete = True
    _consume(said, mode)
    return said


def _forward_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count the tokens of a forward that has returned, once they are known."""
    stage, throughput = current_stage(), state.training.throughput
    said = (stage and stage.attributes) or {}
    if said.get(vocabulary.MODE) != TRAIN:
        return

    def count(_: list[float]) -> Iterable[Count | Point]:
        kinds = (vocabulary.TOKENS_PROMPT, vocabulary.TOKENS_RESPONSE, vocabulary.TOKENS_PADDING)
        if vocabulary.TOKENS not in said:
            return ()
        environment = said.get(vocabulary.TOKENS_ENVIRONMENT, 0)
        counts: Iterable[Count] = throughput.count_forward(*(said[kind] for kind in kinds), environment)
        return counts

    if throughput is not None:
        deferred.follow(count)
    state.training.forward = said
    keep_loss(result)
    attempt("observe", "a micro-batch", trl_model.see_forward, args[0], args[2], result)


def _consume(said: dict[str, Value], mode: str) -> None:
    """Name the rollout that this micro-batch comes from; a later step that uses it again links to it."""
    rollout, container = state.training.rollouts.get(mode), tracing.container
    if rollout is None:
        return
    said[vocabulary.ROLLOUT_ID] = rollout.id
    if rollout.span is not None and container is not None and rollout.span.trace is not container.trace:
        links = container.links or []
        if all(link.span_id != rollout.span.span_id for link in links):
            container.add_link(rollout.span.get_span_context())


def _end_inputs(args: Args, kwargs: Kwargs, result: Any) -> None:
    end_between()


def _step_over(args: Args, kwargs: Kwargs) -> None:
    """Right after ``on_step_end`` TRL's metrics of the step are complete and not yet cleared by its log."""
    if state.training.inner:
        return
    state.training.forward = None
    if hasattr(args[0], "_metrics"):
        step_metrics(args[0])


def _before_log(args: Args, kwargs: Kwargs) -> None:
    if mode_of(args[0]) == EVAL:
        evaluation_metrics(args[0])


def _hooks(module: str, trainer: str) -> tuple[Hook, ...]:
    """The hooks of one trainer; both have the same methods."""
    at = f"trl.trainer.{module}:{trainer}"
    return (
        Hook(target=f"{at}.__init__", after=_trainer_made),
        Hook(target=f"{at}.get_train_dataloader", before=_begin_training),
        Hook(target=f"{at}._prepare_inputs", after=_end_inputs, failed=_rollout_failed),
        Hook(
            target=f"{at}._generate",
            stage=vocabulary.SAMPLE,
            attributes=_say_rollout,
            before=_begin_rollout,
            capture=_describe_rollout,
            after=_end_rollout,
        ),
        Hook(target=f"{at}._generate_single_turn", before=rollouts.begin_turn, after=rollouts.end_turn),
        Hook(target=f"{at}._tool_call_loop", before=tools.begin_tools, optional=True),
        Hook(
            target=f"{at}._get_per_token_logps_and_entropies",
            stage=_logprob_stage,
            attributes=_say_logprob,
            capture=_logprob_made,
        ),
        Hook(
            target=f"{at}._calculate_rewards",
            stage=vocabulary.REWARD,
            attributes=_say_rewards,
            before=_begin_rewards,
            after=_begin_advantage,
        ),
        Hook(target=f"trl.trainer.{module}:gather_object", collective=0, before=_advantage_over),
        Hook(target=f"trl.trainer.{module}:gather", collective=0),
        Hook(
            target=f"{at}._generate_and_score_completions",
            before=_begin_scoring,
            after=_scored,
            failed=_rollout_failed,
        ),
        Hook(
            target=f"{at}.compute_loss",
            stage=vocabulary.FORWARD,
            attributes=_say_forward,
            before=_begin_forward,
            capture=_forward_made,
        ),
        Hook(target=f"{at}.log", stage=vocabulary.LOG, before=_before_log),
        Hook(target=f"{at}._save_checkpoint", stage=vocabulary.CHECKPOINT),
    )


HOOKS = (
    *(hook for module, trainer in TRAINERS.items() for hook in _hooks(module, trainer)),
    Hook(target="trl.extras.profiling:ProfilingContext.__enter__", during="rewarding", after=_begin_function),
    Hook(target="trl.extras.profiling:ProfilingContext.__exit__", during="rewarding", before=_end_function),
    Hook(
        target="trl.generation.vllm_generation:VLLMGeneration.sync_weights", stage=vocabulary.SYNC, before=_end_between
    ),
    Hook(target="transformers.trainer:Trainer._maybe_log_save_evaluate", before=_step_over),
    *SERVER_HOOKS,
)
ATTACHMENTS = ()
