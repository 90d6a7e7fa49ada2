"""Tests of rollout requests: what a recording makes of them, as whole trees, points and attributes."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import otel_rl
from otel_rl import vocabulary
from otel_rl.guard import errors
from otel_rl.journal.read import Run
from otel_rl.process.state import state
from otel_rl.records import Deferred, FinishedRequests, Value
from otel_rl.requests import queue
from otel_rl.requests.queue import Request, find_parent, record_requests
from otel_rl.trace.memory import tracing
from tests.fixtures import MS, Recording, Tree, orphans, trees

LABELS = {
    vocabulary.OPERATION: "generate_content",
    vocabulary.PROVIDER: "engine",
    vocabulary.REQUEST_MODEL: "m",
    vocabulary.SUBMISSION: "bulk",
}


def given(rows: Iterable[Request]) -> Iterable[Request]:
    """Read rows that are rows already."""
    return rows


def request(recording: Recording, number: int = 0, **changes: Any) -> Request:
    """Make a request of 10 tokens that has just ended: 2 ms in the queue, 3 of prefill, 9 of decoding."""
    now = recording.clock.ns
    row = Request(
        "engine",
        submitted=now - 14 * MS,
        ended=now,
        scheduled=now - 12 * MS,
        first_token=now - 9 * MS,
        last_token=now,
        input_tokens=5,
        output_tokens=10,
        cached_tokens=4,
        finish="stop",
        model="m",
        id=f"r{number}",
    )
    return row._replace(**changes)


def counted(run: Run, name: str, key: str = "") -> dict[Value, float]:
    """Give the values of a counter by one of its attributes."""
    return {point.attributes.get(key, ""): point.value for point in run.last_points(name)}


def bad(run: Run) -> dict[Value, float]:
    """Give the rows with something that cannot be, by what it is."""
    return counted(run, vocabulary.BAD_REQUESTS, vocabulary.REASON)


def request_spans(run: Run) -> list[dict[str, Value]]:
    """Give the attributes of the spans of requests."""
    return [dict(span.attributes) for span in run.spans(None) if vocabulary.SUBMISSION in span.attributes]


def test_a_request_is_a_span_of_its_rollout_and_a_value_of_every_histogram(recording: Recording) -> None:
    """With its own times, placed by the step's clock, and all its attributes."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        row = request(recording, replica="1", sample="s", group="g", turn=2, policy_start=3, policy_end=4, limit=64)
        record_requests(given, [row._replace(preemptions=1)])
        recording.tick(5)
    run = recording.stop()
    step = next(tree for tree in trees(run) if tree.name == "rl.loop")
    below = Tree("rl.sample", 0, 25, (Tree("generate_content m", 6, 20),))
    assert Tree("rl.loop", 0, 25, (Tree("rl.rank 0", 0, 25, (below,)),)) == step
    assert [
        {
            **LABELS,
            vocabulary.REPLICA: "1",
            vocabulary.FINISH_REASONS: ("stop",),
            vocabulary.RESPONSE_ID: "r0",
            vocabulary.SAMPLE_ID: "s",
            vocabulary.GROUP_ID: "g",
            vocabulary.INPUT_TOKENS: 5,
            vocabulary.OUTPUT_TOKENS: 10,
            vocabulary.CACHED_TOKENS: 4,
            vocabulary.MAX_TOKENS: 64,
            vocabulary.TURN: 2,
            vocabulary.POLICY_VERSION: 3,
            vocabulary.POLICY_VERSION_END: 4,
            vocabulary.POLICY_LAG: 1,
            vocabulary.REQUEST_PREEMPTED: 1,
            vocabulary.REQUEST_TTFT: 0.005,
            vocabulary.REQUEST_QUEUE: 0.002,
            vocabulary.REQUEST_PREFILL: 0.003,
            vocabulary.REQUEST_DECODE: 0.009,
            vocabulary.REQUEST_TPOT: 0.001,
            vocabulary.REQUEST_KEPT: "slowest,ttft,longest,sample",
        }
    ] == request_spans(run)
    labels = {**LABELS, vocabulary.REPLICA: "1"}
    expected = {
        vocabulary.TTFT: 0.005,
        vocabulary.TPOT: 0.001,
        vocabulary.REQUEST_DURATION: 0.014,
        vocabulary.QUEUE_TIME: 0.002,
        vocabulary.PREFILL_TIME: 0.003,
        vocabulary.PROMPT_LENGTH: 5,
        vocabulary.OUTPUT_LENGTH: 10,
        vocabulary.CACHED_LENGTH: 4,
    }
    for name, value in expected.items():
        (point,) = run.last_points(name)
        assert (1, value, value, value, labels) == (
            point.count,
            pytest.approx(point.sum, 1e-12),
            pytest.approx(point.min, 1e-12),
            pytest.approx(point.max, 1e-12),
            point.attributes,
        )
    assert {"stop": 1} == counted(run, vocabulary.REQUESTS, vocabulary.FINISH)
    assert ({}, {"": 1}, {"": 0}) == (
        bad(run),
        counted(run, vocabulary.PREEMPTIONS),
        counted(run, vocabulary.OMITTED),
    )
    assert [] == orphans(run)


