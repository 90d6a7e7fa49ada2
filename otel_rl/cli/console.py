"""What every command shares: exit codes, where output goes, how a command fails, which run is meant."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console

from otel_rl.config import Config, ConfigurationError, expanded_path, root
from otel_rl.integrations import check_names
from otel_rl.journal.files import NAME
from otel_rl.journal.read import JournalNotFound, Run
from otel_rl.report.format import printable
from otel_rl.runs.locate import find_run, is_fallback, open_whole

FAILED: Final = 1
WRONG_USAGE: Final = 2
NOT_FOUND: Final = 3
WIDTH: Final = 80
EXIT_CODES: Final = "Exit code: 0 done; 1 failed; 2 wrong usage; 3 no such run, or nothing was recorded."

RUN: Final = "Name of a run below OTEL_RL_DIR (./otel_rl_runs where that is not set), or the path of its directory."
RunName = Annotated[str | None, typer.Argument(metavar="RUN", help=f"{RUN} Without it: the run written last.")]


def _given(text: str) -> Path | None:
    """Read a path; an empty one is none: a script's variable that is not set.

    A shell leaves the ``~`` of ``--dir=~/runs`` to us.
    """
    return expanded_path(text) if text else None


Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir", parser=_given, metavar="PATH", help="Where to keep runs. Without it: OTEL_RL_DIR, or ./otel_rl_runs."
    ),
]


def stdout() -> Console:
    """Make a console for results; no text of ours is markup."""
    return Console(highlight=False, markup=False, emoji=False, width=_width())


def stderr() -> Console:
    """Make a console for everything that is no result."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False, width=_width())


def _width() -> int | None:
    """The width where COLUMNS=0 says that nobody knows it, of which rich (15.0) makes lines without a character."""
    return WIDTH if os.environ.get("COLUMNS") == "0" else None


def leave(message: str, code: int) -> NoReturn:
    """Say in one line why a command fails, and end it."""
    complain(message)
    raise typer.Exit(code)


def complain(message: str) -> None:
    """Say one line on standard error, where that can be written."""
    with suppress(OSError, SystemExit):  # rich leaves when a pipe is broken
        stderr().print(f"otel-rl: {printable(message)}", soft_wrap=True)


def reason(error: OSError | UnicodeError | MemoryError) -> str:
    """Say what went wrong without the name of an exception."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for this"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def settings_to_train(environ: Mapping[str, str] = os.environ) -> Config:
    """Read the settings of a training, or end the command with what is wrong with them: nothing would be recorded."""
    try:
        config = Config.from_env(environ)
        check_names(config.integrations, "OTEL_RL_INTEGRATIONS: ")
    except ConfigurationError as error:
        leave(str(error), WRONG_USAGE)
    return config


def opened(name: str | None) -> Run:
    """Open the run that a person means, or end the command."""
    try:
        path = find_run(name, absolute(root()))
        run = open_whole(path)
    except JournalNotFound as error:
        leave(str(error), NOT_FOUND)
    for line in fallback_lines(run):
        complain(line)
    if NAME.fullmatch(path.name) and path.is_file():
        complain(f"{path} is one file of a run, and what the others hold is not read; give {path.parent} for all of it")
    return run


def absolute(path: Path) -> Path:
    """Make a path absolute; it stays as it is where the working directory is gone."""
    try:
        return path.absolute()
    except OSError:
        return path


def fallback_lines(run: Run) -> list[str]:
    """Return what to say of a run that is not where runs are kept, as a whole or in part."""
    said = f"{run.path} is in the folder for temporary files: the directory of its runs could not be written"
    folders = {segment.path.parent for journal in run.journals for segment in journal.segments}
    parts = sorted(folders - {run.path, run.path.parent})
    return [said] * is_fallback(run.path) + [f"a part of it is in {folder}: its disk took no more" for folder in parts]
