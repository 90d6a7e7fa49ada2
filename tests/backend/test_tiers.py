"""Agent and gateway: what an agent takes on loopback is stored behind the gateway, and nobody else is let in."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otel_rl import vocabulary as v
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.probes.hardware import HostProbe
from otel_rl.records import MetricPoints, Number
from tests.backend.certificates import Authority
from tests.backend.otlp import HOUR_S, Certificates, logs, metrics, send, span, texts, traces
from tests.backend.test_standalone import SECRET, listening
from tests.backends import CONFIGURATIONS, Collector, collector, jaeger, prometheus
from tests.sink import Sink, sink
from tests.waiting import wait_for

pytestmark = pytest.mark.backend

TOKEN = secrets.token_hex(16)
HOST = "127.0.0.1"


class Site(NamedTuple):
    """What a site hands to its agents and gateways."""

    authority: Authority
    server: Certificates
    client: Certificates
    foreign: Certificates
    """Of a certificate authority that nobody here trusts."""
    token: Path


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Certificates and a token of this test's own."""
    authority = Authority(tmp_path / "certificates")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    return Site(
        authority,
        authority.issue("gateway", f"IP:{HOST},DNS:otel-rl-gateway"),
        authority.issue("agent", "DNS:agent"),
        Authority(tmp_path / "foreign", "foreign").issue("stranger", "DNS:agent"),
        token,
    )


@contextmanager
def gateway(folder: Path, site: Site, how: str, *added: str, **environment: str) -> Iterator[Collector]:
    """A gateway that lets in by `token` or `mtls`; `added` are further configurations."""
    with collector(
        folder,
        "gateway.yaml",
        f"gateway-{how}.yaml",
        *added,
        **{
            "OTEL_RL_CERT": str(site.server.certificate),
            "OTEL_RL_KEY": str(site.server.key),
            "OTEL_RL_CLIENT_CA": str(site.authority.certificate),
            "OTEL_RL_TOKEN_FILE": str(site.token),
            **environment,
        },
    ) as found:
        yield found


@contextmanager
def agent(folder: Path, site: Site, how: str, *added: str, to: str, **environment: str) -> Iterator[Collector]:
    """An agent that shows a `token` or its certificate (`mtls`) to the gateway at an address."""
    host, _, port = to.rpartition(":")
    with collector(
        folder,
        environment.pop("configuration", "agent.yaml"),
        f"agent-{how}.yaml",
        *added,
        **{
            "OTEL_RL_GATEWAY": host,
            "OTEL_RL_GATEWAY_PORT": port,
            "OTEL_RL_CA": str(site.authority.certificate),
            "OTEL_RL_CERT": str(site.client.certificate),
            "OTEL_RL_KEY": str(site.client.key),
            "OTEL_RL_TOKEN_FILE": str(site.token),
            **environment,
        },
    ) as found:
        yield found


@pytest.mark.parametrize("how", ["token", "mtls"])
def test_two_tiers_deliver(how: str, site: Site, tmp_path: Path) -> None:
    """A trace and a metric go through agent and gateway into Jaeger and Prometheus; too old a point does not."""
    with (
        jaeger(tmp_path) as spans,
        prometheus(tmp_path) as series,
        gateway(tmp_path / "gw", site, how, OTEL_RL_JAEGER=spans.otlp, OTEL_RL_PROMETHEUS=series.url) as central,
        agent(tmp_path / "agent", site, how, to=central.grpc) as local,
    ):
        assert "OK" == send(local.grpc, "traces", traces(span(7, 1), span(7, 2, parent_id=1)))
        points = metrics("rl.step.time", (0, 25 * HOUR_S, 1.0), (1, 1, 2.0))
        assert "OK" == send(local.grpc, "metrics", points)
        assert "OK" == send(local.grpc, "logs", logs({"rl.mode": "train"}))
        assert wait_for(lambda: len(spans.trace(f"{7:032x}")) == 2)
        assert wait_for(lambda: series.query("rl_step_time_seconds"))
        assert ["1"] == [each["metric"]["rl_rank"] for each in series.query("rl_step_time_seconds")]
        assert wait_for(lambda: central.counted("otelcol_processor_filter_datapoints_filtered") == 1)
        assert wait_for(lambda: series.query('{job="otelcol-agent"}'))  # of the agent's own
        assert [] == series.query('{__name__=~"system_.*"}')
        assert wait_for(lambda: central.counted("otelcol_exporter_sent_log_records") == 1)


