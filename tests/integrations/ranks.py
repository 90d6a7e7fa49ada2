"""A rank in the steps of a driver: what stands for them, and what was counted of its forwards."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from otel_rl import Carrier, ids
from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from tests.fixtures import MS, WALL_NS, milliseconds

CONFIG = {
    "model_type": "qwen2", "vocab_size": 20, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "use_sliding_window": False, "tie_word_embeddings": True,
}  # fmt: skip


class Network(SimpleNamespace):
    """Stands for a module of transformers; all of its parameters are trained if it names none."""

    config = CONFIG
    named: Sequence[tuple[str, Any]] = ()
    parts: tuple[Any, ...] = ()

    __hash__ = object.__hash__

    def named_parameters(self) -> Sequence[tuple[str, Any]]:
        return self.named

    def modules(self) -> tuple[Any, ...]:
        return (self, *self.parts)


def step(number: int, began: float) -> Carrier:
    """Make the carrier of a step that the driver began then, ms of the fake clock."""
    trace = f"00-{ids.trace_id('abc', 'train', number):032x}-{1 << 40:016x}-01"
    return Carrier("job", "abc", "driver", f"train {number}", trace, "", WALL_NS + round((began + 1_000) * MS))


def tokens(run: Run) -> dict[str, float]:
    """Give the counter of trained tokens by kind."""
    return {str(one.attributes[v.TOKEN_KIND]): one.value for one in run.last_points(v.TRAIN_TOKENS)}


def operations(run: Run) -> dict[tuple[str, str], float]:
    """Give the counter of operations by stage and kind of log-probabilities."""
    labels = v.FLOPS_STAGE, v.LOGPROB_KIND
    found = run.last_points(v.FLOPS)
    return {(str(one.attributes[labels[0]]), str(one.attributes.get(labels[1], ""))): one.value for one in found}


def rates(run: Run) -> dict[str, tuple[float, float]]:
    """Give the time (ms) and the value of the last FLOP/s of each scope."""
    found = run.points(v.FLOPS_RATE)
    return {str(one.attributes[v.FLOPS_SCOPE]): (milliseconds(one.time_ns), one.value) for one in found}
