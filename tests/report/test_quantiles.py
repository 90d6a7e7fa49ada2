"""Quantiles of requests: exact while all requests are spans, else marked as estimates with a bound that holds."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import Journal, PointView
from otel_rl.records import Value
from otel_rl.report.build import build_report
from otel_rl.report.data.details import Quantiles, RequestRow
from otel_rl.report.data.report import Report, Series
from otel_rl.report.read.request_spans import RequestSpans
from otel_rl.report.rows.request_rows import RequestPoints
from otel_rl.report.schema import to_json
from otel_rl.report.to_markdown import escape, to_markdown
from otel_rl.requests.queue import record_requests
from otel_rl.runs.format import about, count, seconds
from tests.fixtures import MS, Recording
from tests.report.test_requests import shown
from tests.requests.test_queue import given, request

TOKENS = [1, 2, *[24] * 20, 30, 31]
"""Most responses have exactly 24 tokens."""


def recorded(recording: Recording, tokens: list[int], **changes: Any) -> Report:
    """Record a step whose requests have so many tokens and take 1 ms a token after the first, which takes 5."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(2000)
        now = recording.clock.ns
        record_requests(given, [response(recording, now, place, one, **changes) for place, one in enumerate(tokens)])
    return build_report(recording.stop(), recording.clock.ns)


def response(recording: Recording, now: int, place: int, tokens: int, **changes: Any) -> Any:
    begun = now - (4 + tokens) * MS
    times = {"submitted": begun, "scheduled": begun, "first_token": begun + 5 * MS, "last_token": now, "ended": now}
    return request(recording, place, output_tokens=tokens, **{**times, **changes})


def only(report: Report) -> RequestRow:
    (row,) = report.requests.rows
    return row


def exactly(count: int, median: float, p99: float, longest: float) -> Quantiles:
    approx: Any = pytest.approx
    return Quantiles(
        count=count, median=approx(median), p99=approx(p99), longest=approx(longest), is_exact=True, error=0.0
    )


def test_all_requests_are_spans(recording: Recording) -> None:
    """Each number is that of one request; what has one token has no time per token."""
    row = only(recorded(recording, TOKENS))
    assert exactly(24, 24, 31, 31) == row.response_tokens
    assert exactly(24, 0.028, 0.035, 0.035) == row.duration_s
    assert exactly(24, 0.005, 0.005, 0.005) == row.ttft_s
    assert exactly(23, 0.001, 0.001, 0.001) == row.tpot_s
    assert exactly(24, 0, 0, 0) == row.queue_s


def test_few_requests_are_spans(recording: Recording) -> None:
    """The rest is in the histogram: estimates are marked, have two digits, and lie within the bound."""
    chance = random.Random(0)
    tokens = [chance.randrange(2, 900) for _ in range(500)]
    report = recorded(recording, tokens)
    found = only(report).response_tokens
    assert found is not None
    assert (500, False) == (found.count, found.is_exact)
    assert found.error is not None
    assert 0 < found.error < 0.0906
    ordered = sorted(tokens)
    for exact, estimated in ((ordered[249], found.median), (ordered[494], found.p99)):
        assert estimated == pytest.approx(exact, rel=found.error)
    cells = [about(found.median, found.error, count), about(found.p99, found.error, count), count(found.longest)]
    note = "~: estimated from counts of all requests, since not all of them are spans."
    rows = [line.split() for line in shown(report).splitlines()]
    assert (True, True) == (["response", "tokens", *cells] in rows, note in shown(report))
    markdown = to_markdown(report)
    row = " | ".join(map(escape, ("response tokens", *cells)))
    assert (True, True) == (row in markdown, escape(note) in markdown)
    document = json.loads(to_json(report))["requests"]["rows"][0]["response_tokens"]
    assert (False, found.error) == (document["is_exact"], document["error"])


def test_exact_numbers_have_no_mark(recording: Recording) -> None:
    assert "~" not in shown(recorded(recording, TOKENS))


