"""Rows of tables that frameworks have alike: timers and hooks of synchronizing, hooks of tools, of classes made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakSet

from otel_rl import vocabulary
from otel_rl.hooks import Args, Hook, Kwargs, Memory, StageHook
from otel_rl.process.hooked import hooking
from otel_rl.records import Value
from otel_rl.single_controller.driver import Timers
from otel_rl.trace.stage import innermost


@dataclass(eq=False)
class FollowedKinds(Memory):
    """What ``follow_once`` remembers."""

    kinds: WeakSet[type] = field(default_factory=WeakSet)
    """Classes that are hooked."""


followed = FollowedKinds.keep("followed")


def sync_timers(*names: str) -> Timers:
    """Return the rows of timers that synchronize: their name is that of the operation."""
    return {name: (vocabulary.SYNC, ((vocabulary.SYNC_OPERATION, name),)) for name in names}


def sync_hooks(owner: str, *names: str, optional: bool = False) -> tuple[Hook, ...]:
    """Return the hooks of methods that synchronize: their name is that of the operation."""
    return tuple(
        StageHook(target=f"{owner}.{name}", stage=stage, attributes=attributes, optional=optional)
        for name, (stage, attributes) in sync_timers(*names).items()
    )


def tool_attributes(name: str) -> dict[str, Value]:
    """Return what the call of a tool says of itself."""
    called: dict[str, Value] = {vocabulary.OPERATION: vocabulary.EXECUTE_TOOL, vocabulary.TOOL_NAME: name}
    return {**called, vocabulary.TOOL_TYPE: "function"}


def tool_hook(target: str, name_of: Callable[[Args], str], say: Callable[[Args, Kwargs], dict[str, Value]]) -> Hook:
    """Return the hook of a function that calls a tool.

    Args:
        target: the function.
        name_of: returns the name of the tool; a model's own words are none.
        say: returns further attributes.
    """

    def stage(args: Args, kwargs: Kwargs) -> str:
        return f"{vocabulary.EXECUTE_TOOL} {name_of(args)}"

    def attributes(args: Args, kwargs: Kwargs) -> dict[str, Value]:
        return {**say(args, kwargs), **tool_attributes(name_of(args))}

    return StageHook(target=target, stage=stage, attributes=attributes)


def tool_failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    """Let the call of a tool fail with a function inside of it whose exception the framework makes an answer of."""
    stage = innermost()
    if stage is not None and stage.name.startswith(f"{vocabulary.EXECUTE_TOOL} "):
        stage.fail(error)


def follow_made(args: Args, kwargs: Kwargs, result: object) -> None:
    """Hook what the class of an object overrides, after ``__init__(self, ...)``."""
    follow_once(args[0])


def follow_once(made: object) -> None:
    """Hook what the class of an object overrides, if it is the first of its class: there may be one for each sample."""
    if type(made) not in followed.kinds:
        followed.kinds.add(type(made))
        hooking.follow(made)
