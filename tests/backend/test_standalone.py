"""One box: what the Collector takes is found in Jaeger and Prometheus, without contents, and old points harm nobody."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import Exemplar
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_rl.providers import CONTENT
from otel_rl.vocabulary import ATTRIBUTES
from tests.backend.otlp import HOUR_S, failed, logs, metrics, pairs, send, span, texts, traces
from tests.backends import Collector, Prometheus, collector, free_ports, jaeger, prometheus, wait_for
from tests.sink import sink
from tests.test_collector_files import NAMES_OF_CONTENT, NAMES_OF_COUNTS

pytestmark = pytest.mark.backend

MASK = "****"
SECRET = "the answer of the model"


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[tuple[Collector, Prometheus]]:
    """A Collector before a Prometheus; nobody takes traces."""
    with prometheus(tmp_path) as store, collector(tmp_path, OTEL_RL_PROMETHEUS=store.url) as found:
        yield found, store


def test_a_trace_arrives_whole(tmp_path: Path) -> None:
    """A trace that two ranks sent is one in Jaeger, with its tree, attributes and resources."""
    with jaeger(tmp_path) as store, collector(tmp_path, OTEL_RL_JAEGER=store.otlp) as found:
        assert "OK" == send(found.grpc, "traces", traces(span(7, 1, rl_loop_name="train")))
        assert "OK" == send(found.grpc, "traces", traces(span(7, 2, parent_id=1), span(7, 3, parent_id=2), rank=1))
        assert wait_for(lambda: len(store.trace(f"{7:032x}")) == 3)
        by_id = {each["spanId"]: each for each in store.trace(f"{7:032x}")}
        assert {f"{1:016x}": "", f"{2:016x}": f"{1:016x}", f"{3:016x}": f"{2:016x}"} == {
            key: each.get("parentSpanId", "") for key, each in by_id.items()
        }
        assert {"key": "rl.loop.name", "value": {"stringValue": "train"}} in by_id[f"{1:016x}"]["attributes"]
        ranks = {
            key: pair["value"]["intValue"]
            for key, each in by_id.items()
            for pair in each["resource"]["attributes"]
            if pair["key"] == "rl.rank"
        }
        assert {f"{1:016x}": "0", f"{2:016x}": "1", f"{3:016x}": "1"} == ranks


def test_labels_say_who_measured(stored: tuple[Collector, Prometheus]) -> None:
    """A point is found under the labels of its rank."""
    found, store = stored
    assert "OK" == send(found.grpc, "metrics", metrics("rl.step.time", (0, 1, 2.5), (1, 1, 3.5)))
    (series,) = wait_for(lambda: store.query('rl_step_time_seconds{rl_rank="1"}'))
    wanted = {
        "__name__": "rl_step_time_seconds",
        "instance": "instance-1",
        "job": "trl-trainer",
        "rl_attempt_id": "attempt",
        "rl_rank": "1",
        "rl_role": "trainer",
        "rl_run_id": "run",
        "rl_system": "trl",
        "service_instance_id": "instance-1",
        "service_name": "trl-trainer",
    }
    assert (wanted, "3.5") == (series["metric"], series["value"][1])


def test_an_old_point_is_dropped_and_counted(stored: tuple[Collector, Prometheus]) -> None:
    """One point beyond the window of Prometheus, and one of a wrong clock, leave the fresh ones beside them alone."""
    found, store = stored
    points = ((0, 25 * HOUR_S, 1.0), (1, 1, 2.0), (2, -2 * HOUR_S, 3.0), (3, 22 * HOUR_S, 4.0))
    assert "OK" == send(found.grpc, "metrics", metrics("rl.step.time", *points))
    assert wait_for(lambda: store.query("rl_step_time_seconds"))
    ages = store.query("last_over_time(rl_step_time_seconds[30h])")
    assert {"1": "2", "3": "4"} == {each["metric"]["rl_rank"]: each["value"][1] for each in ages}
    assert 2 == found.counted("otelcol_processor_filter_datapoints_filtered", filter="filter/too_old")


def test_prometheus_would_refuse_all_for_one_old_point(tmp_path: Path) -> None:
    """What the filter is there for: the same request without it loses the fresh point as well."""
    text = (Path(__file__).parents[2] / "collector" / "standalone.yaml").read_text()
    without = tmp_path / "without.yaml"
    without.write_text(text.replace(", filter/too_old]", "]"))
    with prometheus(tmp_path) as store, collector(tmp_path, without, OTEL_RL_PROMETHEUS=store.url) as found:
        assert "OK" == send(found.grpc, "metrics", metrics("rl.step.time", (9, 1, 0.0)))
        request = metrics("rl.step.time", (0, 25 * HOUR_S, 1.0), (1, 1, 2.0))
        assert "INVALID_ARGUMENT" == send(found.grpc, "metrics", request)
        assert ["9"] == [each["metric"]["rl_rank"] for each in store.query("rl_step_time_seconds")]


def test_the_count_of_dropped_points_is_stored(stored: tuple[Collector, Prometheus]) -> None:
    """The Collector's own numbers are in Prometheus, under the name of their host."""
    found, store = stored
    send(found.grpc, "metrics", metrics("rl.step.time", (0, 25 * HOUR_S, 1.0)))
    (series,) = wait_for(lambda: store.query("otelcol_processor_filter_datapoints_filtered_total"), 90)
    assert ("1", socket.gethostname()) == (series["value"][1], series["metric"]["host_name"])


