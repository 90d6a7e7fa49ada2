"""TRL: what is trained, and the settings that a reader compares the numbers of a run with."""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, Kwargs
from otel_rl.process.identity import identifying, training_of
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.tree import say_of_setup


def identify(args: Args, kwargs: Kwargs, result: object) -> None:
    """Name what a trainer trains, after its ``__init__``."""
    from importlib.metadata import version

    state.identify(system="trl", system_version=version("trl"), **training_of(args[0]))


def is_identified() -> bool:
    """Return whether a trainer's constructor was seen: another library may have made its class anew."""
    return identifying.learned.get("system") == "trl"


def say_settings(trainer: Any) -> None:
    """Record the settings of rollouts on the container of set-up.

    A rollout is cut into ``steps_per_generation`` micro-batches, which are used ``num_iterations`` times.
    """
    args = trainer.args
    per_rollout = int(args.steps_per_generation)
    said: dict[str, Value] = {
        vocabulary.SETTINGS_SAMPLES: int(args.per_device_train_batch_size) * per_rollout,
        vocabulary.SETTINGS_GROUP: int(trainer.num_generations),
        vocabulary.SETTINGS_UPDATES: per_rollout * int(trainer.num_iterations) / int(args.gradient_accumulation_steps),
    }
    if trainer.max_completion_length is not None:
        said[vocabulary.SETTINGS_LIMIT] = int(trainer.max_completion_length)
    for name, value in ((vocabulary.SETTINGS_TEMPERATURE, "temperature"), (vocabulary.SETTINGS_KL, "beta")):
        if getattr(trainer, value, None) is not None:
            said[name] = float(getattr(trainer, value))
    say_of_setup(said)
