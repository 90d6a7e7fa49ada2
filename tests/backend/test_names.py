"""Numbers that a user records are all found in Prometheus: none overwrites another, and none a series of Prometheus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from tests.backend.otlp import send
from tests.backends import collector, prometheus
from tests.waiting import wait_for

pytestmark = pytest.mark.backend

PROGRAM = """
import json, sys, otel_rl
otel_rl.instrument()
with otel_rl.step(1):
    for value, name in enumerate(json.loads(sys.argv[1])):
        otel_rl.record(name, float(value))
"""
PLAIN = {
    "loss_policy": "user_loss_policy", "up": "user_up", "ALERTS": "user_ALERTS", "target_info": "user_target_info",
    "1st": "user_1st", "tokens_total": "user_tokens_total", "a:b": "user_a:b",
    v.REWARD_SCORE: "rl_reward_score", v.LOSS: "rl_train_loss", v.LEARNING_RATE: "rl_train_learning_rate",
    v.GRAD_NORM: "rl_train_grad_norm", v.EVAL_REWARD: "rl_environment_reward_mean",
}  # fmt: skip
"""Names that Prometheus writes as they are, and ours."""
ODD = {
    "loss/policy": "user_loss_policy", "loss.policy": "user_loss_policy", "loss__policy": "user_loss_policy",
    "_loss policy!": "user_loss_policy", "réward": "user_r_ward", "r/ward": "user_r_ward", "_1st": "user_1st",
    "tokens.total": "user_tokens_total", "gain.ratio": "user_gain_ratio", "gain ratio": "user_gain_ratio",
    "损失": "user", "报酬": "user", "\ud800up": "user_ud800up", "rl/step/time": "user_rl_step_time",
}  # fmt: skip
"""Names of which it keeps less than all."""
CLASHES = {"user_loss_policy", "user_r_ward", "user_1st", "user_tokens_total", "user_gain_ratio", "user"}
LONG = ["long" * 500 + "1", "long" * 500 + "2"]
REFUSED = [v.STEP_TIME, f"{v.STEP_TIME}.seconds", v.HW_STATUS, "process.mine"]


def test_every_number_is_found_again(tmp_path: Path) -> None:
    """Through the Collector, under a series or a label of its own; what is Prometheus' or ours stays as it is."""
    names = [*ODD, *PLAIN, *LONG, *REFUSED]
    values = {name: str(value) for value, name in enumerate(names)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(names)],
        env={**os.environ, "OTEL_RL_DIR": str(tmp_path), "OTEL_RL_RUN_ID": "run"},
        capture_output=True,
        text=True,
        check=True,
    )
    with prometheus(tmp_path) as store, collector(tmp_path, OTEL_RL_PROMETHEUS=store.url) as found:
        for _, frame in open_run(tmp_path / "run").frames("metrics"):
            assert "OK" == send(found.grpc, "metrics", ExportMetricsServiceRequest.FromString(frame.payload))
        assert wait_for(lambda: store.query("user_up"))
        stored = {
            (one["metric"]["__name__"], one["metric"].get("rl_metric_name", "")): one["value"][1]
            for one in store.query('{rl_role="trainer",__name__!~"otel_rl_.+"}')
            if "value" in one  # a histogram has none
        }
    expected = {
        **{(series, ""): values[name] for name, series in PLAIN.items()},
        **{(series, name.replace("\ud800", r"\ud800")): values[name] for name, series in ODD.items()},
    }
    numbers = {key: value for key, value in stored.items() if key[0].startswith("user") or key[0] in PLAIN.values()}
    assert expected.items() <= numbers.items()
    assert {values[name] for name in LONG} == {numbers[key] for key in numbers.keys() - expected.keys()}
    assert set() == {"up", "ALERTS", "hw_status", "process_mine"} & {series for series, _ in stored}
    assert not {values[name] for name in REFUSED} & set(stored.values())
    assert len(REFUSED) == result.stderr.count(" is not recorded: ")
    assert len(CLASHES) == result.stderr.count(" alike; ")
