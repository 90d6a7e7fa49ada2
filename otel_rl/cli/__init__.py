"""The command `otel-rl`: one file for each command; `ship` and `sidecar` share one."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from otel_rl.cli.commands.demo import demo
from otel_rl.cli.commands.doctor import doctor
from otel_rl.cli.commands.export import export
from otel_rl.cli.commands.report import report
from otel_rl.cli.commands.run import run
from otel_rl.cli.commands.sidecar import ship, sidecar
from otel_rl.cli.commands.stack import stack
from otel_rl.cli.commands.stacks import stacks
from otel_rl.cli.console import EXIT_CODES, FAILED, complain, end_streams, prepare_help, prepare_streams, reason
from otel_rl.version import __version__

app = typer.Typer(
    name="otel-rl",
    help="See what took the time and memory of an RL training run, how its reward went, and which rank is slow.\n\n"
    "Start with `otel-rl demo`, or record your own training with `otel-rl run -- python train.py`, then read it with "
    "`otel-rl report`. `otel-rl COMMAND --help` explains a command; `python -m otel_rl` is the same as `otel-rl`.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"otel-rl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Hold the options before the command."""


app.command(
    epilog="Exit code: that of CMD (128 + signal when a signal killed it); 126 or 127 when CMD cannot be started; "
    "2 wrong usage.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)(run)
app.command(epilog=EXIT_CODES)(demo)
app.command(epilog=EXIT_CODES)(report)
app.command(epilog=EXIT_CODES)(stacks)
app.command(epilog=EXIT_CODES)(export)
app.command(epilog=f"{EXIT_CODES[:-1]}; with --follow: another sidecar sends it.")(ship)
app.command(epilog="Exit code: 0 all was sent; 1 something remains; 2 wrong usage; 3 another sidecar does it.")(sidecar)
app.add_typer(stack, name="stack")
app.command(epilog="Exit code: 0 nothing is wrong; 1 something is; 2 wrong usage; 3 no such run.")(doctor)


def _end(number: int, frame: FrameType | None) -> None:
    """End by a signal as by an exception: a terminal has its cursor back, and what was made for a while goes."""
    sys.exit(128 + number)


def main() -> None:
    """Run the command line; what goes wrong with files, encodings or memory is one sentence and exit code 1."""
    code: str | int | None = FAILED
    prepare_streams()
    prepare_help()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # who starts us may want it to be ignored
        signal.signal(signal.SIGTERM, _end)
    try:
        app()
    except SystemExit as end:
        code = end.code
    except (OSError, UnicodeError, MemoryError) as error:
        complain(reason(error))
    end_streams()
    sys.exit(code)
