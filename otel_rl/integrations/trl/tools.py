"""TRL: calls of tools, and of an environment's methods, which TRL offers as tools: a stage for each.

Source: trl 1.16, ``trainer/grpo_trainer.py`` (``_tool_call_loop``, 1945; ``_generate_and_score_completions``, 2324).
TRL finds tools by name in two dictionaries for each sample, which it makes anew for every rollout. It turns the
exceptions of tools into messages for the model. A tool that does not exist is never called and has no stage.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, cast

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.guard import attempt
from otel_rl.hooks import Args, Kwargs, StageHook
from otel_rl.hooks.hook import hook_of, wrap
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.records import Value
from otel_rl.trace.apart import open_under
from otel_rl.trace.gap import end_between
from otel_rl.trace.importlib_bootstrap import not_counted
from otel_rl.trace.stage import Stage

Tool = Callable[..., Any]
BELOW = "_otel_rl_below"
"""Marks a tool that records its calls below a stage."""


class Tools(dict[str, Tool]):
    """The tools of one sample; each one that is looked up records its call."""

    def __getitem__(self, name: str) -> Tool:
        tool = super().__getitem__(name)
        end_between()  # the decoding of the turn before
        recorded: Tool | None = attempt("follow", "a tool", _recorded, name, tool)
        return recorded or tool


def begin_tools(args: Args, kwargs: Kwargs) -> None:
    """Record the tool calls of the loop that begins."""
    trainer = args[0]
    trainer._sync_tool_dicts = [Tools(tools) for tools in trainer._sync_tool_dicts]
    trainer._async_tool_dicts = [Tools(tools) for tools in trainer._async_tool_dicts]


def record_tools(tools: dict[str, Tool], parent: Stage) -> None:
    """Let the tools of AsyncGRPO record their calls below a stage.

    TRL runs those that are no coroutine functions in a pool of threads, which inherit no context. The dictionary is
    made for one trajectory.
    """
    for name, tool in tools.items():
        if hook_of(tool) is None and not hasattr(tool, BELOW):
            tools[name] = attempt("follow", "a tool", _recorded_below, name, tool, parent) or tool


@not_counted
def _recorded_below(name: str, tool: Tool, parent: Stage) -> Tool:
    hook = _hook(name, "train")
    if inspect.iscoroutinefunction(tool):
        return cast("Tool", wrap(hook, tool))

    @functools.wraps(tool)
    def call(*args: Any, **kwargs: Any) -> Any:
        stage = Stage(str(hook.stage), dict(hook.attributes), coarse=True)  # type: ignore[arg-type]
        attempt("begin", hook.target, open_under, stage, parent)
        try:
            result = tool(*args, **kwargs)
        except BaseException as error:
            attempt("end", hook.target, stage.__exit__, type(error), error, None)
            raise
        attempt("end", hook.target, stage.close, monotonic_ns())
        return result

    setattr(call, BELOW, True)
    return call


def _hook(name: str, mode: str) -> StageHook:
    said: dict[str, Value] = {
        vocabulary.OPERATION: vocabulary.EXECUTE_TOOL,
        vocabulary.TOOL_NAME: name,
        vocabulary.TOOL_TYPE: "function",
        vocabulary.MODE: mode,
    }
    stage = f"{vocabulary.EXECUTE_TOOL} {name}"
    return StageHook(target=stage, stage=stage, attributes=tuple(said.items()))


@not_counted
def _recorded(name: str, tool: Tool) -> Tool:
    hook = _hook(name, rollouts.mode)
    if not inspect.iscoroutinefunction(tool):
        return cast("Tool", wrap(hook, tool))

    def call(*args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Raise at once for arguments that do not fit, as the tool does; TRL puts such errors before other results."""
        try:
            coroutine = tool(*args, **kwargs)
        except BaseException as error:
            with Stage(str(hook.stage), dict(hook.attributes)) as failed:  # type: ignore[arg-type]
                failed.fail(error)
            raise

        async def run() -> Any:
            return await coroutine

        return cast("Coroutine[Any, Any, Any]", wrap(hook, run)())

    return call
