"""Micro-batches on a rank: what is known of them at once, and what follows from a device."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from otel_rl import vocabulary as v
from otel_rl.hooks import deferred
from otel_rl.observing.network import Network
from otel_rl.single_controller.micro_batches import Masks, begin_update, describe_masks, has_adapters, next_masks

WHOLE = torch.ones(4, 6)


@pytest.mark.parametrize(("is_coming", "is_packed", "padding"), [(True, False, 4), (False, False, 4), (True, True, 0)])
def test_tokens_follow_from_a_device(
    monkeypatch: pytest.MonkeyPatch, is_coming: bool, is_packed: bool, padding: int
) -> None:
    """A stage waits for them, unless they will never come; a packed forward has no padding."""
    asked: list[Callable[[list[float]], Any]] = []

    def read(tensors: Any, use: Callable[[list[float]], Any]) -> bool:
        asked.append(use)
        return is_coming

    monkeypatch.setattr(deferred, "read", read)
    said = describe_masks(Masks(WHOLE, WHOLE), is_packed=is_packed)
    assert ({v.BATCH_SIZE: 4}, not is_coming) == (said, said.is_complete)
    asked[0]([20.0, 8.0])
    kinds = {v.TOKENS_PROMPT: 12, v.TOKENS_RESPONSE: 8, v.TOKENS_PADDING: padding, v.TOKENS_ENVIRONMENT: 0}
    assert ({v.BATCH_SIZE: 4, v.TOKENS: 20, **kinds}, True) == (said, said.is_complete)


def test_micro_batches_are_rows_of_an_update() -> None:
    """As long as there are any; an update of unknown masks has none."""
    begin_update(Masks(WHOLE, prompt=WHOLE))
    for rows in (3, 1):
        found = next_masks(rows)
        assert found is not None and found.response is None
        assert [(rows, 6)] * 2 == [tuple(one.shape) for one in (found.whole, found.prompt)]
    assert next_masks(1) is None
    begin_update(None)
    assert next_masks(1) is None


@pytest.mark.parametrize(
    ("kinds", "said", "expected"),
    [((), (True,), True), (("LORA",), (), True), (("LORA",), (None, True), False), (("LORA",), (False, True), True)],
    ids=["a network without any", "modules that do not say", "switched off", "the first one decides"],
)
def test_adapters_are_on(kinds: tuple[str, ...], said: tuple[bool | None, ...], expected: bool) -> None:
    """Unless a module says that they are not."""
    modules = [SimpleNamespace(disable_adapters=one) for one in said]
    assert expected == has_adapters(SimpleNamespace(modules=lambda: modules), Network({}, adapters=kinds))