def rollout(recording: Recording, rows: list[Request], ms: float = 100) -> Run:
    """Record one step whose rollout takes so long and has these requests."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(ms)
        record_requests(given, rows)
    return recording.stop()


def sample_of(run: Run) -> dict[str, Value]:
    """Give the attributes of the rollout stage."""
    (found,) = (dict(span.attributes) for span in run.spans(None) if span.name == "rl.sample")
    return found


def ids_of(run: Run) -> list[Value]:
    """Give the ids of the requests that became spans."""
    return [attributes[vocabulary.RESPONSE_ID] for attributes in request_spans(run)]


# --- what a rollout says ----------------------------------------------------------------------------------------------


def ending(recording: Recording, number: int, before_ms: float, **changes: Any) -> Request:
    """Make a request that was submitted and taken up when the rollout began, and ended so long ago."""
    now = recording.clock.ns
    ended, began = now - round(before_ms * MS), now - 100 * MS
    times = {"submitted": began, "scheduled": began, "first_token": began, "last_token": ended, "ended": ended}
    return request(recording, number, **{**times, **changes})


def test_a_rollout_says_what_its_last_requests_cost(recording: Recording) -> None:
    """90 of 100 end after 10 ms of 100, nine after 40, one at the end: on the stage, and as a point per rollout."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(100)
        rows = [ending(recording, number, 90 if number < 90 else 60 if number < 99 else 0) for number in range(100)]
        record_requests(given, rows)
    run = recording.stop()
    expected = {
        vocabulary.REQUEST_COUNT: 100,
        vocabulary.TAIL_1: pytest.approx(0.6),
        vocabulary.TAIL_5: pytest.approx(0.6),
        vocabulary.TAIL_10: pytest.approx(0.9),
        vocabulary.BUBBLE: pytest.approx((90 * 0.9 + 9 * 0.6) / 100),
    }
    told = sample_of(run)
    assert expected == {key: told[key] for key in expected}
    assert told[vocabulary.REQUESTS_OMITTED] == 100 - len(request_spans(run))
    points = {point.attributes[vocabulary.SLOWEST]: point for point in run.points(vocabulary.TAIL)}
    end = next(span.end_ns for span in run.spans() if span.name == "rl.sample")
    assert {"0.01": 0.6, "0.05": 0.6, "0.1": 0.9} == {
        key: pytest.approx(point.value) for key, point in points.items() if point.time_ns == end
    }
    (bubble,) = run.points(vocabulary.ROLLOUT_BUBBLE)
    (wall,) = run.points(vocabulary.ROLLOUT_WALL)
    assert (told[vocabulary.BUBBLE], 0.1, end) == (bubble.value, pytest.approx(wall.value), wall.time_ns)


