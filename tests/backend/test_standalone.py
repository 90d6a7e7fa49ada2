"""One box: what the Collector takes is found in Jaeger and Prometheus, without contents, and old points harm nobody."""

from __future__ import annotations

import json
import math
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import psutil
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Exemplar,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_rl.sdk import CONTENT
from otel_rl.vocabulary import ATTRIBUTES, METRICS, SAMPLE_PROMPT, SAMPLE_RESPONSE
from tests.backend.otlp import HOUR_S, failed, logs, metrics, pairs, send, span, texts, traces
from tests.backends import Collector, Prometheus, collector, free_ports, jaeger, prometheus
from tests.collector.test_files import NAMES_OF_CONTENT, NAMES_OF_COUNTS, NAMES_OF_NUMBERS
from tests.sink import sink
from tests.waiting import wait_for

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
    }
    assert (wanted, "3.5") == (series["metric"], series["value"][1])


def test_an_old_point_is_dropped_and_counted(stored: tuple[Collector, Prometheus]) -> None:
    """One point beyond the window of Prometheus, and one of a wrong clock, leave the fresh ones beside them alone."""
    found, store = stored
    before = found.counted("otelcol_processor_filter_datapoints_filtered", filter="filter/too_old")
    points = ((0, 25 * HOUR_S, 1.0), (1, 1, 2.0), (2, -2 * HOUR_S, 3.0), (3, 22 * HOUR_S, 4.0))
    assert "OK" == send(found.grpc, "metrics", metrics("rl.step.time", *points))
    assert wait_for(lambda: store.query("rl_step_time_seconds"))
    ages = store.query("last_over_time(rl_step_time_seconds[30h])")
    assert {"1": "2", "3": "4"} == {each["metric"]["rl_rank"]: each["value"][1] for each in ages}
    assert before + 2 == found.counted("otelcol_processor_filter_datapoints_filtered", filter="filter/too_old")


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


@pytest.mark.parametrize("name", ["delta", "delta histogram", "no name"])
def test_a_metric_that_prometheus_does_not_store_takes_no_other_with_it(
    stored: tuple[Collector, Prometheus], name: str
) -> None:
    """It answers 500 to the whole request, which is a loss for good; other people's SDKs write such metrics."""
    found, store = stored
    before = found.counted("otelcol_processor_filter_datapoints_filtered", filter="filter/not_storable")
    good = f"beside.{name.replace(' ', '.')}"
    request = metrics(good, (0, 1, 1.0))
    request.resource_metrics[0].scope_metrics[0].metrics.append(not_storable(name))
    request.MergeFrom(metrics(good, (1, 1, 1.0)))
    assert "OK" == send(found.grpc, "metrics", request)
    series = f"{good.replace('.', '_')}_seconds"
    assert wait_for(lambda: ["0", "1"] == sorted(row["metric"]["rl_rank"] for row in store.query(series)))
    assert before + 1 == found.counted("otelcol_processor_filter_datapoints_filtered", filter="filter/not_storable")


def not_storable(name: str) -> Metric:
    """A metric with one point."""
    now = time.time_ns()
    delta = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    if name == "delta":
        points = [NumberDataPoint(time_unix_nano=now, as_double=1.0)]
        return Metric(name="other.calls", sum=Sum(data_points=points, aggregation_temporality=delta, is_monotonic=True))
    if name == "delta histogram":
        buckets = [HistogramDataPoint(time_unix_nano=now, count=1, bucket_counts=[0, 1], explicit_bounds=[1.0])]
        return Metric(name="other.time", histogram=Histogram(data_points=buckets, aggregation_temporality=delta))
    return Metric(name="損失", gauge=Gauge(data_points=[NumberDataPoint(time_unix_nano=now, as_double=1.0)]))


