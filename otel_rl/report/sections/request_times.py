"""Rollout requests: times, tail, how they ended, what is wrong with them; training and evaluation apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.details import Quantiles, RequestRow, Requests
from otel_rl.report.data.report import Report
from otel_rl.report.rows.request_rows import NUMBERS
from otel_rl.report.section import Block, Line, Section, Table, notes
from otel_rl.runs.format import about, count, listed, percent, plural, seconds

SHOWN: Final = 4
QUEUE_SHARE: Final = 0.1
"""From this share of TTFT on it is the position in the queue."""
BULK_NOTE: Final = "Submitted in bulk, TTFT is queue position: judge the engine by prefill and TPOT."
ABOUT_NOTE: Final = "~: estimated from counts of all requests, since not all of them are spans."
CLIPPED_NOTE: Final = (
    "clipped: {} ended at the length limit. TRL's own share is {}: it takes a pad token that was sampled for an end."
)
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


def _blocks(report: Report) -> list[Block]:
    requests = report.requests
    rows = sorted(requests.rows, key=lambda row: (row.is_evaluation, -row.count))
    shown = rows[:SHOWN]
    is_trained = any(not row.is_evaluation for row in shown)
    blocks: list[Block] = []
    for row in shown:
        is_short = row.is_evaluation and is_trained
        blocks += [Line(f"{_head(row)}{_lengths(row)}")] if is_short else [Line(_head(row)), _table(row)]
    blocks += notes(BULK_NOTE if any(map(_is_queue_position, shown)) else "", _about_note(shown), _clipped_note(report))
    blocks += [Line(line) for line in (*_tail_lines(requests), *_span_lines(report, rows))]
    reasons = [f"{plural(bad.count, 'request')} {BAD.get(bad.reason, bad.reason)}" for bad in requests.bad]
    return blocks + [Line(reason, "warning") for reason in reasons]


def _about_note(rows: Iterable[RequestRow]) -> str:
    numbers = (getattr(row, field) for row in rows for field, _, _ in NUMBERS.values())
    return "" if all(found is None or found.is_exact for found in numbers) else ABOUT_NOTE


def _clipped_note(report: Report) -> str:
    """Return why the trainer's own share, which is among the curves, is less; empty if it is not."""
    own = next((one.mean for one in report.series if one.name == v.RESPONSE_CLIPPED and not one.qualifiers), None)
    rows = [row for row in report.requests.rows if not row.is_evaluation]
    clipped, total = sum(row.clipped or 0 for row in rows), sum(row.count for row in rows)
    if own is None or report.system != "trl" or not total or clipped / total <= own:
        return ""
    shares = percent(clipped / total), percent(own)
    return "" if len({*shares}) == 1 else CLIPPED_NOTE.format(*shares)


def _is_queue_position(row: RequestRow) -> bool:
    """Return whether TTFT shows the position in the queue; an engine that starts a whole batch at once has none."""
    if not row.is_bulk or row.ttft_s is None:
        return False
    return row.queue_s is None or row.queue_s.p99 >= QUEUE_SHARE * row.ttft_s.p99


def _table(row: RequestRow) -> Table:
    table = Table.of("requests", "median", "p99", "longest")
    for field, name, write in NUMBERS.values():
        found: Quantiles | None = getattr(row, field)
        if found is not None and not _says_nothing(row, field):
            table.add(name, *_cells(found, write))
    return table


def _says_nothing(row: RequestRow, field: str) -> bool:
    """Return whether nothing waits in a queue: then prefill is TTFT."""
    is_queued = row.queue_s is None or row.queue_s.longest > 0
    return not is_queued and (field == "queue_s" or (field == "prefill_s" and row.prefill_s == row.ttft_s))


def _lengths(row: RequestRow) -> str:
    """Return the length and the duration of the requests of an evaluation: it has no table beside the training's."""
    said = {"tokens": (row.response_tokens, count), "": (row.duration_s, seconds)}
    medians = [f"{_cells(found, write)[0]} {what}".strip() for what, (found, write) in said.items() if found]
    return f"; median {' and '.join(medians)}" if medians else ""


def _cells(found: Quantiles, write: Callable[[float], str]) -> list[str]:
    estimate = write if found.is_exact else partial(about, error=found.error, write=write, most=found.longest)
    return [estimate(found.median), estimate(found.p99), write(found.longest)]


def _head(row: RequestRow) -> str:
    who = " ".join(filter(None, (row.engine, listed(row.models))))
    kinds = {"aborted": row.aborted, "timed out": row.timed_out, "failed": row.errors, "clipped": row.clipped}
    said = [
        f"{count(number)} {kind} ({percent(number / row.count)})"
        for kind, number in kinds.items()
        if number and row.count
    ]
    said += [plural(row.preemptions, "preemption")] if row.preemptions else []
    what = "evaluation" if row.is_evaluation else "bulk" if row.is_bulk else "streamed"
    return f"{who}, {what}: {plural(row.count, 'request')}{', ' if said else ''}{listed(said, 5)}"


def _tail_lines(requests: Requests) -> list[str]:
    lines = []
    if requests.tails:
        first, *others = requests.tails
        shares = [f"{tail.slowest * 100:.0f} % {percent(tail.share)}" for tail in others]
        took = f"the last {first.slowest * 100:.0f} % of the requests took {percent(first.share)} of the rollout"
        lines.append(", ".join([took, *shares]))
    if requests.bubble is not None:
        lines.append(
            f"finished responses waited for the longest: {percent(requests.bubble)} of the generation capacity"
        )
    if requests.kv_cache_peak is not None:
        lines.append(f"highest KV-cache usage: {percent(requests.kv_cache_peak)}")
    lines += [
        f"{said.engine}: {plural(said.count, 'preemption')} of all its requests together"
        for said in requests.engine_preemptions
        if said.count
    ]
    return lines


def _span_lines(report: Report, rows: list[RequestRow]) -> list[str]:
    requests, total = report.requests, sum(row.count for row in rows)
    if not total:
        return []
    hidden = len(rows) - SHOWN
    lines = [f"{plural(hidden, 'more kind')} of requests in --json"] if hidden > 0 else []
    if requests.spans >= total:
        return lines
    undecided = total - requests.spans - requests.omitted
    rest = f"; {_undecided(report, undecided)}" if undecided > 0 else ""
    return [*lines, f"{count(requests.spans)} of {plural(total, 'request')} are spans{rest}; metrics count all"]


def _undecided(report: Report, number: int) -> str:
    """Return why it is not known of requests whether they become spans: that is decided after their rollout."""
    if report.state == "alive":
        return f"of {count(number)} it is open until their rollouts are over"
    if report.state != "finished":
        return f"of {count(number)} it is not known: their process ended before"
    has_calls = any(row.stage == v.SAMPLE_SERVE for role in report.roles for row in role.stages)
    calls = f" (their calls are {v.SAMPLE_SERVE})" if has_calls else ""
    return f"the run ended before it was decided which of {count(number)} become spans{calls}"


REQUESTS: Final = Section(title="Requests", blocks=_blocks)