def test_without_starts_no_bubble_is_told(recording: Recording) -> None:
    """How many slots an engine has is not guessed."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(100)
        record_requests(given, [ending(recording, number, number, scheduled=0) for number in range(50)])
    told = sample_of(recording.stop())
    assert ({vocabulary.TAIL_5: 0.02, vocabulary.TAIL_10: 0.05}, False) == (
        {key: pytest.approx(value) for key, value in told.items() if key.startswith("rl.rollout.tail")},
        vocabulary.BUBBLE in told,
    )


def test_outcomes_are_counted_and_told_as_shares(recording: Recording) -> None:
    """Each in a counter, on the stage, and as a point per rollout."""
    rows = [request(recording, number) for number in range(4)]
    rows += [
        request(recording, 4, finish="length"),
        request(recording, 5, finish="abort"),
        request(recording, 6, finish="timeout"),
        request(recording, 7, finish="error", error="ValueError"),
        request(recording, 8, finish="", error="KeyError"),
        request(recording, 9, finish="tool_calls"),
    ]
    run = rollout(recording, rows)
    finishes = {"stop": 4, "length": 1, "abort": 1, "timeout": 1, "error": 1, "unknown": 1, "tool_calls": 1}
    assert finishes == counted(run, vocabulary.REQUESTS, vocabulary.FINISH)
    assert ({"": 1}, {"": 1}, {"": 1}) == (
        counted(run, vocabulary.ABORTED),
        counted(run, vocabulary.TIMED_OUT),
        counted(run, vocabulary.CLIPPED),
    )
    assert {"ValueError": 1, "KeyError": 1} == counted(run, vocabulary.REQUEST_ERRORS, vocabulary.FAILURE)
    ratios = {point.attributes[vocabulary.OUTCOME_KIND]: point.value for point in run.points(vocabulary.REQUEST_RATIO)}
    assert {"aborted": 0.1, "timed_out": 0.1, "clipped": 0.1, "error": 0.2} == ratios
    told = sample_of(run)
    assert [1, 1, 1, 2] == [
        told[key]
        for key in (
            vocabulary.REQUESTS_ABORTED,
            vocabulary.REQUESTS_TIMED_OUT,
            vocabulary.REQUESTS_CLIPPED,
            vocabulary.REQUESTS_FAILED,
        )
    ]
    statuses = [span.status_code for span in run.spans((vocabulary.SUBMISSION,)) if span.attributes]
    assert 2 == sum(status == 2 for status in statuses)


def test_requests_of_an_evaluation_count_apart(recording: Recording) -> None:
    """By a label on everything that is counted."""
    with otel_rl.step(1):
        with otel_rl.stage("sample", mode="eval"):
            recording.tick(20)
            record_requests(given, [request(recording, 1)])
        with otel_rl.stage("evaluate"):
            recording.tick(20)
            record_requests(given, [request(recording, 1), request(recording, 2)])
    run = recording.stop()
    assert {"eval": 3} == counted(run, vocabulary.REQUESTS, vocabulary.MODE)
    assert {"eval"} == {point.attributes.get(vocabulary.MODE) for point in run.points(vocabulary.ROLLOUT_WALL)}


def test_a_rollout_inside_an_evaluation_is_an_evaluation(recording: Recording) -> None:
    """Also where both end within one cycle of the flusher."""
    with otel_rl.step(1):
        with otel_rl.stage("evaluate"), otel_rl.stage("sample"):
            recording.tick(20)
            record_requests(given, [request(recording, 1)])
        with otel_rl.stage("sample"):
            recording.tick(20)
            record_requests(given, [request(recording, 2)])
    run = recording.stop()
    assert {"eval": 1, "": 1} == counted(run, vocabulary.REQUESTS, vocabulary.MODE)


def test_an_evaluation_is_one_in_the_stages_below_it(recording: Recording) -> None:
    """Whoever came first in a step says nothing of the others, and cycles of the flusher make no difference."""
    with otel_rl.step(1):
        for is_flushed in (False, True):
            with otel_rl.stage("evaluate"), otel_rl.stage("mine"), otel_rl.stage("inner"):
                recording.tick(20)
                if is_flushed:
                    otel_rl.flush()
                record_requests(given, [request(recording, 1 + is_flushed)])
        with otel_rl.stage("mine"):
            recording.tick(20)
            record_requests(given, [request(recording, number) for number in (3, 4, 5)])
    run = recording.stop()
    assert {"eval": 2, "": 3} == counted(run, vocabulary.REQUESTS, vocabulary.MODE)
    assert ["", "eval"] == sorted(
        str(point.attributes.get(vocabulary.MODE, "")) for point in run.points(vocabulary.ROLLOUT_WALL)
    )


PLACES = {
    "a rollout": (["sample"], {"": 1}, "rl.sample", True),
    "an evaluation": (["evaluate"], {"eval": 1}, "rl.evaluate", True),
    "a rollout of an evaluation": (["evaluate", "mine", "sample"], {"eval": 1}, "rl.sample", True),
    "a stage with a mode": (["mine mode=eval"], {"eval": 1}, "mine", True),
    "a judge": (["sample", "reward"], {"": 1}, "rl.reward", False),
    "below one's own": (["sample", "mine"], {"": 1}, "rl.sample", True),
    "none": (["mine"], {"": 1}, "rl.rank 0", True),
}


@pytest.mark.parametrize("report", [record_requests, otel_rl.request], ids=["record_requests", "request"])
@pytest.mark.parametrize(("stages", "modes", "parent", "is_told"), PLACES.values(), ids=PLACES)
def test_a_thread_without_a_span_works_for_the_stage_that_is_open(
    recording: Recording, report: Any, stages: list[str], modes: dict[str, int], parent: str, is_told: bool
) -> None:
    """A pool's, which knows no context: the innermost stage that says what requests are for, else the step."""
    with otel_rl.step(1), ExitStack() as opened:
        for name, _, mode in (stage.partition(" mode=") for stage in stages):
            opened.enter_context(otel_rl.stage(name, **({"mode": mode} if mode else {})))
        recording.tick(20)
        with ThreadPoolExecutor(1) as pool:
            if report is record_requests:
                pool.submit(record_requests, given, [request(recording, 1)]).result()
            else:
                pool.submit(otel_rl.request, "engine", submitted=1.01, ended=1.02, id="r1", finish="stop").result()
    run = recording.stop()
    names = {span.span_id: span.name for span in run.spans()}
    (found,) = (span for span in run.spans((vocabulary.RESPONSE_ID,)) if span.attributes)
    assert (modes, parent, is_told) == (
        counted(run, vocabulary.REQUESTS, vocabulary.MODE),
        names[found.parent_id],
        bool(list(run.points(vocabulary.ROLLOUT_WALL))),
    )