def test_the_count_of_dropped_points_is_stored(stored: tuple[Collector, Prometheus]) -> None:
    """The Collector's own numbers are in Prometheus, under the name of their host."""
    found, store = stored
    send(found.grpc, "metrics", metrics("rl.step.time", (0, 25 * HOUR_S, 1.0)))
    (series,) = wait_for(lambda: store.query("otelcol_processor_filter_datapoints_filtered_total > 0"))
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
    of_samples = {SAMPLE_PROMPT, SAMPLE_RESPONSE}
    innocent = {key: "kept" for key in ATTRIBUTES if not key.startswith(CONTENT) and key not in of_samples}
    content = {
        **{key if not key.endswith(".") else f"{key}arguments": SECRET for key in CONTENT},
        "gen_ai.prompt.0.content": SECRET,
        "llm.input_messages.0.message.content": SECRET,
        "rl.prompt.text": SECRET,
        "rl.response.text": SECRET,
        "process.command_line": SECRET,
        **dict.fromkeys((*NAMES_OF_CONTENT, *of_samples), SECRET),
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
    """A map, a list and a text in JSON or as Python prints it go as a whole where a name of contents has no number."""
    innocent = {
        "map": mapped(prompt_tokens=text("7")),
        "counts": mapped(num_prompts=number(8), question_length=number(3), is_text=AnyValue(bool_value=False)),
        "list": listed(text("a"), number(2)),
        "json": text('{"prompt_tokens": 7}'),
        "settings": text('{"max_prompt_length": 512, "prompts": 8, "text": false, "output": null}'),
        "arguments": text("{'max_prompts': 8, 'input': -0.5, 'is_text': True, 'output': None}"),
        "multiline": text("[a]\nprompt: 7"),
        "prose": text("it says {prompt}: yes"),
        "double": AnyValue(double_value=0.5),
        "ours": text(json.dumps(dict.fromkeys((*ATTRIBUTES, *METRICS), 0.5))),
        "config": text("Config(num_prompts=8, prompt_ids=5, name='x', output=None, is_text=True)"),
        "entries": text("[('prompts', 8), ('output', None), ('name', 'x')]"),
        "modes": text('{"output_type": "text", "finish": "stop"}'),
        "columns": text("Dataset({\n    features: ['prompt', 'completion'],\n    num_rows: 3\n})"),
        "names": listed(text("prompt"), text("answer")),
        "words": listed(text("--num_prompts=8"), text("--output=a")),
        "address": text('{"url": "http://a/?text=abc"}'),
        "calls": text('{"tool_calls": null, "tool_call_id": "a", "tool_call_count": "3"}'),
    }
    content = {
        "outer": mapped(user_prompt=text(SECRET)),
        "deep": mapped(a=mapped(user_prompt=text(SECRET))),
        "rows": listed(mapped(user_prompt=text(SECRET)), mapped(user_prompt=text(SECRET))),
        "pair": mapped(question=text(SECRET), answer=text(SECRET)),
        "ids": mapped(input_ids=listed(number(1), number(2))),
        "text": mapped(prompt_text=text(SECRET)),
        "indexed": mapped(**{"prompt.0": text(SECRET)}),
        "capitals": mapped(PROMPT=text(SECRET)),
        "texts": listed(text(f'{{"prompt": "{SECRET}"}}'), text("b")),
        "payload": text(f'[\n {{"role": "user", "Content" : "{SECRET}"}}]'),
        "json_pair": text(f'{{"question": "{SECRET}", "answer": "x"}}'),
        "json_ids": text('{"input_ids": [1, 2]}'),
        "json_blank": text(f' \n{{"prompt": "{SECRET}"}}'),
        "json_lines": text(f'{{"a": 1}}\n{{"prompt": "{SECRET}"}}'),
        "json_in_json": text(json.dumps({"a": json.dumps({"b": json.dumps({"prompt": SECRET})})})),
        "json_of_text": text(json.dumps(json.dumps({"prompt": SECRET}))),
        "python": text(str([{"prompt": SECRET}])),
        "tuple": text(str(({"prompts": (SECRET, "a")},))),
        "tensor": text("{'input_ids': tensor([[1, 2]])}"),
        "object": text(f"{{'prompt': <Prompt: '{SECRET}'>}}"),
        "dataclass": text(f"Sample(id=3, prompt='{SECRET}')"),
        "dataclasses": text(f"[Sample(id=3, prompt_text='{SECRET}', answer='x')]"),
        "local": text(f"<Run.<locals>.Sample(messages=[{{'a': '{SECRET}'}}])>"),
        "pairs": text(str([("id", 3), ("user_prompt", SECRET)])),
        "ordered": text(f"OrderedDict({{'prompt': '{SECRET}'}})"),
        "ordered_before_3_12": text(f"OrderedDict([('prompt', '{SECRET}')])"),
        "default": text(str(defaultdict(list, prompt=[SECRET]))),
        "array": text(f"array([{{'prompt': '{SECRET}'}}], dtype=object)"),
        "bytes": text(str(json.dumps({"prompt": SECRET}).encode())),
        "python_in_json": text(json.dumps({"a": f"""Sample(prompt="{SECRET}'s")"""})),
        "raised": mapped(**{"exception.stacktrace": text(SECRET)}),
        "started": mapped(**{"process.command_line": text(SECRET)}),
        "called": mapped(**{"gen_ai.tool.call.arguments": text(SECRET)}),
        "calling": text(f'{{"role": "a", "tool_calls": [{{"function": "{SECRET}"}}]}}'),
        "instructed": mapped(**{"gen_ai.system_instructions": text(SECRET)}),
        "gen_ai.input.messages": listed(text(SECRET)),
    }
    request = span(7, 1)
    request.attributes.extend(KeyValue(key=key, value=value) for key, value in (innocent | content).items())
    assert innocent | dict.fromkeys(content, text(MASK)) == through(tmp_path, request)


def test_a_number_is_no_content(tmp_path: Path) -> None:
    """It stays under whatever name; a text of digits under a name of contents may be an answer."""
    numbers = (
        number(8),
        number(-1),
        AnyValue(double_value=0.5),
        AnyValue(double_value=1e30),
        AnyValue(double_value=float("-inf")),
        AnyValue(bool_value=True),
    )
    innocent = dict(zip(NAMES_OF_NUMBERS, cycle(numbers), strict=False))
    content = {
        "answer": text("42"),
        "response": text("-0.5"),
        "final_answer": text("true"),
        "output": text("NaN"),
        "prompt_ids": listed(number(7)),
        "prompt": AnyValue(bytes_value=SECRET.encode()),
    }
    request = span(7, 1)
    request.attributes.extend(KeyValue(key=key, value=value) for key, value in (innocent | content).items())
    request.attributes.append(KeyValue(key="num_answers", value=AnyValue(double_value=float("nan"))))
    arrived = through(tmp_path, request)
    assert math.isnan(arrived.pop("num_answers").double_value), "it equals nothing"
    assert innocent | dict.fromkeys(content, text(MASK)) == arrived


def test_a_count_tells_two_series_apart(tmp_path: Path) -> None:
    """Masked labels would make one of two points, and the sender would not learn that one was lost."""
    request = metrics("rl.step.time", (0, 1, 8.0), (0, 1, 16.0))
    for part, value in zip(request.resource_metrics, (8, 16), strict=True):
        (point,) = part.scope_metrics[0].metrics[0].gauge.data_points
        point.attributes.append(KeyValue(key="num_inputs", value=number(value)))
    with sink("http") as taken, collector(tmp_path, OTEL_RL_PROMETHEUS=taken.endpoint) as found:
        assert "OK" == send(found.grpc, "metrics", request)
        points = [
            point
            for metric in taken.taken("metrics")
            if metric.name == "rl.step.time"
            for point in metric.gauge.data_points
        ]
    assert {8.0: number(8), 16.0: number(16)} == {point.as_double: point.attributes[0].value for point in points}


def test_contents_in_bodies_of_logs_are_masked(tmp_path: Path) -> None:
    """Those of a map one by one, there numbers too; a text in JSON, or that begins as Python prints one, as a whole."""
    request = logs({})
    records = request.resource_logs[0].scope_logs[0].log_records
    bodies = (
        mapped(question=text(SECRET), rows=listed(mapped(answer=text("42")), number(7)), num_prompts=number(8)),
        mapped(rows=text(f' {{"prompt": "{SECRET}"}}')),
        text(f' {{"prompt": "{SECRET}"}}'),
        text(f"[Sample(prompt='{SECRET}')]"),
        text(f"[INFO] output='{SECRET}'"),
        text("epoch 3"),
        number(8),
    )
    records.extend(LogRecord(body=body) for body in bodies)
    mask = text(MASK)
    expected = [
        mapped(question=mask, rows=listed(mapped(answer=mask), number(7)), num_prompts=mask),
        mapped(rows=mask),
        mask,
        mask,
        mask,
        text("epoch 3"),
        number(8),
    ]
    with sink("http") as taken:
        where = {"OTEL_RL_LOGS_TO": "[otlp_http/logs]", "OTEL_RL_LOGS": taken.endpoint}
        with collector(tmp_path, **where) as found:
            assert "OK" == send(found.grpc, "logs", request)
            assert wait_for(lambda: taken.taken("logs"))
            assert expected == [record.body for record in taken.taken("logs")[1:]]


def text(value: str) -> AnyValue:
    """A value that is a text."""
    return AnyValue(string_value=value)


def number(value: int) -> AnyValue:
    """A value that is a whole number."""
    return AnyValue(int_value=value)


def mapped(**values: AnyValue) -> AnyValue:
    """A value that is a map."""
    return AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key=key, value=each) for key, each in values.items()]))


