"""The only code that replaces attributes of other packages. Every replacement is undone exactly."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic_ns
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakSet

import wrapt

from otel_rl.collective_calls import around_collective
from otel_rl.current import CURRENT, SPAN_KEY
from otel_rl.guard import attempt, guard
from otel_rl.records import Value
from otel_rl.runtime import state
from otel_rl.spans import Stage
from otel_rl.watching import Begin, First, asked, watched

Capture = Callable[[tuple[Any, ...], dict[str, Any], Any], dict[str, Value] | None]
"""``(args, kwargs, result) -> attributes``, which become the stage's; runs guarded after the host's call."""
Say = Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Value]]
"""``(args, kwargs) -> attributes`` of the stage; runs guarded before the host's call."""
Before = Callable[[tuple[Any, ...], dict[str, Any]], object]
"""``(args, kwargs)``; runs guarded before the host's call. For a ``stage``: its name, or None for no stage now."""


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One function of another package and what to record around it.

    The host's arguments, result and exception pass through unchanged; whatever we do around them is guarded. A call
    below a stage of the same name belongs to that stage (nested and recomputed calls count once).
    """

    target: str
    """``"package.module:function"`` or ``"package.module:Class.method"``."""
    stage: str | Before | None = None
    """Name of the stage around the call, or a function that says it."""
    attributes: tuple[tuple[str, Value], ...] | Say = ()
    """What every such stage says from its begin on, however the call ends; or a function that knows it of a call."""
    before: Before | None = None
    capture: Capture | None = None
    after: Capture | None = None
    """Like ``capture``, behind the end of the stage; its result is ignored."""
    failed: Callable[[tuple[Any, ...], dict[str, Any], BaseException], object] | None = None
    """Called with the host's exception."""
    during: str = ""
    """Name of what has to be going on, a field of ``runtime.Training`` that is not None then; else the call passes."""
    marks: bool = False
    """Only append when each call returned (monotonic ns) to ``runtime.Generating.marks``, where that is a list: for
    what is called for each token, is never compiled and no coroutine. Nothing of ours is called that could fail."""
    behind: Callable[[tuple[Any, ...]], object] | None = None
    """Only called, guarded, with the positional arguments of each call that has returned: for what is called for each
    request, is never compiled and no coroutine."""
    made: Capture | None = None
    """Only called, guarded, behind each call: for constructors in which torch compiles nothing."""
    watch: Begin | None = None
    """Watches the call instead, from its begin to its end, and item by item where the target is a generator."""
    asked: First | None = None
    """Watches an asynchronous generator from its first item on, since that is most often its last; ``before`` sees
    its arguments when it begins."""
    collective: int | None = None
    """This is a collective, or waits for one: a row instead of a stage; the position of this rank's input."""
    optional: bool = False
    """The target need not exist in every supported version."""

    def like(self, other: Hook) -> bool:
        """Whether the other hook does the same with a function of the same name elsewhere."""
        names = {hook.target.replace(":", ".").rpartition(".")[2] for hook in (self, other)}
        return len(names) == 1 and replace(self, target="") == replace(other, target="")


@dataclass(frozen=True)
class Attachment:
    """What is registered with a package by its own means, once its module is imported."""

    module: str
    attach: Callable[[ModuleType], Callable[[], object]]
    """Registers and returns what takes it back."""


@dataclass(frozen=True)
class Patch:
    """One replacement, with what is needed to undo it."""

    hook: Hook
    owner: Any
    name: str
    original: Any
    replacement: Any
    inherited: bool
    """The owner had the attribute from a base class only."""
    outermost: bool = False
    """Only objects whose class finds the attribute in the owner first are hooked."""


