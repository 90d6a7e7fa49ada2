"""`otel-rl run`: record any training command without touching it."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from otel_rl.cli.child import run_child
from otel_rl.cli.console import Directory, complain, leave, settings_to_train
from otel_rl.cli.sending import send_rest, sending
from otel_rl.cli.stall_lines import shown_stalls
from otel_rl.config import LAUNCH, Config
from otel_rl.guard import guard
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.page import keep_unwritten
from otel_rl.journal.read import JournalNotFound, Run
from otel_rl.process.identity import folder_name, new_launch
from otel_rl.runs.locate import is_run, open_whole, recency, recorded_below, roots, written_at
from otel_rl.sidecar.start import Keeper

CANNOT_EXECUTE = 126
COMMAND_NOT_FOUND = 127
CLOCK_SLACK_S = 60.0
"""How far the clock may have been set meanwhile."""


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="CMD", help="The training command with its arguments, after `--`.")
    ],
    directory: Directory = None,
    run_id: Annotated[
        str, typer.Option("--run-id", help="Name of the run, and of its folder. Without it: made from date and time.")
    ] = "",
    integrations: Annotated[
        str,
        typer.Option(
            "--integrations",
            help="What to instrument, e.g. `trl,vllm`, each with what it needs (trl: transformers, accelerate, torch); "
            "`otel-rl doctor` lists what there is. Without it: whatever the command imports.",
        ),
    ] = "",
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only where the run lies, at the end; no report.")
    ] = False,
) -> None:
    """Run a training command and record it, its child processes and its ranks.

    Nothing in the command has to change: `otel-rl run -- torchrun --nproc-per-node 2 train.py`. Its output, its exit
    code and its signals stay its own. One line on standard error says at the start where the records go. When the
    command has ended, the report of the run goes there, too: only its head where all of it takes longer than 5 s.

    All starts of one program below it are one run: a restart by torchrun or by a loop of the shell is a further attempt
    of it. Other programs, and several at once, are runs of their own.

    SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and SIGCONT reach the command as often as without us: what was
    sent to us alone is passed on 0.5 s later; what was sent to the whole process group (Ctrl-C, `timeout`), or to every
    process of a job (SLURM), is not passed on once more.

    Where OTEL_EXPORTER_OTLP_ENDPOINT is set, a process beside it sends the records, and goes on when the command ends.

    A process is recorded when it is Python with otel_rl installed and was not started with -I, -E or -S. otel_rl starts
    in it with the first import of a framework that it knows, of OpenTelemetry or of otel_rl, which takes 0.3 s and 30
    MB. A Python that imports none of them starts 3 ms later and takes 1 MB more.

    Several may run at once in one directory: the report is of a run that processes of this command recorded, also those
    of another `otel-rl run` inside of it. It knows them by a mark in their environment; runs without any mark (of a
    command that cleans its environment) come after them, by time.
    """
    options = {"OTEL_RL_RUN_ID": run_id, "OTEL_RL_INTEGRATIONS": integrations}
    environ = {**os.environ, **{name: value for name, value in options.items() if value}}
    config = settings_to_train(environ)
    root = (directory or config.directory).absolute()
    launch = new_launch(environ)
    environ = {**child_environment(environ, root), LAUNCH: launch}
    started_ns = time.time_ns()
    if config.active and config.run_id and is_run(root / folder_name(config.run_id)):
        complain(f"the run {config.run_id} exists already; new records are added to it")
    if config.active and not quiet:
        complain(_begin(root, config, is_named_by_us=directory is not None))
    try:
        with sending(root, config.run_id, config, environ) as keeper, shown_stalls(root, launch, time.monotonic()):
            code = run_child(command, environ)
    except FileNotFoundError:
        leave(f"there is no command {command[0]!r}{_how(command)}", COMMAND_NOT_FOUND)
    except OSError as error:
        leave(f"cannot start {command[0]!r}: {error.strerror}{_how(command)}", CANNOT_EXECUTE)
    from otel_rl.cli.conclusion import conclude  # with numpy, whose threads would have got signals of the command

    with suppress(KeyboardInterrupt, SystemExit), guard("show what was recorded"):  # a broken pipe makes rich leave
        conclude(lambda: _sent_on(_recorded(root, started_ns, launch), keeper), root, launch, quiet=quiet)
    if code and config.active and not quiet:
        complain(f"the command ended with exit code {code}")
    raise typer.Exit(code)


def _begin(root: Path, config: Config, *, is_named_by_us: bool) -> str:
    """Return the line of the start: where the records go, and the command that shows them."""
    if config.run_id:
        path = root / folder_name(config.run_id)
        return f"records go to {path}; to watch the run: otel-rl report --live {shlex.quote(str(path))}"
    where = f"OTEL_RL_DIR={shlex.quote(str(root))} " if is_named_by_us else ""
    return f"records go below {root}; to watch the run: {where}otel-rl report --live"


def _recorded(root: Path, started_ns: int, launch: str) -> list[Run]:
    """Return the runs of a command, once their drivers have said that their loops are over."""
    from otel_rl.cli.driver_end import once_over  # with the report, for which no training waits

    runs = once_over(lambda: recorded_since(root, started_ns, launch))
    for run in runs:
        keep_unwritten(run.path)
    return runs


def _sent_on(runs: list[Run], keeper: Keeper | None) -> list[Run]:
    """Send what is left of the runs, and return them."""
    send_rest(keeper, [run.path for run in runs])
    return runs


def _how(command: list[str]) -> str:
    """Return how a script is run, if the command is one."""
    return f"; a script is run by Python: `otel-rl run -- python {command[0]}`" if command[0].endswith(".py") else ""


def child_environment(environ: Mapping[str, str], root: Path) -> dict[str, str]:
    """Make the environment in which Python processes instrument themselves."""
    autoload = str(files("otel_rl") / "autoload")
    before = environ.get("PYTHONPATH", "")
    is_there = before.split(os.pathsep)[0] == autoload
    return {
        **environ,
        "PYTHONPATH": before if is_there else os.pathsep.join(filter(None, (autoload, before))),
        "OTEL_RL_DIR": str(root),
    }


def recorded_since(root: Path, started_ns: int, launch: str = "") -> list[Run]:
    """Return the runs of a command: those of its launch, then those without any mark, the last written first.

    Of the latter, all into which a process that started after ``started_ns`` wrote. Runs that are still written come
    last: they are likely another command's. It also reads where runs go whose root cannot be written.
    """
    found: list[Run] = []
    since = time.monotonic() - (time.time_ns() - started_ns) / 1e9 - CLOCK_SLACK_S
    here = {path.name: path for path in recorded_below(root)}
    elsewhere = [path for place in roots(root)[1:] for path in recorded_below(place)]
    recent = [path for path in [*here.values(), *elsewhere] if written_at(path) >= since]
    # What a full disk sent elsewhere is the end of a run here, which is opened with it.
    recent = list(dict.fromkeys(here.get(path.name, path) for path in recent))
    for path in sorted(recent, key=recency, reverse=True):
        try:
            run = open_whole(path)
        except JournalNotFound:  # renamed since it was listed
            continue
        if _is_of(run, launch) or _is_unmarked(run, started_ns):
            found.append(run)
    return sorted(found, key=lambda run: (not _is_of(run, launch), run.alive()))


def _is_of(run: Run, launch: str) -> bool:
    """Return whether a process of a launch, or of one within it, recorded."""
    return bool(launch) and any(f"{writer.launch}/".startswith(f"{launch}/") for writer in _recorders(run))


def _is_unmarked(run: Run, started_ns: int) -> bool:
    """Return whether processes that started after a moment recorded, none of them of any launch."""
    return {""} == {writer.launch for writer in _recorders(run) if writer.created_ns >= started_ns}


def _recorders(run: Run) -> Iterator[WriterIdentity]:
    return (journal.identity for journal in run.journals if not journal.identity.is_sidecar)
