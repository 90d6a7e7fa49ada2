"""The twenty questions of docs/prometheus.md, asked of a real Prometheus about real runs with planted facts."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest

from otel_rl import vocabulary as v
from otel_rl.catalogue.areas import AREAS
from otel_rl.catalogue.questions import QUESTIONS, expressions
from otel_rl.journal.read import Run
from tests.backend.asked_runs import HOST, REFUSED, REWARD_BEFORE, STAGES, STEPS, Asked, asked_runs
from tests.backends import Prometheus
from tests.nvml import GIB
from tests.programs.asked import (
    GRAD_NORM,
    KV_USAGE,
    LAST_GRAD_NORM,
    LOSS,
    MFU,
    QUEUED,
    RESERVED,
    REWARD,
    SLOW_S,
    TOKENS_RATE,
    TPOT_S,
    TTFT_S,
)
from tests.waiting import wait_for

pytestmark = [pytest.mark.backend, pytest.mark.slow]

IGNORED = {"__name__", "rl_attempt_id", "rl_role", "rl_activity", "rl_bubble_denominator"}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """Everything, in the store."""
    with asked_runs(tmp_path_factory.mktemp("asked")) as found:
        yield found


Bounds = tuple[float, float]
SLOW, FAST = ("slow",), ("fast",)


def near(value: float, by: float = 0.001) -> Bounds:
    """Bounds around a planted value."""
    return value - by, value + by


AS_RECORDED: Bounds = (math.inf, -math.inf)
"""What the requests of the run took: its last rate of each attempt, summed over the ranks."""


def rates(run: Run) -> list[float]:
    """Return the last tokens per second of rollouts of each attempt of a run, summed over its ranks."""
    last: dict[tuple[str, int], float] = {}
    for point in run.points(v.TOKENS_RATE):
        if point.attributes[v.WORK] == "rollout" and point.attributes.get(v.MODE, "train") == "train":
            last[str(point.resource[v.ATTEMPT_ID]), int(point.resource[v.RANK])] = point.value
    attempts = {attempt for attempt, _ in last}
    return sorted(sum(value for key, value in last.items() if key[0] == attempt) for attempt in attempts)


GOODPUT: dict[tuple[str, ...], Bounds] = {
    **{(run, "productive"): (0.1, 0.9) for run in STEPS},
    **{(run, "overhead"): (0.05, 0.9) for run in STEPS},
    **{(run, "idle"): (0.01, 0.3) for run in STEPS},
    **{(run, "other"): (0.0, 0.1) for run in STEPS},
}
ANSWERS: dict[str, list[dict[tuple[str, ...], Bounds]]] = {
    "Which runs are live": [{SLOW: near(2), FAST: near(1)}],
    "Does a run make progress": [{SLOW: (0, 600), FAST: (0, 600)}],
    "How often was a run restarted": [{SLOW: near(0), FAST: near(1)}],
    "How fast is a run": [
        {SLOW: (0.19, 0.4), FAST: (0.14, 0.19)},
        {
            ("slow", "train"): near(2 * TOKENS_RATE),
            ("fast", "train"): near(TOKENS_RATE),
            ("slow", "rollout"): AS_RECORDED,
            ("fast", "rollout"): AS_RECORDED,
        },
        {("slow", "update"): near(MFU), ("fast", "update"): near(MFU)},
    ],
    "Where did the time of a run go": [GOODPUT, GOODPUT],
    "Which stages take the time": [{(run, stage): (0.05, 0.4) for run in STEPS for stage in STAGES}],
    "Which rank is slow": [
        {("slow", "1", "rl.reward"): (0.6 * SLOW_S, 1.2 * SLOW_S)},
        {("slow", "1"): (0.3 * SLOW_S, 0.7 * SLOW_S)},
    ],
    "How large are the bubbles": [
        {("slow", "queue"): (0.05, 0.15), ("slow", "skew"): (0.06, 0.2), ("fast", "queue"): (0.05, 0.2)},
        {SLOW: (0.3, 0.6), FAST: (0.3, 0.6)},
    ],
    "How long do checkpoints": [{SLOW: (0.1, 0.15), FAST: (0.1, 0.15)}, {SLOW: (0.02, 0.04), FAST: (0.02, 0.04)}],
    "What reward do the runs get": [{SLOW: near(REWARD), FAST: near(REWARD)}, {SLOW: near(REWARD - REWARD_BEFORE)}],
    "Does a run diverge": [
        {SLOW: near(LOSS), FAST: near(LOSS)},
        {SLOW: near(LAST_GRAD_NORM / GRAD_NORM), FAST: near(LAST_GRAD_NORM / GRAD_NORM)},
        {("slow", v.LOSS): near(2), ("fast", v.LOSS): near(2)},
    ],
    "What do the slowest requests see": [
        {(run, "my-engine"): (TTFT_S * 0.9, TTFT_S * 1.61) for run in STEPS},
        {(run, "my-engine"): (TPOT_S * 0.9, TPOT_S * 1.81) for run in STEPS},
    ],
    "How many requests are aborted": [
        {
            (run, outcome): near(share)
            for run in STEPS
            for outcome, share in (("aborted", 0.1), ("clipped", 0.2), ("timed_out", 0.0), ("error", 0.0))
        }
    ],
    "How full are the engines": [
        {(run, "my-engine"): near(QUEUED) for run in STEPS},
        {(run, "my-engine"): near(KV_USAGE) for run in STEPS},
    ],
    "Which device is closest": [
        {(HOST, "GPU-1"): near(79 / 80), (HOST, "GPU-2"): near(8 / 80)},
        {("slow", "0", "GPU-1"): near(79 * GIB)},
        {
            (HOST, "slow", "0"): near(RESERVED),
            (HOST, "slow", "1"): near(2 * RESERVED),
            (HOST, "fast", "0"): near(RESERVED),
        },
    ],
    "Which device idles": [
        {(HOST, "GPU-2"): near(0.03)},
        {(HOST, "GPU-2", "thermal_software"): near(1)},
        {(HOST, "GPU-2", "79"): near(1)},
        {(HOST, "GPU-3"): near(1)},
    ],
    "Is a node out of memory": [{(HOST,): (0.001, 1)}],
    "How much telemetry": [
        {(HOST, "slow"): (0, 60), (HOST, "fast"): (0, 60)},
        {("slow", "not_a_number", "metrics"): near(40), ("fast", "not_a_number", "metrics"): near(20)},
        {("slow", "refused", "traces"): near(REFUSED), ("fast", "refused", "traces"): near(REFUSED)},
    ],
    "Does a Collector drop": [
        {("otlp_grpc/jaeger", HOST): (1, 1000)},
        {("filter/too_old", HOST): near(1), ("filter/not_storable", HOST): (0, 0)},
        {("otlp_grpc/jaeger", HOST): (0, 0.5)},
    ],
    "How many series": [{SLOW: (200, 2000), FAST: (200, 2000)}],
}
CASES = [
    pytest.param(query, expected, id=f"{begin}-{place}")
    for (begin, answers), question in zip(ANSWERS.items(), QUESTIONS, strict=True)
    for place, (query, expected) in enumerate(zip(expressions(question), answers, strict=True))
    if question.text.startswith(begin)
]


def answer(store: Prometheus, query: str) -> dict[frozenset[str], list[float]]:
    """The values of a query by the labels that matter."""
    found: defaultdict[frozenset[str], list[float]] = defaultdict(list)
    for series in store.query(query):
        labels = frozenset(value for key, value in series["metric"].items() if key not in IGNORED)
        found[labels].append(float(series["value"][1]))
    return dict(found)


def test_attributes_of_real_points_are_on_the_page(asked: Asked) -> None:
    """The tables say all labels that a metric of a real run has."""
    documented = {name: set(area.keys(name)) for area in AREAS for name in area.attributes}
    found = [point for run in asked.runs.values() for point in run.points() if point.name in documented]
    assert {v.STEP_TIME, v.GOODPUT_TIME, v.STRAGGLER_COST, v.TTFT, v.NODE_MEMORY} <= {point.name for point in found}
    assert set() == {
        (point.name, key) for point in found for key in point.attributes if key not in documented[point.name]
    }


def test_the_age_of_the_last_step_is_right(asked: Asked) -> None:
    """By the journals: the query looks every 15 s."""
    (query,) = expressions(QUESTIONS[1])
    for name, run in asked.runs.items():
        ended_s = max(point.time_ns for point in run.points() if point.name == v.STEP_TIME) / 1e9
        assert wait_for(lambda: frozenset((name,)) in answer(asked.store, query))  # noqa: B023
        asked_s = time.time()
        (age_s,) = answer(asked.store, query)[frozenset((name,))]
        assert asked_s - ended_s - 1 < age_s < time.time() - ended_s + 16


def test_every_query_is_asked() -> None:
    """None was left out."""
    assert sum(len(question.queries) for question in QUESTIONS) == len(CASES)


@pytest.mark.parametrize(("query", "expected"), CASES)
def test_the_answer_is_right(asked: Asked, query: str, expected: dict[tuple[str, ...], Bounds]) -> None:
    """Which run, which rank, and a number within bounds."""
    bounds = {frozenset(key): each for key, each in expected.items()}

    def is_so() -> bool:
        found = answer(asked.store, query)
        return found.keys() == bounds.keys() and all(
            sorted(found[key]) == pytest.approx(rates(next(run for name, run in asked.runs.items() if name in key)))
            if each is AS_RECORDED
            else all(each[0] <= value <= each[1] for value in found[key])
            for key, each in bounds.items()
        )

    assert wait_for(is_so), (answer(asked.store, query), bounds)
