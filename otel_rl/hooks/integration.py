"""What an integration is: which package, which versions, which hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from otel_rl.hooks.hook import Hook
from otel_rl.process.memory import Memory


def installed_version(package: str) -> str:
    """Return the version of a distribution that is installed, or nothing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


class Verified(str, Enum):
    """How an integration of ours is tested, as ``docs/frameworks.md`` and ``otel-rl doctor`` say it."""

    REAL = "real runs"
    OWN_CODE = "its own code on a CPU, with stand-ins for what needs a GPU"
    PACKAGE = "signatures of the published code, and objects of its shape"
    SHAPE = "objects of its shape"


@dataclass(frozen=True)
class Attachment:
    """What is registered with a package by its own means, once its module is imported."""

    module: str
    attach: Callable[[ModuleType], Callable[[], object]]
    """Registers and returns what takes it back."""


@dataclass(frozen=True, kw_only=True)
class Integration:
    """The hooks of one framework, registered under ``name``."""

    name: str
    package: str
    """The distribution whose version is checked."""
    supports: str
    """Its versions, as in ``>=2.1,<3``; another one is named in a log line and left alone."""
    records: str = ""
    """What is recorded of it, in a few words."""
    verified: Verified | None = None
    """How that is tested; None: nothing is said of it."""
    version: Callable[[], str | None] | None = None
    """Returns the version of what is no distribution, without an import of it; None if it is not there."""
    hooks: tuple[Hook, ...]
    attachments: tuple[Attachment, ...] = ()
    arriving: tuple[Hook, ...] = ()
    """Hooks of classes that no import brings, since Ray sends them by value. Their target is ``"Class.method"``, with
    the class of an actor or one of its bases, ``*`` for any; its process replaces the method before the first call."""
    roles: tuple[tuple[str, str], ...] = ()
    """Role by the class of an actor, or of one of its bases."""
    role_of: Callable[[type, str], str | None] | None = None
    """``(class, name)`` of an actor: returns its role, which counts before those by class; None if it knows none."""
    needs: tuple[str, ...] = ()
    """Integrations without which this one records no whole step: who asks for it by name gets these too."""
    memory: Memory | None = None
    """What the functions of the hooks remember from one call to the next."""

    def installed(self) -> str | None:
        """Return the version that is installed, or None."""
        if self.version is not None:
            return self.version()
        return installed_version(self.package) or None