class Patches:
    """The hooks of this process: waiting for their modules, in place, or without a target."""

    def __init__(self) -> None:
        self.applied: list[Patch] = []
        self.missing: list[str] = []
        """Targets that the installed version does not have."""
        self._wanted: set[Hook | Attachment] = set()
        self._followed: WeakSet[type] = WeakSet()
        """Classes whose overrides are hooked."""
        self._detach: list[Callable[[], object]] = []
        self._lock = threading.RLock()

    def in_child(self) -> None:
        """Forget a lock that another thread of the parent held when it forked."""
        self._lock = threading.RLock()

    def install(self, hook: Hook) -> None:
        """Replace the hook's target now, or as soon as somebody imports its module."""
        self._wanted.add(hook)
        module = hook.target.partition(":")[0]
        wrapt.register_post_import_hook(functools.partial(self._imported, hook), module)

    def attach(self, attachment: Attachment) -> None:
        """Attach now, or as soon as somebody imports the module."""
        self._wanted.add(attachment)
        wrapt.register_post_import_hook(functools.partial(self._attach, attachment), attachment.module)

    def follow(self, kind: type) -> None:
        """Hook what a class, or one between, overrides of the hooked methods of those that it is derived from.

        The stage of such a method is then around the override, which may call the method or replace it. Of one call,
        only the method that the object's own class finds first is hooked.

        Args:
            kind: most often of the program: a trainer derived from the framework's.
        """
        with guard(f"follow {kind.__qualname__}"), self._lock:
            if kind in self._followed:
                return
            self._followed.add(kind)
            for name, patch in self._nearest(kind).items():
                definer = _definer(kind, name)
                if definer is None or definer is patch.owner:
                    continue
                override = vars(definer)[name]
                if isinstance(override, FunctionType):
                    if not patch.outermost:
                        self._put_outermost(patch, patch.owner, patch.replacement, patch.original)
                    self._put_outermost(patch, definer, wrap(patch.hook, override), override)

    def _nearest(self, kind: type) -> dict[str, Patch]:
        """Find the replaced methods that objects of a class have, of each name that of the nearest class."""
        places = {owner: place for place, owner in enumerate(kind.__mro__)}
        methods = [patch for patch in self.applied if inspect.isclass(patch.owner) and patch.owner in places]
        further_first = sorted(methods, key=lambda patch: -places[patch.owner])  # stable: the last replacement counts
        return {patch.name: patch for patch in further_first if not patch.name.startswith("__")}

    def _put_outermost(self, patch: Patch, owner: type, hooked: Any, original: Any) -> None:
        """Hook a method for the objects whose class finds it first; for the others it is as it was."""
        before, replacement = vars(owner)[patch.name], _outermost(owner, patch.name, hooked, original)
        setattr(owner, patch.name, replacement)
        self.applied.append(Patch(patch.hook, owner, patch.name, before, replacement, inherited=False, outermost=True))

    def undo(self) -> None:
        """Restore every target that still holds our replacement, also where modules imported it from.

        Where somebody else replaced the target after us, theirs stays; our part of it only passes calls on.
        """
        with self._lock:
            self._wanted.clear()
            for patch in reversed(self.applied):
                with guard("undo a patch"):
                    _undo(patch)
            with guard("undo imported names"):
                _restore_imported({id(patch.replacement): patch for patch in self.applied})
            for detach in reversed(self._detach):
                with guard("undo an attachment"):
                    detach()
            self.applied.clear()
            self._followed.clear()
            self.missing.clear()
            self._detach.clear()

    def _attach(self, attachment: Attachment, module: ModuleType) -> None:
        with guard(f"attach to {attachment.module}"), self._lock:
            if attachment in self._wanted:
                self._wanted.discard(attachment)
                self._detach.append(attachment.attach(module))

    def _imported(self, hook: Hook, module: ModuleType) -> None:
        with guard(f"patch {hook.target}"), self._lock:
            if hook not in self._wanted:
                return  # uninstrumented before the module was imported
            self._wanted.discard(hook)
            found = find(hook.target)
            if found is None:
                if not hook.optional:
                    self.missing.append(hook.target)
                return
            owner, name = found
            inherited = name not in vars(owner)
            original = inspect.getattr_static(owner, name)
            # A module that imported the name after it had been replaced in its home holds that replacement.
            original = next((patch.original for patch in self.applied if patch.replacement is original), original)
            # One function under two names stays one: torch.compile finds collectives in a table, by identity.
            same = (patch for patch in self.applied if patch.original is original and patch.hook.like(hook))
            shared = next(same, None)
            replacement = shared.replacement if shared else wrap(hook, original)
            setattr(owner, name, replacement)
            self.applied.append(Patch(hook, owner, name, original, replacement, inherited))


def find(target: str) -> tuple[Any, str] | None:
    """Find the object that holds a target and the target's name in it; None where it does not exist."""
    module_name, _, path = target.partition(":")
    owner: Any = sys.modules.get(module_name) or importlib.import_module(module_name)
    *outer, name = path.split(".")
    for step in outer:
        owner = getattr(owner, step, None)
    return (owner, name) if owner is not None and hasattr(owner, name) else None


def wrap(hook: Hook, original: Any) -> Any:
    """Make the replacement of a function or a static or class method; a plain closure, so that Ray can pickle it."""
    if isinstance(original, (staticmethod, classmethod)):
        return type(original)(wrap(hook, original.__func__))
    if hook.collective is not None:
        return around_collective(hook.target, hook.collective, hook.before, original)
    if hook.watch is not None:
        return watched(hook.target, hook.watch, original)
    if hook.asked is not None:
        return asked(hook.target, hook.before, hook.asked, original)
    if hook.marks or hook.behind is not None or hook.made is not None:
        return _wrap_light(hook, original)
    return _wrap_async(hook, original) if inspect.iscoroutinefunction(original) else _wrap_sync(hook, original)


def _definer(kind: type, name: str) -> type | None:
    """Find the class whose method an object of a class has."""
    return next((owner for owner in kind.__mro__ if name in vars(owner)), None)


