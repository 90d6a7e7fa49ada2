"""How much a batch of ROLL holds. Source: ``distributed/scheduler/protocol.py`` (``DataProto``)."""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.records import Value
from otel_rl.trace.values import is_on_host

COUNTED = (
    vocabulary.BATCH_SIZE, vocabulary.TOKENS_PROMPT, vocabulary.TOKENS_RESPONSE, vocabulary.TOKENS_ENVIRONMENT,
)  # fmt: skip
"""What is counted of samples that are trained on, in the order of ``count_samples``."""


def rows_of(data: Any) -> dict[str, Value]:
    """Count samples, and tokens whose masks are on the host and in this process."""
    batch = getattr(data, "batch", None)
    if batch is None:
        return {}
    said: dict[str, Value] = {vocabulary.BATCH_SIZE: int(batch.batch_size[0])}
    keys = set(batch.keys())
    if not {"attention_mask", "response_mask"} <= keys or not is_on_host(batch["attention_mask"]):
        return said
    tokens, response = int(batch["attention_mask"].sum()), int(batch["response_mask"].sum())
    prompt = int(batch["prompt_mask"].sum()) if "prompt_mask" in keys else tokens - response
    return said | {
        vocabulary.TOKENS: tokens,
        vocabulary.TOKENS_PROMPT: prompt,
        vocabulary.TOKENS_RESPONSE: response,
        vocabulary.TOKENS_ENVIRONMENT: max(0, tokens - prompt - response),
    }