def test_a_number_of_the_node_has_one_meaning(site: Site, tmp_path: Path) -> None:
    """Of the sidecars of two runs and of the agent, which is told to sample the node too; nobody adds to another's."""
    with (
        prometheus(tmp_path) as series,
        gateway(tmp_path / "gw", site, "token", OTEL_RL_PROMETHEUS=series.url) as central,
        agent(tmp_path / "agent", site, "token", to=central.grpc, OTEL_RL_METRICS_FROM="[otlp, host_metrics]") as local,
    ):
        used = {run: _send_as_sidecar(local, run) for run in ("a", "b")}
        assert wait_for(lambda: len(series.query("rl_node_memory_usage_bytes")) == 2)
        assert wait_for(lambda: series.query("system_memory_usage_bytes"))
        writers: dict[str, set[str]] = {}
        for each in series.query('{__name__=~"(system|rl_node)_.*"}'):
            writers.setdefault(each["metric"]["__name__"], set()).add(each["metric"].get("rl_role", "agent"))
        assert {"agent", "sidecar"} == set().union(*writers.values())
        assert [] == [name for name, found in writers.items() if len(found) > 1]
        (node,) = series.query("max by (host_name) (rl_node_memory_usage_bytes)")
        assert max(used.values()) == float(node["value"][1])


def _send_as_sidecar(to: Collector, run: str) -> float:
    """Send what the sidecar of a run samples of this machine; returns the memory in use."""
    of_run = {v.SERVICE_NAME: "otel_rl-sidecar", v.SERVICE_INSTANCE_ID: run, v.RUN_ID: run, v.ROLE: "sidecar"}
    now_ns, probe = time.time_ns(), HostProbe()
    samples = list(probe.read())
    made = [
        MetricPoints(name, row.kind, row.unit, "", [Number(now_ns, value, dict(labels))], now_ns - 1)
        for name, value, labels in samples
        for row in [v.METRICS[name]]
    ]
    for request in SpanEncoder(of_run, "1.0").encode_metrics(made):
        assert "OK" == send(to.grpc, "metrics", ExportMetricsServiceRequest.FromString(request.payload))
    return next(float(value) for name, value, _ in samples if "memory.usage" in name)


def test_a_token_is_asked_for(site: Site, tmp_path: Path) -> None:
    """No token, a wrong one and no TLS are refused, and a new token counts as soon as its file changes."""
    with sink("grpc") as taken, gateway(tmp_path / "gw", site, "token", OTEL_RL_JAEGER=address(taken)) as central:
        request, trusted = traces(span(7, 1)), site.authority.certificate
        assert "UNAUTHENTICATED" == send(central.grpc, "traces", request, trusted=trusted)
        assert "UNAUTHENTICATED" == send(central.grpc, "traces", request, trusted=trusted, token=TOKEN + "x")
        assert "UNAUTHENTICATED" == send(central.grpc, "traces", request, trusted=trusted, token=TOKEN[:-1])
        assert "UNAVAILABLE" == send(central.grpc, "traces", request, token=TOKEN)
        assert [] == taken.requests
        assert "OK" == send(central.grpc, "traces", request, trusted=trusted, token=TOKEN)
        assert 1 == len(taken.taken("traces"))
        site.token.write_text(f"{TOKEN}\nanother\n")  # while the agents change over
        assert wait_for(lambda: "OK" == send(central.grpc, "traces", request, trusted=trusted, token="another"))
        assert "OK" == send(central.grpc, "traces", request, trusted=trusted, token=TOKEN)
        site.token.write_text("another\n")
        assert wait_for(lambda: "OK" != send(central.grpc, "traces", request, trusted=trusted, token=TOKEN))
        assert "OK" == send(central.grpc, "traces", request, trusted=trusted, token="another")
        assert "UNAUTHENTICATED" == send(central.grpc, "traces", request, trusted=trusted, token=TOKEN)
        assert (False, False) == (TOKEN in central.log, "another" in central.log)


