"""The numbers of a report against timers around the training's own methods, which know nothing of otel_rl."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

pytest.importorskip("trl")

from otel_rl import vocabulary as v
from otel_rl.analysis.histogram import exact_quantile
from otel_rl.journal.read import SpanView, open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.details import Quantiles, RequestRow
from otel_rl.report.data.report import Report
from tests.programs import launch

STEPS = 60
REQUESTS = 16
"""Of a rollout."""
WITHIN = 0.01
LEAST_S = 30e-6
"""Between two readings of a clock: ours and that of the timers. On a busy machine it is milliseconds at times, for all
requests of a batch: so most requests have to be as close as this, not each of the slowest."""
JOURNAL_S = 1e-9
"""Spans hold whole nanoseconds."""
FIELDS = {"ttft_s": "ttft_s", "tpot_s": "tpot_s", "duration_s": "duration_s", "tokens": "response_tokens"}
ATTRIBUTES = {"ttft_s": v.REQUEST_TTFT, "tpot_s": v.REQUEST_TPOT, "tokens": v.OUTPUT_TOKENS}


class Pair(NamedTuple):
    """A request as the timers saw it, and its span."""

    seen: dict[str, Any]
    span: SpanView

    def numbers(self, name: str) -> tuple[float | None, float | None]:
        """Read a number of both; none where there is no such time."""
        attributes: Any = self.span.attributes
        if name == "duration_s":
            return self.seen[name], (self.span.end_ns - self.span.start_ns) / 1e9
        return self.seen[name], attributes.get(ATTRIBUTES[name])


class Numbers(NamedTuple):
    """A number of many requests, in one order: by the timers, and by the spans."""

    timed: list[float]
    spans: list[float]


class Trained(NamedTuple):
    """What the timers saw, the report, and the spans of the requests, in the order of the timers."""

    seen: dict[str, Any]
    report: Report
    spans: list[SpanView]

    def pairs(self, *, is_evaluation: bool) -> list[Pair]:
        """Pair the requests of the training or of the evaluations."""
        both = zip(self.seen["requests"], self.spans, strict=True)
        pairs = [Pair(*one) for one in both if one[0]["is_evaluation"] is is_evaluation]
        assert all((pair.span.attributes.get(v.MODE) == "eval") is is_evaluation for pair in pairs)
        return pairs


def numbers(pairs: Sequence[Pair], name: str) -> Numbers:
    """Read a number of all requests that have it, which are the same to both."""
    both = [pair.numbers(name) for pair in pairs]
    known = [(timed, ours) for timed, ours in both if timed is not None and ours is not None]
    assert len(known) == sum(one != (None, None) for one in both)
    return Numbers([timed for timed, _ in known], [ours for _, ours in known])


def place(span: SpanView) -> tuple[int, int]:
    """Return when the batch of a request began, and which of its rows it is."""
    return span.start_ns, int(str(span.attributes[v.RESPONSE_ID]).rpartition(".")[2])


def assert_close(found: Numbers, least_s: float) -> None:
    """Most requests took as long by their spans as by the timers, to a hundredth or to so many seconds."""
    both = zip(found.timed, found.spans, strict=True)
    assert statistics.median(abs(ours - timed) / max(WITHIN * timed, least_s) for timed, ours in both) <= 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train 60 steps with three evaluations."""
    directory = tmp_path_factory.mktemp("timed")
    seen = directory / "seen.json"
    launch.run(directory, str(launch.HERE / "timed_trl.py"), str(seen), str(directory / "model"), str(STEPS))
    (run,) = (directory / "runs").iterdir()
    recorded = open_run(run)
    spans = [span for span in recorded.spans(None) if v.SUBMISSION in span.attributes]
    return Trained(json.loads(seen.read_text()), build_report(recorded, 0), sorted(spans, key=place))


def responses(seen: dict[str, Any], *, is_evaluation: bool) -> list[dict[str, Any]]:
    return [one for one in seen["requests"] if one["is_evaluation"] is is_evaluation]


def row_of(report: Report, *, is_evaluation: bool) -> RequestRow:
    (row,) = (row for row in report.requests.rows if row.is_evaluation is is_evaluation)
    return row


@pytest.mark.slow
@pytest.mark.parametrize("is_evaluation", [False, True], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", FIELDS)
def test_times_and_lengths_of_requests(trained: Trained, name: str, *, is_evaluation: bool) -> None:
    """Median, p99 and longest are those of the spans, which every request is; the outside is a hundredth away."""
    both = numbers(trained.pairs(is_evaluation=is_evaluation), name)
    found: Quantiles = getattr(row_of(trained.report, is_evaluation=is_evaluation), FIELDS[name])
    assert (len(both.timed), True, 0.0) == (found.count, found.is_exact, found.error)
    for share, number in ((0.5, found.median), (0.99, found.p99), (1.0, found.longest)):
        assert exact_quantile(sorted(both.spans), share) == pytest.approx(number, rel=0, abs=JOURNAL_S), share
    assert exact_quantile(sorted(both.timed), 0.5) == pytest.approx(found.median, rel=WITHIN, abs=LEAST_S)
    if name == "tokens":
        assert both.timed == both.spans
    else:
        assert_close(both, LEAST_S)


@pytest.mark.slow
def test_how_many_ended_at_the_limit(trained: Trained) -> None:
    """As many as have the greatest length without an end token, whatever their last token is."""
    seen, report, _ = trained
    for is_evaluation in (False, True):
        some, row = responses(seen, is_evaluation=is_evaluation), row_of(report, is_evaluation=is_evaluation)
        assert (len(some), sum(one["is_cut"] for one in some)) == (row.count, row.clipped)
    assert STEPS * REQUESTS == row_of(report, is_evaluation=False).count


@pytest.mark.slow
def test_step_times(trained: Trained) -> None:
    """Of the averaged steps, in sum and the median."""
    seen, report, _ = trained
    times = [after - before for before, after in pairwise(seen["steps"])]
    assert STEPS == len(times)
    warm = times[report.steps.warmup :]
    assert sum(warm) == pytest.approx(report.steps.total_s, rel=WITHIN)
    # on a busy machine, one step's time grows by what the next one loses between the two readings of the clock
    assert statistics.median(warm) == pytest.approx(report.steps.median_s, rel=5 * WITHIN)


@pytest.mark.slow
def test_the_longest_time_per_token_is_that_of_one_response(trained: Trained) -> None:
    """Of one that ended early, not of its batch, whose time per token is a mean of more steps."""
    pairs = trained.pairs(is_evaluation=False)
    whole = max(pair.seen["tokens"] for pair in pairs)
    early = numbers([pair for pair in pairs if pair.seen["tokens"] < whole], "tpot_s")
    assert_close(early, 0.0)  # both of our readings are as late
    found = row_of(trained.report, is_evaluation=False).tpot_s
    assert found is not None
    assert max(numbers(pairs, "tpot_s").spans) == pytest.approx(found.longest, rel=0, abs=JOURNAL_S)


@pytest.mark.slow
def test_the_first_token_is_there_after_the_first_forward(trained: Trained) -> None:
    """By the time that it takes to sample it, and to learn whether that is the end."""
    seen = trained.seen
    assert all(one["first_forward_s"] < one["ttft_s"] for one in seen["requests"])
