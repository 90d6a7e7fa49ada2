"""``otel_rl.trajectory``, ``turn`` and ``tool``: the stages of an agent loop of one's own."""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.process.hooked import hooking
from otel_rl.records import Value
from otel_rl.trace.stage import Stage, innermost, stage
from otel_rl.trace.values import clean_key

KEPT = (vocabulary.MODE, vocabulary.GROUP_ID, vocabulary.SAMPLE_ID)
"""What a turn and a tool repeat of their trajectory, so that each can be found by it."""


def trajectory(*, id: str = "", group: str = "", mode: str = "train", agent: str = "", **attributes: Any) -> Stage:
    """Open a trajectory: ``with otel_rl.trajectory(id="7.3", group="7") as span:``, or a decorator.

    Turns, tools, requests and rewards that begin inside are below it, in its own task or thread and in those that
    inherit the context.

    Args:
        id: of the sample, as ``otel_rl.sample`` gets it.
        group: the samples whose rewards are compared.
        mode: ``train`` or ``eval``.
        agent: name of the agent.
        attributes: as those of ``otel_rl.stage``.

    Emits: a span ``rl.sample.trajectory`` with ``gen_ai.operation.name = invoke_agent``, and its duration
    (histogram, s). Cost: as of ``otel_rl.stage``.
    """
    said: dict[str, Value] = {vocabulary.OPERATION: vocabulary.INVOKE_AGENT, vocabulary.MODE: clean_key(mode)}
    named = {vocabulary.SAMPLE_ID: id, vocabulary.GROUP_ID: group, vocabulary.AGENT_NAME: agent}
    return _stage(vocabulary.TRAJECTORY, said | _words(named), attributes)


def turn(*, number: int | None = None, **attributes: Any) -> Stage:
    """Open one answer of the policy in a trajectory: ``with otel_rl.turn() as span:``, or a decorator.

    Set what is known at its end with ``span.set_attribute("rl.tokens.response", 37)``.

    Args:
        number: which turn of the trajectory.
        attributes: as those of ``otel_rl.stage``; ``tokens.prompt`` and the like by ``**{"rl.tokens.prompt": 120}``.

    Emits: a span ``rl.sample.turn`` with ``gen_ai.operation.name = chat``, and its duration (histogram, s).
    """
    said: dict[str, Value] = {vocabulary.OPERATION: "chat"}
    if number is not None:
        said[vocabulary.TURN] = int(number)
    return _stage(vocabulary.SAMPLE_TURN, _of_trajectory() | said, attributes)


def tool(name: str, /, *, call_id: str = "", **attributes: Any) -> Stage:
    """Open one call of a tool or an environment: ``with otel_rl.tool("search"):``, or ``@otel_rl.tool("search")``.

    Args:
        name: of the tool. It is part of the span's name: never the model's own words.
        call_id: of this call.
        attributes: as those of ``otel_rl.stage``.

    Emits: a span ``execute_tool <name>``, as of OpenTelemetry's conventions, and its duration (histogram, s).
    """
    called = clean_key(name) or "_OTHER"
    said: dict[str, Value] = {
        vocabulary.OPERATION: vocabulary.EXECUTE_TOOL,
        vocabulary.TOOL_NAME: called,
        vocabulary.TOOL_TYPE: "function",
    }
    words = _words({vocabulary.TOOL_CALL_ID: call_id})
    return _stage(f"{vocabulary.EXECUTE_TOOL} {called}", _of_trajectory() | said | words, attributes)


def _stage(name: str, said: dict[str, Value], attributes: dict[str, Any]) -> Stage:
    made = stage(name, **attributes)
    if not hooking.is_compiling():
        made.attributes = {**said, **(made.attributes or {})}
    return made


def _words(words: dict[str, str]) -> dict[str, Value]:
    return {key: clean_key(word) for key, word in words.items() if word}


def _of_trajectory() -> dict[str, Value]:
    """Return what the stage around says of whose work this is; none where this is a decorator."""
    around = innermost()
    said = (around and around.attributes) or {}
    return {key: said[key] for key in KEPT if key in said}