def test_requests_of_an_evaluation_are_apart(recording: Recording) -> None:
    """Their spans say so themselves, as their rollouts are journaled after them."""
    with otel_rl.step(1):
        for stage, tokens in (("sample", 7), ("evaluate", 9)):
            with otel_rl.stage(stage):
                recording.tick(50)
                now = recording.clock.ns
                record_requests(given, [response(recording, now, one, tokens) for one in range(4)])
    report = build_report(recording.stop(), recording.clock.ns)
    found = {row.is_evaluation: row.response_tokens for row in report.requests.rows}
    assert {False: exactly(4, 7, 7, 7), True: exactly(4, 9, 9, 9)} == found


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        (0.0123456, 0.05, "~12 ms"),
        (0.00123456, 0.0906, "~1.2 ms"),
        (0.00099, 0.0906, "~990 us"),
        (0.00104, 0.0906, "~1 ms"),
        (0.0123456, 0.19, "~10 ms"),
        (0.0123456, None, "~10 ms"),
        (125.0, 0.05, "~2 min 00 s"),
    ],
)
def test_an_estimate_has_the_digits_that_it_can(value: float, error: float | None, expected: str) -> None:
    assert expected == about(value, error, seconds)


def test_an_estimate_is_at_most_the_longest() -> None:
    assert "~4.27 ms" == about(0.00428, 0.09, seconds, most=0.00427)
    assert "~4.3 ms" == about(0.00428, 0.09, seconds, most=0.0044)


@pytest.mark.parametrize(("value", "expected"), [(24.3, "~24"), (1234.0, "~1,200"), (0.0, "~0"), (7.6, "~8")])
def test_an_estimate_of_a_count_is_whole(value: float, expected: str) -> None:
    assert expected == about(value, 0.09, count)


def grouped(processes: dict[str, dict[str, int]]) -> list[tuple[list[str], int]]:
    """Count the rows of requests that processes finished with models of one engine."""
    points = RequestPoints()
    for number, (name, models) in enumerate(processes.items()):
        journal = Journal(WriterIdentity(f"{name}-{number}-0"), [])
        for model, finished in models.items():
            labels: dict[str, Value] = {v.PROVIDER: "engine", v.SUBMISSION: "bulk"}
            labels |= {v.REQUEST_MODEL: model} if model else {}
            points.add(PointView(v.REQUESTS, "counter", "1", 1, 0, labels, {}, journal, finished))
    return [(row.models, row.count) for row in points.rows(0.0, RequestSpans()).rows]


def test_models_of_several_processes_are_one_row() -> None:
    """Each rank loads its own copy from a path that has its number."""
    assert [(["qwen2-0", "qwen2-1"], 5)] == grouped({"trainer-0": {"qwen2-0": 2}, "trainer-1": {"qwen2-1": 3}})


def test_models_of_one_process_are_rows_of_their_own() -> None:
    """A policy and a judge behind one engine have little in common."""
    models = {"trainer-0": {"policy": 2, "judge": 1}, "trainer-1": {"policy": 3}}
    assert [(["judge"], 1), (["policy"], 5)] == grouped(models)


def test_a_request_without_a_model_is_of_the_engine() -> None:
    """One that failed before its model was known."""
    assert [(["m"], 5)] == grouped({"trainer-0": {"m": 2, "": 3}})


def clipped(own: float, **qualifiers: str) -> Series:
    """TRL's curve of the share that was cut."""
    constant = {key: own for key in ("first", "last", "mean", "low", "high")}
    return Series(
        name=v.RESPONSE_CLIPPED, qualifiers=qualifiers, unit="1", nonfinite=0, steps=[1], values=[own], **constant
    )


@pytest.mark.parametrize(
    ("system", "series", "is_said"),
    [
        ("trl", [clipped(0.25, **{v.MODE: "eval"}), clipped(0.4)], True),
        ("trl", [clipped(0.5)], False),
        ("trl", [clipped(0.499)], False),
        ("trl", [clipped(0.6)], False),
        ("trl", [], False),
        ("verl", [clipped(0.4)], False),
    ],
    ids=["less", "equal", "as good as equal", "more", "unknown", "other framework"],
)
def test_why_two_shares_of_cut_responses_differ(
    recording: Recording, system: str, series: list[Series], *, is_said: bool
) -> None:
    """TRL counts a response that ends in a sampled pad token as one that ended by itself."""
    report = replace(recorded(recording, TOKENS, finish="length"), system=system, series=series)
    row = only(report)
    rows = [replace(row, clipped=row.count // 2)]
    text = " ".join(shown(replace(report, requests=replace(report.requests, rows=rows))).split())
    note = (
        "clipped: 50 % ended at the length limit. TRL's own share is 40 %: it takes a pad token that was sampled "
        "for an end."
    )
    assert (is_said, is_said) == (note in text, "TRL's own share" in text)
