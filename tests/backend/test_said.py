"""What a Collector says when nothing arrives, in the words that collector/README.md explains."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.backend.otlp import send, span, traces
from tests.backend.test_tiers import HOST, Site, address, agent, gateway, site
from tests.backends import CONFIGURATIONS, need
from tests.sink import sink
from tests.waiting import wait_for

pytestmark = pytest.mark.backend
__all__ = ["site"]

README = (CONFIGURATIONS / "README.md").read_text().partition("## When nothing arrives")[2]


def last_words(*names: str, **environ: str) -> str:
    """The last line of a Collector that does not start."""
    options = [part for name in names for part in ("--config", str(CONFIGURATIONS / name))]
    environ["PATH"] = os.environ["PATH"]
    done = subprocess.run([str(need("otelcol")), *options], check=False, capture_output=True, text=True, env=environ)
    assert 1 == done.returncode, done.stderr
    return done.stderr.splitlines()[-1]


def test_why_it_does_not_start(site: Site, tmp_path: Path) -> None:
    """Every row of the first table."""
    both = {"OTEL_RL_CERT": str(site.server.certificate), "OTEL_RL_KEY": str(site.server.key)}
    ports = {
        "OTEL_RL_GRPC": f"{HOST}:0",
        "OTEL_RL_HTTP": f"{HOST}:0",
        "OTEL_RL_HEALTH": f"{HOST}:0",
        "OTEL_RL_OWN": "0",
    }
    mine = {**ports, "OTEL_RL_QUEUE_DIR": str(tmp_path), "OTEL_RL_TOKEN_FILE": str(site.token)}
    files = ("agent.yaml", "agent-token.yaml")
    with gateway(tmp_path / "gateway", site, "token") as central:
        own = central.own.removesuffix("/metrics").rpartition(":")[2]
        second = {**ports, **both, "OTEL_RL_TOKEN_FILE": str(site.token)}
        said = {
            "must specify at least one protocol": [last_words("gateway.yaml")],
            "address already in use": [
                last_words("gateway.yaml", "gateway-token.yaml", **{**second, name: taken})
                for name, taken in (("OTEL_RL_GRPC", central.grpc), ("OTEL_RL_OWN", own))
            ],
            "no such file or directory": [
                last_words(*files, **{**mine, "OTEL_RL_CA": "/nowhere"}),
                last_words(*files, **{**mine, "OTEL_RL_TOKEN_FILE": "/nowhere"}),
                last_words("gateway.yaml", "gateway-token.yaml", **{**second, "OTEL_RL_CERT": "/nowhere"}),
            ],
            'failed to create extension "file_storage/queue"': [
                last_words(*files, **{**mine, "OTEL_RL_QUEUE_DIR": "/proc/nowhere"})
            ],
        }
    tokens = {
        "OTEL_RL_STACK_DIR": str(tmp_path),
        "OTEL_RL_TRACES_TOKEN_FILE": str(site.token),
    }
    said["the credentials require transport level security"] = [
        last_words("standalone.yaml", "traces-token.yaml", **ports, **tokens)
    ]
    for words, lines in said.items():
        assert [True, *[True] * len(lines)] == [f"`{words}`" in README, *[words in line for line in lines]], lines


@pytest.mark.parametrize(
    ("words", "there", "here", "change"),
    [
        ("connection refused", "token", "token", lambda site: {"to": f"{HOST}:9"}),
        ("no such host", "token", "token", lambda site: {"to": "gateway.invalid:9"}),
        ("certificate is valid for", "token", "token", lambda site: {"to": "localhost:{}", "named": "DNS:another"}),
        ("cannot validate certificate for", "token", "token", lambda site: {"named": "DNS:another"}),
        ("signed by unknown authority", "token", "token", lambda site: {"OTEL_RL_CA": str(site.foreign.authority)}),
        ("certificate required", "mtls", "token", lambda site: {}),
        (
            "unknown certificate authority",
            "mtls",
            "mtls",
            lambda site: {"OTEL_RL_CERT": str(site.foreign.certificate), "OTEL_RL_KEY": str(site.foreign.key)},
        ),
        ("Unauthenticated", "token", "token", lambda site: {"OTEL_RL_TOKEN_FILE": str(another(site.token))}),
    ],
)
def test_why_nothing_comes_through(
    words: str, there: str, here: str, change: Callable[[Site], dict[str, str]], site: Site, tmp_path: Path
) -> None:
    """Every row of the second table: the agent's log says it; only a wrong token makes it drop what it took."""
    changed = change(site)
    name = changed.pop("named", f"IP:{HOST}")
    site = site._replace(server=site.authority.issue("gateway", name))
    with sink("grpc") as taken, ExitStack() as stack:
        central = stack.enter_context(gateway(tmp_path / "gateway", site, there, OTEL_RL_JAEGER=address(taken)))
        to = changed.pop("to", f"{HOST}:{{}}").format(central.grpc.rpartition(":")[2])
        local = stack.enter_context(agent(tmp_path / "agent", site, here, to=to, **changed))
        assert "OK" == send(local.grpc, "traces", traces(span(7, 1)))
        is_dropped = words == "Unauthenticated"
        outcome = "Dropping data" if is_dropped else "Will retry the request"
        assert wait_for(lambda: words in local.log and outcome in local.log), local.log[-2000:]
        rows = [line for line in README.splitlines() if f"`{words}`" in line]
        assert [is_dropped] == ["**dropped**" in row for row in rows]
        assert [] == taken.requests
        assert is_dropped == bool(local.counted("otelcol_exporter_send_failed_spans"))


def another(token: Path) -> Path:
    """A file with another token than that."""
    other = token.with_name("another")
    other.write_text(token.read_text()[::-1] + "x")
    return other
