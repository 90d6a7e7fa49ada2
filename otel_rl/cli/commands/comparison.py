"""`otel-rl compare`: what became slower, larger, less stable or worse from one run to another."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from otel_rl.cli.commands.report import check_drawable, save_page
from otel_rl.cli.console import FAILED, NOT_FOUND, RUN, WRONG_USAGE, leave, opened, stderr, stdout
from otel_rl.compare.compare_blocks import blocks_of
from otel_rl.compare.comparing import RunRows, compare_runs
from otel_rl.compare.conditions import ConditionError, judge, parse
from otel_rl.compare.data import Comparison
from otel_rl.journal.read import Run
from otel_rl.report import cache
from otel_rl.report.build import build_with_course
from otel_rl.report.reading import Progress
from otel_rl.report.schema import to_json
from otel_rl.report.terminal import laid_out
from otel_rl.report.to_markdown import blocks_to_markdown
from otel_rl.runs.format import printable

NOT_JUDGED: Final = 4


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"The run before. {RUN}")],
    b: Annotated[str, typer.Argument(metavar="B", help="The run after, named likewise.")],
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            metavar="CONDITION",
            help='Exit with 1 if it holds: "step_time > 5%", "rl.reward.score < -0.1". May be repeated. Without it: '
            "no condition.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document for scripts.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for issues and chats.")] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page of both runs for a browser. Without it: no page."),
    ] = None,
) -> None:
    """Show what became slower, larger, less stable or worse from run A to run B, stage by stage and number by number.

    A change is named if it is larger than the noise of the steps, and large enough to matter. The project's
    docs/compare.md lists the names for --fail-on and how numbers are compared, docs/compare.schema.json the JSON.
    """
    if json and markdown:
        raise typer.BadParameter("--json and --markdown exclude each other")
    try:
        bounds = [parse(one) for one in fail_on or ()]
        runs = opened(a), opened(b)
        if html is not None:
            check_drawable()
        first, second = map(_rows, runs)
        comparison = compare_runs(first, second)
        comparison = replace(comparison, conditions=judge(bounds, comparison))
    except ConditionError as error:
        leave(str(error), WRONG_USAGE)
    if html is not None:
        from otel_rl.compare.both_runs import to_html

        save_page(html, to_html(first, second, comparison))
    if json:
        typer.echo(to_json(comparison))
    elif markdown:
        typer.echo(blocks_to_markdown(blocks_of(comparison)), nl=False)
    else:
        console = stdout()
        console.print(laid_out(blocks_of(comparison), console.width), highlight=False)
    raise typer.Exit(_code(comparison))


def _code(comparison: Comparison) -> int:
    results = {one.holds for one in comparison.conditions}
    if True in results:
        return FAILED
    if not comparison.has_common_numbers:
        return NOT_FOUND
    return NOT_JUDGED if None in results else 0


def _rows(run: Run) -> RunRows:
    reading, console, progress = cache.load(run), stderr(), Progress()
    with console.status(f"reading {printable(run.path.name)}") if console.is_terminal else nullcontext():
        reading.read(progress)
    cache.save(run, reading)
    return RunRows(*build_with_course(run, time.time_ns(), reading))