@pytest.mark.parametrize(
    ("around", "modes", "parent"), [("evaluate", {"eval": 1}, "rl.evaluate"), ("mine", {"": 1}, "rl.rank 0")]
)
def test_of_stages_side_by_side_the_one_around_them_is_meant(
    recording: Recording, around: str, modes: dict[str, int], parent: str
) -> None:
    """Nobody knows for which of them a thread without a span works."""
    with otel_rl.step(1), otel_rl.stage(around), ThreadPoolExecutor(1) as pool:
        contexts = [copy_context(), copy_context()]
        opened = [context.run(otel_rl.stage("sample").__enter__) for context in contexts]
        recording.tick(20)
        pool.submit(record_requests, given, [request(recording, 1)]).result()
        for context, stage in zip(contexts, opened, strict=True):
            context.run(stage.__exit__, None, None, None)
    run = recording.stop()
    names = {span.span_id: span.name for span in run.spans()}
    (found,) = (span for span in run.spans((vocabulary.RESPONSE_ID,)) if span.attributes)
    assert (modes, parent) == (counted(run, vocabulary.REQUESTS, vocabulary.MODE), names[found.parent_id])


@pytest.mark.parametrize("seed", range(20))
def test_of_many_stages_the_innermost_that_is_around_all_others_is_meant(recording: Recording, seed: int) -> None:
    """Or inside of them, whatever their tree: as one finds it who compares each with each."""
    draw = random.Random(seed)
    with otel_rl.step(1), ThreadPoolExecutor(1) as pool:
        above: dict[Any, list[Any]] = {tracing.container: []}
        contexts = {tracing.container: copy_context()}
        for _ in range(draw.randrange(2, 12)):
            parent = draw.choice([*above][-4:])
            stage, inside = (
                otel_rl.stage(draw.choice(["mine", "sample", "sample", "evaluate"])),
                contexts[parent].copy(),
            )
            inside.run(stage.__enter__)
            above[stage], contexts[stage] = [parent, *above[parent]], inside
        saying = [one for one in above if one.name in (vocabulary.SAMPLE, vocabulary.EVALUATE)]
        meant = [
            one for one in saying if all(one in above[other] or other in above[one] or other is one for other in saying)
        ]
        expected = max(meant, key=lambda one: len(above[one]), default=tracing.container)
        assert pool.submit(find_parent).result() is expected
        for stage in [*above][:0:-1]:
            contexts[stage].run(stage.__exit__, None, None, None)


def test_a_context_that_is_handed_over_says_it_all(recording: Recording) -> None:
    """Whatever else is open."""
    with otel_rl.step(1), otel_rl.stage("sample"), ThreadPoolExecutor(1) as pool:
        recording.tick(20)
        mine = copy_context()
        with otel_rl.stage("evaluate"):
            pool.submit(mine.run, record_requests, given, [request(recording, 1)]).result()
    assert {"": 1} == counted(recording.stop(), vocabulary.REQUESTS, vocabulary.MODE)


