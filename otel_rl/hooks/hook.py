"""What every hook has in common: a target, and the function that stands in the target's place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from otel_rl.guard import report
from otel_rl.hooks.arguments import Args, Bind, Kwargs, binder
from otel_rl.hooks.decorated import inside, looks_at_frames, with_inside
from otel_rl.trace.stage import current_stage

Before = Callable[[Args, Kwargs], object]
"""``(args, kwargs)``: runs guarded before the host's call."""
After = Callable[[Args, Kwargs, Any], object]
"""``(args, kwargs, result)``: runs guarded after the host's call."""
Covered = Callable[[Args], bool]
"""``(args)``: whether a call only passes, because another replacement of the same hook already records it."""


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One function of another package and what to record of its calls.

    The host's arguments, result and exception pass through unchanged. Whatever we do before and after is guarded.

    The functions of a hook get ``args`` with every argument that has a position in the target's signature, also where
    the caller passed it by keyword, and ``kwargs`` with what was passed by keyword.
    """

    target: str
    """``"package.module:function"`` or ``"package.module:Class.method"``."""
    by_name: bool = False
    """Put every argument into ``kwargs`` by its name: for positions that differ between versions."""
    optional: bool = False
    """The target need not exist in every supported version."""

    def replacement(self, original: Any, bind: Bind | None) -> Any:
        """Return the function that stands in the place of ``original``: a plain closure, so that Ray can pickle it."""
        raise NotImplementedError

    def like(self, other: Hook) -> bool:
        """Return whether the other hook does the same with a function of the same name elsewhere."""
        names = {hook.target.replace(":", ".").rpartition(".")[2] for hook in (self, other)}
        return len(names) == 1 and replace(self, target="") == replace(other, target="")


replacements: WeakKeyDictionary[Any, Hook] = WeakKeyDictionary()
"""The hook of each function that stands, or has stood, in the place of another one."""


def wrap(hook: Hook, original: Any, base: Any = None) -> Any:
    """Return the replacement of a function or of a static or class method.

    A function that looks at its caller's frame gets none, since it would find ours: it is returned itself, and one
    error names it. A decorator that does so gets one inside.

    Args:
        hook: what to record.
        original: the function.
        base: the hooked method that it overrides.
    """
    if isinstance(original, (staticmethod, classmethod)):
        function = wrap(hook, original.__func__, base)
        return original if function is original.__func__ else type(original)(function)
    inner = inside(original)
    if inner is None and looks_at_frames(original):
        report(f"record {hook.target}: it looks at its caller's frame", None)
        return original
    if inner is None:
        replacement = hook.replacement(original, binder(original, base, by_name=hook.by_name))
    else:
        recording = wrap(hook, inner, base)
        if recording is inner:
            return original
        replacement = with_inside(original, inner, recording)
    replacements[replacement] = hook
    return replacement


def hook_of(value: Any) -> Hook | None:
    """Return the hook of a function or method that is a replacement of ours, else None."""
    function = getattr(value, "__func__", value)
    return replacements.get(function) if type(function) is FunctionType else None


def can_be_covered(replacement: Any) -> bool:
    """Return whether ``cover`` has an effect on a replacement."""
    return type(replacement) is FunctionType and "covered" in _recording(replacement).__code__.co_freevars


def cover(replacement: Any, name: str) -> None:
    """Let a replacement pass calls that another replacement of its hook records.

    The object of each call decides: what it has under ``name`` is recorded, nothing that this calls in turn. Most
    replacements are never covered.
    """
    if can_be_covered(replacement):
        recording = _recording(replacement)
        cells = dict(zip(recording.__code__.co_freevars, recording.__closure__, strict=True))
        cells["covered"].cell_contents = functools.partial(_is_covered, replacement, name)


def _recording(replacement: Any) -> Any:
    """Return the function of ours that records: the replacement itself, or the one inside a decorator."""
    inner, hook = getattr(replacement, "__wrapped__", None), hook_of(replacement)
    return _recording(inner) if hook is not None and hook_of(inner) is hook else replacement


def _is_covered(replacement: Any, name: str, args: Args) -> bool:
    hook = replacements.get(replacement)
    if hook is None or not args:
        return False
    found = _found(args[0], name)
    if found is not replacement:
        return hook_of(found) is hook
    stage = current_stage()  # an object of another class may call it for one whose call is recorded
    return stage is not None and stage.name == getattr(hook, "stage", None)


def _found(owner: Any, name: str) -> Any:
    """Return the function that an object has under a name, its own before those of its classes."""
    for space in (owner, *type(owner).__mro__):
        value = getattr(space, "__dict__", {}).get(name)
        if value is not None:
            return getattr(value, "__func__", value)
    return None