def test_an_outage_of_prometheus_is_the_senders_to_bridge(tmp_path: Path) -> None:
    """While Prometheus is away a request is answered with `try later`, and taken once it is back."""
    with prometheus(tmp_path) as store, collector(tmp_path, OTEL_RL_PROMETHEUS=store.url) as found:
        store.kill()
        assert "UNAVAILABLE" == send(found.grpc, "metrics", metrics("rl.step.time", (0, 1, 2.5)))
        store.start()
        assert "OK" == send(found.grpc, "metrics", metrics("rl.step.time", (0, 1, 2.5)))
        assert wait_for(lambda: store.query("rl_step_time_seconds"))


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_traces_outlive_an_outage_and_the_collector(end: str, tmp_path: Path) -> None:
    """Spans that were taken while Jaeger was away are in it later, although the Collector ended meanwhile."""
    with jaeger(tmp_path) as store, collector(tmp_path, OTEL_RL_JAEGER=store.otlp) as found:
        store.kill()
        for number in range(1, 6):
            assert "OK" == send(found.grpc, "traces", traces(span(number, number)))
        assert wait_for(lambda: "Will retry the request" in found.log)
        getattr(found, end)()
        store.start()
        found.start()
        assert wait_for(lambda: all(store.trace(f"{number:032x}") for number in range(1, 6)))


def test_exemplars_lead_to_traces(stored: tuple[Collector, Prometheus]) -> None:
    """The exemplar of a point is in Prometheus, with the trace that it came from."""
    found, store = stored
    request = metrics("rl.step.time", (0, 1, 2.5))
    metric = request.resource_metrics[0].scope_metrics[0].metrics[0]
    point = metric.gauge.data_points[0]
    metric.ClearField("gauge")
    metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, 2
    counted = metric.sum.data_points.add()
    counted.CopyFrom(point)
    example = {"time_unix_nano": point.time_unix_nano, "as_double": 1.5, "trace_id": (7).to_bytes(16, "big")}
    counted.exemplars.append(Exemplar(span_id=(8).to_bytes(8, "big"), **example))
    assert "OK" == send(found.grpc, "metrics", request)
    (series,) = wait_for(lambda: store.exemplars("rl_step_time_seconds_total"))
    assert {"trace_id": f"{7:032x}", "span_id": f"{8:016x}"} == series["exemplars"][0]["labels"]


