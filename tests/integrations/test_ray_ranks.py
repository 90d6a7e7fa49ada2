"""Ranks of a single controller on Ray: each has the steps of its driver, though it only gets calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from tests.integrations.test_ray import number_of
from tests.programs.launch import HERE, own_lines, run
from tests.programs.recorded import Recorded

STEPS = 3
CLOCK_S = 0.002
"""How far the begin of a step may be read apart by two processes of one machine."""
GAPS = 0.25
"""More than the share that Ray's own work has of a step: between a wait and the stage that a call opens."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """What one job recorded."""
    pytest.importorskip("ray")
    folder: Path = tmp_path_factory.mktemp("ray")
    output = run(folder, str(HERE / "ray_ranks.py"), OTEL_RL_SIDECAR="false", PYTHONWARNINGS="ignore")
    assert [] == own_lines(output)
    recorded = Recorded(folder / "runs")
    assert ([], [], {}) == (recorded.orphans, recorded.run.damage, recorded.errors())
    return recorded


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_calls_and_waits_of_a_rank_tile_each_step(found: Recorded, rank: int) -> None:
    """Waits are below the driver's root, as far as they are longer than 1 ms; the last step has none at its end."""
    roots = sorted((one for one in found.roots if one.name == v.LOOP), key=number_of)
    assert list(range(STEPS)) == [number_of(root) for root in roots]
    gaps: defaultdict[int, list[int]] = defaultdict(list)
    spent_ns = []
    for root in roots:
        own = [node for node in root.walk() if (node.span.resource[v.ROLE], node.rank) == ("Worker", rank)]
        own.sort(key=lambda node: node.span.start_ns)
        whole = [v.IDLE, v.LOGPROB, v.IDLE, v.TRAIN, v.IDLE]
        assert whole[: 4 if root is roots[-1] else 5] == [node.name for node in own]
        assert {"controller"} == {node.attributes[v.IDLE_REASON] for node in own[::2]}
        assert {root.span.span_id} == {node.span.parent_id for node in own[::2]}
        for place, (left, right) in enumerate(pairwise(own)):
            gaps[place].append(right.span.start_ns - left.span.end_ns)
        spent_ns.append(own[-1].span.end_ns - own[0].span.start_ns)
        assert abs(own[0].span.start_ns - root.span.start_ns) < CLOCK_S * 1e9
    least = [min(of_place) for of_place in gaps.values()]  # a busy machine may hold up a step
    assert min(least) >= 0
    assert sum(least) < GAPS * min(spent_ns)


@pytest.mark.slow
def test_ranks_have_the_numbers_of_all_steps_but_the_last(found: Recorded) -> None:
    """The last step's are lost with the process, unless it wrote them before. Who serves several steps has none."""
    points = [point for point in found.run.points(v.STEP_TIME) if point.resource[v.ROLE] != "trainer"]
    written = Counter(tuple(point.resource[key] for key in (v.ROLE, v.RANK, v.WORLD_SIZE)) for point in points)
    assert {("Worker", rank, 2): STEPS - 1 for rank in (0, 1)} == {
        who: min(count, STEPS - 1) for who, count in written.items()
    }
    driver = [one.value for one in found.run.points(v.STEP_TIME) if one.resource[v.ROLE] == "trainer"][: STEPS - 1]
    for rank in (0, 1):
        own = [point for point in points if point.resource[v.RANK] == rank][: STEPS - 1]
        assert [pytest.approx(value, abs=CLOCK_S) for value in driver] == [point.value for point in own]
        for name in (v.STEP_CPU_TIME, v.RSS, v.VMS):
            times = [
                one.time_ns
                for one in found.run.points(name)
                if (one.resource[v.ROLE], one.resource[v.RANK]) == ("Worker", rank)
            ]
            assert [point.time_ns for point in own] == times[: STEPS - 1]
        activities = [
            one
            for one in found.run.points(v.ACTIVITY_TIME)
            if (one.resource[v.ROLE], one.resource[v.RANK]) == ("Worker", rank)
        ]
        for point in own:
            parts = {str(one.attributes[v.ACTIVITY]): one.value for one in activities if one.time_ns == point.time_ns}
            assert point.value == pytest.approx(sum(parts.values()))
            began = point.time_ns - point.value * 1e9
            calls = [
                span.end_ns - span.start_ns
                for span in found.run.spans()
                if (span.resource[v.ROLE], span.resource.get(v.RANK)) == ("Worker", rank)
                and span.name in (v.LOGPROB, v.TRAIN)
                and began <= span.start_ns < point.time_ns
            ]
            assert 2 == len(calls)
            assert parts["active"] == pytest.approx(sum(calls) / 1e9)
            assert parts["idle"] > 0.05
