"""`otel-rl stack up|down|status`: Collector, Jaeger and Prometheus on this machine, for a run to be sent to."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from otel_rl.cli.console import FAILED, Directory, complain, stderr, stdout
from otel_rl.config import root
from otel_rl.report.terminal import GOOD, NOTE, WARNING, plain_table
from otel_rl.runs.format import printable, seconds

if TYPE_CHECKING:
    from otel_rl.stack.control import ProgramStatus
    from otel_rl.stack.processes import Show

NOT_UP: Final = 3
DONE: Final = "Exit code: 0 done; 1 failed; 2 wrong usage."
HOW_IT_DOES: Final = (
    "Exit code: 0 all of it answers; 1 a part is dead or does not answer; 2 wrong usage; 3 it is not up."
)

stack = typer.Typer(
    name="stack",
    add_completion=False,
    help="Start, check and stop the backends on this machine: Collector, Jaeger, Prometheus, and Tempo where there "
    "is one.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@stack.command(epilog=DONE)
def up(
    directory: Directory = None,
    offset: Annotated[
        int,
        typer.Option(
            "--port-offset",
            metavar="N",
            min=0,
            max=41_000,
            show_default=False,
            help="Shift all ports by N, where others have them. Without it: the usual ones.",
        ),
    ] = 0,
) -> None:
    """Start the stack, wait until all of it answers, and say how to train into it.

    The programs are taken from the folder OTEL_RL_BACKENDS, from PATH, or from where `scripts/backends` put them; Tempo
    is the program that OTEL_RL_TEMPO_PROGRAM names, or the `tempo` on PATH, and may be absent. All of it listens on
    loopback only, and keeps its configurations, data and logs in `.stack` below the root of the runs. A second `up`
    finds it running.
    """
    from otel_rl.stack import control
    from otel_rl.stack.plan import Addresses
    from otel_rl.stack.programs import NO_TEMPO, TEMPO

    root = _root(directory)
    with _leaving_on_error(), _progress() as show:
        found, is_new = control.up(root, offset, show)
        rows = control.status(root)
    console = stdout()
    console.print(Text("The stack runs." if is_new else "The stack already runs.", style=GOOD))
    _print(rows)
    if all(row.name != TEMPO for row in rows):
        console.print(NO_TEMPO, soft_wrap=True)
    at = Addresses(found.offset)
    where = f" --dir {shlex.quote(printable(str(directory)))}" if directory else ""
    lines = (
        f"Train into it:  OTEL_EXPORTER_OTLP_ENDPOINT={at.url('grpc')} otel-rl run -- python train.py",
        f"See traces:     {at.url('jaeger')}",
        f"See metrics:    {at.url('prometheus')}",
        "                (those that scripts/backends builds have no web UI: collector/README.md)",
        f"End it:         otel-rl stack down{where}",
    )
    console.print("\n".join(lines), soft_wrap=True)  # to be copied


@stack.command(epilog=DONE)
def down(
    directory: Directory = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove its data and logs too.")] = False,
) -> None:
    """Stop the stack: what `up` started, and nothing else.

    Collector and Prometheus get SIGTERM, and SIGKILL after 10 s; Jaeger and Tempo SIGKILL at once. Prometheus and Tempo
    keep their data for the next `up`, Jaeger keeps its traces in memory only.
    """
    from otel_rl.stack import control

    root = _root(directory)
    with _leaving_on_error():
        ended = control.down(root, delete=delete)
    stdout().print(f"Stopped: {', '.join(ended)}." if ended else "The stack was not up.")
    if delete:
        stdout().print("Its data and logs are removed.")


@stack.command(epilog=HOW_IT_DOES)
def status(directory: Directory = None) -> None:
    """Show the parts of the stack, whether each answers, and since when it runs."""
    from otel_rl.stack import control

    with _leaving_on_error():
        rows = control.status(_root(directory))
    if not rows:
        stdout().print("The stack is not up; `otel-rl stack up` starts it.")
        raise typer.Exit(NOT_UP)
    _print(rows)
    if any(row.state != control.ANSWERS for row in rows):
        raise typer.Exit(FAILED)


def _root(directory: Path | None) -> Path:
    return (directory or root()).absolute()


def _print(rows: list[ProgramStatus]) -> None:
    from otel_rl.stack.control import ANSWERS

    table = plain_table()
    for column in ("program", "state", "address"):
        table.add_column(column, no_wrap=True)
    for column in ("pid", "age"):
        table.add_column(column, no_wrap=True, justify="right")
    for row in rows:
        state = Text(row.state, style=GOOD if row.state == ANSWERS else WARNING)
        age = "-" if row.age_s is None else seconds(row.age_s)
        table.add_row(printable(row.name), state, printable(row.address), str(row.pid), age)
    stdout().print(table)


@contextmanager
def _leaving_on_error() -> Iterator[None]:
    """End the command with the error of the stack, and the last lines of the log below it."""
    from otel_rl.stack.plan import StackError

    try:
        yield
    except StackError as error:
        complain(str(error))
        for line in error.lines:
            stderr().print(Text(f"  {printable(line)}", style=NOTE), soft_wrap=True)
        raise typer.Exit(FAILED) from None


@contextmanager
def _progress() -> Iterator[Show]:
    """Show on a terminal what each part does, with the time since it was started."""
    from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

    from otel_rl.stack.control import ANSWERS

    console = stderr()
    columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(name: str, state: str) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=1)
            progress.update(tasks[name], description=f"{name} {state}", completed=int(state == ANSWERS))

        yield show
