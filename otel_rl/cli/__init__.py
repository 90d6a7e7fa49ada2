"""The command `otel-rl`: one file for each command; `ship` and `sidecar` share one."""

from __future__ import annotations

import gc
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from otel_rl.cli.console import EXIT_CODES, FAILED, complain, end_streams, prepare_help, prepare_streams, reason
from otel_rl.runs.cycles import collect_seldom
from otel_rl.version import __version__

SENT: Final = "Exit code: 0 all was sent; 1 something remains; 2 wrong usage; 3 another sidecar does it."
COMPARED: Final = (
    "Exit code: 0 done; 1 a condition of --fail-on holds, or failed; 2 wrong usage; 3 no such run, or nothing to "
    "compare; 4 a condition of --fail-on cannot be judged."
)
WATCHED: Final = (
    "Exit code: 0 the run has ended without such a finding; 4 a warning; 5 an alarm; 1 failed; 2 wrong usage; 3 no "
    "such run began; 130 interrupted."
)
COMMANDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "run": (
        "run",
        {
            "epilog": "Exit code: that of CMD (128 + signal when a signal killed it); 126 or 127 when CMD cannot be "
            "started; 2 wrong usage.",
            "context_settings": {"ignore_unknown_options": True, "allow_interspersed_args": False},
        },
    ),
    "demo": ("demo", {"epilog": EXIT_CODES}),
    "report": ("report", {"epilog": EXIT_CODES}),
    "view": ("view", {"epilog": EXIT_CODES}),
    "compare": ("comparison", {"epilog": COMPARED}),
    "watch": ("watch", {"epilog": WATCHED}),
    "query": ("query", {"epilog": EXIT_CODES}),
    "stacks": ("stacks", {"epilog": EXIT_CODES}),
    "export": ("export", {"epilog": EXIT_CODES}),
    "ship": ("sidecar", {"epilog": f"{EXIT_CODES[:-1]}; with --follow: another sidecar sends it."}),
    "sidecar": ("sidecar", {"epilog": SENT}),
    "doctor": ("doctor", {"epilog": "Exit code: 0 nothing is wrong; 1 something is; 2 wrong usage; 3 no such run."}),
    "stack": ("stack", {}),
}
"""By name: its module, and what Typer is to know of it."""


class Commands(TyperGroup):
    """Imports a command when it is asked for: a training waits for what `otel-rl run` imports, and numpy has threads.

    These would get signals that `otel-rl run` passes on.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, options = COMMANDS[cmd_name]
        command = getattr(import_module(f"otel_rl.cli.commands.{module}"), cmd_name)
        if not isinstance(command, typer.Typer):
            function, command = command, typer.Typer(add_completion=False, rich_markup_mode="markdown")
            command.command(cmd_name, **options)(function)
        return typer.main.get_command(command)


app = typer.Typer(
    name="otel-rl",
    cls=Commands,
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


def _end(number: int, frame: FrameType | None) -> None:
    """End by a signal as by an exception: a terminal has its cursor back, and what was made for a while goes."""
    sys.exit(128 + number)


def main() -> None:
    """Run the command line; what goes wrong with files, encodings or memory is one sentence and exit code 1."""
    code: str | int | None = FAILED
    collect_seldom()
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
    gc.freeze()  # the interpreter looks for cycles once more
    sys.exit(code)
