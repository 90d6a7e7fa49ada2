"""RL-Insight's agent-loop protocol: its sessions are trajectories, and the spans that programs report in them stages.

Runs in every process that reports agent loops to RL-Insight, such as verl's and Uni-Agent's, whether RL-Insight itself
is switched on or not. Source: rl-insight 0.3.0, ``rl_insight/agent_loop.py``, ``rl_insight/api.py``. What is reported
has ended already, and names its session by ``sample`` and ``session``. RL-Insight gets what it would get without this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.hooks import Args, CallbackHook, Integration, Kwargs, Memory, Verified
from otel_rl.ids import random_bits
from otel_rl.layers.api import sample
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.stage import Stage, innermost

STAGES: Final = {"gateway_generation": vocabulary.SAMPLE_TURN, "agent_task": vocabulary.SAMPLE_PROCESS}
"""What the spans of the protocol are; ``agent_session`` is reported at the end of a session, which has its stage."""
FAILED: Final = "error"
MOST_SESSIONS: Final = 4_096
Key = tuple[str, str]


@dataclass(eq=False)
class OpenSessions(Memory):
    """The sessions that have begun and not finished."""

    stages: dict[Key, Stage] = field(default_factory=dict)


sessions = OpenSessions.keep("sessions")


def _key(identity: Any) -> Key:
    return str(identity.get("sample", "")), str(identity.get("session", ""))


def _begun(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Open a trajectory, unless a framework has: ``agent_loop_session(*, experiment_name, sample, session, ...)``."""
    around, identity = innermost(), result.identity
    if around is not None and around.name == vocabulary.TRAJECTORY:
        return
    key = _key(identity)
    said: dict[str, Value] = {
        vocabulary.OPERATION: vocabulary.INVOKE_AGENT,
        vocabulary.MODE: "train",
        vocabulary.GROUP_ID: identity["uid"] or key[0],
        vocabulary.SAMPLE_ID: ".".join(key),
    }
    stage = sessions.stages[key] = Stage(vocabulary.TRAJECTORY, said, coarse=True)
    stage.open()
    if len(sessions.stages) > MOST_SESSIONS:
        sessions.stages.pop(next(iter(sessions.stages)))


def _finished(args: Args, kwargs: Kwargs, result: object) -> None:
    """Close it, with the samples that it made: ``finish(self, *, trajectories, status, runner_name, ...)``."""
    key = _key(args[0].identity)
    stage = sessions.stages.pop(key, None)
    if stage is None:
        return
    said: dict[str, Value] = {"rl_insight.status": str(kwargs["status"])}
    if kwargs.get("runner_name"):
        said[vocabulary.AGENT_NAME] = str(kwargs["runner_name"])
    if kwargs["status"] == FAILED:
        said[vocabulary.ERROR_TYPE] = FAILED
    stage.set_attributes(said)
    for number, one in enumerate(kwargs["trajectories"]):
        sample(
            id=".".join((*key, str(number))),
            group=str((stage.attributes or {})[vocabulary.GROUP_ID]),
            reward=getattr(one, "reward_score", None),
            turns=getattr(one, "num_turns", None),
            discarded=None,  # the trainer decides later
        )
    stage.close(monotonic_ns())


def _reported(args: Args, kwargs: Kwargs, result: object) -> None:
    """Record a span that has ended: ``trace_span(*, name, start_time_ns, end_time_ns, attributes)``."""
    name, attributes = STAGES.get(kwargs["name"]), kwargs["attributes"]
    parent = sessions.stages.get(_key(attributes)) or innermost()
    if name is None or parent is None or parent.trace is None:
        return
    known = parent.attributes or {}
    said = {key: known[key] for key in (vocabulary.MODE, vocabulary.GROUP_ID, vocabulary.SAMPLE_ID) if key in known}
    stage = Stage(name, said, coarse=True)
    stage.trace, stage.parent_id, stage.span_id = parent.trace, parent.span_id, random_bits(64) or 1
    stage.began, stage.ended = (int(kwargs[edge]) - state.clock.anchor for edge in ("start_time_ns", "end_time_ns"))
    state.add(stage)


INTEGRATION = Integration(
    name="rl_insight",
    package="rl-insight",
    supports=">=0.3,<0.4",
    records="agent loops that programs report to it by its protocol: trajectories, turns, samples",
    verified=Verified.PACKAGE,
    hooks=(
        CallbackHook(target="rl_insight.agent_loop:agent_loop_session", after=_begun),
        CallbackHook(target="rl_insight.agent_loop:_AgentLoopSession.finish", after=_finished),
        CallbackHook(target="rl_insight.api:trace_span", after=_reported),
    ),
    memory=sessions,
)
