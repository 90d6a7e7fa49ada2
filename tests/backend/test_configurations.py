"""The real programs accept every configuration that is shipped."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.backends import CONFIGURATIONS, need

pytestmark = pytest.mark.backend

COMPLETE = (
    ("standalone.yaml",),
    ("standalone.yaml", "metrics-token.yaml", "traces-token.yaml"),
    ("agent.yaml", "agent-token.yaml"),
    ("agent.yaml", "agent-mtls.yaml"),
    ("agent.yaml", "agent-token.yaml", "agent-mtls.yaml"),
    ("agent.yaml", "agent-token.yaml", "agent-local-token.yaml"),
    ("agent.yaml", "agent-mtls.yaml", "agent-local-token.yaml"),
    ("gateway.yaml", "gateway-token.yaml"),
    ("gateway.yaml", "gateway-mtls.yaml"),
    ("gateway.yaml", "gateway-token.yaml", "gateway-mtls.yaml"),
    ("gateway.yaml", "gateway-mtls.yaml", "metrics-token.yaml", "traces-token.yaml"),
    ("gateway.yaml", "gateway-token.yaml", "clickhouse.yaml"),
    ("standalone.yaml", "clickhouse.yaml"),
)


def answer(*command: str | Path, **environment: str) -> tuple[int, str]:
    """Run a program to its end: its exit code and what it wrote."""
    arguments = [str(part) for part in command]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout + done.stderr


def validate(folder: Path, *configurations: Path, **environment: str) -> tuple[int, str]:
    """Let the Collector judge configurations."""
    arguments = [part for path in configurations for part in ("--config", path)]
    variables = {"OTEL_RL_STACK_DIR": str(folder), "OTEL_RL_QUEUE_DIR": str(folder), **environment}
    return answer(need("otelcol"), "validate", *arguments, **variables)


@pytest.mark.parametrize("names", COMPLETE, ids="+".join)
def test_collector_accepts(names: tuple[str, ...], tmp_path: Path) -> None:
    """Every shipped combination is valid."""
    assert (0, "") == validate(tmp_path, *(CONFIGURATIONS / name for name in names))


def test_gateway_is_not_open_by_accident(tmp_path: Path) -> None:
    """Without a file that says who is let in, the gateway does not start."""
    code, said = validate(tmp_path, CONFIGURATIONS / "gateway.yaml")
    assert (1, True) == (code, "must specify at least one protocol" in said), said


def test_options_of_the_gateway_are_valid(tmp_path: Path) -> None:
    """Tail sampling and span metrics work as soon as the comment signs are taken away."""
    text = (CONFIGURATIONS / "gateway.yaml").read_text()
    options = tmp_path / "gateway.yaml"
    options.write_text(text.replace("#| ", ""))
    assert 20 < text.count("#| ")
    assert (0, "") == validate(tmp_path, options, CONFIGURATIONS / "gateway-token.yaml")


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("standalone.yaml", "OTEL_RL_TRACES_TO", "[otlp_grpc/jaeger, otlp_grpc/tempo]"),
        ("standalone.yaml", "OTEL_RL_LOGS_TO", "[otlp_http/logs]"),
        ("agent.yaml", "OTEL_RL_DCGM", "[127.0.0.1:9400, other:9400]"),
        ("agent.yaml", "OTEL_RL_VLLM", "[127.0.0.1:8000]"),
        ("agent.yaml", "OTEL_RL_SGLANG", "[127.0.0.1:30000]"),
        ("agent.yaml", "OTEL_RL_NPU", "[127.0.0.1:8082]"),
    ],
)
def test_lists_come_from_the_environment(name: str, variable: str, value: str, tmp_path: Path) -> None:
    """What is a list in the configuration can be one in a variable; one that names nothing known is refused."""
    assert (0, "") == validate(tmp_path, CONFIGURATIONS / name, **{variable: value})
    code, _ = validate(tmp_path, CONFIGURATIONS / name, **{variable: "{is: no list}"})
    assert 1 == code


HEADERS = ('{X-Scope-OrgID: "7"}', "X-Scope-OrgID: team", "")
TLS = ("{ca_file: /etc/ca.pem, server_name_override: store}", "insecure: false", "")


@pytest.mark.parametrize("name", ["standalone.yaml", "gateway.yaml"])
def test_headers_and_tls_come_from_the_environment(name: str, tmp_path: Path) -> None:
    """For each store: maps, in braces or without, or nothing; a value that is a number must be in quotes."""
    files = (CONFIGURATIONS / name, *([CONFIGURATIONS / "gateway-token.yaml"] if name == "gateway.yaml" else []))
    to = {"OTEL_RL_TRACES_TO": "[otlp_grpc/jaeger, otlp_grpc/tempo]", "OTEL_RL_LOGS_TO": "[otlp_http/logs]"}
    for store in ("JAEGER", "TEMPO", "PROMETHEUS", "LOGS"):
        for what, good, bad in (("HEADERS", HEADERS, "{X-Scope-OrgID: 7}"), ("TLS", TLS, "{authority: /ca.pem}")):
            variable = f"OTEL_RL_{store}_{what}"
            assert [(0, "")] * 3 == [validate(tmp_path, *files, **to, **{variable: value}) for value in good], variable
            assert 1 == validate(tmp_path, *files, **to, **{variable: bad})[0], variable


def test_jaeger_accepts() -> None:
    """Jaeger's configuration is valid."""
    code, said = answer(need("jaeger"), "validate", "--config", CONFIGURATIONS / "jaeger.yaml")
    assert 0 == code, said


def test_prometheus_accepts() -> None:
    """Prometheus's configuration is valid."""
    code, said = answer(need("promtool"), "check", "config", CONFIGURATIONS / "prometheus.yaml")
    assert 0 == code, said
