"""One file per framework: which versions, which functions, and small pure functions that say what to record.

An integration has ``PACKAGE`` (the distribution), ``SUPPORTS`` (its versions), ``HOOKS`` and ``ATTACHMENTS``; see
``docs/integrations.md``. Nothing here imports a framework: that happens when, and only when, the program does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_rl.config import ConfigurationError

AUTO: Final = "auto"
"""All of them, as what they hook is imported."""
MODULES: Final = {
    "torch": "otel_rl.integrations.torch.hooks",
    "accelerate": "otel_rl.integrations.accelerate",
    "deepspeed": "otel_rl.integrations.deepspeed",
    "megatron": "otel_rl.integrations.megatron",
    "transformers": "otel_rl.integrations.transformers.hooks",
    "transformers_generate": "otel_rl.integrations.transformers.generate",
    "trl": "otel_rl.integrations.trl.hooks",
    "vllm": "otel_rl.integrations.vllm.hooks",
    "sglang": "otel_rl.integrations.sglang",
    "openai": "otel_rl.integrations.openai.hooks",
}
"""Name to module; registering an integration is one line here."""

NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "accelerate": ("torch",),
    "deepspeed": ("torch",),
    "megatron": ("torch",),
    "transformers": ("torch", "accelerate"),
    "trl": ("torch", "accelerate", "transformers", "transformers_generate"),
}
"""Without which an integration records no whole step: who asks for it by name gets these too, where they apply. Engines
below it (deepspeed, vllm) are asked for by their own names."""


def check_names(names: Iterable[str], source: str = "") -> None:
    """Refuse names of integrations that do not exist.

    Args:
        names: what a user asks for.
        source: where they stand, for the message.

    Raises:
        ConfigurationError: there is none of such a name; the message says which there are.
    """
    strangers = [name for name in names if name != AUTO and name not in MODULES]
    if strangers:
        raise ConfigurationError(
            f"{source}no integration is called {strangers[0]!r}: there are {', '.join(MODULES)} and {AUTO}"
        )
