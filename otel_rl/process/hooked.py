"""What hooks need of torch's compiler, and how functions that other libraries replace are found again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from otel_rl.process.memory import Memory


def _nothing(*_: object) -> None:
    return None


def _no() -> bool:
    return False


def _as_it_is(function: Any) -> Any:
    return function


class InCollective(threading.local):
    """Whether this thread is inside a collective: the ones that it calls in turn belong to it."""

    active = False


@dataclass(eq=False)
class Hooking(Memory):
    """Functions that hooks call; while nothing is hooked, and without torch, they do nothing."""

    follow: Callable[[Any], None] = _nothing
    """Hooks what an object and its class have in place of hooked methods."""
    hook_replacements: Callable[[], None] = _nothing
    """Hooks what other libraries have put in place of hooked functions."""
    arrived: Callable[[type], None] = _nothing
    """Hooks a class that another process has sent by value."""
    roles: dict[str, str] = field(default_factory=dict)
    """Role of an actor by the name of its class, or of a base of it."""
    role_of: list[Callable[[type, str], str | None]] = field(default_factory=list)
    """Functions of integrations that return the role of an actor, by its class and name."""
    is_compiling: Callable[[], bool] = _no
    """``torch.compiler.is_compiling`` once torch is there."""
    is_tracing: Callable[[], bool] = _no
    """The part of it that Dynamo answers while it traces the caller. ``compiler`` has the other part in
    ``_is_compiling_flag``: together half as many calls, where each counts."""
    compiler: Any = field(default_factory=lambda: SimpleNamespace(_is_compiling_flag=False))
    uncompiled: Callable[[Any], Any] = _as_it_is
    """``torch.compiler.disable`` while torch.compile looks at the functions that are called."""

    in_collective: InCollective = field(default_factory=InCollective)

    def after_fork_in_child(self) -> None:
        """Keep the functions: what the parent hooked is hooked in the child."""


hooking = Hooking.keep("hooking")
