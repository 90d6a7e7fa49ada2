"""Rows of tables that frameworks have alike."""

from __future__ import annotations

from typing import Any

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.hooks import StageHook
from otel_rl.hooks.hook import wrap
from otel_rl.single_controller.tables import sync_hooks, sync_timers, tool_failed, tool_hook
from tests.fixtures import Recording

TARGET = "roll.game:Game.step"


def test_timers_and_hooks_that_synchronize() -> None:
    """The operation has the name of the timer, or of the method."""
    said = {name: (v.SYNC, ((v.SYNC_OPERATION, name),)) for name in ("sleep", "wake")}
    assert said == sync_timers("sleep", "wake")
    for is_optional in (False, True):
        found = sync_hooks("a:B", "sleep", "wake", optional=is_optional)
        hooks = [hook for hook in found if isinstance(hook, StageHook)]
        expected = [(f"a:B.{name}", *one, is_optional) for name, one in said.items()]
        assert expected == [(hook.target, hook.stage, hook.attributes, hook.optional) for hook in hooks]


def test_a_tool_that_is_called(recording: Recording) -> None:
    """Its stage has its name, and whatever else there is to say."""
    hook = tool_hook(TARGET, lambda args: str(args[0]), lambda args, kwargs: {v.MODE: "eval"})
    with otel_rl.step(1):
        assert 3 == wrap(hook, lambda name: 3)("search")
    (span,) = (one for one in recording.stop().spans(None) if one.name.startswith(v.EXECUTE_TOOL))
    keys = v.MODE, v.OPERATION, v.TOOL_NAME, v.TOOL_TYPE
    assert (f"{v.EXECUTE_TOOL} search", "eval", v.EXECUTE_TOOL, "search", "function") == (
        span.name, *(span.attributes[key] for key in keys),
    )  # fmt: skip


def test_a_tool_whose_exception_the_framework_keeps(recording: Recording) -> None:
    """The call fails with what is inside of it; another stage does not."""

    def inside(*_: Any) -> None:
        tool_failed((), {}, ValueError("theirs"))

    hook = tool_hook(TARGET, lambda args: "search", lambda args, kwargs: {})
    with otel_rl.step(1):
        wrap(hook, inside)()
        with otel_rl.stage(v.TRAIN):
            inside()
    found = {one.name: one.attributes.get(v.ERROR_TYPE) for one in recording.stop().spans(None)}
    assert (None, "ValueError") == (found[v.TRAIN], found[f"{v.EXECUTE_TOOL} search"])
