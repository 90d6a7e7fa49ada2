"""Whether the ranks call their steps by the same numbers: what is compared between ranks is matched by them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from rich.text import Text

from otel_rl.analysis.steps import Name, disagreement
from otel_rl.journal.read import Journal
from otel_rl.report.data.report import Loss, Rank, RankStep, Report, StepDisagreement
from otel_rl.report.format import listed, plural
from otel_rl.report.read.collect import StepRecord
from otel_rl.report.terminal.style import WARNING, rank_name


def disagreements(
    records: Iterable[StepRecord], journals: Iterable[Journal], losses: Iterable[Loss]
) -> list[StepDisagreement]:
    """Compare the ranks of each attempt and role by the order of their steps.

    Where spans were lost, or the size cap has removed old ones, nothing is said: the order would have holes. A step in
    which a process died is not compared: that it was open is journaled before the spans that ended until then.
    """
    is_lossy = any(loss.what == "dropped" and loss.signal == "traces" for loss in losses)
    if is_lossy or any(journal.spans_known_from or journal.damage for journal in journals):
        return []
    names: defaultdict[tuple[str, str], defaultdict[Rank, list[Name]]] = defaultdict(lambda: defaultdict(list))
    ended = (record for record in records if not record.is_open)
    for record in sorted(ended, key=lambda record: record.step):
        names[record.attempt, record.rank.role][record.rank].append((record.step.loop, record.step.iteration))
    rows: list[StepDisagreement] = []
    for (attempt, role), of_rank in names.items():
        found = disagreement(of_rank)
        if found is not None:
            first = [RankStep(rank.rank, *name) for rank, name in sorted(found.first.items())]
            rows.append(
                StepDisagreement(attempt=attempt, role=role, steps=found.steps, compared=found.compared, first=first)
            )
    return rows


def disagreement_lines(report: Report) -> Text | None:
    """Name the ranks whose numbers are not those of most; None where all agree."""
    lines = [Text(_line(report, row), style=WARNING) for row in report.disagreements]
    return Text("\n").join(lines) if lines else None


def _line(report: Report, row: StepDisagreement) -> str:
    ((usual, _),) = Counter(map(_step, row.first)).most_common(1)
    known = next(one.rank for one in row.first if _step(one) == usual)
    others = [f"{_step(one)} on {rank_name(report, row.role, one.rank)}" for one in row.first if _step(one) != usual]
    return (
        f"Ranks call {row.steps} of {plural(row.compared, 'step')} by different numbers: what "
        f"{rank_name(report, row.role, known)} calls {usual} is {listed(others)}. Ranks are compared by these numbers: "
        "do not trust what is said of them."
    )


def _step(one: RankStep) -> str:
    return f"step {one.iteration}" if one.loop == "train" else f"step {one.iteration} of {one.loop}"
