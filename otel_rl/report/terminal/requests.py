"""The rollout requests in the terminal verdict: times, tail, what became of them, what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl.report.data.report import Report
from otel_rl.report.data.requests import Quantiles, RequestRow, Requests
from otel_rl.report.format import count, listed, percent, plural, seconds
from otel_rl.report.terminal.fitting import FittingTable
from otel_rl.report.terminal.style import NOTE, WARNING

SHOWN: Final = 4
"""Engines that are shown, those with most requests; JSON has all."""
QUEUE_SHARE: Final = 0.1
"""Of TTFT, from which on it is said to be the place in the queue."""
BULK_NOTE: Final = "Submitted in bulk, TTFT is queue position: judge the engine by prefill and TPOT."
BAD: Final = {
    "unfinished": "without an end",
    "reversed": "with times in the wrong order",
    "impossible_time": "with a time that cannot be",
    "tokens": "with a number of tokens that cannot be",
    "repeated_id": "left out: repeated, by id and submission",
    "another_attempt": "with an id that came before, by another submission: counted as another attempt",
    "after_rollout": "after the end of the rollout",
    "late": "after the end of the step: in metrics, no spans (`otel_rl.request` takes a parent)",
    "forked": "from a forked worker",
    "unreadable": "that could not be read",
    "no_request": "that were none",
    "not_a_number": "with something that is no number",
}
"""What the words of docs/requests.md mean."""


def request_table(report: Report) -> RenderableType | None:
    """Show the requests of each engine; None where none was recorded."""
    requests = report.requests
    rows = sorted(requests.rows, key=lambda row: (row.is_evaluation, -row.count))
    parts: list[RenderableType] = []
    for row in rows[:SHOWN]:
        parts.append(_table(row))
    if any(_is_queue_position(row) for row in rows[:SHOWN]):
        parts.append(Text(BULK_NOTE, style=NOTE))
    lines = [*_tail_lines(requests), *_span_lines(requests, rows)]
    parts += [Text(line) for line in lines]
    parts += [
        Text(f"{plural(bad.count, 'request')} {BAD.get(bad.reason, bad.reason)}", style=WARNING) for bad in requests.bad
    ]
    return Group(*parts) if parts else None


def _is_queue_position(row: RequestRow) -> bool:
    """Whether TTFT tells the place in the queue; an engine that takes a whole batch up at once has none."""
    if not row.is_bulk or row.ttft_s is None:
        return False
    return row.queue_s is None or row.queue_s.p99 >= QUEUE_SHARE * row.ttft_s.p99


def _table(row: RequestRow) -> RenderableType:
    table = FittingTable()
    table.name("requests")
    table.numbers("median", "p99", "longest")
    times = {
        "TTFT": row.ttft_s,
        "queue": row.queue_s,
        "prefill": row.prefill_s,
        "TPOT": row.tpot_s,
        "duration": row.duration_s,
    }
    tokens = {
        "prompt tokens": row.prompt_tokens,
        "response tokens": row.response_tokens,
        "cached tokens": row.cached_tokens,
    }
    for name, found in times.items():
        _add(table.row, name, found, seconds)
    for name, found in tokens.items():
        _add(table.row, name, found, count)
    return Group(Text(_head(row), overflow="fold"), table)


def _add(add_row: Callable[..., None], name: str, found: Quantiles | None, show: Callable[[float], str]) -> None:
    if found is not None:
        add_row(name, show(found.median), show(found.p99), show(found.longest))


def _head(row: RequestRow) -> str:
    who = " ".join(filter(None, (row.engine, row.model)))
    kinds = {"aborted": row.aborted, "timed out": row.timed_out, "failed": row.errors, "clipped": row.clipped}
    told = [
        f"{count(number)} {kind} ({percent(number / row.count)})"
        for kind, number in kinds.items()
        if number and row.count
    ]
    told += [plural(row.preemptions, "preemption")] if row.preemptions else []
    what = "evaluation" if row.is_evaluation else "bulk" if row.is_bulk else "streamed"
    return f"{who}, {what}: {plural(row.count, 'request')}{', ' if told else ''}{listed(told, 5)}"


def _tail_lines(requests: Requests) -> list[str]:
    lines = []
    if requests.tails:
        shares = [f"{tail.slowest * 100:.0f} %: {percent(tail.share)}" for tail in requests.tails]
        lines.append(f"rollout time taken by the slowest alone: {', '.join(shares)}")
    if requests.bubble is not None:
        lines.append(f"engine slots idle at the end of rollouts: {percent(requests.bubble)} of slots x rollout time")
    if requests.kv_cache_peak is not None:
        lines.append(f"highest KV-cache usage: {percent(requests.kv_cache_peak)}")
    lines += [
        f"{told.engine}: {plural(told.count, 'preemption')} of all its requests together"
        for told in requests.engine_preemptions
        if told.count
    ]
    return lines


def _span_lines(requests: Requests, rows: list[RequestRow]) -> list[str]:
    total = sum(row.count for row in rows)
    if not total:
        return []
    hidden = len(rows) - SHOWN
    lines = [f"{plural(hidden, 'more kind')} of requests in --json"] if hidden > 0 else []
    known = requests.spans + requests.omitted
    rest = f"; of {count(total - known)} it is open until their rollouts are over" if total > known else ""
    return [*lines, f"{count(requests.spans)} of {plural(total, 'request')} are spans{rest}; metrics count all"]
