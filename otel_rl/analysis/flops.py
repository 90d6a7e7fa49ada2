"""Floating-point operations of a model on real tokens, by Megatron's formula, and MFU.

A multiply-accumulate is two operations. Training uses a matrix three times: in the forward, for the gradient of its
input and for its own gradient; the attention itself likewise. Causal attention costs half of the full square. Padding
does not count, nor what activation checkpointing computes again (that would be HFU).

Source: NVIDIA Megatron-LM, megatron/training/training.py, num_floating_point_operations: ragged lengths, causal half,
logits of every token, no router. Frozen and adapted weights, windows and fewer logits are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from otel_rl.analysis.architecture import Architecture
from otel_rl.analysis.trained import FULL, Trained

FORMULA: Final = "megatron"
"""The formula's name, part of every number: definitions differ by up to 1.4 times."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Operations of one batch; a third each if everything is trained."""

    forward: int
    input_gradient: int
    weight_gradient: int


def mfu(count: int, peak: float, seconds: float) -> float | None:
    """Return operations / (peak x seconds), all of one device; None without time or peak."""
    return count / (peak * seconds) if peak > 0 and seconds > 0 else None


def passes(
    model: Architecture,
    lengths: Sequence[int],
    trained: Trained = FULL,
    *,
    logits: int | None = None,
    outputs: int | None = None,
) -> Passes:
    """Count the operations of one batch by pass.

    Args:
        model: its layers and sizes.
        lengths: real tokens of each sequence.
        trained: which weights are.
        logits: positions whose logits are computed, all by default.
        outputs: width of the head, by default the vocabulary; 1 for a critic.
    """
    tokens = sum(lengths)
    width = model.vocabulary if outputs is None else outputs
    head = 2 * (tokens if logits is None else logits) * model.hidden * width
    adapters = 2 * tokens * trained.adapters
    forward, into, weights = head + adapters, adapters, adapters
    if trained.logits:
        weights += head
    if trained.norm_alone or trained.first_layer < len(model.layers):
        into += head
    pairs = {window: attended(lengths, window) for window in {layer.window for layer in model.layers}}
    for number, layer in enumerate(model.layers):
        attention, mlp = 2 * tokens * layer.attention, 2 * tokens * layer.mlp
        core = pairs[layer.window] * layer.core
        forward += attention + mlp + core
        if number >= trained.first_layer:
            into += attention + mlp
            if number > trained.first_layer or not trained.unreached_core:
                # both operands of the attention itself are activations: its two gradients are needed together
                into += core
                weights += core
            weights += attention if trained.attention is None else 0
            weights += mlp if trained.mlp is None else 0
    into -= 2 * tokens * trained.unreached
    weights += 2 * tokens * ((trained.attention or 0) + (trained.mlp or 0))
    return Passes(forward, into, weights)


def attended(lengths: Iterable[int], window: int | None = None) -> int:
    """Return twice the number of pairs of positions that see each other; Megatron's half of a square is s^2 / 2.

    A window of w positions that a token sees, with itself, is a band w wide: s^2 - (s - w)^2.
    """
    if window is None:
        return sum(length * length for length in lengths)
    return sum(length * length - max(0, length - window) ** 2 for length in lengths)
