"""Bytes of key-value caches, on transformers' own and on the shapes that engines have had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from transformers import Qwen2Config
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer, StaticCache

from otel_rl.probes.kv_cache import CacheBytes, of_layers, of_pages, pool_bytes

STATES = 2, 3, 5, 4
"""Sequences, heads, positions, size of a head: 480 bytes of float32 in keys, and as many in values."""


def filled(cache: Any, layers: int = 2) -> Any:
    """Give each layer keys and values."""
    for layer in range(layers):
        cache.update(torch.zeros(STATES), torch.zeros(STATES), layer)
    return cache


def test_a_cache_that_grows_has_what_it_keeps() -> None:
    """Of all layers; one without any is not known."""
    assert CacheBytes(None, 2 * 2 * 480) == of_layers(filled(DynamicCache()))
    assert None is of_layers(DynamicCache())


def test_a_static_cache_has_its_size() -> None:
    """How much of it is in use only its device knows."""
    config = Qwen2Config(num_hidden_layers=2, hidden_size=12, num_attention_heads=3, num_key_value_heads=3)
    cache = filled(StaticCache(config=config, max_cache_len=64))
    assert CacheBytes(2 * 2 * 480 // 5 * 64, None) == of_layers(cache)


def test_a_window_keeps_what_is_in_it() -> None:
    """Its tensors are views of longer ones; what fell out of the window is not kept."""
    layer = DynamicSlidingWindowLayer(sliding_window=3)
    layer.update(torch.zeros(STATES), torch.zeros(STATES))
    assert CacheBytes(None, 2 * 480 * 2 // 5) == of_layers(SimpleNamespace(layers=[layer]))


class QuantizedLayer:
    """Its keys are not all that it keeps."""

    keys = values = torch.zeros(8)


class RecurrentLayer:
    """It has no keys."""


@pytest.mark.parametrize(
    "cache",
    [
        None,
        (),
        SimpleNamespace(),
        SimpleNamespace(layers=()),
        SimpleNamespace(layers=[QuantizedLayer()]),
        SimpleNamespace(layers=[RecurrentLayer()]),
        SimpleNamespace(layers=[type("StaticLayer", (), {})()]),
    ],
    ids=["none", "legacy", "encoder and decoder", "no list", "quantized", "recurrent", "not used yet"],
)
def test_what_is_not_known_has_no_bytes(cache: Any) -> None:
    """Never a guess."""
    assert None is of_layers(cache)


def paged(blocks: int, free: int) -> Any:
    """Make a paged cache as transformers 4.56 to 5.12 have it: tensors of each layer, and a number of blocks."""
    tensors = [torch.zeros(blocks, 16) for _ in range(2)]
    return SimpleNamespace(
        key_cache=tensors, value_cache=[torch.zeros(blocks, 16)], num_blocks=blocks, get_num_free_blocks=lambda: free
    )


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        (paged(8, 6), CacheBytes(3 * 8 * 64, 3 * 2 * 64)),
        (paged(8, 8), CacheBytes(3 * 8 * 64, 0)),
        (paged(8, 9), None),
        (paged(0, 0), None),
        (
            SimpleNamespace(
                cache_tensor=torch.zeros(640, dtype=torch.uint8),
                num_sectors=8,
                pool=SimpleNamespace(num_free_sectors=6),
            ),
            CacheBytes(640, 160),
        ),
    ],
)
def test_pages_are_counted_by_their_blocks(cache: Any, expected: CacheBytes | None) -> None:
    """In use is what is not free; what cannot be has no bytes."""
    assert expected == of_pages(cache)


def test_views_of_a_pool_count_once() -> None:
    """One allocation for all layers, one that two layers share, states of linear layers in a list."""
    whole, other = torch.zeros(100, dtype=torch.int8), torch.zeros(10)
    assert 100 + 40 == pool_bytes([whole[:50], whole[50:].view(5, 10), [other, other[2:]], None])
    assert 0 == pool_bytes([])
