"""Stores of other people: under another path, by TLS, for a tenant, with a token; all by the environment."""

from __future__ import annotations

import base64
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
import yaml

from tests.backend.certificates import Authority
from tests.backend.otlp import metrics, send, span, traces
from tests.backend.test_tiers import HOST, Site, address, agent, gateway, site
from tests.backends import CONFIGURATIONS, Collector, collector, jaeger
from tests.sink import TAKEN, Answer, Sink, Tls, sink
from tests.waiting import wait_for

pytestmark = pytest.mark.backend
__all__ = ["site"]

TIERS = ("standalone", "gateway")
HEADERS = """{X-Scope-OrgID: "7", X-Secret: 'it''s "$$a $${b}": #1'}"""
"""Values in quotes: in single ones everything stands for itself, but for `'` and `$`, which are doubled."""


def serving(authority: Authority) -> Tls:
    """What a store on this host shows."""
    issued = authority.issue("store", f"IP:{HOST}")
    return Tls(issued.key, issued.certificate)


def started(stack: ExitStack, tier: str, folder: Path, site: Site, *added: str, **environment: str) -> Collector:
    """Start a standalone Collector, or a gateway and an agent; what is sent to it goes to the stores."""
    if tier == "standalone":
        return stack.enter_context(collector(folder / "one", "standalone.yaml", *added, **environment))
    central = stack.enter_context(gateway(folder / "gateway", site, "token", *added, **environment))
    return stack.enter_context(agent(folder / "agent", site, "token", to=central.grpc))


def headers_of(taken: Sink, name: str) -> list[dict[str, str]]:
    """The headers of the requests that brought a metric."""
    return [
        headers
        for signal, payload, headers, answer in list(taken.requests)
        if signal == "metrics" and answer is TAKEN and name.encode() in payload
    ]


@pytest.mark.parametrize("tier", TIERS)
def test_mimir_gets_points_of_its_tenant(tier: str, site: Site, tmp_path: Path) -> None:
    """By TLS of an authority of one's own, below `/otlp`, with headers whose values have every special character."""
    with sink("http", tls=serving(site.authority)) as taken, ExitStack() as stack:
        to = {
            "OTEL_RL_PROMETHEUS": taken.endpoint,
            "OTEL_RL_PROMETHEUS_PATH": "/otlp",
            "OTEL_RL_PROMETHEUS_HEADERS": HEADERS,
            "OTEL_RL_PROMETHEUS_TLS": f"{{ca_file: {site.authority.certificate}}}",
        }
        found = started(stack, tier, tmp_path, site, **to)
        assert "OK" == send(found.grpc, "metrics", metrics("rl.step.time", (0, 1, 1.0)))
        assert wait_for(lambda: headers_of(taken, "rl.step.time"))
        (headers,) = headers_of(taken, "rl.step.time")
        wanted = {":path": "/otlp/v1/metrics", "x-scope-orgid": "7", "x-secret": """it's "$a ${b}": #1"""}
        assert wanted == {name: headers[name] for name in wanted}


@pytest.mark.parametrize("tier", TIERS)
def test_a_hosted_store_is_trusted_as_the_system_does(tier: str, site: Site, tmp_path: Path) -> None:
    """With nothing but `https://` for points and `{insecure: false}` for spans."""
    with (
        sink("http", tls=serving(site.authority)) as points,
        sink("grpc", tls=serving(site.authority)) as spans,
        ExitStack() as stack,
    ):
        to = {
            "OTEL_RL_PROMETHEUS": points.endpoint,
            "OTEL_RL_JAEGER": spans.endpoint.removeprefix("https://"),
            "OTEL_RL_JAEGER_TLS": "{insecure: false}",
            "OTEL_RL_JAEGER_HEADERS": '{X-Scope-OrgID: "team"}',
            "SSL_CERT_FILE": str(site.authority.certificate),
        }
        found = started(stack, tier, tmp_path, site, **to)
        assert "OK" == send(found.grpc, "metrics", metrics("rl.step.time", (0, 1, 1.0)))
        assert "OK" == send(found.grpc, "traces", traces(span(7, 1)))
        assert wait_for(lambda: headers_of(points, "rl.step.time") and spans.taken("traces"))
        assert ["/api/v1/otlp/v1/metrics"] == [each[":path"] for each in headers_of(points, "rl.step.time")]
        assert ["team"] == [headers["x-scope-orgid"] for _, _, headers, _ in spans.requests]


@pytest.mark.parametrize("tier", TIERS)
def test_a_strangers_store_gets_nothing(tier: str, site: Site, tmp_path: Path) -> None:
    """Nothing is sent where the certificate is of an authority that is not named, and nothing is lost."""
    with (
        sink("http", tls=serving(site.authority)) as points,
        sink("grpc", tls=serving(site.authority)) as spans,
        ExitStack() as stack,
    ):
        to = {
            "OTEL_RL_PROMETHEUS": points.endpoint,
            "OTEL_RL_PROMETHEUS_TLS": f"{{ca_file: {site.foreign.authority}}}",
            "OTEL_RL_JAEGER": spans.endpoint.removeprefix("https://"),
            "OTEL_RL_JAEGER_TLS": f"{{ca_file: {site.foreign.authority}}}",
        }
        found = started(stack, tier, tmp_path, site, **to)
        taken = "OK" if tier == "gateway" else "UNAVAILABLE"  # it waits in the agent, or in the sender's journal
        assert taken == send(found.grpc, "metrics", metrics("rl.step.time", (0, 1, 1.0)))
        assert "OK" == send(found.grpc, "traces", traces(span(7, 1)))
        assert wait_for(lambda: "certificate signed by unknown authority" in found.log and "Will retry" in found.log)
        assert ([], [], 0) == (points.requests, spans.requests, found.counted("otelcol_exporter_send_failed_spans"))


