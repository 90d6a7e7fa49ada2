"""The addresses that the Kubernetes forms set are ones that the real Collector listens on, in IPv4 and in IPv6."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import yaml

from tests.backend.test_tiers import Site, agent, gateway, site
from tests.backends import CONFIGURATIONS, free_ports

pytestmark = pytest.mark.backend

__all__ = ["site"]


def values(name: str) -> dict[str, str]:
    """What a form sets."""
    form = yaml.safe_load((CONFIGURATIONS / "kubernetes" / f"{name}.values.yaml").read_text())
    return {row["name"]: row["value"] for row in form["extraEnvs"]}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_kubelet_reaches_an_agent(host: str, site: Site, tmp_path: Path) -> None:
    """At the pod's address, of either family."""
    (port,) = free_ports(1)
    health = values("agent")["OTEL_RL_HEALTH"].replace("$(MY_POD_IP)", host).replace("13133", str(port))
    with agent(tmp_path, site, "token", to="127.0.0.1:9", health=f"http://{at(host)}:{port}", OTEL_RL_HEALTH=health):
        socket.create_connection((host, port), 5).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_gateway_is_reached(host: str, site: Site, tmp_path: Path) -> None:
    """At every address of the pod."""
    ports = dict(zip(("OTEL_RL_GRPC", "OTEL_RL_HEALTH"), free_ports(2), strict=True))
    listens = {name: f"{values('gateway')[name].rpartition(':')[0]}:{port}" for name, port in ports.items()}
    with gateway(tmp_path, site, "token", health=f"http://{at(host)}:{ports['OTEL_RL_HEALTH']}", **listens):
        socket.create_connection((host, ports["OTEL_RL_GRPC"]), 5).close()


def at(host: str) -> str:
    """The host in a URL."""
    return f"[{host}]" if ":" in host else host