def test_contents_are_masked(tmp_path: Path) -> None:
    """No prompt, response or text of an exception leaves the Collector, in whatever signal it came; all else does."""
    innocent = {key: "kept" for key in ATTRIBUTES if not key.startswith(CONTENT)}
    content = {
        **{key if not key.endswith(".") else f"{key}arguments": SECRET for key in CONTENT},
        "gen_ai.prompt.0.content": SECRET,
        "llm.input_messages.0.message.content": SECRET,
        "rl.prompt.text": SECRET,
        "rl.response.text": SECRET,
        "process.command_line": SECRET,
        **dict.fromkeys(NAMES_OF_CONTENT, SECRET),
    }
    innocent |= dict.fromkeys(NAMES_OF_COUNTS, "kept")
    failing = span(7, 1)
    failing.attributes.extend(pairs({**innocent, **content}))
    failing.events.append(Span.Event(name="exception", attributes=pairs(content)))
    failing.status.CopyFrom(failed(SECRET))
    with (
        sink("grpc") as taken,
        collector(tmp_path, OTEL_RL_JAEGER=taken.endpoint.removeprefix("http://")) as found,
    ):
        request = traces(failing)
        request.resource_spans[0].resource.attributes.extend(pairs({"process.command_line": SECRET}))
        assert "OK" == send(found.grpc, "traces", request)
        assert "OK" == send(found.grpc, "logs", logs({"gen_ai.prompt": SECRET, "rl.mode": "train"}))
        assert wait_for(lambda: taken.taken("traces"))
        (arrived,) = taken.taken("traces")
        assert innocent == {key: value for key, value in texts(arrived.attributes).items() if key in innocent}
        assert dict.fromkeys(content, MASK) == {
            key: value for key, value in texts(arrived.attributes).items() if key in content
        }
        assert dict.fromkeys(content, MASK) == texts(arrived.events[0].attributes)
        assert ("", 2) == (arrived.status.message, arrived.status.code)
        assert not any(SECRET.encode() in payload for _, payload, _, _ in taken.requests)
        written = wait_for(lambda: (tmp_path / "logs.jsonl").exists() and (tmp_path / "logs.jsonl").read_text())
        assert (False, True) == (SECRET in written, "rl.stage.open" in written)
        (record,) = json.loads(written)["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
        kept = {pair["key"]: pair["value"]["stringValue"] for pair in record["attributes"]}
        assert {"gen_ai.prompt": MASK, "rl.mode": "train"} == kept


def test_contents_inside_of_attributes_are_masked(tmp_path: Path) -> None:
    """A map, a list of maps and a text in JSON go as a whole where one of their names is of contents; others arrive."""
    inner = AnyValue(kvlist_value=KeyValueList(values=pairs({"user_prompt": SECRET})))
    innocent = {
        "map": AnyValue(kvlist_value=KeyValueList(values=pairs({"prompt_tokens": "7"}))),
        "list": AnyValue(array_value=ArrayValue(values=[AnyValue(string_value="a"), AnyValue(int_value=2)])),
        "json": AnyValue(string_value='{"prompt_tokens": 7}'),
        "multiline": AnyValue(string_value="[a]\nprompt: 7"),
        "number": AnyValue(double_value=0.5),
    }
    content = {
        "outer": inner,
        "deep": AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key="a", value=inner)])),
        "rows": AnyValue(array_value=ArrayValue(values=[inner, inner])),
        "payload": AnyValue(string_value=f'[\n {{"role": "user", "Content" : "{SECRET}"}}]'),
        "gen_ai.input.messages": AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=SECRET)])),
    }
    request = span(7, 1)
    request.attributes.extend(KeyValue(key=key, value=value) for key, value in (innocent | content).items())
    with (
        sink("grpc") as taken,
        collector(tmp_path, OTEL_RL_JAEGER=taken.endpoint.removeprefix("http://")) as found,
    ):
        assert "OK" == send(found.grpc, "traces", traces(request))
        assert wait_for(lambda: taken.taken("traces"))
        (arrived,) = taken.taken("traces")
    expected = innocent | dict.fromkeys(content, AnyValue(string_value=MASK))
    assert expected == {pair.key: pair.value for pair in arrived.attributes}


def test_exemplars_have_nothing_but_their_trace(tmp_path: Path) -> None:
    """What an SDK puts into them beside is no label, so nobody would miss it, and may be contents."""
    request = metrics("rl.step.time", (0, 1, 2.5))
    point = request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0]
    ids = {"trace_id": (7).to_bytes(16, "big"), "span_id": (8).to_bytes(8, "big")}
    example = Exemplar(time_unix_nano=point.time_unix_nano, as_double=1.5, **ids)
    point.exemplars.append(example)
    point.exemplars[0].filtered_attributes.extend(pairs({"prompt": SECRET, "anything": SECRET}))
    with sink("http") as taken, collector(tmp_path, OTEL_RL_PROMETHEUS=taken.endpoint) as found:
        assert "OK" == send(found.grpc, "metrics", request)
        (metric,) = [metric for metric in taken.taken("metrics") if metric.name == "rl.step.time"]
    assert [[example]] == [[*point.exemplars] for point in metric.gauge.data_points]


def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    """Nobody outside of the box reaches a port of the Collector."""
    (prometheus_port,) = free_ports(1)
    with collector(tmp_path, OTEL_RL_PROMETHEUS=f"http://127.0.0.1:{prometheus_port}") as found:
        assert {"127.0.0.1"} == listening(found.pid)


def listening(pid: int) -> set[str]:
    """The addresses that a process listens on."""
    connections = psutil.Process(pid).net_connections(kind="inet")
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
