"""Tools of verl's own agent loop that fail inside it: verl makes an answer for the model of the exception."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from tests.fixtures import Recording

pytestmark = pytest.mark.verl


class Slow(Exception):
    """What a tool raises."""


async def lookup(word: str) -> str:
    """Look a word up; find no second one."""
    if word == "b":
        raise Slow(word)
    return word


@pytest.fixture
def calls(recording: Recording) -> Any:
    """Call tools by the method of verl's loop that does."""
    loops = pytest.importorskip("verl.experimental.agent_loop.tool_agent_loop")
    otel_rl.uninstrument()
    recording.start("verl")

    def call(tool: Any, arguments: str) -> str:
        loop = loops.ToolAgentLoop.__new__(loops.ToolAgentLoop)
        loop.tools, loop.max_tool_response_length = {"lookup": tool}, 100
        asked = SimpleNamespace(name="lookup", arguments=arguments)
        with otel_rl.stage("sample.trajectory"):
            answer, *_ = asyncio.run(loop._call_tool(asked, {}, SimpleNamespace()))
        return str(answer.text)

    return call


def class_of_tools() -> Any:
    """Return a class as users write them."""
    base, schemas = (pytest.importorskip(f"verl.tools.{name}") for name in ("base_tool", "schemas"))

    class Lookup(base.BaseTool):  # type: ignore[misc, name-defined]
        async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
            return schemas.ToolResponse(text=await lookup(**parameters)), 0.0, {}

    return Lookup


@pytest.mark.parametrize("kind", ["function", "class"])
def test_a_tool_that_raises_is_a_failed_call(recording: Recording, calls: Any, kind: str) -> None:
    """A function and a class alike; the model gets the same answers."""
    if kind == "function":
        tool = pytest.importorskip("verl.tools.function_tool").FunctionTool("lookup", lookup, None, is_async=True)
    else:
        shown = SimpleNamespace(function=SimpleNamespace(name="lookup"), model_dump=lambda **options: {})
        tool = class_of_tools()({}, shown)
    answers = [calls(tool, f'{{"word": "{word}"}}') for word in "aba"]
    assert ["a", "Error executing tool 'lookup': b", "a"] == answers
    spans = [span for span in recording.stop().spans(None) if span.name == f"{v.EXECUTE_TOOL} lookup"]
    found = [(one.attributes.get(v.ERROR_TYPE), one.status_code, one.attributes[v.TOOL_TYPE]) for one in spans]
    assert [(None, 0, "function"), ("Slow", 2, "function"), (None, 0, "function")] == found
