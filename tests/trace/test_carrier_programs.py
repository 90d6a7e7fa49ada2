"""Real programs whose processes record below the steps of one: a pool, actors of Ray, a server of HTTP."""

from __future__ import annotations

import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from tests.programs.launch import HERE, ROOT, run
from tests.programs.recorded import Node, Recorded

PROGRAM = str(HERE / "carried.py")
STEPS = 3


def recorded(directory: Path, program: str, *arguments: str) -> Recorded:
    """Run a program and read what it recorded: one run and attempt, every parent is there, nothing is mixed."""
    run(directory, PROGRAM, program, *arguments, OTEL_RL_SIDECAR="false")
    found = Recorded(directory / "runs")
    assert ([], [], {}) == (found.orphans, found.run.damage, found.errors())
    assert {1} == {len({node.span.resource[key] for node in found.nodes}) for key in (v.RUN_ID, v.ATTEMPT_ID)}
    steps = {node.span.trace_id: node.attributes[v.ITERATION] for node in found.roots if node.name == v.LOOP}
    of_steps = [node for node in found.nodes if "rl.step" in node.attributes]
    assert [] == [node.name for node in of_steps if steps[node.span.trace_id] != node.attributes["rl.step"]]
    assert len(steps) == len(set(steps.values())), "one trace of each step"
    return found


def outlines(found: Recorded) -> list[tuple[str, ...]]:
    """Write what is below the root of each step."""
    roots = [node for node in found.roots if node.name == v.LOOP]
    return [tuple(name.strip() for name in node.outline()) for node in sorted(roots, key=number_of)]


def number_of(root: Node) -> int:
    """Read the number of a step."""
    return int(root.attributes[v.ITERATION])


SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "processes.md").read_text("utf-8"), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("snippet", "stage", "number"), [(SNIPPETS[1], v.REWARD, 12), (SNIPPETS[2], v.TRAIN, 3), (SNIPPETS[3], v.SAMPLE, 3)]
)
def test_programs_of_the_documentation_run(tmp_path: Path, snippet: str, stage: str, number: int) -> None:
    """As they are printed: every stage is below a step."""
    (tmp_path / "program.py").write_text(snippet)
    run(tmp_path, "program.py", OTEL_RL_SIDECAR="false", PYTHONWARNINGS="ignore")
    found = Recorded(tmp_path / "runs")
    within = Counter(node.name for root in found.roots if root.name == v.LOOP for node in root.walk())
    assert ([], number) == (found.orphans, within[stage])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_records_below_the_step_of_each_task(tmp_path: Path, method: str) -> None:
    """Its workers are older than the steps."""
    found = recorded(tmp_path, "pool", method)
    assert [("rl.rank 0", "score", *["rl.reward"] * 4)] * STEPS == outlines(found)
    workers = {node.span.resource[v.PROCESS_PID] for node in found.nodes if node.name == v.REWARD}
    assert workers.isdisjoint(node.span.resource[v.PROCESS_PID] for node in found.nodes if node.name == "score")


@pytest.mark.slow
def test_actors_of_ray_record_below_the_steps_that_they_serve(tmp_path: Path) -> None:
    """One of them serves three steps at once."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    found = recorded(tmp_path, "actors")
    generated = "rl.sample", *["turn"] * 5
    expected = [("rl.rank 0", "control", *generated, "rl.train", "forward")] * STEPS
    assert [*expected, ("rl.rank 0", "rl.train", "forward")] == outlines(found)
    pids = {node.name: node.span.resource[v.PROCESS_PID] for node in found.nodes}
    assert 3 == len({pids["control"], pids[v.SAMPLE], pids[v.TRAIN]})
    roles = Counter(node.span.resource[v.ROLE] for node in found.nodes if node.name in (v.SAMPLE, v.TRAIN, "control"))
    assert {"trainer": STEPS, "worker": 2 * STEPS + 1} == roles
    times = {
        name: [(node.span.start_ns, node.span.end_ns) for node in found.nodes if node.name == name] for name in pids
    }
    begins, ends = zip(*times[v.SAMPLE], strict=True)
    assert max(begins) < min(ends), "they overlap, or nothing was tested"
    (load,) = (node for node in found.nodes if node.name == "load")
    assert v.SETUP == found.by_id[found.by_id[load.span.parent_id].span.parent_id].name


@pytest.mark.slow
def test_a_server_records_below_the_spans_that_headers_name(tmp_path: Path) -> None:
    """It joins the run of the first request."""
    found = recorded(tmp_path, "client")
    assert [("rl.rank 0", "ask", "serve")] * STEPS == outlines(found)
    assert {"rollout"} == {node.span.resource[v.ROLE] for node in found.nodes if node.name == "serve"}