def test_exemplars_point_at_spans(recording: Recording) -> None:
    """Of each bucket at the latest span that was kept, once."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(50)
        record_requests(given, [request(recording, 1), request(recording, 2, submitted=recording.clock.ns - 40 * MS)])
    otel_rl.flush()
    with otel_rl.step(2), otel_rl.stage("sample"):
        recording.tick(50)
    run = recording.stop()
    known = {(span.trace_id, span.span_id): span for span in run.spans((vocabulary.RESPONSE_ID,))}
    found = [
        (metric.name, known[exemplar.trace_id, exemplar.span_id].attributes[vocabulary.RESPONSE_ID], exemplar.as_double)
        for _, frame in run.frames("metrics")
        for group in ExportMetricsServiceRequest.FromString(frame.payload).resource_metrics
        for scope in group.scope_metrics
        for metric in scope.metrics
        for point in metric.exponential_histogram.data_points
        for exemplar in point.exemplars
        if metric.name in (vocabulary.REQUEST_DURATION, vocabulary.TPOT)
    ]
    assert [
        (vocabulary.REQUEST_DURATION, "r1", pytest.approx(0.014)),
        (vocabulary.REQUEST_DURATION, "r2", pytest.approx(0.04)),
        (vocabulary.TPOT, "r2", pytest.approx(0.001)),
    ] == sorted(found)


# --- load of the engine -----------------------------------------------------------------------------------------------


def test_the_load_of_an_engine_becomes_gauges_and_a_peak(recording: Recording) -> None:
    """The last value before each write, and the highest KV usage of every step."""
    for number, usages in ((1, (0.2, 0.9, 0.4)), (2, (0.3, 0.1))):
        with otel_rl.step(number):
            for usage in usages:
                recording.tick(10)
                queue.record_load("vllm", "1", recording.clock.ns, 3, 4, usage, preemptions=2)
            queue.record_load("hf", "", recording.clock.ns, 1, 0, None)
            with otel_rl.stage("sample"):
                recording.tick(20)
                record_requests(given, [request(recording)])
    run = recording.stop()
    rollouts = sorted((span for span in run.spans(None) if span.name == "rl.sample"), key=lambda span: span.start_ns)
    assert [0.9, 0.3] == [span.attributes[vocabulary.KV_PEAK_SPAN] for span in rollouts]
    labels = {vocabulary.PROVIDER: "vllm", vocabulary.REPLICA: "1"}
    peaks = [(point.value, point.attributes) for point in run.points(vocabulary.KV_PEAK)]
    assert [(0.9, labels), (0.3, labels)] == peaks
    assert [(0.1, labels)] == [(point.value, point.attributes) for point in run.points(vocabulary.KV_USAGE)]
    assert {"vllm": 3, "hf": 1} == counted(run, vocabulary.RUNNING, vocabulary.PROVIDER)
    assert {"vllm": 4, "hf": 0} == counted(run, vocabulary.WAITING, vocabulary.PROVIDER)
    assert {"vllm": 10} == counted(run, vocabulary.ENGINE_PREEMPTIONS, vocabulary.PROVIDER)


def test_bytes_of_a_kv_cache_become_gauges(recording: Recording) -> None:
    """Its size at once and with every step, the highest use of each step; rollouts say those of the largest engine."""
    for number, uses in ((1, (200, 900, None)), (2, (300, 100))):
        with otel_rl.step(number):
            for used in uses:
                recording.tick(10)
                queue.record_kv_cache("vllm", "1", 1000 if used is None else None, used)
            queue.record_kv_cache("hf", "", None, 7 * number)
            with otel_rl.stage("sample"):
                recording.tick(20)
                record_requests(given, [request(recording)])
    run = recording.stop()
    rollouts = sorted((span for span in run.spans(None) if span.name == "rl.sample"), key=lambda span: span.start_ns)
    keys = vocabulary.KV_BYTES_SPAN, vocabulary.KV_BYTES_PEAK_SPAN
    assert [(1000, 900), (1000, 300)] == [tuple(span.attributes[key] for key in keys) for span in rollouts]
    of = {
        name: [(point.value, *point.attributes.values()) for point in run.points(name)]
        for name in (vocabulary.KV_BYTES, vocabulary.KV_BYTES_PEAK)
    }
    assert [(1000, "vllm", "1")] * 3 == of[vocabulary.KV_BYTES]
    assert [(7, "hf"), (14, "hf"), (300, "vllm", "1"), (900, "vllm", "1")] == sorted(of[vocabulary.KV_BYTES_PEAK])


@pytest.mark.parametrize(("size", "used"), [("all", None), (None, 0.5), (-1, None), (None, -1)])
def test_no_number_of_bytes_is_refused(recording: Recording, size: Any, used: Any) -> None:
    """All of it, and counted."""
    with otel_rl.step(1):
        queue.record_kv_cache("mine", "", size, used)
    run = recording.stop()
    assert [] == [point for name in (vocabulary.KV_BYTES, vocabulary.KV_BYTES_PEAK) for point in run.points(name)]
    assert {"count a record": 1} == dict(errors)
    errors.clear()


def test_off_nothing_is_kept() -> None:
    """Without ``instrument()``."""
    queue.record_kv_cache("vllm", "", 1, 1)
    record_requests(given, [1])
    queue.record_load("vllm", "", 1, 1, 1, None)
    otel_rl.request("mine", submitted=0.0, ended=1.0)
    assert 0 == len(state.queue)


def test_the_flusher_may_learn_of_requests_later(recording: Recording) -> None:
    """What it makes of a thread's notes may be requests."""
    with otel_rl.step(1), otel_rl.stage("sample") as stage:
        recording.tick(20)
        state.add(Deferred(lambda *row: [FinishedRequests((given, stage, 1, row))], (request(recording, 1),)))
    assert ["r1"] == ids_of(recording.stop())