def listed(*values: AnyValue) -> AnyValue:
    """A value that is a list."""
    return AnyValue(array_value=ArrayValue(values=values))


def through(folder: Path, sent: Span) -> dict[str, AnyValue]:
    """The attributes of a span as they leave the Collector."""
    with sink("grpc") as taken, collector(folder, OTEL_RL_JAEGER=taken.endpoint.removeprefix("http://")) as found:
        assert "OK" == send(found.grpc, "traces", traces(sent))
        assert wait_for(lambda: taken.taken("traces"))
        (arrived,) = taken.taken("traces")
    return {pair.key: pair.value for pair in arrived.attributes}


@pytest.mark.parametrize("kind", ["gauge", "exponential_histogram"])
def test_exemplars_have_nothing_but_their_trace(kind: str, tmp_path: Path) -> None:
    """What an SDK puts into them beside is no label, so nobody would miss it, and may be contents."""
    request = metrics("rl.step.time", (0, 1, 2.5))
    given = request.resource_metrics[0].scope_metrics[0].metrics[0]
    point = given.gauge.data_points[0]
    if kind != "gauge":
        point = ExponentialHistogramDataPoint(time_unix_nano=point.time_unix_nano, count=1, zero_count=1)
        given.exponential_histogram.aggregation_temporality = 2
        given.exponential_histogram.data_points.append(point)
        (point,) = given.exponential_histogram.data_points
    point.attributes.extend(pairs({"prompt": SECRET}))
    ids = {"trace_id": (7).to_bytes(16, "big"), "span_id": (8).to_bytes(8, "big")}
    example = Exemplar(time_unix_nano=point.time_unix_nano, as_double=1.5, **ids)
    point.exemplars.append(example)
    point.exemplars[0].filtered_attributes.extend(pairs({"prompt": SECRET, "anything": SECRET}))
    with sink("http") as taken, collector(tmp_path, OTEL_RL_PROMETHEUS=taken.endpoint) as found:
        assert "OK" == send(found.grpc, "metrics", request)
        (metric,) = [metric for metric in taken.taken("metrics") if metric.name == "rl.step.time"]
    assert [[example]] == [[*point.exemplars] for point in getattr(metric, kind).data_points]
    assert [{"prompt": MASK}] == [texts(point.attributes) for point in getattr(metric, kind).data_points]


def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    """Nobody outside of the box reaches a port of the Collector."""
    (prometheus_port,) = free_ports(1)
    with collector(tmp_path, OTEL_RL_PROMETHEUS=f"http://127.0.0.1:{prometheus_port}") as found:
        assert {"127.0.0.1"} == listening(found.pid)


def listening(pid: int) -> set[str]:
    """The addresses that a process listens on."""
    connections = psutil.Process(pid).net_connections(kind="inet")
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
