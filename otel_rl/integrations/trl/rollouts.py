"""TRL's rollouts as requests: what the trainer knows of them, and those that a vLLM server answers.

Runs in every rank; a server is asked by rank 0 alone. Source: trl 1.16, ``trainer/grpo_trainer.py`` (``_generate``,
2193), ``generation/vllm_client.py`` (``_post``). The server returns tokens and how each sequence ended, but no times:
all sequences of one HTTP request begin and end with it. A server that is recorded itself counts them too, as ``vllm``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.hooks import Args, Kwargs, RequestHook
from otel_rl.ids import random_bits
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.requests.memory import generation
from otel_rl.requests.queue import UNKNOWN, Request, record_requests
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, current_parent
from otel_rl.trace.training import training

TRAIN, EVAL = "train", "eval"
ENDPOINTS = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/inference/v1/generate": "generate_content",
}


def mode_of(trainer: Any) -> str:
    """Return the mode: of the open evaluation, else of the rollout that is being made, else of the model.

    Continuous batching leaves the model training, also in an evaluation (TRL 1.16).
    """
    if training.evaluating:
        return EVAL
    return rollouts.mode or (TRAIN if trainer.model.training else EVAL)


def group_size(trainer: Any, mode: str) -> int:
    """Return how many samples of one prompt a trainer generates."""
    size = trainer.num_generations if mode is TRAIN else getattr(trainer, "num_generations_eval", 0)
    return int(size or trainer.num_generations)


def policy_version(trainer: Any) -> int:
    """Return the updates in the policy's weights: steps, less those whose update was skipped."""
    return int(trainer.state.global_step) - training.skipped


class TrlRollout:
    """The rollout that micro-batches are cut from: its id, its span, its tokens."""

    __slots__ = ("id", "span", "tokens")

    def __init__(self, span: Stage | None, tokens: int) -> None:
        self.id = f"{random_bits(64):016x}"
        self.span = span
        self.tokens = tokens


class Sampling:
    """What TRL knows of the requests of its open rollout; engines ask ``generation.sampling``."""

    __slots__ = ("first", "mode", "name", "policy", "positions", "rows", "size")

    def __init__(self, trainer: Any, prompts: Any, *, mode: str, policy: int, size: int) -> None:
        rollouts.begun += 1
        self.mode = mode
        self.policy = policy
        """Optimizer updates in the weights."""
        self.size = size
        """Samples of one prompt."""
        self.name = f"{mode}-{rollouts.begun}"
        """The same on every rank: all of them generate equally often."""
        self.rows = 0 if getattr(trainer, "rollout_func", None) is not None else len(prompts)
        """Samples of this rank; 0 where the user's own function decides on them."""
        self.first = int(trainer.accelerator.process_index) * self.rows
        self.positions: int | None = None
        """Positions that static batches have computed in TRL's open turn; None outside of one."""

    def place(self, index: int, rows: int) -> tuple[str, str]:
        """Return the names of sample and group of one row of this rank; empty if a turn has other rows than the first.

        They are empty also for rows of the user's own function, where ``rows`` is 0 if each rank has less than one.
        """
        return self.place_of_all(self.first + index) if self.rows and rows == self.rows else ("", "")

    def place_of_all(self, index: int) -> tuple[str, str]:
        """Return the names of sample and group of one row of all ranks together; groups lie one after the other."""
        return f"{self.name}.{index}", f"{self.name}.{index // self.size}"


class Posted:
    """One HTTP request to a vLLM server, of one prompt or many."""

    __slots__ = ("operation", "parent", "payload", "sampling", "submitted")

    def __init__(self, operation: str, payload: dict[str, Any]) -> None:
        self.submitted = monotonic_ns()
        self.operation = operation
        self.payload = payload
        self.sampling = generation.sampling
        self.parent = current_parent()
        if self.parent is None and self.sampling is not None:  # a thread of the client's own pool
            self.parent = next((one for one in tracing.open.copy() if _is_rollout(one)), None)

    def item(self, value: Any) -> None:
        """Do nothing: this is no generator."""

    def end(self, result: Any, error: BaseException | None) -> None:
        """Leave the answer to the flusher."""
        record_requests(
            _rows, self, monotonic_ns(), result, "" if error is None else type(error).__qualname__, parent=self.parent
        )


def _is_rollout(one: Any) -> bool:
    return getattr(one, "name", "") == vocabulary.SAMPLE


def _begin_post(args: Args, kwargs: Kwargs) -> Posted | None:
    url = str(args[1])
    operation = next((name for path, name in ENDPOINTS.items() if url.endswith(path)), None)
    return None if operation is None else Posted(operation, kwargs.get("json") or {})


def _rows(posted: Posted, ended: int, answer: Any, error: str) -> Iterator[Request]:
    payload, sampling = posted.payload, posted.sampling
    asked = {**payload, **payload.get("sampling_params", {})}
    each = int(asked.get("n") or 1)
    prompts = payload.get("prompt")
    if error:
        prompt, many = payload.get("token_ids"), len(prompts) if isinstance(prompts, list) else 1
        answer = {"prompt_token_ids": prompt, "choices": [{}] * (many * each)}
    name = answer.get("id") or f"{random_bits(64):016x}"
    is_placed = sampling is not None and isinstance(prompts, list) and each == sampling.size and sampling.rows
    for index, choice in enumerate(answer["choices"]):
        prompt = choice.get("prompt_token_ids") or answer.get("prompt_token_ids") or payload.get("token_ids")
        tokens = choice.get("token_ids")
        sample, group = sampling.place_of_all(index) if sampling is not None and is_placed else ("", "")
        policy = UNKNOWN if sampling is None else sampling.policy
        yield Request(
            "trl-client",
            posted.submitted,
            ended,
            input_tokens=UNKNOWN if prompt is None else len(prompt),
            output_tokens=UNKNOWN if tokens is None else len(tokens),
            finish=choice.get("finish_reason") or ("" if not error else "timeout" if "Timeout" in error else "error"),
            error=error,
            operation=posted.operation,
            model=os.path.basename(str(payload.get("model") or "")),
            id=f"{name}.{index}",
            sample=sample or (f"{name}.{index // each}" if each > 1 else ""),
            group=group,
            policy_start=policy,
            policy_end=policy,
            limit=int(asked.get("max_tokens") or UNKNOWN),
        )


SERVER = RequestHook(target="trl.generation.vllm_client:VLLMClient._post", watch=_begin_post)
