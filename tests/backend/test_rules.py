"""The rules of Prometheus, judged by promtool, and on names that a real Prometheus gives to what we emit."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.encode import SpanEncoder
from otel_rl.metrics import Fold
from otel_rl.records import MetricPoints, Number
from tests.backends import CONFIGURATIONS, need, prometheus, wait_for
from tests.rules import RULES, series_of_rules

pytestmark = pytest.mark.backend

CASES = Path(__file__).parent / "otel_rl.test.yaml"
RESOURCE = {
    v.SERVICE_NAME: "trl-trainer", v.SERVICE_INSTANCE_ID: "i", v.RUN_ID: "r", v.ATTEMPT_ID: "a", v.ROLE: "trainer",
    v.RANK: 1, v.RANK_DP: 0, v.RANK_PP: 1,
}  # fmt: skip


def promtool(*arguments: str | Path) -> tuple[int, str]:
    """Run it: its exit code and what it says."""
    done = subprocess.run(
        [str(need("promtool")), *map(str, arguments)], check=False, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def test_the_rules_are_valid() -> None:
    """And Prometheus finds them where its configuration says."""
    code, said = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert 0 == code, said
    code, said = promtool("check", "config", CONFIGURATIONS / "prometheus.yaml")
    assert (0, True) == (code, "1 rule files found" in said), said


def test_the_rules_say_what_they_should() -> None:
    """Three ranks by hand, one of them slow; faults, falls of speed and devices in trouble."""
    code, said = promtool("test", "rules", CASES)
    assert 0 == code, said


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("min by", "max by"), ("offset 30m", "offset 1s"), ("< 0.7", "< 0.95"), ("< 0.7", "< 0.2"), ("< 0.5", "< 0.7"),
        (">= 60", ">= 6"), ("for: 10m", "for: 1m"), ("for: 10m", "for: 30m"), ('wall="cycle"', 'wall="step"'),
        ('"uncorrected"', '"corrected"'), ("thermal_software|", "power_cap|"), ("> 0.5", "> 0.1"), ('"failed"', '"ok"'),
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
              v.FLOPS_SCOPE: "update", v.WORK: "train", v.WALL: "cycle", v.LEDGER_FAULT: "other mask", v.HW_ID: "GPU-1",
              v.HW_NAME: "H100", v.ERROR_TYPE: "uncorrected", v.XID_CODE: "79", v.HW_STATE: "failed",
              v.THROTTLE_REASON: "power_brake"}  # fmt: skip
    stages = [stage.duration for stage in v.STAGES.values() if stage.duration]
    of_ranks = (v.ACTIVITY_TIME, v.GOODPUT_TIME, v.BUBBLE_RATIO, v.MFU, v.TOKENS_RATE, v.LEDGER_FAULTS)
    of_devices = (v.HW_ERRORS, v.XID, v.THROTTLE, v.HW_STATUS)
    made = [_points(name, now_ns, labels) for name in (*of_ranks, *of_devices)]
    for is_exponential in (False, True):
        fold = Fold(now_ns - 1, is_exponential=is_exponential)
        for name in stages:
            fold.durations(name, [1.0])
        made += fold.take(now_ns)
    wanted = series_of_rules()
    with prometheus(tmp_path) as store:
        for request in SpanEncoder(RESOURCE, "1.0").encode_metrics(made):
            post = urllib.request.Request(f"{store.url}/api/v1/otlp/v1/metrics", request.payload)
            post.add_header("Content-Type", "application/x-protobuf")
            urllib.request.urlopen(post, timeout=10).close()
        assert wait_for(lambda: store.query("rl_step_activity_seconds"))
        found = {each["metric"]["__name__"]: set(each["metric"]) for each in store.query('{rl_rank="1"}')}
    assert set() == set(wanted) - set(found)
    assert {} == {name: missing for name, asked in wanted.items() if (missing := asked - found[name])}


def _points(name: str, now_ns: int, labels: dict[str, str]) -> MetricPoints:
    """One point of a metric."""
    row = v.METRICS[name]
    return MetricPoints(name, row.kind, row.unit, "", [Number(now_ns, 1.0, labels)], now_ns - 1)
