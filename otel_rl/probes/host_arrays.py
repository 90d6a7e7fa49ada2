"""Tensors of the host as numpy arrays, which share their memory."""

from __future__ import annotations

from typing import Any

Array = Any


def of_own(tensor: Any) -> Array:
    """Return a tensor that is ours; numpy has no bfloat16."""
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.float().numpy()


def of_host(tensor: Any) -> Array:
    """Return a tensor of the host program's by DLPack, since ``Tensor.numpy`` forbids its owner to resize it.

    Not every torch hands booleans over so, and numpy takes no bfloat16: those are copied.
    """
    import numpy as np

    tensor = tensor.detach()
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError):
        return of_own(tensor.clone())