def test_a_certificate_is_asked_for(site: Site, tmp_path: Path) -> None:
    """A client without a certificate, or with one of another authority, is refused; any of this authority is not."""
    with sink("grpc") as taken, gateway(tmp_path / "gw", site, "mtls", OTEL_RL_JAEGER=address(taken)) as central:
        request, trusted = traces(span(7, 1)), site.authority.certificate
        assert "UNAVAILABLE" == send(central.grpc, "traces", request, trusted=trusted)
        assert "UNAVAILABLE" == send(central.grpc, "traces", request, trusted=trusted, shown=site.foreign)
        assert "UNAVAILABLE" == send(central.grpc, "traces", request)
        assert [] == taken.requests
        assert "OK" == send(central.grpc, "traces", request, trusted=trusted, shown=site.client)
        assert "OK" == send(central.grpc, "traces", request, trusted=trusted, shown=site.server)
        assert 2 == len(taken.taken("traces"))


def test_an_agent_trusts_its_own_authority_only(site: Site, tmp_path: Path) -> None:
    """Nothing, and no token, goes to a gateway whose certificate another authority made."""
    with (
        sink("grpc") as taken,
        gateway(tmp_path / "gw", site, "token", OTEL_RL_JAEGER=address(taken)) as central,
        agent(tmp_path / "a", site, "token", to=central.grpc, OTEL_RL_CA=str(site.foreign.authority)) as local,
    ):
        assert "OK" == send(local.grpc, "traces", traces(span(7, 1)))
        assert wait_for(lambda: "certificate signed by unknown authority" in local.log)
        assert ([], False) == (taken.requests, TOKEN in local.log)


def test_an_agent_keeps_contents_on_the_node(site: Site, tmp_path: Path) -> None:
    """What reaches the gateway holds no prompt, in no signal."""
    masking = tmp_path / "gateway-sees-all.yaml"
    text = (CONFIGURATIONS / "gateway.yaml").read_text().replace("redaction/content, redaction/digits, ", "")
    masking.write_text(text.replace("        - redaction/content\n        - redaction/digits\n", ""))
    with (
        sink("grpc") as taken,
        collector(
            tmp_path / "gw",
            masking,
            "gateway-token.yaml",
            OTEL_RL_CERT=str(site.server.certificate),
            OTEL_RL_KEY=str(site.server.key),
            OTEL_RL_TOKEN_FILE=str(site.token),
            OTEL_RL_JAEGER=address(taken),
        ) as central,
        agent(tmp_path / "agent", site, "token", to=central.grpc) as local,
    ):
        assert "OK" == send(local.grpc, "traces", traces(span(7, 1, gen_ai="x", input_value=SECRET, prompt=SECRET)))
        assert wait_for(lambda: taken.taken("traces"))
        (arrived,) = taken.taken("traces")
        assert {"gen.ai": "x", "input.value": "****", "prompt": "****"} == texts(arrived.attributes)


def test_an_agent_listens_on_loopback_only(site: Site, tmp_path: Path) -> None:
    """Nobody outside of the node reaches a port of an agent."""
    with agent(tmp_path, site, "token", to=f"{HOST}:9") as local:
        assert {HOST} == listening(local.pid)


def test_an_agent_bridges_an_outage_and_its_own_end(site: Site, tmp_path: Path) -> None:
    """What an agent took while the gateway was away is delivered later, although the agent was killed meanwhile."""
    with (
        sink("grpc") as taken,
        gateway(tmp_path / "gw", site, "token", OTEL_RL_JAEGER=address(taken)) as central,
        agent(tmp_path / "agent", site, "token", to=central.grpc) as local,
    ):
        central.kill()
        for number in range(1, 21):
            assert "OK" == send(local.grpc, "traces", traces(span(number, number)))
        assert wait_for(lambda: retried(local, "load_balancing/traces"))
        local.kill()
        central.start()
        local.start()
        wanted = {number.to_bytes(8, "big") for number in range(1, 21)}
        assert wait_for(lambda: wanted == {each.span_id for each in taken.taken("traces")})