def test_a_reader_may_give_them_slice_by_slice(recording: Recording) -> None:
    """A generator of thousands is read in parts, and nothing is lost between them."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        rows = [request(recording, number) for number in range(5_001)]
        record_requests(lambda made: (row for row in made), rows[:4_500])
        record_requests(iter, rows[4_500:4_750])
        record_requests(given, rows[4_750:])
    run = recording.stop()
    assert ({"stop": 5_001}, {}) == (counted(run, vocabulary.REQUESTS, vocabulary.FINISH), bad(run))
    assert 5_001 == sample_of(run)[vocabulary.REQUEST_COUNT]


def test_the_interpreter_is_let_go_of_unless_somebody_waits(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between slices of 250: the training thread may wait for it; so may who asked for a flush."""
    slept: list[float] = []
    monkeypatch.setattr("otel_rl.requests.reader.sleep", slept.append)
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        flusher = recording.flusher
        record_requests(lambda: iter([request(recording, number) for number in range(1_000)]))
        flusher._serve()
        assert 4 == len(slept)
        record_requests(lambda: iter([request(recording, 1_000 + number) for number in range(1_000)]))
        otel_rl.flush()
    assert (4, 2_000) == (len(slept), sum(counted(recording.stop(), vocabulary.REQUESTS).values()))


def test_what_a_rollout_generates_belongs_to_it(recording: Recording) -> None:
    """Though it is made in a stage inside it, from this thread or from one that has no stage; tools have their own."""
    with otel_rl.step(1), ThreadPoolExecutor(1) as pool:
        with otel_rl.stage("sample") as rollout, otel_rl.stage("sample.generate", mode="train"):
            found = [find_parent(), pool.submit(find_parent).result()]
            with otel_rl.stage("judge") as judge:
                found.append(find_parent())
        with otel_rl.stage("sample.generate", mode="train") as alone:
            found += [find_parent(), pool.submit(find_parent).result()]
    assert [rollout, rollout, judge, alone, alone] == found


def test_plain_rows_name_the_fields_in_their_order() -> None:
    """Two numbers that change places would be wrong in silence: what stands in a row has the name of its field."""
    package = Path(otel_rl.__file__).parent
    rows = {}
    for path in (*package.glob("integrations/**/*.py"), *package.glob("requests/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Tuple) and len(node.elts) >= len(Request._fields):
                fields = node.elts[: len(Request._fields)]
                names = [field.id if isinstance(field, ast.Name) else ast.unparse(field) for field in fields]
                rows[str(path.relative_to(package))] = names
    engines = {
        "integrations/sglang.py": "'sglang'",
        "integrations/vllm/requests.py": "'vllm'",
        "requests/api.py": "engine",
    }
    assert {path: [engine, *Request._fields[1:]] for path, engine in engines.items()} == rows
