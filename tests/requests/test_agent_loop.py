"""Trajectories, turns and tools of a loop of one's own."""

from __future__ import annotations

import asyncio

import pytest

import otel_rl
from otel_rl import vocabulary as v
from tests.fixtures import Recording
from tests.programs.recorded import Node


def nodes(recording: Recording) -> list[Node]:
    """Return the spans of an agent loop."""
    spans = [Node(span) for span in recording.stop().spans(None)]
    names = (v.TRAJECTORY, v.SAMPLE_TURN, v.EXECUTE_TOOL, "rl.reward")
    found = [node for node in spans if node.name.startswith(names)]
    by_id = {node.span.span_id: node for node in found}
    for node in sorted(found, key=lambda node: node.span.start_ns):
        if node.span.parent_id in by_id:
            by_id[node.span.parent_id].children.append(node)
    return [node for node in found if node.span.parent_id not in by_id]


def test_a_loop_of_ones_own(recording: Recording) -> None:
    """Two trajectories at once in one event loop: each has its own turns, tools and reward."""

    @otel_rl.tool("search")
    async def search(text: str) -> str:
        recording.tick(1)
        await asyncio.sleep(0)
        return text.upper()

    async def roll(number: int) -> None:
        with otel_rl.trajectory(id=f"7.{number}", group="7", agent="finder") as trajectory:
            for index in range(2):
                with otel_rl.turn(number=index) as turn:
                    recording.tick(1)
                    await asyncio.sleep(0)
                    turn.set_attribute(v.TOKENS_RESPONSE, 5)
                await search("a")
            with otel_rl.tool("clock", call_id="c1"), otel_rl.stage("reward"):
                await asyncio.sleep(0)
            trajectory.set_attribute(v.TOKENS_RESPONSE, 10)

    async def both() -> None:
        await asyncio.gather(roll(0), roll(1))

    with otel_rl.step(1):
        asyncio.run(both())
    found = nodes(recording)
    outline = [
        v.SAMPLE_TURN, "execute_tool search", v.SAMPLE_TURN, "execute_tool search", "execute_tool clock", "  rl.reward",
    ]  # fmt: skip
    assert [outline, outline] == [node.outline() for node in found]
    whose = {v.MODE: "train", v.GROUP_ID: "7", v.SAMPLE_ID: "7.1"}
    (second,) = [node for node in found if node.attributes[v.SAMPLE_ID] == "7.1"]
    said = {v.OPERATION: v.INVOKE_AGENT, v.AGENT_NAME: "finder", v.TOKENS_RESPONSE: 10, **whose}
    assert said == without_memory(second)
    turn, called, clock = second.children[0], second.children[1], second.children[4]
    assert {v.OPERATION: "chat", v.TURN: 0, v.TOKENS_RESPONSE: 5, **whose} == without_memory(turn)
    tool = {v.OPERATION: v.EXECUTE_TOOL, v.TOOL_TYPE: "function"}
    assert {v.TOOL_NAME: "search", **tool} == without_memory(called)
    assert {v.TOOL_NAME: "clock", v.TOOL_CALL_ID: "c1", **tool, **whose} == without_memory(clock)


def without_memory(node: Node) -> dict[str, object]:
    """Return the attributes that are not of the process's memory."""
    return {key: value for key, value in node.attributes.items() if not key.startswith("rl.memory")}


def test_a_tool_that_raises(recording: Recording) -> None:
    """The exception passes, and is on the span."""
    with otel_rl.step(1), pytest.raises(LookupError), otel_rl.trajectory(), otel_rl.tool("a" * 10_000):
        raise LookupError("gone")
    (found,) = nodes(recording)
    assert ["LookupError", "LookupError"] == [node.attributes[v.ERROR_TYPE] for node in found.walk()]


def test_without_recording_nothing_happens() -> None:
    """No error and no attribute."""
    with otel_rl.trajectory(id="1"), otel_rl.turn(), otel_rl.tool("") as tool:
        assert not tool.is_recording()
