"""Bytes of key-value caches, by what tensors say of themselves: no value is read, so no device is waited for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

GROWING: Final = frozenset(("DynamicLayer", "DynamicSlidingWindowLayer"))
"""Layers of transformers whose tensors have exactly the positions that the cache keeps."""
FIXED: Final = frozenset(("StaticLayer", "StaticSlidingWindowLayer", "SlidingWindowLayer", "ChunkedSlidingLayer"))
"""Those whose tensors are made for the longest sequence."""


class CacheBytes(NamedTuple):
    """What is known of a cache; None is not."""

    size: int | None
    """Bytes of the memory that is reserved for it."""
    used: int | None
    """Bytes of the keys and values that it keeps."""


def of_layers(cache: Any) -> CacheBytes | None:
    """Read a cache of transformers; None where a layer is of another kind (quantized, recurrent, a model's own).

    How many positions of a fixed cache are in use only its device knows. Cost: 0.25 us a layer.
    Source: ``cache_utils.py`` of transformers 4.56.2 to 5.23.
    """
    layers = getattr(cache, "layers", None)
    if type(layers) is not list:
        return None
    kinds = {type(layer).__name__ for layer in layers}
    if not (kinds <= GROWING or kinds <= FIXED):
        return None
    tensors = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    used = sum([tensor.nbytes for tensor in tensors if tensor is not None])  # a layer that was not used yet has neither
    if not used:
        return None
    return CacheBytes(None, used) if kinds <= GROWING else CacheBytes(used, None)


def of_pages(cache: Any) -> CacheBytes | None:
    """Read the paged cache of transformers' continuous batching: its tensors, times the share of blocks in use.

    Blocks that are kept for a prefix which others may share are in use. Cost: 0.2 us a tensor.
    Source: ``continuous_batching/cache.py`` of transformers 4.56.2 to 5.12, and, with one tensor, of 5.19 and 5.23.
    """
    whole = getattr(cache, "cache_tensor", None)
    if whole is not None:
        return _share(_storages((whole,)), cache.num_sectors, cache.pool.num_free_sectors)
    size = _storages((*cache.key_cache, *cache.value_cache))
    return _share(size, cache.num_blocks, cache.get_num_free_blocks())


def pool_bytes(tensors: Iterable[Any]) -> int:
    """Add up the memory below the tensors of an engine's pool, views of the same once; they may lie in lists."""
    return _storages(_flat(tensors))


def _share(size: int, blocks: int, free: int) -> CacheBytes | None:
    return CacheBytes(size, size * (blocks - free) // blocks) if size and 0 <= free <= blocks and blocks else None


def _storages(tensors: Iterable[Any]) -> int:
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _flat(tensors: Iterable[Any]) -> Iterator[Any]:
    for tensor in tensors:
        if isinstance(tensor, (list, tuple)):
            yield from _flat(tensor)
        elif hasattr(tensor, "untyped_storage"):
            yield tensor
