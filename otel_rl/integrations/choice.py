"""Which integrations apply here: what is asked for, what that needs, and what the installed packages allow."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any, NamedTuple

import wrapt
from packaging.specifiers import SpecifierSet

from otel_rl.config import Config, ConfigurationError
from otel_rl.guard import guard, say
from otel_rl.hooks import Integration
from otel_rl.integrations import AUTO, OURS, check_names, registered
from otel_rl.process.identity import is_ray_worker


class NotPossibleError(RuntimeError):
    """Something was asked for that cannot be done here; the message says why and what to do."""


class Status(NamedTuple):
    """How one integration stands."""

    name: str
    state: str
    """``applies``, ``absent`` (package not installed), ``unsupported`` (its version), ``broken`` or ``off``."""
    detail: str


def asked_for() -> tuple[str, ...]:
    """Return the integrations that the settings ask for; they need not exist."""
    try:
        return Config.from_env().integrations
    except ConfigurationError:
        return (AUTO,)


def every_status() -> list[Status]:
    """Return whether each integration applies here, and if not, why."""
    known = registered()
    chosen = _chosen(asked_for(), known)
    return [_status(name, load(name, path), chosen) for name, path in known.items()]


def wanted(names: tuple[str, ...], source: str = "") -> list[Integration]:
    """Return the integrations that are asked for and apply; a log line says why the others do not.

    Args:
        names: of integrations.
        source: where they stand, for the message.

    Raises:
        ConfigurationError: there is none of such a name.
        NotPossibleError: its package is missing, or of an unsupported version.
    """
    check_names(names, source)
    known = OURS if set(names) <= set(OURS) else registered()
    chosen, found = _chosen(names, known), []
    for name in (name for name in known if name in chosen):
        integration = load(name, known[name])
        status = _status(name, integration, chosen)
        if integration is not None and status.state == "applies":
            found.append(integration)
        elif name in names and status.state != "broken":
            raise NotPossibleError(f"the integration {name} was asked for, but {status.detail}")
        elif status.state == "unsupported":
            _say_when_used(integration, status)
    return found


def _say_when_used(integration: Integration | None, status: Status) -> None:
    """Name an unsupported version once a job, and only where what is hooked of the package is imported."""
    if integration is not None and not is_ray_worker():
        said = functools.partial(say, "otel_rl: %s; it is not instrumented: install a supported version", status.detail)
        modules = [hook.target.partition(":")[0] for hook in integration.hooks[:1]]
        for module in modules:
            wrapt.register_post_import_hook(lambda _: said(), module)
        if not modules:
            said()


def load(name: str, path: str) -> Integration | None:
    """Import an integration; None where that of another package fails to load, which is logged and counted."""
    with guard(f"load the integration {name} ({path})"):
        module, _, attribute = path.partition(":")
        found: Any = import_module(module)
        for step in attribute.split("."):
            found = getattr(found, step)
        if not isinstance(found, Integration) or found.name != name:
            raise TypeError(f"{path} is not an Integration named {name!r}")
        SpecifierSet(found.supports)
        hash((*found.hooks, *found.attachments))  # hooks are kept in sets
        return found
    return None


def _chosen(names: tuple[str, ...], known: dict[str, str]) -> dict[str, str]:
    """Return the integrations that these names stand for, each with who needs it: empty where it was asked for."""
    if AUTO in names:
        return dict.fromkeys(known, "")
    asked = {name: load(name, known[name]) for name in names if name in known}
    needed = {need: f"; needed by {name}" for name, one in asked.items() if one is not None for need in one.needs}
    return needed | dict.fromkeys(asked, "")


def _status(name: str, integration: Integration | None, chosen: dict[str, str]) -> Status:
    if integration is None:
        return Status(name, "broken", "it could not be loaded")
    package, supports = integration.package, integration.supports
    if name not in chosen:
        return Status(name, "off", f"not in OTEL_RL_INTEGRATIONS; supports {package} {supports}")
    why = chosen[name]
    installed = integration.installed()
    if installed is None:
        return Status(name, "absent", f"{package} is not installed (supported: {supports}){why}")
    if not SpecifierSet(supports).contains(installed, prereleases=True):
        return Status(name, "unsupported", f"{package} {installed} is not supported; supports {supports}{why}")
    tested = f"; tested by {integration.verified.value}" if integration.verified else ""
    return Status(name, "applies", f"{package} {installed} is instrumented (supported: {supports}){tested}{why}")
