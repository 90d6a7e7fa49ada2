"""The panel of samples: by step, then group, then answer; texts where the user had them recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from otel_rl.report.data.course import Course, SampleCourse, SampleRow, SampleStep
from otel_rl.report.data.report import Report
from otel_rl.report.page.figure import Foldout, Foldouts
from otel_rl.report.section import Block, Column, Line, Table, rank_name
from otel_rl.runs.format import brief, count, listed, plural

MOST_TEXT: Final = 600_000
"""Characters of all texts together."""
LEAST_TEXT: Final = 200
LONGEST_TEXT: Final = 20_000
ENDS: Final = {"length": "cut", "abort": "aborted", "timeout": "timed out"}
BAD_ENDS: Final = ("abort", "timeout", "error")


def sample_foldouts(report: Report, course: Course) -> Foldouts | None:
    """Return the samples of chosen steps, and what stands out among all; None without any."""
    samples = course.samples
    if not samples.count:
        return None
    functions = sorted({name for step in samples.steps for row in step.rows for name in row.rewards})
    shown = [*samples.extremes.values(), *(row for step in samples.steps for row in step.rows)]
    texts = [text for row in shown for text in (row.prompt, row.response) if text]
    most = max(LEAST_TEXT, min(LONGEST_TEXT, MOST_TEXT // max(1, len(texts))))
    longest = samples.extremes.get("longest")
    title = f"Answers have up to {count(longest.length)} tokens" if longest else "Samples"
    if longest:
        title += f": the longest is {_name(longest)} of step {longest.step}"
    return Foldouts(
        title=title,
        blocks=list(_stands_out(report, course, functions)),
        folds=[*_extreme_texts(samples, most), *(_step(report, one, functions, most) for one in samples.steps)],
    )


def _name(row: SampleRow) -> str:
    return f"sample {row.id}" if row.id else f"a sample of {row.role} {row.rank}"


def _stands_out(report: Report, course: Course, functions: Sequence[str]) -> Iterator[Block]:
    samples = course.samples
    if samples.extremes:
        table = Table([Column("", "name"), *(Column(head, kind) for head, kind, _ in _columns(report, functions))])
        for what, row in samples.extremes.items():
            table.add(what, *_cells(report, functions, row))
        yield table
    ends = listed([f"{count(number)} {ENDS.get(end, end)}" for end, number in samples.ends.items()], most=6)
    of = f"{plural(samples.count, 'sample')} of {plural(samples.of_steps, 'step')}"
    yield Line(f"{of} have a record{f': {ends}' if ends else ''}.", "note")
    if samples.discarded:
        why = listed([f"{count(number)} {reason}" for reason, number in samples.discarded.items()], most=6)
        yield Line(f"Not trained on: {why}.", "warning")
    yield Line(_left_out(course), "note")


def _extreme_texts(samples: SampleCourse, most: int) -> Iterator[Foldout]:
    """Yield the texts of what stands out, of whatever steps, each once."""
    said = {what: row for what, row in samples.extremes.items() if row.prompt or row.response}
    rows = list({id(row): row for row in said.values()}.values())
    inner = [
        Foldout(
            title=f"{', '.join(what for what, one in said.items() if one is row)}: {_name(row)} of step {row.step}",
            inner=[
                Foldout(title=kind, text=_cut(text, most))
                for kind, text in (("prompt", row.prompt), ("answer", row.response))
                if text
            ],
        )
        for row in rows
    ]
    if inner:
        yield Foldout(title="Texts of what stands out", inner=inner)


def _left_out(course: Course) -> str:
    samples = course.samples
    shown = sum(len(step.rows) for step in samples.steps)
    steps = plural(len(samples.steps), "step")
    said = f"This page has {count(shown)} of them, of {steps}: those with a timeline, or the last before with samples."
    if samples.is_part:
        said += " The run has more records than were read; what stands out is of these steps alone."
    if any(row.kept for step in samples.steps for row in step.rows):
        said += " Of steps with too many samples only some have a record (OTEL_RL_SAMPLE_RECORDS)."
    return said


def _step(report: Report, step: SampleStep, functions: Sequence[str], most: int) -> Foldout:
    table = Table([Column(head, kind) for head, kind, _ in _columns(report, functions)])
    for row in step.rows:
        is_bad = bool(row.error) or row.finish in BAD_ENDS
        _, *cells = _cells(report, functions, row)
        table.add("", *cells, severity="alarm" if is_bad else "")
    parts = [
        f"Step {step.step}: {plural(step.count, 'sample')}",
        f"{plural(step.groups, 'group')}" if step.groups else "",
        "" if math.isnan(step.mean_reward) else f"mean reward {brief(step.mean_reward)}",
        "" if step.longest < 0 else f"longest {count(step.longest)} tokens",
    ]
    left = step.count - len(step.rows)
    return Foldout(
        title=", ".join(filter(None, parts)) + (f"; {count(left)} are not in this page" if left else ""),
        name=f"samples-{step.step}",
        trace=step.trace,
        blocks=[table],
        inner=[
            fold for group, rows in groupby(step.rows, attrgetter("group")) for fold in _texts(group, list(rows), most)
        ],
    )


def _texts(group: str, rows: Sequence[SampleRow], most: int) -> Iterator[Foldout]:
    """Return what a group was asked and answered; a prompt that all answers share stands there once."""
    if not any(row.prompt or row.response for row in rows):
        return
    prompts = {row.prompt for row in rows}
    is_shared = len(prompts) == 1
    inner = [Foldout(title="prompt", text=_cut(rows[0].prompt, most))] if is_shared and rows[0].prompt else []
    for row in rows:
        if row.prompt and not is_shared:
            inner.append(Foldout(title=f"prompt of {_name(row)}", text=_cut(row.prompt, most)))
        if row.response:
            reward = "" if row.reward is None else f", reward {brief(row.reward)}"
            inner.append(Foldout(title=f"answer of {_name(row)}{reward}", text=_cut(row.response, most)))
    yield Foldout(title=f"Texts of group {group}" if group else "Texts", inner=inner)


def _cut(text: str, most: int) -> str:
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]}\n({plural(left, 'further character')})"


def _columns(report: Report, functions: Sequence[str]) -> list[tuple[str, Any, Callable[[SampleRow], str]]]:
    """Return head, kind and text of each column; one without any text is left out when it is drawn."""
    number = {
        "prompt tokens": "prompt_tokens", "response tokens": "response_tokens", "tool tokens": "environment_tokens",
        "turns": "turns", "tool calls": "tool_calls", "weights version": "policy_version",
    }  # fmt: skip
    return [
        ("step", "number", lambda row: str(row.step)),
        ("group", "fact", lambda row: row.group),
        ("sample", "fact", lambda row: row.id),
        ("reward", "number", lambda row: _brief(row.reward)),
        *((name, "number", _reward_of(name)) for name in functions),
        ("advantage", "number", lambda row: _brief(row.advantage)),
        *((head, "number", _count_of(key)) for head, key in number.items()),
        ("end", "fact", lambda row: ENDS.get(row.end, row.end)),
        ("not trained on", "fact", lambda row: row.discarded),
        ("kept as", "fact", lambda row: row.kept),
        ("rank", "fact", lambda row: rank_name(report, row)),
        ("span", "fact", lambda row: row.span),
    ]


def _cells(report: Report, functions: Sequence[str], row: SampleRow) -> list[str]:
    return [text(row) for _, _, text in _columns(report, functions)]


def _brief(value: float | None) -> str:
    return "" if value is None else brief(value)


def _reward_of(name: str) -> Callable[[SampleRow], str]:
    return lambda row: _brief(row.rewards.get(name))


def _count_of(key: str) -> Callable[[SampleRow], str]:
    def text(row: SampleRow) -> str:
        value = getattr(row, key)
        return "" if value is None else count(value)

    return text
