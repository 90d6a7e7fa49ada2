"""The rules of Prometheus, judged by promtool, and on names that a real Prometheus gives to what we emit."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.config import Config
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.metrics.record import Fold
from otel_rl.process.identity import Identity
from otel_rl.process.on_finding import LiveFinding
from otel_rl.records import MetricPoints, Number, Value
from otel_rl.sidecar.finding_teller import FindingTeller
from tests.backends import CONFIGURATIONS, Prometheus, need, prometheus
from tests.rules import RULES, alerts, recording, series_of_rules
from tests.waiting import wait_for

pytestmark = pytest.mark.backend

CASES = Path(__file__).parent / "otel_rl.test.yaml"
RESOURCE = {
    v.SERVICE_NAME: "trl-trainer", v.SERVICE_INSTANCE_ID: "i", v.RUN_ID: "r", v.ATTEMPT_ID: "a", v.ROLE: "trainer",
    v.RANK: 1, v.RANK_DP: 0, v.RANK_PP: 1,
}  # fmt: skip


def promtool(*arguments: str | Path) -> tuple[int, str]:
    """Run it: its exit code and what it says."""
    done = subprocess.run([str(need("promtool")), *map(str, arguments)], check=False, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_rules_are_valid() -> None:
    """And Prometheus finds them where its configuration says."""
    code, said = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert 0 == code, said
    code, said = promtool("check", "config", CONFIGURATIONS / "prometheus.yaml")
    assert (0, True) == (code, "1 rule files found" in said), said


def test_the_rules_say_what_they_should() -> None:
    """Three ranks by hand, one of them slow; findings, falls of speed, devices in trouble."""
    code, said = promtool("test", "rules", CASES)
    assert 0 == code, said


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("min by", "max by"), ("< 0.7", "< 0.95"), (">= 60", ">= 6"), ("for: 10m", "for: 30m"), ("[10m]", "[1m]"),
        ("max by (host_name", "sum by (host_name"), ("clamp_min(3", "clamp_min(30"), ("writers) == 0", "writers) == 9"),
        ("and on (rl_run_id)", "or on (rl_run_id)"), ("(too_old|not_storable)", ".*"),
        ("active[5m]", "active[1m]"), ("unless node:", "and node:"),
    ],
)  # fmt: skip
def test_a_wrong_rule_would_be_seen(right: str, wrong: str, tmp_path: Path) -> None:
    """The cases above are about the rules, and about each of their limits."""
    changed = tmp_path / RULES.name
    assert right in RULES.read_text()
    changed.write_text(RULES.read_text().replace(right, wrong))
    cases = tmp_path / CASES.name
    cases.write_text(CASES.read_text().replace(f"../../collector/rules/{RULES.name}", changed.name))
    assert 1 == promtool("test", "rules", cases)[0]


def test_the_series_have_these_names_and_labels(tmp_path: Path) -> None:
    """What we emit, taken by the shipped configuration, is what the rules ask for."""
    now_ns = time.time_ns()
    labels = {v.ACTIVITY: "comm", v.GOODPUT_KIND: "idle", v.IDLE_REASON: "skew", v.BUBBLE_DENOMINATOR: "step",
              v.FLOPS_SCOPE: "update", v.WORK: "train", v.WALL: "cycle", v.HW_ID: "GPU-1",
              v.HW_NAME: "H100", v.ERROR_TYPE: "uncorrected", v.XID_CODE: "79", v.HW_STATE: "failed",
              v.THROTTLE_REASON: "power_brake", v.STAGE: "rl.reward", v.FINDING_RULE: "collapsed",
              v.FINDING_KIND: "learn", v.FINDING_SEVERITY: "alarm", v.FINDING_SENTENCE: "0."}  # fmt: skip
    stages = [stage.duration for stage in v.STAGES.values() if stage.duration]
    of_ranks = (v.ACTIVITY_TIME, v.GOODPUT_TIME, v.BUBBLE_RATIO, v.MFU, v.TOKENS_RATE)
    of_sidecars = (v.HW_ERRORS, v.XID, v.THROTTLE, v.HW_STATUS, v.FINDING_ACTIVE)
    made = [_points(name, now_ns, labels) for name in (*of_ranks, *of_sidecars)]
    for is_exponential in (False, True):
        fold = Fold(now_ns - 1, is_exponential=is_exponential)
        for name in stages:
            fold.durations(name, [1.0])
        made += fold.drain(now_ns)
    wanted = series_of_rules()
    with prometheus(tmp_path) as store:
        _send(store, RESOURCE, made)
        assert wait_for(lambda: store.query("rl_step_activity_seconds"))
        found = {each["metric"]["__name__"]: set(each["metric"]) for each in store.query('{rl_rank="1"}')}
    assert set() == set(wanted) - set(found)
    assert {} == {name: missing for name, asked in wanted.items() if (missing := asked - found[name])}


def test_a_device_can_be_joined_to_its_rank(tmp_path: Path) -> None:
    """By what a rank says of itself, once however many sidecars sample it; no series of the rank has a label for it."""
    now_ns = time.time_ns()
    (info,) = [rule["expr"] for rule in recording() if rule["record"] == "rank:rl_device:info"]
    with prometheus(tmp_path) as store:
        for run, value in (("r", 0.25), ("s", 0.5)):
            sidecar = {v.SERVICE_NAME: "otel_rl-sidecar", v.SERVICE_INSTANCE_ID: run, v.RUN_ID: run, v.ROLE: "sidecar"}
            of_device = {v.HW_ID: "GPU-1", v.HW_NAME: "H100"}
            _send(
                store, sidecar, [MetricPoints(v.GPU_UTILIZATION, "gauge", "1", "", [Number(now_ns, value, of_device)])]
            )
        identity = Identity(run_id="r", attempt_id="a", rank=3, local_rank=1, host="n", device_id="GPU-1")
        _send(store, identity.resource(""), [_points(v.STEP_TIME, now_ns, {})])
        assert wait_for(lambda: store.query("rl_step_time_seconds"))
        asked = f"max by (hw_id) (hw_gpu_utilization_ratio) * on (hw_id) group_right () ({info})"
        joined = [(each["metric"], each["value"][1]) for each in store.query(asked)]
        (step,) = store.query("rl_step_time_seconds")
    of_rank = {"rl_run_id": "r", "rl_attempt_id": "a", "rl_role": "trainer", "rl_rank": "3", "hw_id": "GPU-1"}
    assert [(of_rank, "0.5")] == joined
    assert "hw_id" not in step["metric"]


def test_a_run_without_steps_is_found_by_these_names(tmp_path: Path) -> None:
    """What a rank and the sidecar emit is what the alert asks for; one that has told no step has none."""
    now_ns = time.time_ns()
    (expr,) = [rule["expr"] for rule in alerts() if rule["alert"] == "OtelRlNoStep"]
    for rule in recording():
        expr = expr.replace(f"last_over_time({rule['record']}[6h])", f"({rule['expr']})")
        expr = expr.replace(f"max_over_time({rule['record']}[6h])", f"({rule['expr']})")
    with prometheus(tmp_path) as store:
        identity = Identity(run_id="r", attempt_id="a", host="n")
        _send(store, identity.resource(""), [_points(v.STEP_TIME, now_ns - 120_000_000_000, {})])
        sidecar = {v.SERVICE_NAME: "otel_rl-sidecar", v.SERVICE_INSTANCE_ID: "s", v.RUN_ID: "r", v.ROLE: "sidecar"}
        _send(store, sidecar, [_points(v.SELF_WAITING, now_ns, {}), _points(v.SELF_WRITERS, now_ns, {})])
        assert wait_for(lambda: store.query("otel_rl_ship_writers"))
        assert ["r"] == [each["metric"]["rl_run_id"] for each in store.query(expr.replace("600", "60"))]
        assert [] == store.query(expr)
        assert [] == store.query(expr.replace("600", "60").replace("== 0", "== 1"))


def test_the_alert_of_findings_says_the_sentence(tmp_path: Path) -> None:
    """As the sidecar tells it; one that is over fires nothing."""
    now_ns = time.time_ns()
    (expr,) = [rule["expr"] for rule in alerts() if rule["alert"] == "OtelRlFinding"]
    sidecar = {v.SERVICE_NAME: "otel_rl-sidecar", v.SERVICE_INSTANCE_ID: "s", v.RUN_ID: "r", v.ROLE: "sidecar"}
    teller = FindingTeller(tmp_path, "sidecar-0-1", Config(), print)
    for number, state in ((1, "begun"), (2, "begun"), (2, "over")):
        said: dict[str, Any] = {"rule": f"rule_{number}", "sentence": f'Sentence {number}, of 100 % "words".'}
        teller.tell(LiveFinding(kind="learn", severity="alarm", state=state, id=str(number), **said))
    points = [Number(now_ns, one.value, dict(one.labels)) for one in teller.samples()]
    with prometheus(tmp_path) as store:
        _send(store, sidecar, [MetricPoints(v.FINDING_ACTIVE, "gauge", "{finding}", "", points)])
        assert wait_for(lambda: store.query('rl_finding_active{rl_finding_rule="rule_2"}'))
        found = [(each["metric"], each["value"][1]) for each in store.query(expr)]
    expected = {
        "rl_run_id": "r", "rl_finding_kind": "learn", "rl_finding_rule": "rule_1", "rl_finding_severity": "alarm",
        "rl_finding_sentence": 'Sentence 1, of 100 % "words".',
    }  # fmt: skip
    assert [(expected, "1")] == found


def _send(store: Prometheus, resource: Mapping[str, Value], made: list[MetricPoints]) -> None:
    """Send metrics of one resource as the Collector does."""
    for request in SpanEncoder(resource, "1.0").encode_metrics(made):
        post = urllib.request.Request(f"{store.url}/api/v1/otlp/v1/metrics", request.payload)
        post.add_header("Content-Type", "application/x-protobuf")
        urllib.request.urlopen(post).close()


def _points(name: str, now_ns: int, labels: dict[str, str]) -> MetricPoints:
    """One point of a metric."""
    row = v.METRICS[name]
    return MetricPoints(name, row.kind, row.unit, "", [Number(now_ns, 1.0, labels)], now_ns - 1)
