"""What every command shares: exit codes, where output goes, how a command fails, which run is meant."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.console import Console

from otel_rl.config import Config, ConfigurationError, root
from otel_rl.config.parsers import expanded_path
from otel_rl.integrations import check_names
from otel_rl.journal.files import NAME
from otel_rl.journal.read import JournalNotFound, Run
from otel_rl.runs.format import printable
from otel_rl.runs.locate import find_run, is_fallback, open_whole
from otel_rl.runs.whole_file import replacing

FAILED: Final = 1
WRONG_USAGE: Final = 2
NOT_FOUND: Final = 3
EXIT_CODES: Final = "Exit code: 0 done; 1 failed; 2 wrong usage; 3 no such run, or nothing was recorded."

SIZES: Final = ("COLUMNS", "LINES")
"""Variables with the size of the terminal."""
MOST_DIGITS: Final = 4
USUAL_WIDTH: Final = 80
RUN: Final = "Name of a run below OTEL_RL_DIR (./otel_rl_runs where that is not set), or the path of its directory."
RunName = Annotated[str | None, typer.Argument(metavar="RUN", help=f"{RUN} Without it: the run written last.")]


def _given(text: str) -> Path | None:
    """Read a path, with the ``~`` that a shell leaves in ``--dir=~/runs``; an empty one is none."""
    return expanded_path(text) if text else None


Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir", parser=_given, metavar="PATH", help="Where to keep runs. Without it: OTEL_RL_DIR, or ./otel_rl_runs."
    ),
]


def _to_write(text: str) -> Path | None:
    """Read what to write; `-` is standard output, as other programs have it, and no file of that name."""
    return None if text == "-" else expanded_path(text)


def output_option(text: str) -> Any:
    """Return the option that names what to write; None is standard output."""
    return typer.Option("--output", "-o", parser=_to_write, metavar="PATH", help=text)


def stdout() -> Console:
    """Make a console for results; no text of ours is markup."""
    return _console(is_stderr=False)


def stderr() -> Console:
    """Make a console for everything that is no result."""
    return _console(is_stderr=True)


def _console(*, is_stderr: bool) -> Console:
    environ = {name: value for name, value in os.environ.items() if name not in SIZES or _is_size(value)}
    return Console(stderr=is_stderr, highlight=False, markup=False, emoji=False, _environ=environ)


def _is_size(text: str) -> bool:
    """Return whether a terminal can be so large: rich believes a variable, and prints nothing into a width of 0."""
    return text.isdecimal() and len(text) <= MOST_DIGITS and int(text) > 0


def prepare_help() -> None:
    """Let the help, whose console typer makes, have a usual width where ``COLUMNS`` has none."""
    if not _is_size(os.environ.get("COLUMNS", "1")):
        from typer import rich_utils

        rich_utils.MAX_WIDTH = USUAL_WIDTH


def prepare_streams() -> None:
    """Replace characters that the encoding of a stream lacks, and discard what goes to a closed one (`>&-`)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def end_streams() -> None:
    """Write what is left and drop what cannot be written: the interpreter's own attempt would end with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            drop(stream.fileno())


def drop(descriptor: int) -> None:
    """Discard everything that is still written to a descriptor."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def leave(message: str, code: int) -> NoReturn:
    """End a command with one line that says why it fails."""
    complain(message)
    raise typer.Exit(code)


def complain(message: str) -> None:
    """Print one line on standard error, if that can be written."""
    with suppress(OSError, SystemExit):  # rich leaves when a pipe is broken
        stderr().print(f"otel-rl: {printable(message)}", soft_wrap=True)


def reason(error: OSError | UnicodeError | MemoryError) -> str:
    """Return what went wrong, without the name of an exception."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for this"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def write_file(path: Path, texts: Iterable[str]) -> None:
    """Write lines into a file, or end the command with why it cannot be written."""
    try:
        with replacing(path) as part, part.open("w", encoding="utf-8") as file:
            file.writelines(f"{text}\n" for text in texts)
    except OSError as error:
        leave(f"cannot write {path}: {error.strerror}", FAILED)


def write_stdout(texts: Iterable[str]) -> bool:
    """Print lines; return whether all were read: a reader that goes away (`| head`) ends the command silently."""
    try:
        for text in texts:
            sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout.fileno())
        return False
    return True


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
        path = find_run(name, root().absolute())
        run = open_whole(path)
    except JournalNotFound as error:
        leave(str(error), NOT_FOUND)
    for line in fallback_lines(run):
        complain(line)
    if NAME.fullmatch(path.name) and path.is_file():
        complain(f"{path} is only one file of a run; to read all of them, give {path.parent}")
    return run


def fallback_lines(run: Run) -> list[str]:
    """Return a line for each part of a run that is not where runs are kept."""
    said = f"{run.path} is in the folder for temporary files: the directory of its runs could not be written"
    folders = {segment.path.parent for journal in run.journals for segment in journal.segments}
    parts = sorted(folders - {run.path, run.path.parent})
    return [said] * is_fallback(run.path) + [f"a part of it is in {folder}: its disk was full" for folder in parts]
