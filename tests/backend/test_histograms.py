"""Histograms in the real Prometheus: few series, true quantiles, exemplars that lead to spans of the journal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from otel_rl import vocabulary as v
from otel_rl.analysis.histogram import Histogram
from otel_rl.journal.read import Run, open_run
from tests.backends import Prometheus, collector, prometheus
from tests.waiting import wait_for

pytestmark = pytest.mark.backend

REQUESTS = 4_000
STEPS = 3
NAMES = {v.TTFT: "gen_ai_server_time_to_first_token_seconds", v.TPOT: "gen_ai_server_time_per_output_token_seconds"}
PROGRAM = f"""
import json, random, time
import otel_rl
otel_rl.instrument(())
draw, true = random.Random(7), {{"ttft": [], "tpot": []}}
time.sleep(2.5)
for number in range({STEPS}):
    with otel_rl.step(number):
        with otel_rl.stage("sample"):
            for one in range({REQUESTS} // {STEPS} + 1):
                ttft, tpot = min(draw.lognormvariate(-3, 1), 1.5), min(draw.lognormvariate(-6, 0.7), 0.02)
                ended = time.perf_counter()
                last, tokens = ended - 0.001, 41
                first = last - tpot * (tokens - 1)
                otel_rl.request("mine", clock="perf_counter", submitted=first - ttft, scheduled=first - ttft / 2,
                                first_token=first, last_token=last, ended=ended, input_tokens=5, output_tokens=tokens,
                                finish="stop", model="m", id=f"{{number}} {{one}}")
                true["ttft"].append(ttft)
                true["tpot"].append(tpot)
        with otel_rl.stage("reward"):
            time.sleep(0.02)
otel_rl.flush(30)
print(json.dumps(true))
"""


class Stored(NamedTuple):
    """A run that is over, and where its metrics are."""

    run: Run
    store: Prometheus
    true: dict[str, list[float]]
    """By metric, the value of each request."""
    is_exponential: bool
    """What the program was asked for."""


@pytest.fixture(scope="module", params=["base2_exponential_bucket_histogram", "explicit_bucket_histogram"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """A program with requests of its own, shipped through the Collector."""
    folder = tmp_path_factory.mktemp("histograms")
    environ = {
        **os.environ,
        "OTEL_RL_DIR": str(folder / "runs"),
        "OTEL_RL_RUN_ID": "run",
        "OTEL_RL_SIDECAR": "false",
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": request.param,
    }
    run = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(run, env=environ, cwd=folder, check=True, capture_output=True, text=True)
    given = json.loads(done.stdout.splitlines()[-1])
    with prometheus(folder) as store, collector(folder, OTEL_RL_PROMETHEUS=store.url) as found:
        shipping = {**environ, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://{found.grpc}"}
        ship = [sys.executable, "-m", "otel_rl", "ship", str(folder / "runs" / "run")]
        subprocess.run(ship, env=shipping, check=True, capture_output=True)
        assert wait_for(lambda: store.query(f"last_over_time(rl_request_finished_total[1h]) >= {REQUESTS}"))
        true = {v.TTFT: given["ttft"], v.TPOT: given["tpot"]}
        yield Stored(open_run(folder / "runs" / "run"), store, true, request.param.startswith("base2"))


def exact(values: list[float], share: float) -> float:
    """A quantile as it is."""
    return sorted(values)[round(share * (len(values) - 1))]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("name", [v.TTFT, v.TPOT])
def test_a_quantile_is_within_a_tenth_of_the_truth(stored: Stored, name: str, share: float) -> None:
    """In the journal and in Prometheus; of classic ones it is only in the bucket of the truth."""
    (point,) = stored.run.last_points(name)
    true = exact(stored.true[name], share)
    read = Histogram(point.boundaries, point.counts, point.min, point.max).quantile(share)
    how = "sum" if stored.is_exponential else "sum by (le)"
    series = NAMES[name] if stored.is_exponential else f"{NAMES[name]}_bucket"
    told = stored.store.query(f"histogram_quantile({share}, {how} (last_over_time({series}[1h])))")
    assert 1 == len(told)
    for found in (read, *(float(one["value"][1]) for one in told)):
        if stored.is_exponential:
            assert true == pytest.approx(found, 0.1)
        else:
            place = bisect_left(point.boundaries, true)
            assert point.boundaries[place - 1] <= found <= point.boundaries[place]


def test_both_forms_hold_every_request(stored: Stored) -> None:
    """And what the setting asks for is what is stored: one series, or one a boundary."""
    number = len(stored.true[v.TTFT])
    if stored.is_exponential:
        asked, series = f"histogram_count(last_over_time({NAMES[v.TTFT]}[1h]))", 1
    else:
        asked, series = f"last_over_time({NAMES[v.TTFT]}_count[1h])", len(v.METRICS[v.TTFT].boundaries) + 3
    ((_, counted),) = [one["value"] for one in stored.store.query(asked)]
    found = stored.store.query(f'count(last_over_time({{__name__=~"{NAMES[v.TTFT]}(_bucket|_sum|_count)?"}}[1h]))')
    assert (number, series) == (int(counted), int(found[0]["value"][1]))


@pytest.mark.parametrize(
    ("series", "span"),
    [("rl_loop_duration_seconds", "rl.rank 0"), ("rl_reward_duration_seconds", "rl.reward"), (NAMES[v.TTFT], "")],
)
def test_an_exemplar_leads_to_its_span(stored: Stored, series: str, span: str) -> None:
    """Of steps, stages and requests: its ids are those of a span in the journal, and its value is that span's."""
    spans = {(one.trace_id.hex(), one.span_id.hex()): one for one in stored.run.spans((v.REQUEST_TTFT,))}
    name = series if stored.is_exponential else f"{series}_bucket"
    told: list[dict[str, Any]] = [one for group in stored.store.exemplars(name) for one in group["exemplars"]]
    assert told
    for exemplar in told:
        found = spans[exemplar["labels"]["trace_id"], exemplar["labels"]["span_id"]]
        seconds = (found.end_ns - found.start_ns) / 1e9 if span else found.attributes[v.REQUEST_TTFT]
        assert seconds == pytest.approx(float(exemplar["value"]), abs=1e-6)
        assert found.name == span or not span


def test_no_label_says_a_thing_twice(stored: Stored) -> None:
    """The service is the job, and its instance the instance."""
    (series,) = stored.store.query("last_over_time(rl_request_finished_total[1h])")
    about = set(series["metric"]) - {"__name__"}
    assert {"job", "instance", "rl_run_id", "rl_attempt_id", "rl_role", "rl_rank", "host_name"} <= about
    assert set() == about & {"service_name", "service_instance_id"}
    values = [series["metric"][key] for key in ("job", "instance", "rl_run_id", "rl_attempt_id")]
    assert len(values) == len(set(values))
