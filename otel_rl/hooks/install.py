"""The only code that replaces attributes of other packages. Every replacement is undone exactly."""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import wrapt

from otel_rl.guard import guard, report
from otel_rl.hooks.hook import Hook, hook_of, wrap
from otel_rl.hooks.integration import Attachment


@dataclass(frozen=True)
class Patch:
    """One replacement, with what is needed to undo it."""

    hook: Hook
    owner: Any
    name: str
    original: Any
    replacement: Any
    inherited: bool
    """Whether the owner only inherits the attribute."""


class Patches:
    """The hooks of this process, in place or registered for modules that are not imported yet."""

    def __init__(self) -> None:
        self.applied: list[Patch] = []
        self.lock = threading.RLock()
        """Held while a target is replaced or restored."""
        self._wanted: set[Hook | Attachment] = set()
        self._expected: dict[Hook, Collection[str]] = {}
        self._detach: list[Callable[[], object]] = []

    def in_child(self) -> None:
        """Replace the lock, which another thread of the parent may have locked at the fork."""
        self.lock = threading.RLock()

    def install(self, hook: Hook) -> None:
        """Replace the hook's target now, or as soon as its module is imported."""
        self._wanted.add(hook)
        module = hook.target.partition(":")[0]
        wrapt.register_post_import_hook(functools.partial(self._imported, hook), module)

    def attach(self, attachment: Attachment) -> None:
        """Attach now, or as soon as the module is imported."""
        self._wanted.add(attachment)
        wrapt.register_post_import_hook(functools.partial(self._attach, attachment), attachment.module)

    def expect(self, hook: Hook, packages: Collection[str] = ()) -> None:
        """Replace the hook's target in each class of its name, or derived from one, that ``arrived`` is told of.

        A class of that name in one of the packages that lacks the target is reported.
        """
        self._expected[hook] = packages

    def arrived(self, kind: type) -> None:
        """Replace what is hooked of a class that another process has sent by value; its bases stay as they are."""
        packages = {base.__name__: base.__module__.partition(".")[0] for base in kind.__mro__}
        for hook, known in self._expected.items():
            owner, _, name = hook.target.rpartition(".")
            original = inspect.getattr_static(kind, name, None) if owner in packages or owner == "*" else None
            if original is None and not hook.optional and packages.get(owner) in known:
                report(f"find {hook.target}", None)
            if original is None or hook_of(original) is hook:
                continue
            with guard(f"patch {hook.target}"), self.lock:
                self.put(Patch(hook, kind, name, original, wrap(hook, original), name not in vars(kind)))

    def at_undo(self, detach: Callable[[], object]) -> None:
        """Undo something else at the end, too."""
        self._detach.append(detach)

    def put(self, patch: Patch) -> None:
        """Put a replacement in its place."""
        setattr(patch.owner, patch.name, patch.replacement)
        self.applied.append(patch)

    def undo(self) -> None:
        """Restore every target that still holds our replacement, also where modules imported it from.

        If something else replaced the target after us, that stays, and our part of it only passes calls on.
        """
        with self.lock:
            self._wanted.clear()
            self._expected.clear()
            for patch in reversed(self.applied):
                with guard("undo a patch"):
                    _undo(patch)
            with guard("undo imported names"):
                if _are_held(self.applied):
                    _restore_imported({id(patch.replacement): patch for patch in self.applied})
            for detach in reversed(self._detach):
                with guard("undo an attachment"):
                    detach()
            self.applied.clear()
            self._detach.clear()

    def _attach(self, attachment: Attachment, module: ModuleType) -> None:
        with guard(f"attach to {attachment.module}"), self.lock:
            if attachment in self._wanted:
                self._wanted.discard(attachment)
                self._detach.append(attachment.attach(module))

    def _imported(self, hook: Hook, module: ModuleType) -> None:
        with guard(f"patch {hook.target}"), self.lock:
            if hook not in self._wanted:
                return  # uninstrumented before the module was imported
            self._wanted.discard(hook)
            found = find(hook.target)
            if found is None:
                if not hook.optional:
                    report(f"find {hook.target}", None)
                return
            owner, name = found
            if hasattr(owner, "__ray_metadata__"):
                report(f"hook {hook.target}: Ray sends this class by value, so the hook belongs into `arriving`", None)
                return
            inherited = name not in vars(owner)
            original = inspect.getattr_static(owner, name)
            # A module that imported the name after it had been replaced in its home holds that replacement.
            original = next((patch.original for patch in self.applied if patch.replacement is original), original)
            # One function under two names stays one: torch.compile finds collectives in a table, by identity.
            same = (patch for patch in self.applied if patch.original is original and patch.hook.like(hook))
            shared = next(same, None)
            replacement = shared.replacement if shared else wrap(hook, original)
            self.put(Patch(hook, owner, name, original, replacement, inherited))


def find(target: str) -> tuple[Any, str] | None:
    """Find the object that holds a target and the target's name in it; None where it does not exist."""
    module_name, _, path = target.partition(":")
    owner: Any = sys.modules.get(module_name) or importlib.import_module(module_name)
    *outer, name = path.split(".")
    for step in outer:
        owner = getattr(owner, step, None)
    return (owner, name) if owner is not None and hasattr(owner, name) else None


def _undo(patch: Patch) -> None:
    if inspect.getattr_static(patch.owner, patch.name, None) is not patch.replacement:
        return
    if patch.inherited:
        delattr(patch.owner, patch.name)
    else:
        setattr(patch.owner, patch.name, patch.original)


def _are_held(patches: Sequence[Patch]) -> bool:
    """Return whether anything but the patches refers to a replacement, as a module does that imported one."""
    own = Counter(id(patch.replacement) for patch in patches)
    return any(sys.getrefcount(patch.replacement) > own[id(patch.replacement)] + 1 for patch in patches)


def _restore_imported(patches: Mapping[int, Patch]) -> None:
    """Restore names and keys of tables under which other modules imported a replacement.

    torch.compile keeps such a table, by which it knows collectives. Cost: 0.1 s where TRL is loaded.
    """
    modules: list[object] = list(sys.modules.values()) if patches else []  # some programs put other things there
    ours = patches.keys()
    for module in modules:
        names = dict(vars(module)) if isinstance(module, ModuleType) else {}
        if not ours.isdisjoint(map(id, names.values())):
            for name, value in names.items():
                patch = patches.get(id(value))
                if patch is not None and value is patch.replacement:
                    setattr(module, name, patch.original)
        for table in [value for value in names.values() if type(value) is dict]:
            if table is vars(builtins) or table is sys.modules:  # every module has the former
                continue
            if not ours.isdisjoint(map(id, tuple(table))):
                _restore_keys(table, patches)


def _restore_keys(table: dict[Any, Any], patches: Mapping[int, Patch]) -> None:
    originals = {id(key): patches[id(key)].original for key in table if id(key) in patches}
    items = [(originals.get(id(key), key), value) for key, value in table.items()]
    table.clear()
    table.update(items)
