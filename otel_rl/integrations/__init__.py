"""Which functions of which framework are recorded: one ``Integration`` for each, in a file or folder of its own.

Nothing here imports a framework: its hooks wait until the program does. ``docs/integrations.md`` is the reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_rl.config import ConfigurationError

AUTO: Final = "auto"
"""All integrations; each waits for its package."""
GROUP: Final = "otel_rl.integrations"
"""The entry points by which other packages register theirs, as in ``OURS``."""
OURS: Final = {
    "torch": "otel_rl.integrations.torch.hooks:INTEGRATION",
    "accelerate": "otel_rl.integrations.accelerate:INTEGRATION",
    "deepspeed": "otel_rl.integrations.deepspeed:INTEGRATION",
    "megatron": "otel_rl.integrations.megatron:INTEGRATION",
    "transformers": "otel_rl.integrations.transformers.hooks:INTEGRATION",
    "transformers_generate": "otel_rl.integrations.transformers.generate:INTEGRATION",
    "trl": "otel_rl.integrations.trl.hooks:INTEGRATION",
    "vllm": "otel_rl.integrations.vllm.hooks:INTEGRATION",
    "sglang": "otel_rl.integrations.sglang:INTEGRATION",
    "openai": "otel_rl.integrations.openai.hooks:INTEGRATION",
    "ray": "otel_rl.integrations.ray.hooks:INTEGRATION",
    "verl": "otel_rl.integrations.verl.hooks:INTEGRATION",
    "roll": "otel_rl.integrations.roll.hooks:INTEGRATION",
    "openrlhf": "otel_rl.integrations.openrlhf.hooks:INTEGRATION",
    "slime": "otel_rl.integrations.slime.hooks:INTEGRATION",
    "miles": "otel_rl.integrations.slime.miles:INTEGRATION",
    "nemo_rl": "otel_rl.integrations.nemo_rl:INTEGRATION",
    "prime_rl": "otel_rl.integrations.prime_rl:INTEGRATION",
    "rl_insight": "otel_rl.integrations.rl_insight:INTEGRATION",
    "skyrl": "otel_rl.integrations.skyrl.hooks:INTEGRATION",
    "areal": "otel_rl.integrations.areal.hooks:INTEGRATION",
}
"""Name to ``module:attribute``, without those of other packages."""


def registered() -> dict[str, str]:
    """Return all integrations that there are, by name; of equal names ours, else the first. Cost: 10 ms."""
    from importlib.metadata import entry_points  # the other commands do without it and start faster

    others = {entry.name: entry.value for entry in reversed(tuple(entry_points(group=GROUP)))}
    return OURS | {name: value for name, value in others.items() if name not in OURS}


def check_names(names: Iterable[str], source: str = "") -> None:
    """Refuse names of integrations that do not exist.

    Args:
        names: what a user asks for.
        source: where they stand, for the message.

    Raises:
        ConfigurationError: there is none of such a name; the message says which there are.
    """
    strangers = [name for name in names if name != AUTO and name not in OURS]
    known = registered() if strangers else OURS
    for name in strangers:
        if name not in known:
            raise ConfigurationError(
                f"{source}no integration is called {name!r}; choose from {', '.join(known)} and {AUTO}"
            )
