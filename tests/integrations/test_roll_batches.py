"""How much a batch of ROLL holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from otel_rl import vocabulary as v
from otel_rl.integrations.roll.batches import rows_of

KEYS = v.BATCH_SIZE, v.TOKENS, v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.TOKENS_ENVIRONMENT


class Tensors(dict[str, Any]):
    """Stands for a ``TensorDict``."""

    batch_size = (2,)


ATTENTION = np.array([[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
POLICY = np.array([[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 0, 1]])
"""A tool wrote one token of the second response."""
MASKS = {"attention_mask": ATTENTION, "response_mask": POLICY}
PROMPT = np.array([[0, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0]])


def said(**tensors: Any) -> tuple[Any, ...]:
    """What a batch says, in the order of ``KEYS``."""
    rows = rows_of(SimpleNamespace(batch=Tensors(tensors)))
    assert rows.keys() <= set(KEYS)
    return tuple(rows[key] for key in KEYS if key in rows)


def test_tokens_by_who_wrote_them() -> None:
    """The policy's, those of tools and environments among the responses, and the prompt's."""
    assert (2, 10, 5, 4, 1) == said(**MASKS, prompt_mask=PROMPT)


def test_without_its_mask_tools_are_part_of_the_prompt() -> None:
    """Which tokens follow the prompt is not known then."""
    assert (2, 10, 6, 4, 0) == said(**MASKS)


def test_without_masks_only_samples_are_counted() -> None:
    """As of a batch that is sent for rewards."""
    assert (2,) == said(attention_mask=ATTENTION)


def test_masks_on_a_device_are_not_read() -> None:
    """It would wait for the device."""
    torch = pytest.importorskip("torch")
    assert (2,) == said(attention_mask=torch.empty((2, 6), device="meta"), response_mask=torch.empty(2, 6))


@pytest.mark.parametrize("data", [None, SimpleNamespace(), SimpleNamespace(batch=None)])
def test_a_batch_that_is_elsewhere_says_nothing(data: Any) -> None:
    """It holds no tensors, or only what is said of all."""
    assert {} == rows_of(data)
