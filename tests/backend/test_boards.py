"""Every query of every Grafana board, asked of a real Prometheus about real runs on CPUs.

What these runs cannot have is in a table with its reason. Those queries are asked about points that were made of
every metric. Grafana itself is not run, and Tempo is not asked.
"""

from __future__ import annotations

import math
import re
import time
import urllib.parse
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.catalogue.areas import AREAS
from otel_rl.catalogue.series_names import emitted
from otel_rl.metrics.record import Fold
from otel_rl.records import Point
from scripts.boards.boards import ANNOTATIONS, BOARDS
from scripts.boards.make import made
from scripts.boards.model import Board
from scripts.boards.queries import series
from tests.backend.asked_runs import Asked, asked_runs
from tests.backend.test_prometheus_names import RESOURCE, post
from tests.backends import Prometheus, get
from tests.waiting import wait_for

pytestmark = [pytest.mark.backend, pytest.mark.slow]

MADE = "made"
VALUES = {
    v.ACTIVITY: ("active", "comm", "idle"),
    v.GOODPUT_KIND: ("productive",),
    v.HW_STATE: ("failed",),
    v.LOSS_TYPE: ("policy", "value"),
    v.MODE: ("train",),
    v.WALL: ("cycle",),
    v.WORK: ("rollout",),
}
"""Values that queries look for; of other attributes any value does."""
NO_DATA: dict[str, tuple[str, ...]] = {
    "there is no allocator of a device on a CPU": (
        *(v.ALLOCATED, v.ACTIVE, v.INACTIVE_SPLIT, v.NON_TORCH, v.FRAGMENTATION, v.SLACK, v.ROUNDING, v.ACTIVATION),
        *(v.COMM_BUFFERS, v.COMM_EXPOSED_TIME),
    ),
    "only a framework reports it, and the runs have none": (
        *(v.REWARD_MAX, v.REWARD_MIN, v.REWARD_DISTRIBUTION, v.ADVANTAGE_MAX, v.ADVANTAGE_MIN, v.ADVANTAGE_MEAN),
        *(v.FUNCTION_SCORE, v.FUNCTION_STD, v.REWARD_NONFINITE, v.LOSS_TERM, v.CLIP_SIDE_FRACTION),
        *(v.LOGPROB_DIFFERENCE, v.LOGPROB_MAX_DIFFERENCE, v.MASK_RATIO),
        *(v.TRAIN_TOKENS, v.TRAIN_STEPS, v.TRAIN_STEPS_SKIPPED),
    ),
    "the devices that stand in do not count it": (v.SM_ACTIVITY, v.TENSOR_ACTIVITY, v.DRAM_UTILIZATION, v.GPU_IO),
    "the runs wait for their rollouts": (
        *(v.GROUPS, v.GROUPS_DROPPED, v.SAMPLE_LAG, v.SAMPLE_LAG_MAX, v.SAMPLE_STALE, v.IN_FLIGHT),
    ),
    "the engine does not say it": (v.PROMPT_LENGTH, v.CACHED_LENGTH, v.KV_BYTES, v.KV_BYTES_PEAK),
    "the runs call no tool": (v.EXECUTE_TOOL,),
    "nothing of the kind goes wrong": (
        *(v.TIMED_OUT, v.REQUEST_ERRORS, v.PREEMPTIONS, v.ENGINE_PREEMPTIONS, v.BAD_REQUESTS, v.LEDGER_FAULTS),
        *(v.STALL_ACTIVE, v.SELF_ERRORS, v.SELF_CHANGED, v.SELF_RETRIED, v.SELF_FETCHED),
    ),
    "it has to be switched on": (v.EVENT_LOOP_LAG,),
}
"""Metrics that the runs do not have, by the reason."""
REASONS = {metric: reason for reason, metrics in NO_DATA.items() for metric in metrics}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """The runs, and a run that has a point of every metric each half minute."""
    with asked_runs(tmp_path_factory.mktemp("boards")) as found:
        send_every_metric(found)
        yield found


def send_every_metric(found: Asked) -> None:
    """Send points of ten minutes, with the attributes that each metric may have."""
    now_ns = time.time_ns()
    fold = Fold(now_ns - 600 * 10**9)
    resource = {**RESOURCE, v.RUN_ID: MADE, v.SERVICE_INSTANCE_ID: MADE}
    for ago_s in range(600, -1, -30):
        then_ns = now_ns - ago_s * 10**9
        for area in AREAS:
            for name in area.attributes:
                for values in product(*(VALUES.get(key, ("a",)) for key in area.keys(name))):
                    note(fold, name, then_ns, tuple(zip(area.keys(name), values, strict=True)))
        post(found.collector, resource, fold.drain(then_ns))


def note(fold: Fold, name: str, then_ns: int, labels: tuple[tuple[str, Any], ...]) -> None:
    """Note a value of a metric of any kind."""
    kind = emitted()[name].kind
    if kind == "gauge":
        fold.point(Point(name, 1.0, then_ns, labels))
    elif kind == "counter":
        fold.count(name, 1, labels)
    else:
        fold.durations(name, [1.0], labels)


def filled(query: str, run: str) -> str:
    """A query as Grafana sends it, with every role and rank chosen."""
    one, _, other = run.partition("|")
    query = query.replace('="$run"', f'="{one}"').replace("$other", other or one).replace("$run", run)
    for name, value in (("window", "1h"), ("role", ".*"), ("rank", ".*"), ("shift", "0s")):
        query = query.replace(f"${name}", value)
    assert "$" not in query
    return query


def of_runs(query: str) -> str:
    return filled(query, "slow|fast")


def answer(store: Prometheus, query: str) -> list[Any]:
    """The values that came back; a histogram is one. Those that are not numbers are left out."""
    found = get(f"{store.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    assert found is not None, f"Prometheus refuses {query}"
    each = (series.get("histogram") or series["value"] for series in found["data"]["result"])
    return [value for _, value in each if isinstance(value, dict) or not math.isnan(float(value))]


def missing(query: str) -> list[str]:
    """The reasons for which the runs have no data for a query."""
    names = set(re.findall(r"\w+", query))
    return [reason for metric, reason in REASONS.items() if series(metric) in names]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_query_has_data_or_there_is_a_reason(asked: Asked, board: Board) -> None:
    """The runs have what they must have, and nothing for what is in the table; then it is asked of the made points."""
    panels = [panel for panel in board.panels if panel.kind != "traces"]
    queries = [(panel.title, query) for panel in panels for query, _ in panel.queries]
    unexpected = [(title, query) for title, query in queries if missing(query) and answer(asked.store, of_runs(query))]
    assert [] == unexpected
    wanted = [(title, filled(query, MADE) if missing(query) else of_runs(query)) for title, query in queries]
    assert [] == [(title, query) for title, query in wanted if not wait_for(partial(answer, asked.store, query))]


def test_every_annotation_can_be_asked_for(asked: Asked) -> None:
    """Prometheus understands it; an alert fires for the device that reports an XID."""
    queries = {one.name: of_runs(one.query) for one in ANNOTATIONS}
    for query in queries.values():
        answer(asked.store, query)
    assert wait_for(lambda: answer(asked.store, queries["Alerts"]))


def test_every_variable_has_values(asked: Asked) -> None:
    """Of those that Prometheus has the values of."""
    for variable in made(BOARDS[0])["templating"]["list"]:
        if variable["type"] == "query":
            match, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()
            asked_for = urllib.parse.urlencode({"match[]": of_runs(match)})
            assert get(f"{asked.store.url}/api/v1/label/{label}/values?{asked_for}")["data"], variable["name"]