def _outermost(owner: type, name: str, hooked: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (hooked if _definer(type(self), name) is owner else original)(self, *args, **kwargs)

    return method


# Between matrix products, with cold caches, each call of a function costs 1 to 4 us (``benchmarks/cold.py``), and a
# trainer makes 60 hooked calls a step: what can be known beforehand is, and no function is called that need not be.


def _wrap_sync(hook: Hook, original: Callable[..., Any]) -> Callable[..., Any]:
    target, before, capture, after, during = hook.target, hook.before, hook.capture, hook.after, hook.during
    is_stage = hook.stage is not None

    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        if not state.on or (during and getattr(state.training, during) is None):
            return original(*args, **kwargs)
        if state.is_tracing() or state.compiler._is_compiling_flag:
            return original(*args, **kwargs)
        span = None
        if is_stage:
            span = attempt("begin", target, _begin, hook, args, kwargs)
        elif before is not None:
            attempt("begin", target, before, args, kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _fail(hook, span, args, kwargs, error)
            raise
        if span is not None:
            end, described = monotonic_ns(), None
            try:
                if capture is not None:
                    described = attempt("describe", target, capture, args, kwargs, result)
            finally:  # a handler of a signal may raise anywhere
                attempt("end", target, span.close, end, described)
        if after is not None:
            attempt("follow", target, after, args, kwargs, result)
        return result

    return around


def _wrap_made(target: str, made: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    """Look at what has been made; whatever torch would compile of it because of our frame, it does not."""

    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        result = state.uncompiled(original)(*args, **kwargs)
        if state.on:
            attempt("follow", target, made, args, kwargs, result)
        return result

    return around


def _wrap_light(hook: Hook, original: Callable[..., Any]) -> Callable[..., Any]:
    """Do nothing before the call."""
    if hook.made is not None:
        return _wrap_made(hook.target, hook.made, original)
    return _wrap_marks(original) if hook.behind is None else _wrap_behind(hook.target, hook.behind, original)


def _wrap_marks(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if state.on:
            marks = state.training.generating.marks
            if marks is not None:
                marks.append(monotonic_ns())
        return result

    return around


def _wrap_behind(
    target: str, behind: Callable[[tuple[Any, ...]], object], original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if state.on:
            attempt("follow", target, behind, args)
        return result

    return around


def _wrap_async(hook: Hook, original: Callable[..., Any]) -> Callable[..., Any]:
    target, capture, after = hook.target, hook.capture, hook.after
    begins = hook.stage is not None or hook.before is not None

    @functools.wraps(original)
    async def around(*args: Any, **kwargs: Any) -> Any:
        if not state.on:
            return await original(*args, **kwargs)
        span = attempt("begin", target, _begin, hook, args, kwargs) if begins else None
        try:
            result = await original(*args, **kwargs)
        except BaseException as error:
            _fail(hook, span, args, kwargs, error)
            raise
        if span is not None:
            end, described = monotonic_ns(), None
            try:
                if capture is not None:
                    described = attempt("describe", target, capture, args, kwargs, result)
            finally:  # a handler of a signal may raise anywhere
                attempt("end", target, span.close, end, described)
        if after is not None:
            attempt("follow", target, after, args, kwargs, result)
        return result

    return around


def _begin(hook: Hook, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stage | None:
    """Open the stage of a call, unless the current one has the same name: nested and recomputed calls count once."""
    if hook.before is not None:
        hook.before(args, kwargs)
    stage = hook.stage
    name = stage if isinstance(stage, str) or stage is None else stage(args, kwargs)
    if not isinstance(name, str):
        return None
    context = CURRENT.get()
    parent = context.get(SPAN_KEY)
    if parent.__class__ is Stage and parent.name == name:
        return None
    said = hook.attributes
    if callable(said):
        attributes = attempt("describe", hook.target, said, args, kwargs)
    else:
        attributes = dict(said) if said else None
    opened = Stage(name, attributes, coarse=True)
    opened.open(context, parent)
    return opened


def _fail(hook: Hook, span: Stage | None, args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException) -> None:
    if span is not None:
        with guard(f"end {hook.target}"):
            span.__exit__(type(error), error, error.__traceback__)
    if hook.failed is not None:
        with guard(f"follow {hook.target}"):
            hook.failed(args, kwargs, error)


def _undo(patch: Patch) -> None:
    if inspect.getattr_static(patch.owner, patch.name, None) is not patch.replacement:
        return
    if patch.inherited:
        delattr(patch.owner, patch.name)
    else:
        setattr(patch.owner, patch.name, patch.original)


def _restore_imported(patches: Mapping[int, Patch]) -> None:
    """Restore what other modules took of a replaced function while it was replaced: names, and keys of their tables.

    torch.compile keeps such a table, by which it knows collectives. Cost: 50 ms.
    """
    modules: list[object] = list(sys.modules.values()) if patches else []  # some programs put other things there
    for module in modules:
        names = vars(module) if isinstance(module, ModuleType) else {}
        for name, value in list(names.items()):
            patch = patches.get(id(value))
            if patch is not None and value is patch.replacement:
                setattr(module, name, patch.original)
            elif type(value) is dict and value is not sys.modules:
                _restore_keys(value, patches)


def _restore_keys(table: dict[Any, Any], patches: Mapping[int, Patch]) -> None:
    found = [key for key in list(table) if id(key) in patches and key is patches[id(key)].replacement]
    if found:
        items = [(patches[id(key)].original if id(key) in patches else key, value) for key, value in table.items()]
        table.clear()
        table.update(items)
