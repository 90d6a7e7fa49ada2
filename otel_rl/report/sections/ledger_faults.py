"""The correctness ledger: what the stages of a step disagree about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from otel_rl.report.data.details import Ledger, LedgerMismatch
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Report
from otel_rl.report.section import Block, Line, Section, rank_name
from otel_rl.runs.format import listed, plural

MOST_LINES: Final = 24


def _blocks(report: Report) -> list[Block]:
    lines = []
    for (fault, boundary, ranks, of_ranks), ones in _by_fault(report.ledger).items():
        who = listed([rank_name(report, one) for one in ranks]) + (f" of {of_ranks} ranks" if of_ranks > 1 else "")
        steps = _steps([one.step for one in ones])
        lines.append(f"{fault}, {boundary}: {who}{sample_names(ones)}, {steps}")
    left = len(lines) - MOST_LINES
    lines[MOST_LINES:] = [f"and {plural(left, 'more kind')}: otel-rl report RUN --json lists them"] if left > 0 else []
    return [Line(f"correctness: {line}", "warning") for line in lines]


def sample_names(ones: Sequence[LedgerMismatch]) -> str:
    """Name the first sample that has a fault, and count the others, after the ranks."""
    first = next((sample for one in ones for sample in one.samples), "")
    others = sum(one.num_samples for one in ones) - 1
    more = f" and {plural(others, 'more sample')}" if others > 0 else ""
    return f", {first}{more}" if first else ""


def _by_fault(found: Ledger) -> dict[tuple[str, str, tuple[Rank, ...], int], list[LedgerMismatch]]:
    groups: defaultdict[tuple[str, str, tuple[Rank, ...], int], list[LedgerMismatch]] = defaultdict(list)
    for one in found.mismatches:
        groups[one.fault, one.boundary, tuple(one.ranks), one.of_ranks].append(one)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _steps(steps: Sequence[int]) -> str:
    ranges: list[list[int]] = []
    for step in sorted(set(steps)):
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    names = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return f"step{'s' if len(set(steps)) > 1 else ''} {', '.join(names)}"


LEDGER: Final = Section(title="Correctness", blocks=_blocks)