def test_an_agent_keeps_what_the_store_has_not(site: Site, tmp_path: Path) -> None:
    """A killed gateway loses nothing: it acknowledged nothing that was not stored."""
    with (
        jaeger(tmp_path) as store,
        gateway(tmp_path / "gw", site, "token", OTEL_RL_JAEGER=store.otlp) as central,
        agent(tmp_path / "agent", site, "token", to=central.grpc) as local,
    ):
        store.kill()
        assert "OK" == send(local.grpc, "traces", traces(span(7, 1)))
        assert wait_for(lambda: retried(local, "load_balancing/traces"))
        central.kill()
        store.start()
        central.start()
        assert wait_for(lambda: store.trace(f"{7:032x}"))


def test_a_trace_stays_on_one_gateway(site: Site, tmp_path: Path) -> None:
    """Each of two gateways gets whole traces, whichever ranks sent them; certificates hold the name, no address."""
    named = site._replace(server=site.authority.issue("named", "DNS:otel-rl-gateway"))
    with ExitStack() as stack:
        sinks = [stack.enter_context(sink("grpc")) for _ in range(2)]
        centrals = [
            stack.enter_context(gateway(tmp_path / f"gw{num}", named, "token", OTEL_RL_JAEGER=address(each)))
            for num, each in enumerate(sinks)
        ]
        configuration = yaml.safe_load((CONFIGURATIONS / "agent.yaml").read_text())
        balancing = configuration["exporters"]["load_balancing/traces"]
        balancing["resolver"] = {"static": {"hostnames": [each.grpc for each in centrals]}}
        two = tmp_path / "two.yaml"
        two.write_text(yaml.safe_dump(configuration))
        local = stack.enter_context(
            agent(tmp_path / "agent", named, "token", to="otel-rl-gateway:9", configuration=str(two))
        )
        random = [secrets.randbits(127) for _ in range(40)]
        for rank in range(2):
            request = traces(*(span(number, number % 1000 + rank + 1) for number in random), rank=rank)
            assert "OK" == send(local.grpc, "traces", request)
        assert wait_for(lambda: 80 == sum(len(each.taken("traces")) for each in sinks))
        first, second = ({record.trace_id for record in each.taken("traces")} for each in sinks)
        assert set() == first & second
        assert {number.to_bytes(16, "big") for number in random} == first | second
        assert 5 < len(first) < 35


def test_exporters_are_scraped_when_named(site: Site, tmp_path: Path) -> None:
    """The exporter that a variable names is read, and its series carry the host's name."""
    with (
        prometheus(tmp_path) as series,
        gateway(tmp_path / "gw", site, "token", OTEL_RL_PROMETHEUS=series.url) as central,
        agent(
            tmp_path / "agent",
            site,
            "token",
            to=central.grpc,
            OTEL_RL_DCGM=f"[{series.url.removeprefix('http://')}]",  # it has metrics of its own, as every exporter
            OTEL_RESOURCE_ATTRIBUTES="host.name=node-7",
        ),
    ):
        (found,) = wait_for(lambda: series.query('prometheus_build_info{job="dcgm"}'))
        assert "node-7" == found["metric"]["host_name"]
        assert [] == series.query('up{job=~"vllm|sglang|npu"}')


def retried(local: Collector, exporter: str) -> bool:
    """Whether an exporter tried in vain and will try again."""
    return any("Will retry the request" in line and exporter in line for line in local.log.splitlines())


def address(taken: Sink) -> str:
    """What an OTLP/gRPC exporter is told."""
    return taken.endpoint.removeprefix("http://")


def test_both_are_asked_for_where_both_files_are_named(site: Site, tmp_path: Path) -> None:
    """A token without a certificate is refused, and a certificate without a token."""
    with (
        sink("grpc") as taken,
        gateway(tmp_path / "gw", site, "token", "gateway-mtls.yaml", OTEL_RL_JAEGER=address(taken)) as central,
        agent(tmp_path / "agent", site, "token", "agent-mtls.yaml", to=central.grpc) as local,
    ):
        request, trusted = traces(span(7, 1)), site.authority.certificate
        assert "UNAVAILABLE" == send(central.grpc, "traces", request, trusted=trusted, token=TOKEN)
        assert "UNAUTHENTICATED" == send(central.grpc, "traces", request, trusted=trusted, shown=site.client)
        assert [] == taken.requests
        assert "OK" == send(local.grpc, "traces", request)
        assert wait_for(lambda: 1 == len(taken.taken("traces")))
