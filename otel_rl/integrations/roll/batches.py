"""How much a batch of ROLL holds. Source: ``distributed/scheduler/protocol.py`` (``DataProto``)."""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.records import Value
from otel_rl.trace.values import is_on_host


def rows_of(data: Any) -> dict[str, Value]:
    """Count samples, and tokens whose masks are on the host and in this process."""
    batch = getattr(data, "batch", None)
    if batch is None:
        return {}
    said: dict[str, Value] = {vocabulary.BATCH_SIZE: int(batch.batch_size[0])}
    keys = set(batch.keys())
    if not {"attention_mask", "response_mask"} <= keys or not is_on_host(batch["attention_mask"]):
        return said
    mask = batch["attention_mask"]
    tokens, response = int(mask.sum()), int(batch["response_mask"].sum())
    written = tokens - int(mask[:, : -batch["responses"].shape[1]].sum()) if "responses" in keys else response
    return said | {
        vocabulary.TOKENS: tokens,
        vocabulary.TOKENS_PROMPT: tokens - written,
        vocabulary.TOKENS_RESPONSE: response,
        vocabulary.TOKENS_ENVIRONMENT: max(0, written - response),
    }
