"""The side that calls: what goes along with a call of an actor or a task."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import local
from typing import Any

from otel_rl.hooks import Args, Kwargs, Memory
from otel_rl.hooks.hook import hook_of
from otel_rl.integrations.ray.missing import AUTOLOAD, Missing, say_missing
from otel_rl.process.carrier import Carrier
from otel_rl.process.state import state
from otel_rl.trace.stage import Stage

KEYWORD = "_ray_trace_ctx"
OURS = "otel_rl"
"""Our entry in the dictionary of that keyword; Ray's own tracing has others."""
TASK = "_otel_rl"
"""The keyword that we give a task's function: Ray gives it one only while its own tracing is on, and keeps that."""


class _Creating(local):
    """The actor that this thread is creating."""

    number: int | None = None


@dataclass(eq=False)
class Calling(Memory):
    """What a process remembers of the actors that it has created, and of those that it holds."""

    actors: Counter[str] = field(default_factory=Counter)
    """How many of each class it has created."""
    creating: _Creating = field(default_factory=_Creating)
    sent_ns: int | None = None
    """When the creator of this actor asked for it."""
    start: Stage | None = None
    """How this actor started, until it records something else."""
    asked_ns: int = 0
    """When an actor's call asked for its records to be journaled last."""
    waited_ns: int = 0
    """When one waited for it last."""

    def after_fork_in_child(self) -> None:
        """Keep counting: numbers of actors must not repeat."""


calling = Calling.keep("calling")


def count_actor(args: Args, kwargs: Kwargs) -> None:
    """Number the actor that is being created among those of its class: many have no name."""
    if kwargs.get("get_if_exists"):  # Ray calls this again, without it, if there is none
        return
    kind = args[0].__ray_metadata__.class_name
    calling.creating.number = calling.actors[kind]
    calling.actors[kind] += 1


def counted(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Forget the number, now that the actor has it."""
    calling.creating.number = None


def not_counted(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    """Forget the number of an actor that could not be created."""
    calling.creating.number = None


def complete_signatures(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Let calls of decorated methods take the keyword along: ``_ActorClassMethodMetadata.create``.

    Ray gives the keyword to each method of a class, and reads the parameters of what the method wraps: a method with a
    decorator, or with a hook of ours, takes the keyword and is not known to.
    """
    for name, method in result.methods.items():
        known, code = result.signatures[name], getattr(_unhooked(method), "__code__", None)
        taken = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if KEYWORD in taken and all(parameter.name != KEYWORD for parameter in known):
            is_open = bool(known) and known[-1].kind is inspect.Parameter.VAR_KEYWORD
            place = inspect.Parameter(KEYWORD, inspect.Parameter.KEYWORD_ONLY, default=None)
            known.insert(len(known) - is_open, place)


def _unhooked(method: Any) -> Any:
    """Return the function inside our replacements: where a class has arrived, Ray's is inside."""
    return method if hook_of(method) is None else _unhooked(method.__wrapped__)


def send(args: Args, kwargs: Kwargs, carrier: Carrier | None) -> tuple[Args, Kwargs]:
    """Put the carrier into the arguments of a call whose signature has a place for it.

    Plain values, which a process without otel_rl can unpickle.
    """
    signature, call_args, call_kwargs = args
    number = calling.creating.number
    names = {one.name for one in signature}
    if (carrier is None and number is None) or names.isdisjoint((KEYWORD, TASK)):
        return args, kwargs
    said: dict[str, Any] = {
        "carrier": None if carrier is None else dict(vars(carrier)),
        "number": number,
        "sent_ns": state.now(),
        "system": state.identity.system,
        "system_version": state.identity.system_version,
        "algorithm": state.identity.algorithm,
        "model_name": state.identity.model_name,
    }
    if number is not None:
        said["missing"] = Missing()
    if TASK in names:
        added: dict[str, Any] = {TASK: said}
    else:
        added = {KEYWORD: {**(call_kwargs.get(KEYWORD) or {}), OURS: said}}
    return (signature, call_args, {**call_kwargs, **added}), kwargs


def take_with_task(args: Args, kwargs: Kwargs, carrier: object) -> tuple[Args, Kwargs]:
    """Add a parameter for the carrier to a task's function. A generator gets none: it runs after its call."""
    (function,) = args
    if inspect.isgeneratorfunction(function) or not inspect.isfunction(function):
        return args, kwargs
    return (taking(function),), kwargs


def taking(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes the carrier out again. It is pickled by value, and runs without otel_rl, too."""
    say, has_said = say_missing(AUTOLOAD), False

    @functools.wraps(function)
    def task(*args: Any, _otel_rl: Any = None, **kwargs: Any) -> Any:
        nonlocal has_said
        run = function
        if _otel_rl is not None:
            serving = sys.modules.get("otel_rl.integrations.ray.serving")
            if serving is not None:
                run = serving.serve_task(function, _otel_rl)
            elif not has_said:
                has_said = True
                say()
        return run(*args, **kwargs)

    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    is_open = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    place = inspect.Parameter(TASK, inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters.insert(len(parameters) - is_open, place)
    task.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return task
