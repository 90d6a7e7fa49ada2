"""RL-Insight's agent-loop protocol, as its published package has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.hooks.hook import wrap
from otel_rl.integrations.rl_insight import INTEGRATION
from otel_rl.process.state import state
from tests.fixtures import Recording, Tree, trees
from tests.layers.records import layered


@dataclass(frozen=True)
class Session:
    """``_AgentLoopSession`` of rl-insight 0.3.0, without what it reports."""

    identity: dict[str, Any]

    def finish(
        self,
        *,
        trajectories: list[Any],
        status: str,
        runner_name: str | None = None,
        reward_source: str | None = None,
        finished: bool | None = None,
    ) -> None:
        """End the session."""


def agent_loop_session(*, experiment_name: Any, sample: Any, session: Any, uid: Any = None) -> Session:
    """Begin a session."""
    return Session({"sample": str(sample), "session": str(session), "uid": "" if uid is None else str(uid)})


def trace_span(*, name: str, start_time_ns: int, end_time_ns: int, attributes: Mapping[str, Any]) -> None:
    """Report a span that has ended."""


BEGIN, FINISH, REPORT = (
    wrap(hook, function)
    for hook, function in zip(INTEGRATION.hooks, (agent_loop_session, Session.finish, trace_span), strict=True)
)


def report(recording: Recording, identity: Any, name: str, ms: float) -> None:
    """Let something take so long, and report it then."""
    start = recording.clock.ns + state.clock.anchor
    recording.tick(ms)
    REPORT(name=name, start_time_ns=start, end_time_ns=recording.clock.ns + state.clock.anchor, attributes=identity)


@pytest.mark.parametrize("status", ["success", "error"])
def test_a_session_is_a_trajectory_with_its_turns(recording: Recording, status: str) -> None:
    """What is reported in it lies below it, and its trajectories are samples."""
    with otel_rl.step(1):
        session = BEGIN(experiment_name="e", sample=7, session=0, uid="u7")
        report(recording, session.identity, "gateway_generation", 5)
        report(recording, session.identity, "agent_session", 0)
        recording.tick(2)
        made = SimpleNamespace(reward_score=0.5, num_turns=3)
        FINISH(session, trajectories=[made], status=status, runner_name="solver")
    run = recording.stop()
    assert [Tree(v.TRAJECTORY, 0, 7, (Tree(v.SAMPLE_TURN, 0, 5),))] == [
        one for one in below(trees(run)) if one.name == v.TRAJECTORY
    ]
    said = {span.name: span.attributes for span in run.spans(None)}
    ids = {v.GROUP_ID: "u7", v.SAMPLE_ID: "7.0", v.MODE: "train"}
    failed = {v.ERROR_TYPE: "error"} if status == "error" else {}
    expected = {**ids, v.OPERATION: v.INVOKE_AGENT, v.AGENT_NAME: "solver", "rl_insight.status": status, **failed}
    assert expected == {key: said[v.TRAJECTORY].get(key) for key in expected}
    assert ids == {key: said[v.SAMPLE_TURN].get(key) for key in ids}
    (record,) = layered(run, v.SAMPLE_RECORD)
    values = {v.SAMPLE_ID: "7.0.0", v.GROUP_ID: "u7", v.SAMPLE_REWARD: 0.5, v.SAMPLE_TURNS: 3}
    assert values == {key: record.attributes[key] for key in values}


def test_a_session_inside_of_a_frameworks_trajectory_is_that(recording: Recording) -> None:
    """It is there once; what is reported is below it."""
    with otel_rl.step(1), otel_rl.trajectory(id="7.0", group="7"):
        session = BEGIN(experiment_name="e", sample=7, session=0)
        report(recording, session.identity, "gateway_generation", 5)
        FINISH(session, trajectories=[], status="success")
    found = below(trees(recording.stop()))
    expected = [Tree(v.TRAJECTORY, 0, 5, (Tree(v.SAMPLE_TURN, 0, 5),))]
    assert expected == [one for one in found if one.name == v.TRAJECTORY]


def below(found: Iterable[Tree]) -> Iterator[Tree]:
    """Return all trees, and those below them."""
    for one in found:
        yield one
        yield from below(one.below)
