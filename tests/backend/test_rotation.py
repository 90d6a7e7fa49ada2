"""Certificates, their authority and tokens are changed while agent and gateway run, as README says; nothing is lost."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import ssl
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.backend.certificates import Authority
from tests.backend.otlp import Certificates, send, span, traces
from tests.backend.test_tiers import TOKEN, Site, address, agent, gateway, site
from tests.backends import Collector
from tests.sink import Sink, sink
from tests.waiting import wait_for

pytestmark = pytest.mark.backend
__all__ = ["site"]

NAMES = "IP:127.0.0.1,DNS:otel-rl-gateway"
REFRESHED = "refresh token"
"""The Collector's line for each time that it has read a file with something in it; one write makes one to three."""
numbers = itertools.count(1)


@pytest.fixture
def often(tmp_path: Path) -> dict[str, str]:
    """Further configurations of gateway and agent: they look for new certificates each second, not each minute."""
    central = "receivers: {otlp: {protocols: {grpc: {tls: {reload_interval: 1s}}}}}"
    local = """
exporters:
  load_balancing/traces: {protocol: {otlp: {tls: {reload_interval: 1s}}}}
  otlp_grpc/gateway: {tls: {reload_interval: 1s}}
"""
    for name, text in (("gateway", central), ("agent", local)):
        (tmp_path / f"{name}-often.yaml").write_text(text)
    return {name: str(tmp_path / f"{name}-often.yaml") for name in ("gateway", "agent")}


def a_span() -> ExportTraceServiceRequest:
    """Another one each time."""
    return traces(span(next(numbers), 1))


def delivers(local: Collector, taken: Sink) -> bool:
    """Whether a span that the agent takes now arrives."""
    request = a_span()
    assert "OK" == send(local.grpc, "traces", request)
    wanted = request.resource_spans[0].scope_spans[0].spans[0].trace_id
    return bool(wait_for(lambda: wanted in {each.trace_id for each in taken.taken("traces")}))


def reload(found: Collector) -> None:
    """Send SIGHUP, and wait until it runs again."""
    begun = found.log.count("Everything is ready")
    os.kill(found.pid, signal.SIGHUP)
    assert wait_for(lambda: found.log.count("Everything is ready") == begun + 1), found.log[-2000:]


def put(issued: Certificates, over: Certificates) -> None:
    """Write a certificate and its key in the place of others."""
    shutil.copy(issued.certificate, over.certificate)
    shutil.copy(issued.key, over.key)


def shown_by(found: Collector) -> bytes:
    """The certificate that a gateway shows to a new connection."""
    host, _, port = found.grpc.rpartition(":")
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port))))


def as_der(issued: Certificates) -> bytes:
    """What is in the file."""
    return ssl.PEM_cert_to_DER_cert(issued.certificate.read_text())


def test_a_new_certificate_is_taken_without_a_restart(site: Site, often: dict[str, str], tmp_path: Path) -> None:
    """By the gateway, for every connection that begins from then on."""
    with (
        sink("grpc") as taken,
        gateway(tmp_path / "gw", site, "token", often["gateway"], OTEL_RL_JAEGER=address(taken)) as central,
        agent(tmp_path / "agent", site, "token", to=central.grpc) as local,
    ):
        old = as_der(site.server)
        assert (old, True) == (shown_by(central), delivers(local, taken))
        put(site.authority.issue("gateway-2", NAMES), site.server)
        assert wait_for(lambda: shown_by(central) != old)
        assert as_der(site.server) == shown_by(central)
        assert (True, 0) == (delivers(local, taken), local.counted("otelcol_exporter_send_failed_spans"))


def test_another_authority_takes_over(site: Site, often: dict[str, str], tmp_path: Path) -> None:
    """First both are trusted, then certificates are exchanged, then the old one is trusted no more."""
    old, new = site.authority.certificate.read_text(), Authority(tmp_path / "new", "next")
    old_client = site.client._replace(certificate=tmp_path / "old.pem", key=tmp_path / "old.key")
    put(site.client, old_client)
    with (
        sink("grpc") as taken,
        gateway(tmp_path / "gw", site, "mtls", often["gateway"], OTEL_RL_JAEGER=address(taken)) as central,
        agent(tmp_path / "agent", site, "mtls", often["agent"], to=central.grpc) as local,
    ):
        assert delivers(local, taken)
        trusted = site.authority.certificate
        trusted.write_text(old + new.certificate.read_text())
        reload(central)
        reload(local)
        assert delivers(local, taken)
        shown = shown_by(central)
        put(new.issue("gateway", NAMES), site.server)
        put(new.issue("agent", "DNS:agent"), site.client)
        assert wait_for(lambda: shown_by(central) != shown)
        assert "OK" == send(central.grpc, "traces", a_span(), trusted=trusted, shown=old_client)
        assert delivers(local, taken)
        trusted.write_text(new.certificate.read_text())
        reload(central)
        reload(local)
        assert delivers(local, taken)
        assert "UNAVAILABLE" == send(central.grpc, "traces", a_span(), trusted=trusted, shown=old_client)
        assert 0 == local.counted("otelcol_exporter_send_failed_spans")


def test_an_agents_new_certificate_is_taken_without_a_restart(
    site: Site, often: dict[str, str], tmp_path: Path
) -> None:
    """With the next connection: here the gateway lets the first one in no more, because its authority is gone."""
    new = Authority(tmp_path / "new", "next")
    clients = tmp_path / "clients.pem"
    clients.write_text(site.authority.certificate.read_text())
    with (
        sink("grpc") as taken,
        gateway(
            tmp_path / "gw", site, "mtls", OTEL_RL_JAEGER=address(taken),
            OTEL_RL_CLIENT_CA=str(clients),
        ) as central,
        agent(tmp_path / "agent", site, "mtls", often["agent"], to=central.grpc) as local,
    ):  # fmt: skip
        assert delivers(local, taken)
        clients.write_text(new.certificate.read_text())
        reload(central)
        assert "OK" == send(local.grpc, "traces", a_span())
        assert wait_for(lambda: "Will retry" in local.log)
        assert 1 == len(taken.taken("traces"))
        put(new.issue("agent", "DNS:agent"), site.client)
        assert wait_for(lambda: 2 == len(taken.taken("traces")))
        assert 0 == local.counted("otelcol_exporter_send_failed_spans")


def test_tokens_change_without_a_loss(site: Site, tmp_path: Path) -> None:
    """First as a second line of the gateway's file, then in the agent's; then the gateway's first line goes."""
    own = tmp_path / "token-of-the-agent"
    own.write_text(TOKEN)
    with (
        sink("grpc") as taken,
        gateway(tmp_path / "gw", site, "token", OTEL_RL_JAEGER=address(taken)) as central,
        agent(tmp_path / "agent", site._replace(token=own), "token", to=central.grpc) as local,
    ):
        trusted = site.authority.certificate
        assert delivers(local, taken)
        site.token.write_text(f"{TOKEN}\nanother\n")
        assert wait_for(lambda: "OK" == send(central.grpc, "traces", a_span(), trusted=trusted, token="another"))
        read = local.log.count(REFRESHED)
        own.write_text("another\n")
        assert wait_for(lambda: local.log.count(REFRESHED) > read)
        assert delivers(local, taken)
        site.token.write_text("another\n")
        assert wait_for(lambda: "OK" != send(central.grpc, "traces", a_span(), trusted=trusted, token=TOKEN))
        assert (True, 0) == (delivers(local, taken), local.counted("otelcol_exporter_send_failed_spans"))
