"""The numbers of a report against timers around the training's own methods, which know nothing of otel_rl."""

from __future__ import annotations

import json
import statistics
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("trl")

from otel_rl.analysis.histogram import exact_quantile
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.details import Quantiles, RequestRow
from otel_rl.report.data.report import Report
from tests.programs import launch

STEPS = 24
REQUESTS = 16
"""Of a rollout."""
WITHIN = 0.01
ROUNDING = 1e-6
"""Of a time that a span keeps in nanoseconds of another clock."""
FIELDS = {"ttft_s": "ttft_s", "tpot_s": "tpot_s", "duration_s": "duration_s", "tokens": "response_tokens"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Report]:
    """Train 24 steps with three evaluations: what the timers saw, and the report."""
    directory = tmp_path_factory.mktemp("timed")
    seen = directory / "seen.json"
    launch.run(directory, str(launch.HERE / "timed_trl.py"), str(seen), str(directory / "model"), str(STEPS))
    (run,) = (directory / "runs").iterdir()
    return json.loads(seen.read_text()), build_report(open_run(run), 0)


def responses(seen: dict[str, Any], *, is_evaluation: bool) -> list[dict[str, Any]]:
    return [one for one in seen["requests"] if one["is_evaluation"] is is_evaluation]


def row_of(report: Report, *, is_evaluation: bool) -> RequestRow:
    (row,) = (row for row in report.requests.rows if row.is_evaluation is is_evaluation)
    return row


@pytest.mark.slow
@pytest.mark.parametrize("is_evaluation", [False, True], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", FIELDS)
def test_times_and_lengths_of_requests(
    trained: tuple[dict[str, Any], Report], name: str, *, is_evaluation: bool
) -> None:
    """Median, p99 and longest lie between those of the timers within the hooks and around them."""
    seen, report = trained
    pairs = [one[name] for one in responses(seen, is_evaluation=is_evaluation) if one[name] is not None]
    least, most = (sorted(values) for values in zip(*pairs, strict=True))
    found: Quantiles = getattr(row_of(report, is_evaluation=is_evaluation), FIELDS[name])
    assert (len(pairs), True, 0.0) == (found.count, found.is_exact, found.error)
    for share, number in ((0.5, found.median), (0.99, found.p99), (1.0, found.longest)):
        assert exact_quantile(least, share) - ROUNDING <= number <= exact_quantile(most, share) + ROUNDING, share


@pytest.mark.slow
def test_how_many_ended_at_the_limit(trained: tuple[dict[str, Any], Report]) -> None:
    """As many as have the greatest length without an end token, whatever their last token is."""
    seen, report = trained
    for is_evaluation in (False, True):
        some, row = responses(seen, is_evaluation=is_evaluation), row_of(report, is_evaluation=is_evaluation)
        assert (len(some), sum(one["is_cut"] for one in some)) == (row.count, row.clipped)
    assert STEPS * REQUESTS == row_of(report, is_evaluation=False).count


@pytest.mark.slow
def test_step_times(trained: tuple[dict[str, Any], Report]) -> None:
    """Of the averaged steps, in sum and the median."""
    seen, report = trained
    times = [after - before for before, after in pairwise(seen["steps"])]
    assert STEPS == len(times)
    warm = times[report.steps.warmup :]
    assert sum(warm) == pytest.approx(report.steps.total_s, rel=WITHIN)
    # on a busy machine, one step's time grows by what the next one loses between the two readings of the clock
    assert statistics.median(warm) == pytest.approx(report.steps.median_s, rel=5 * WITHIN)


@pytest.mark.slow
def test_the_longest_time_per_token_is_that_of_one_response(trained: tuple[dict[str, Any], Report]) -> None:
    """Of one that ended early, not of its batch, whose time per token is a mean of more steps."""
    seen, report = trained
    timed = [one for one in responses(seen, is_evaluation=False) if one["tpot_s"] is not None]
    least, most = (max(one["tpot_s"][side] for one in timed) for side in (0, 1))
    found = row_of(report, is_evaluation=False).tpot_s
    assert found is not None
    assert least - ROUNDING <= found.longest <= most + ROUNDING
    longest = max(one["tokens"] for one in timed)
    assert max(one["tpot_s"][0] for one in timed if one["tokens"] == longest) <= found.longest


@pytest.mark.slow
def test_the_first_token_is_there_after_the_first_forward(trained: tuple[dict[str, Any], Report]) -> None:
    """By the time that it takes to sample it, and to learn whether that is the end."""
    seen, _ = trained
    assert all(one["first_forward_s"] < one["ttft_s"][1] for one in seen["requests"])
