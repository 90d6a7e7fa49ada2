"""TRL: the parts of a rollout: tokenizing, generating, decoding.

Source: trl 1.16, ``trainer/grpo_trainer.py`` (``_tokenize_prompts``, 1684; ``_generate_single_turn``, 1763;
``_get_tool_suffix_ids``, 1893; ``_tool_call_loop``, 1945; ``_generate``, 2193) and ``generation/vllm_generation.py``.
Decoding is inline: it lasts from the end of the engine's call to the gather of lengths, the first call of a tool, or
the end of the rollout. A tokenizer of any kind shows in it, whatever its methods are called. What tools answered is
tokenized one by one: that lasts from the first answer to the engine's next call. A ``rollout_func`` has no parts.
"""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, StageHook
from otel_rl.integrations.trl.tools import begin_tools
from otel_rl.records import Value
from otel_rl.requests.memory import generation
from otel_rl.trace.gap import begin_between, end_between
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import current_stage
from otel_rl.trace.throughput import add_padding


def _mode(*_: object) -> dict[str, Value]:
    sampling = generation.sampling
    return {} if sampling is None else {vocabulary.MODE: sampling.mode}


def _tokenizing(args: Args, kwargs: Kwargs) -> str | None:
    return None if generation.sampling is None else vocabulary.SAMPLE_TOKENIZE


def _generating(args: Args, kwargs: Kwargs) -> str | None:
    """Return no stage for vLLM, whose weights TRL syncs first: its own call is the stage."""
    return None if generation.sampling is None or args[0].use_vllm else vocabulary.SAMPLE_GENERATE


def _asking_vllm(args: Args, kwargs: Kwargs) -> str | None:
    return None if generation.sampling is None else vocabulary.SAMPLE_GENERATE


def _begin_turn(args: Args, kwargs: Kwargs) -> None:
    """Count the prompts as soon as they are tokens, in the first turn: further ones have the answers of tools too."""
    end_between()
    if generation.sampling is not None:
        generation.sampling.positions = 0
    stage = current_stage()
    if stage is not None and stage.name == vocabulary.SAMPLE:
        said = stage.attributes or {}
        if vocabulary.TOKENS_PROMPT not in said:
            stage.set_attribute(vocabulary.TOKENS_PROMPT, sum(map(len, args[1])))


def _end_turn(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count the padding of a turn here: TRL may cut what was generated at the limit of the whole response."""
    sampling, stage = generation.sampling, current_stage()
    if sampling is None:
        return
    positions, sampling.positions = sampling.positions, None
    if positions and stage is not None:
        generated = result[0] if isinstance(result, tuple) else result  # of GRPO with their log-probabilities
        add_padding(stage, positions - sum(map(len, generated)))
    begin_between(vocabulary.SAMPLE_DECODE, _mode())


def _begin_tools(args: Args, kwargs: Kwargs) -> None:
    end_between()
    begin_tools(args, kwargs)


def _begin_answers(args: Args, kwargs: Kwargs) -> None:
    between = tracing.between
    if generation.sampling is not None and (between is None or between.name != vocabulary.SAMPLE_TOKENIZE):
        begin_between(vocabulary.SAMPLE_TOKENIZE, _mode())


def _end_tools(args: Args, kwargs: Kwargs, result: Any) -> None:
    end_between()


def hooks(trainer: str) -> tuple[Hook, ...]:
    """Return the hooks on a trainer's class, named as in targets."""
    return (
        StageHook(target=f"{trainer}._tokenize_prompts", stage=_tokenizing, attributes=_mode),
        StageHook(
            target=f"{trainer}._generate_single_turn",
            stage=_generating,
            attributes=_mode,
            before=_begin_turn,
            after=_end_turn,
        ),
        CallbackHook(target=f"{trainer}._tool_call_loop", before=_begin_tools, after=_end_tools, optional=True),
        CallbackHook(target=f"{trainer}._get_tool_suffix_ids", before=_begin_answers, optional=True),
    )


VLLM = StageHook(target="trl.generation.vllm_generation:VLLMGeneration.generate", stage=_asking_vllm, attributes=_mode)