@pytest.mark.parametrize("tier", TIERS)
def test_tokens_come_from_files_and_change_with_them(tier: str, site: Site, tmp_path: Path) -> None:
    """Points with a user's name and password, spans with a bearer token; a new one is taken without a restart."""
    for_points, for_spans = tmp_path / "metrics.token", tmp_path / "traces.token"
    secret = base64.b64encode(b"7:glc_abc==").decode()
    for_points.write_text(secret + "\n")
    for_spans.write_text("token-1\n")
    with (
        sink("http", tls=serving(site.authority)) as points,
        sink("grpc", tls=serving(site.authority)) as spans,
        ExitStack() as stack,
    ):
        to = {
            "OTEL_RL_PROMETHEUS": points.endpoint,
            "OTEL_RL_PROMETHEUS_TLS": f"{{ca_file: {site.authority.certificate}}}",
            "OTEL_RL_METRICS_TOKEN_FILE": str(for_points),
            "OTEL_RL_METRICS_SCHEME": "Basic",
            "OTEL_RL_JAEGER": spans.endpoint.removeprefix("https://"),
            "OTEL_RL_JAEGER_TLS": f"{{ca_file: {site.authority.certificate}}}",
            "OTEL_RL_TRACES_TOKEN_FILE": str(for_spans),
        }
        found = started(stack, tier, tmp_path, site, "metrics-token.yaml", "traces-token.yaml", **to)
        assert "OK" == send(found.grpc, "metrics", metrics("rl.step.time", (0, 1, 1.0)))
        assert "OK" == send(found.grpc, "traces", traces(span(7, 1)))
        assert wait_for(lambda: headers_of(points, "rl.step.time") and spans.taken("traces"))
        assert [f"Basic {secret}"] == [each["authorization"] for each in headers_of(points, "rl.step.time")]
        for_spans.write_text("token-2\n")

        def shown() -> list[str]:
            assert "OK" == send(found.grpc, "traces", traces(span(8, 1)))
            return [headers["authorization"] for _, _, headers, _ in spans.requests]

        assert wait_for(lambda: shown()[-1] == "Bearer token-2")
        assert {"Bearer token-1", "Bearer token-2"} == set(shown())
        logs = "".join(path.read_text() for path in tmp_path.rglob("otelcol.log"))
        assert [] == [word for word in (secret, "token-1", "token-2") if word in logs]


def test_a_token_that_a_store_refuses_loses_what_the_agents_send(site: Site, tmp_path: Path) -> None:
    """README says so: to the Collector it is a refusal for good. It is counted, and the log names the answer."""
    with sink("http") as points, sink("grpc") as spans, ExitStack() as stack:
        points.answer = lambda signal, payload: Answer(401)
        spans.answer = lambda signal, payload: Answer(code=grpc.StatusCode.UNAUTHENTICATED)
        to = {"OTEL_RL_PROMETHEUS": points.endpoint, "OTEL_RL_JAEGER": address(spans)}
        one = started(stack, "standalone", tmp_path, site, **to)
        assert "UNAUTHENTICATED" == send(
            one.grpc, "metrics", metrics("rl.step.time", (0, 1, 1.0))
        )  # the journal keeps it
        local = started(stack, "gateway", tmp_path, site, **to)
        assert "OK" == send(local.grpc, "metrics", metrics("rl.step.time", (0, 1, 1.0)))
        for found in (one, local):
            assert "OK" == send(found.grpc, "traces", traces(span(7, 1)))
            assert wait_for(lambda: found.counted("otelcol_exporter_send_failed_spans") == 1)  # noqa: B023 at once
            assert "Unauthenticated" in found.log
        assert wait_for(lambda: local.counted("otelcol_exporter_send_failed_metric_points"))


def test_jaeger_by_tls_and_certificates(site: Site, tmp_path: Path) -> None:
    """The real Jaeger, which lets in who shows a certificate; one variable says what the gateway trusts and shows."""
    store = site.authority.issue("store", f"IP:{HOST}")
    configuration = yaml.safe_load((CONFIGURATIONS / "jaeger.yaml").read_text())
    configuration["receivers"]["otlp"]["protocols"]["grpc"]["tls"] = {
        "cert_file": str(store.certificate),
        "key_file": str(store.key),
        "client_ca_file": str(site.authority.certificate),
    }
    served = tmp_path / "jaeger-tls.yaml"
    served.write_text(yaml.safe_dump(configuration))
    shown = f"ca_file: {site.authority.certificate}, cert_file: {site.client.certificate}, key_file: {site.client.key}"
    with jaeger(tmp_path / "jaeger", served) as found, ExitStack() as stack:
        to = {"OTEL_RL_JAEGER": found.otlp, "OTEL_RL_JAEGER_TLS": f"{{{shown}}}"}
        for number, tier in enumerate(TIERS, 1):
            sender = started(stack, tier, tmp_path, site, **to)
            assert "OK" == send(sender.grpc, "traces", traces(span(number, 1), span(number, 2, parent_id=1)))
            assert wait_for(lambda: len(found.trace(f"{number:032x}")) == 2)  # noqa: B023 it is called at once
        open_handed = started(stack, "standalone", tmp_path / "open", site, OTEL_RL_JAEGER=found.otlp)
        assert "OK" == send(open_handed.grpc, "traces", traces(span(9, 1)))
        assert wait_for(lambda: "Will retry" in open_handed.log)
        assert [] == found.trace(f"{9:032x}")
