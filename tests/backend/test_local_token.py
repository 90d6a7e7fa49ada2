"""An agent on a node that users share: only who has its token writes through it."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.backend.otlp import send, span, traces
from tests.backend.test_tiers import Site, address, agent, gateway, site
from tests.sink import Rank, sink
from tests.waiting import wait_for

pytestmark = pytest.mark.backend
__all__ = ["site"]


def post(url: str, request: Any, **headers: str) -> int:
    """Send spans by HTTP; the status of the answer."""
    headers["Content-Type"] = "application/x-protobuf"
    asked = urllib.request.Request(f"{url}/v1/traces", request.SerializeToString(), headers)
    try:
        with urllib.request.urlopen(asked) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def command(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `otel-rl` to its end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-m", "otel_rl", *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        env={**environ, **environment, "COLUMNS": "200"},
    )


@pytest.mark.parametrize("how", ["token", "mtls"])
def test_an_agent_asks_for_a_token_of_its_own(how: str, site: Site, tmp_path: Path) -> None:
    """By gRPC and HTTP, from the sidecar as from every client; without it all waits in the journal, and is told."""
    mine, theirs = secrets.token_hex(32), secrets.token_hex(32)
    file = tmp_path / "local.token"
    file.write_text(f"{mine} me\n{theirs}\n")
    run = tmp_path / "runs" / "run"
    rank = Rank(run)
    wanted = set(rank.write(spans=20, frames=3))
    rank.writer.close()
    with (
        sink("grpc") as taken,
        gateway(tmp_path / "gw", site, how, OTEL_RL_JAEGER=address(taken)) as central,
        agent(
            tmp_path / "agent",
            site,
            how,
            "agent-local-token.yaml",
            to=central.grpc,
            OTEL_RL_LOCAL_TOKEN_FILE=str(file),
        ) as local,
    ):
        assert "UNAUTHENTICATED" == send(local.grpc, "traces", traces(span(7, 1)))
        assert "UNAUTHENTICATED" == send(local.grpc, "traces", traces(span(7, 1)), token=mine[:-1])
        assert 401 == post(local.http, traces(span(7, 1)))
        assert 200 == post(local.http, traces(span(7, 1)), Authorization=f"Bearer {theirs}")
        assert "OK" == send(local.grpc, "traces", traces(span(7, 2)), token=theirs)
        assert wait_for(lambda: 2 == len(taken.taken("traces")))

        to = {"OTEL_RL_DIR": str(run.parent), "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{local.grpc}"}
        refused = command("ship", run, "--give-up", "2", **to)
        assert (1, True) == (refused.returncode, "UNAUTHENTICATED" in refused.stderr)
        told = command("doctor", run, **to)
        assert "traces put off" in told.stdout
        assert "the last answer: gRPC UNAUTHENTICATED" in told.stdout
        assert 2 == len(taken.taken("traces"))
        shipped = command("ship", run, OTEL_EXPORTER_OTLP_HEADERS=f"authorization=Bearer%20{mine}", **to)
        assert 0 == shipped.returncode, shipped.stderr
        assert wait_for(lambda: wanted <= set(taken.ids()))
        assert 62 == len(taken.taken("traces"))
        file.write_text(f"{mine}\n")
        assert wait_for(lambda: "UNAUTHENTICATED" == send(local.grpc, "traces", traces(span(7, 3)), token=theirs))
        assert False is any(word in local.log for word in (mine, theirs))
