"""The shipped rules on what loops without a framework record, judged by promtool."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.trace.attempt import know_attempt
from tests.backends import need
from tests.fixtures import RUN, WALL_NS, Recording
from tests.rules import RULES

pytestmark = pytest.mark.backend

GRID_S = 30
LABELS = {"rl_rank": v.RANK, "rl_rank_dp": v.RANK_DP, "rl_role": v.ROLE, "rl_run_id": v.RUN_ID}


def test_the_alert_of_a_fall_fires(stubbed: Recording, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two ranks that share no samples: an hour of steps of 30 s, then steps of 90 s."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("otel_rl.flusher.thread.HOLD_LIMIT", 100_000)
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"{v.RANK_DP}={rank}")
        stubbed.clock.ns = 1_000_000_000
        recording = stubbed.start()
        know_attempt("a", RUN)
        for number in range(1, 171):
            with otel_rl.step(number):
                with otel_rl.stage("sample") as stage:
                    stage.set_attribute("rl.tokens.prompt", 1000)
                    stage.set_attribute("rl.tokens.response", 2000)
                recording.tick(30_000 if number <= 120 else 90_000)
        run = recording.stop()
    series: dict[str, list[float | None]] = {}
    for point in sorted(run.points(v.TOKENS_RATE), key=lambda point: point.time_ns):
        labels = {name: point.resource[key] for name, key in LABELS.items()} | {"rl_attempt_id": "a"}
        labels |= {"rl_work": point.attributes[v.WORK], "rl_wall": point.attributes[v.WALL]}
        name = "rl_throughput_tokens_per_second{" + ",".join(f'{k}="{one}"' for k, one in sorted(labels.items())) + "}"
        values = series.setdefault(name, [])
        place = round((point.time_ns - WALL_NS) / 1e9) // GRID_S
        values += [None] * (place + 1 - len(values))
        values[place] = point.value
    assert 4 == len(series)
    label = {"severity": "warning", "rl_run_id": RUN, "rl_attempt_id": "a", "rl_role": "trainer", "rl_work": "rollout"}
    samples = f'{{rl_run_id="{RUN}", rl_attempt_id="a", rl_role="trainer", rl_work="rollout"}}'
    said = {
        "summary": f"run {RUN}: rollout fell to 66.67 tokens/s",
        "description": "Less than half of its median of the last six hours, for ten minutes.",
    }
    cases = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{GRID_S}s",
        "tests": [
            {
                "interval": f"{GRID_S}s",
                "input_series": [
                    {"series": name, "values": " ".join("_" if one is None else f"{one:.3f}" for one in values)}
                    for name, values in series.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": "round(role:rl_throughput_tokens_per_second:sum, 0.01)",
                        "eval_time": time,
                        "exp_samples": [{"labels": samples, "value": value}],
                    }
                    for time, value in (("50m", 200), ("80m", 66.67))
                ],
                "alert_rule_test": [
                    {"alertname": "OtelRlThroughputFall", "eval_time": "60m", "exp_alerts": []},
                    {
                        "alertname": "OtelRlThroughputFall",
                        "eval_time": "80m",
                        "exp_alerts": [{"exp_labels": label, "exp_annotations": said}],
                    },
                ],
            }
        ],
    }
    (tmp_path / "cases.yaml").write_text(json.dumps(cases))  # which is YAML
    done = subprocess.run(
        [str(need("promtool")), "test", "rules", str(tmp_path / "cases.yaml")],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert 0 == done.returncode, done.stdout + done.stderr
