"""Which integrations apply here: what is asked for, what that needs, and what the installed packages allow."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import NamedTuple

from packaging.specifiers import SpecifierSet

from otel_rl.config import Config, ConfigurationError
from otel_rl.guard import say
from otel_rl.integrations import AUTO, MODULES, NEEDS, check_names


class NotPossibleError(RuntimeError):
    """Something was asked for that cannot be done here; the message says why and what to do."""


class Status(NamedTuple):
    """How one integration stands."""

    name: str
    state: str
    """``applies``, ``absent`` (package not installed), ``unsupported`` (its version) or ``off``."""
    detail: str


def asked_for() -> tuple[str, ...]:
    """Give the integrations that the settings ask for; they need not exist."""
    try:
        return Config.from_env().integrations
    except ConfigurationError:
        return (AUTO,)


def every_status() -> list[Status]:
    """Say of every integration whether it applies here, and why not."""
    chosen = _chosen(asked_for())
    return [_status(name, chosen) for name in MODULES]


def wanted(names: tuple[str, ...], source: str = "") -> list[ModuleType]:
    """Give the modules of the integrations that are asked for and apply; of the others say why not.

    Args:
        names: of integrations.
        source: where they stand, for the message.

    Raises:
        ConfigurationError: there is none of such a name.
        NotPossibleError: its package is missing, or of an unsupported version.
    """
    check_names(names, source)
    found = []
    chosen = _chosen(names)
    for name, path in MODULES.items():
        status = _status(name, chosen)
        if status.state == "applies":
            found.append(importlib.import_module(path))
        elif name in names:
            raise NotPossibleError(f"the integration {name} was asked for, but {status.detail}")
        elif status.state == "unsupported":
            say("otel_rl: %s; it is not instrumented", status.detail)
    return found


def _chosen(names: tuple[str, ...]) -> dict[str, str]:
    """Give the integrations that these names stand for, each with who needs it; nobody where it was asked for."""
    if AUTO in names:
        return dict.fromkeys(MODULES, "")
    needed = {need: f"; needed by {name}" for name in names for need in NEEDS.get(name, ())}
    return needed | dict.fromkeys(names, "")


def _status(name: str, chosen: dict[str, str]) -> Status:
    module = importlib.import_module(MODULES[name])
    if name not in chosen:
        return Status(name, "off", f"not in OTEL_RL_INTEGRATIONS; supports {module.PACKAGE} {module.SUPPORTS}")
    package, supports, why = module.PACKAGE, module.SUPPORTS, chosen[name]
    try:
        installed = version(package)
    except PackageNotFoundError:
        return Status(name, "absent", f"{package} is not installed; supports {supports}{why}")
    if not SpecifierSet(supports).contains(installed, prereleases=True):
        return Status(name, "unsupported", f"{package} {installed} is not supported: it takes {supports}{why}")
    return Status(name, "applies", f"{package} {installed}; supports {supports}{why}")
