"""The real two-rank TRL run, through the real Collector: Jaeger, Tempo and Prometheus hold what the journal holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from otel_rl import vocabulary as v
from otel_rl.catalogue.areas import AREAS
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import Run, open_run
from otel_rl.sidecar import owner
from tests.backend.stored import facts, journaled
from tests.backends import NO_TEMPO, Jaeger, Prometheus, Tempo, collector, find, jaeger, prometheus, tempo
from tests.waiting import wait_for

pytestmark = [pytest.mark.backend, pytest.mark.slow]
pytest.importorskip("trl")

PROGRAM = Path(__file__).parents[1] / "programs" / "train_linked.py"
STEPS = 8
RUN = "run"


class Stored(NamedTuple):
    """A run that is over, and where it was sent."""

    run: Run
    jaeger: Jaeger
    prometheus: Prometheus
    tempo: Tempo | None


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """Train on two ranks with the programs running, Tempo where there is one, and wait for the sidecar to end."""
    folder = tmp_path_factory.mktemp("backends")
    with ExitStack() as programs:
        traces, metrics = programs.enter_context(jaeger(folder)), programs.enter_context(prometheus(folder))
        environ = {"OTEL_RL_JAEGER": traces.otlp, "OTEL_RL_PROMETHEUS": metrics.url}
        others = programs.enter_context(tempo(folder)) if find("tempo") else None
        if others is not None:
            environ |= {"OTEL_RL_TEMPO": others.otlp, "OTEL_RL_TRACES_TO": "[otlp_grpc/jaeger, otlp_grpc/tempo]"}
        found = programs.enter_context(collector(folder, **environ))
        train(folder, f"http://{found.grpc}")
        directory = folder / "runs" / RUN
        boot_id = WriterIdentity.current("test", 0).boot_id
        assert wait_for(lambda: (directory / f"{owner.ROLE}.log").exists() or list(directory.glob("*.shipped")))
        assert wait_for(lambda: owner.living(directory, boot_id) is None), "the sidecar does not end"
        yield Stored(open_run(directory), traces, metrics, others)


def train(folder: Path, endpoint: str) -> None:
    """Run the demo's program on two gloo ranks, with stages that have events and links."""
    environ = {
        **os.environ,
        "OTEL_RL_DIR": str(folder / "runs"),
        "OTEL_RL_RUN_ID": RUN,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "30000",  # what is answered late is sent again
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    program = [str(PROGRAM), "--steps", str(STEPS), "--iters", "1", "--eval-every", "4", "--save-every", "4"]
    command = [sys.executable, "-m", "otel_rl", "run", "--", *torchrun, *program]
    subprocess.run(command, env=environ, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def test_every_trace_is_in_jaeger(stored: Stored) -> None:
    """Span for span: ids, parents, names, times, attributes, events, links, status, and the rank."""
    expected = journaled(stored.run)
    assert STEPS <= sum(any(span["name"] == v.LOOP for span in spans.values()) for spans in expected.values())
    for trace_id, spans in expected.items():
        wait_for(lambda: len(stored.jaeger.trace(trace_id)) >= len(spans))  # noqa: B023
        found = stored.jaeger.trace(trace_id)
        assert Counter(span["spanId"] for span in found) == Counter(list(spans)), "not the same spans, each once"
        assert {span["spanId"]: facts(span) for span in found} == {key: facts(span) for key, span in spans.items()}


def test_events_and_links_are_compared(stored: Stored) -> None:
    """Every rank and step has some, and all have attributes, so that the comparisons above and below see them."""
    spans = [span for spans in journaled(stored.run).values() for span in spans.values() if span["name"] == "lookup"]
    assert len(spans) >= 2 * STEPS
    assert {2} == {sum("attributes" in event for event in span["events"]) for span in spans}
    linked = [sum("attributes" in link for link in span.get("links", [])) for span in spans]
    assert Counter({0: 2, 1: 2, 2: len(spans) - 4}) == Counter(linked)


def test_every_trace_is_in_tempo(stored: Stored) -> None:
    """The same; of a request that was sent twice, Tempo keeps both copies of a span."""
    if stored.tempo is None:
        pytest.skip(NO_TEMPO)
    for trace_id, spans in journaled(stored.run).items():
        wait_for(lambda: {span["spanId"] for span in stored.tempo.trace(trace_id)} >= set(spans))  # noqa: B023
        found = stored.tempo.trace(trace_id)
        expected = {key: facts(span) for key, span in spans.items()}
        assert {span["spanId"]: facts(span) for span in found} == expected
        assert [] == [span["spanId"] for span in found if facts(span) != expected[span["spanId"]]]


def test_steps_of_two_ranks_are_one_trace(stored: Stored) -> None:
    """Seen in Jaeger alone: one root, a container for each rank, no orphan."""
    roots = [span for span in stored.run.spans() if span.name == v.LOOP]
    assert STEPS == len({span.trace_id for span in roots})
    for root in roots:
        trace_id = root.trace_id.hex()
        wait_for(lambda: len(stored.jaeger.trace(trace_id)) >= len(journaled(stored.run)[trace_id]))  # noqa: B023
        found = stored.jaeger.trace(trace_id)
        known = {span["spanId"] for span in found}
        assert {f"{v.RANK_SPAN} 0", f"{v.RANK_SPAN} 1"} <= {span["name"] for span in found}
        assert {""} == {parent for span in found if (parent := span.get("parentSpanId", "")) not in known}


def test_what_a_rank_waited_for_the_other_is_in_the_step(stored: Stored) -> None:
    """The sidecar found it while the run went on: a span below the same stage as the collective, and a counter."""
    spans = {span.span_id: span for span in stored.run.spans(None)}
    waits = [span for span in spans.values() if span.attributes.get(v.IDLE_REASON) == "skew"]
    assert waits, "no rank waited a millisecond for the other"
    for wait in waits:
        beside = [
            span
            for span in spans.values()
            if (span.name, span.parent_id, span.start_ns) == (v.COMM, wait.parent_id, wait.start_ns)
        ]
        assert [1 - int(str(wait.resource[v.RANK]))] == [wait.attributes[v.SKEW_RANK]] * len(beside)
        assert beside[0].trace_id == wait.trace_id
    found = stored.prometheus.query("last_over_time(rl_skew_wait_seconds_total[1h])")
    assert {("0", "run"), ("1", "run")} == {(one["metric"]["rl_rank"], one["metric"]["rl_scope"]) for one in found}


def test_every_metric_of_every_rank_is_in_prometheus(stored: Stored) -> None:
    """Under the label of its rank."""
    expected = {(point.name, str(point.resource[v.RANK])) for point in stored.run.points() if v.RANK in point.resource}
    assert {v.STEP_TIME, v.TRAIN_TOKENS, v.LOSS, "rl.sample.duration"} <= {name for name, _ in expected}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for series in wait_for(lambda: stored.prometheus.query('last_over_time({rl_rank=~".+"}[1h])')):
        found[series["metric"]["rl_rank"]].add(series["metric"].get("__name__", ""))
    for series in stored.prometheus.query('group by (__name__, rl_rank) (last_over_time({rl_rank=~".+"}[1h]))'):
        found[series["metric"]["rl_rank"]].add(series["metric"].get("__name__", ""))
    missing = [(name, rank) for name, rank in sorted(expected) if not has(found[rank], name)]
    assert [] == missing


def test_labels_are_those_on_the_page(stored: Stored) -> None:
    """A metric of ours has no attribute that docs/prometheus.md does not list."""
    listed = {name: set(area.keys(name)) for area in AREAS for name in area.attributes}
    found = {(point.name, key) for point in stored.run.points() if point.name in listed for key in point.attributes}
    assert {(v.REWARD_SCORE, v.SCOPE_KEY), (v.TTFT, v.PROVIDER), (v.SELF_SHIPPED, v.SIGNAL)} <= found
    assert set() == {(name, key) for name, key in found if key not in listed[name]}


def has(names: Iterable[str], name: str) -> bool:
    """Whether a metric is there, under its name as Prometheus translates it, with whatever suffix."""
    begin = re.sub(r"[^a-zA-Z0-9:]+", "_", name)
    return any(found.startswith(begin) for found in names)
