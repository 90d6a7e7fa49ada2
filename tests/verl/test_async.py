"""verl's asynchronous trainers: groups that outlive their step, linked both ways; the lag of samples; the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from tests.verl.training import MODES, UNDER_OTEL_RL, Trained, train
from tests.verl.trees import Traces

pytestmark = pytest.mark.verl

STEPS, GROUPS = 2, 4
"""Steps, and groups that each of them submits and takes; as many are submitted before the first."""
SUBMITTED = Counter({"rl.setup 0": GROUPS, "train 1": GROUPS, "train 2": GROUPS})
GROUP = """\
rl.sample.group [agent_loop]
  2 x rl.sample.trajectory [agent_loop]
    rl.sample.turn [agent_loop]
      rl.idle queue [agent_loop]
      rl.sample.serve [Server]
    rl.reward compute_score [reward]"""
SENT, RECEIVED = "      2 x rl.sync update_weights [actor]\n", "      rl.sync update_weights [rollout_weights]\n"
SYNCED = {
    "colocate_async": f"    rl.sync update_weights [driver]\n{SENT}",
    "separate_async": f"    rl.sync update_weights [driver]\n{SENT}{RECEIVED}",
}


@pytest.fixture(scope="module", params=[*SYNCED])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Trained]:
    """Train two steps in each mode: 1 to 2 minutes on two cores."""
    mode = request.param
    return mode, train(tmp_path_factory.mktemp(mode), *MODES[mode], under=UNDER_OTEL_RL)


@pytest.fixture(scope="module")
def run(trained: tuple[str, Trained]) -> Run:
    """The only run of a training."""
    training = trained[1]
    assert 0 == training.code, training.output[-8000:]
    (found,) = training.recorded()
    return found


@pytest.fixture(scope="module")
def traces(run: Run) -> Traces:
    """Its traces."""
    return Traces(run)


def written(run: Run) -> Iterator[Any]:
    """Yield all spans as they are on disk."""
    for _, frame in run.frames("traces"):
        for resource in ExportTraceServiceRequest.FromString(frame.payload).resource_spans:
            for scope in resource.scope_spans:
                yield from scope.spans


def test_nothing_is_missing(traces: Traces) -> None:
    """Every parent is there, every stage ended, and there is no other trace."""
    assert ([], []) == (traces.orphans, traces.truncated)
    steps = {f"rl.loop {number + 1}": 1 for number in range(STEPS)}
    expected = {"rl.setup": 1, **steps, "rl.teardown": 1, "rl.sample.group": GROUPS * (STEPS + 1)}
    assert expected == {root: len(spans) for root, spans in traces.roots.items()}


def test_nothing_of_ours_failed(run: Run) -> None:
    """No error was counted."""
    assert {} == {point.attributes[v.REASON]: point.value for point in run.points(v.SELF_ERRORS.__eq__)}


def test_nothing_stalls(trained: tuple[str, Trained]) -> None:
    """Trajectories outlive steps."""
    assert [] == trained[1].stalls()


def test_groups_are_traces_of_their_own(traces: Traces) -> None:
    """All of training, whoever submitted them; their ids derive from the uid of the prompt."""
    assert Counter({GROUP: GROUPS * (STEPS + 1)}) == traces.draw_each("rl.sample.group")
    groups = traces.roots["rl.sample.group"]
    assert SUBMITTED == Counter(span.attributes[v.SUBMITTED_STEP] for span in groups)
    attempt = {str(span.resource[v.ATTEMPT_ID]) for span in traces.spans}
    (one,) = attempt
    uids = [str(span.attributes[v.GROUP_ID]) for span in groups]
    derived = {(ids.trace_id(one, "rollout", uid), ids.root_id(one, "rollout", uid)) for uid in uids}
    assert derived == {(int.from_bytes(x.trace_id, "big"), int.from_bytes(x.span_id, "big")) for x in groups}


def test_evaluations_are_below_the_step(traces: Traces) -> None:
    """It waits for them."""
    assert "    rl.evaluate [driver]\n" in traces.draw("rl.loop 2")
    assert "8 x rl.sample.group [agent_loop]" in traces.draw("rl.loop 2")
    assert "rl.sample.group" not in traces.draw("rl.loop 1") + traces.draw("rl.setup")


def test_weights_go_to_the_servers_in_the_step(trained: tuple[str, Trained], traces: Traces) -> None:
    """Also to those that share no device with a rank: their side is seen, too."""
    for number in range(STEPS):
        drawn = traces.draw(f"rl.loop {number + 1}")
        if RECEIVED in drawn:  # whichever of them begins first
            drawn = drawn.replace(RECEIVED, "").replace(SENT, SENT + RECEIVED)
        assert SYNCED[trained[0]] in drawn


def test_links_go_both_ways(run: Run, traces: Traces) -> None:
    """From a group to what submitted it, and from a step to the groups that it trains on."""
    spans = {span.span_id: span for span in written(run)}
    submits = Counter(spans[link.span_id].name for span in spans.values() for link in span.links)
    assert Counter({v.SAMPLE_SUBMIT: GROUPS * (STEPS + 1), v.SAMPLE_GROUP: GROUPS * STEPS}) == submits
    taken = [
        [(link.trace_id, link.span_id) for link in spans[traces.roots[f"rl.loop {step + 1}"][0].span_id].links]
        for step in range(STEPS)
    ]
    assert [GROUPS] * STEPS == list(map(len, taken))
    assert GROUPS * STEPS == len({link for links in taken for link in links}), "a group is taken once"
    assert {link for links in taken for link in links} <= {
        (span.trace_id, span.span_id) for span in traces.roots["rl.sample.group"]
    }


def test_versions_and_lags(run: Run, traces: Traces) -> None:
    """Of each trajectory the first and the last version; of each batch the version that is trained."""
    trajectories = [span for span in traces.spans if span.name == v.TRAJECTORY]
    assert all({v.POLICY_VERSION, v.POLICY_VERSION_END} <= span.attributes.keys() for span in trajectories)
    steps = {traces.roots[f"rl.loop {step + 1}"][0].trace_id: step for step in range(STEPS)}
    found = [span for span in traces.spans if span.name == v.IDLE and v.LAG_MAX in span.attributes]
    waits = sorted(found, key=lambda span: span.end_ns)  # the journal has them by the flusher's cycles
    points = sorted(run.points(v.SAMPLE_LAG_MAX.__eq__), key=lambda point: point.time_ns)
    assert [steps[span.trace_id] for span in waits] == [span.attributes[v.POLICY_VERSION] for span in waits]
    assert [span.attributes[v.LAG_MAX] for span in waits] == [point.value for point in points]


def test_the_queue_is_known(run: Run) -> None:
    """How many groups are in which state, and how many calls are open at each server."""
    states = Counter(str(point.attributes[v.GROUP_STATE]) for point in run.points(v.GROUPS.__eq__))
    assert {"pending", "running", "finished", "failed"} == states.keys()
    last = {point.attributes[v.REPLICA]: point.value for point in run.points(v.IN_FLIGHT.__eq__)}
    assert last and {0} == {*last.values()}
