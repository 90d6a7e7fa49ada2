"""What each rank generated and trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Report, WorkRow
from otel_rl.report.format import count
from otel_rl.report.read.span_attributes import WorkSums
from otel_rl.report.section import Block, Section, Table, foremost, more, notes, rank_name

if TYPE_CHECKING:
    from otel_rl.report.source import Source

NOTE: Final = "As generated for training; padding and trained tok. (those the loss uses) of all forwards."
ENVIRONMENT_NOTE: Final = "env.: tokens that tools or an environment wrote into the responses."


def _rows(source: Source) -> list[WorkRow]:
    sums: dict[Rank, WorkSums] = {}
    for record in source.averaged.finished:
        sums[record.rank] = sums.get(record.rank, WorkSums()).plus(record.work)
    return [
        WorkRow(
            role=rank.role,
            rank=rank.rank,
            samples=work.samples,
            prompt_tokens=work.prompts,
            response_tokens=work.responses,
            environment_tokens=work.environment_tokens,
            padding_tokens=work.padding,
            train_tokens=work.train_tokens,
        )
        for rank, work in sorted(sums.items())
    ]


def _blocks(report: Report) -> list[Block]:
    if not any(row.samples or row.train_tokens or row.response_tokens for row in report.work):
        return []
    has_environment = any(row.environment_tokens for row in report.work)
    environment = ["env."] if has_environment else []
    name = "with spans" if report.unseen_steps else "in all steps"
    table = Table.of(name, "samples", "prompt tok.", "response tok.", *environment, "padding", "trained tok.")
    shown = foremost(report.work, lambda row: -row.train_tokens)
    for row in shown:
        numbers = [row.samples, row.prompt_tokens, row.response_tokens]
        numbers += [row.environment_tokens] if has_environment else []
        cells = ["-" if value is None else count(value) for value in (*numbers, row.padding_tokens, row.train_tokens)]
        table.add(rank_name(report, row), *cells)
    note = f"{NOTE} {ENVIRONMENT_NOTE}" if has_environment else NOTE
    return [table, *more(len(report.work) - len(shown)), *notes(note)]


WORK: Final = Section(title="Samples and tokens", data={"work": _rows}, blocks=_blocks)
