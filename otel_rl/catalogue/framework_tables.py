"""What the integrations' own tables say: which key is which metric, which function and timer is which stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.hooks import Hook, Integration, StageHook
from otel_rl.integrations import accelerate
from otel_rl.integrations.roll import hooks as roll
from otel_rl.integrations.roll import pipeline, trackers
from otel_rl.integrations.torch import hooks as torch
from otel_rl.integrations.transformers import hooks as transformers
from otel_rl.integrations.trl import hooks as trl
from otel_rl.integrations.trl import trainer_metrics
from otel_rl.integrations.verl import hooks as verl
from otel_rl.integrations.verl import tracking, trainer
from otel_rl.metrics.naming import Series

FUNCTION: Final = "<function>"
SOURCE: Final = "val-core/<source>/reward/mean@<n>", "val-aux/<source>/reward/mean@<n>"
RLOO: Final = "RLOOTrainer."
"""Has the functions of GRPO's, which are named."""


@dataclass(frozen=True)
class FrameworkTables:
    """The tables of one framework."""

    keys: Mapping[str, Series]
    """Names of its log that have one of ours."""
    timers: Mapping[str, Any]
    """Its timers that are stages: stage, attributes."""
    integrations: tuple[Integration, ...]
    """Its own, and those below it."""
    conditional: frozenset[str] = frozenset()
    """Keys that mean the same under some settings, or in some versions only."""

    def series(self, key: str) -> Series | None:
        return self.keys.get(key)

    def functions(self) -> set[str]:
        """Return the functions that are hooked, as ``function_of`` names them."""
        return set(map(function_of, self._hooks()))

    def of_stage(self, stage: str) -> list[str]:
        """Return timers and functions that are a stage, where a table says so."""
        timers = [name for name, (known, _) in self.timers.items() if known == stage]
        hooks = (hook for hook in self._hooks() if isinstance(hook, StageHook) and hook.stage == stage)
        named = (function_of(hook) for hook in hooks if not _reads(hook))
        return list(dict.fromkeys((*timers, *(name for name in named if not name.startswith(RLOO)))))

    def _hooks(self) -> Iterator[Hook]:
        for one in self.integrations:
            yield from (*one.hooks, *one.arriving)


def function_of(hook: Hook) -> str:
    """Return a function as its class, or else its module, names it."""
    module, _, name = hook.target.rpartition(":")
    return name if "." in name or not module else f"{module.rpartition('.')[2]}.{name}"


def _reads(hook: StageHook) -> bool:
    """Return whether it is a checkpoint that is read."""
    return isinstance(hook.attributes, tuple) and (v.CHECKPOINT_LOAD, True) in hook.attributes


def _of_functions() -> dict[str, Series]:
    label = ((v.REWARD_FUNCTION, FUNCTION),)
    return {f"rewards/{FUNCTION}/{end}": (name, label) for end, name in trainer_metrics.OF_FUNCTION.items()}


TABLES: Final = {
    "trl": FrameworkTables(
        {**trainer_metrics.CANONICAL, **_of_functions()},
        {},
        (trl.INTEGRATION, transformers.INTEGRATION, accelerate.INTEGRATION, torch.INTEGRATION),
    ),
    "verl": FrameworkTables(
        {**tracking.CANONICAL, **dict.fromkeys(SOURCE, tracking.EVALUATED)},
        trainer.TIMERS,
        (verl.INTEGRATION, torch.INTEGRATION),
        frozenset((*tracking.INSTEAD_OF, *tracking.BESIDE, *(key for key, *_ in tracking.ONLY_WITH))),
    ),
    "roll": FrameworkTables(trackers.CANONICAL, pipeline.TIMERS, (roll.INTEGRATION, torch.INTEGRATION)),
}
