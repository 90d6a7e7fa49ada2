"""Hooks on functions that return a context manager: the stage lasts as long as its block."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from otel_rl.guard import attempt
from otel_rl.hooks.arguments import Args, Bind, Kwargs
from otel_rl.hooks.callbacks import Failed
from otel_rl.hooks.hook import Hook
from otel_rl.process.state import state
from otel_rl.trace.current import CURRENT
from otel_rl.trace.importlib_bootstrap import not_counted
from otel_rl.trace.stage import Stage

Begin = Callable[[Args, Kwargs], Stage | None]
"""``(args, kwargs)``: runs guarded after the host's call; returns a stage that begins with the block, or None."""


@dataclass(frozen=True, kw_only=True)
class BlockHook(Hook):
    """A function that returns a context manager, such as a framework's timer: ``with timer("update"):``.

    A block inside a stage of the same name belongs to that stage.
    """

    begin: Begin
    failed: Failed | None = None
    """Runs after a block that raised, also where it has no stage."""

    def replacement(self, original: Any, bind: Bind | None) -> Any:
        """Return the function that stands in the place of ``original``."""
        return _wrap_block(self, original, bind)


@not_counted
def _wrap_block(hook: BlockHook, original: Callable[..., Any], bind: Bind | None) -> Callable[..., Any]:
    target, begin, failed = hook.target, hook.begin, hook.failed

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        block = original(*args, **kwargs)
        if not state.on:
            return block
        if kwargs and bind is not None:
            args, kwargs = bind(args, kwargs)
        stage = attempt("begin", target, begin, args, kwargs)
        stage = stage if isinstance(stage, Stage) else None
        if (stage is None and failed is None) or not hasattr(block, "__enter__"):
            return block
        return Block(block, target, stage, failed and functools.partial(failed, args, kwargs))

    return call


@not_counted
class Block:
    """The host's context manager, with a stage around its block."""

    __slots__ = ("_block", "_failed", "_stage", "_target")

    def __init__(
        self, block: Any, target: str, stage: Stage | None, failed: Callable[[BaseException], object] | None = None
    ) -> None:
        self._block, self._target, self._stage, self._failed = block, target, stage, failed

    def __enter__(self) -> Any:
        around = CURRENT.get()
        if self._stage is not None and (around is None or around.ended or around.name != self._stage.name):
            attempt("begin", self._target, self._stage.open)
        return self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        try:
            return self._block.__exit__(kind, error, trace)
        finally:
            if self._stage is not None:
                attempt("end", self._target, self._stage.__exit__, kind, error, trace)
            if error is not None and self._failed is not None:
                attempt("follow", self._target, self._failed, error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)

    def __call__(self, function: Any) -> Any:
        """Decorate a function as the host's context manager does."""
        return self._block(function)
