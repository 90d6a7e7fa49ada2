"""`otel-rl sidecar` and `otel-rl ship`: send what a run's journals hold to a Collector."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated, Final, NoReturn

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from otel_rl.cli.console import FAILED, RUN, WRONG_USAGE, RunName, complain, leave, opened, stderr
from otel_rl.config import ConfigurationError, root
from otel_rl.guard import errors
from otel_rl.journal.filesystem import make_directory
from otel_rl.journal.frame import Signal
from otel_rl.journal.identity import WriterIdentity
from otel_rl.process.identity import folder_name
from otel_rl.sidecar import owner
from otel_rl.sidecar.main import ANOTHER, TOUCH_S, Sidecar
from otel_rl.sidecar.settings import Target, ignored, targets
from otel_rl.sidecar.ship_node import Node
from otel_rl.version import __version__

WEEK_S: Final = 604_800.0
Claims = dict[str, owner.Owner | None]
"""The claim to ship what was written under each boot id; None if another process has it."""


def sidecar(
    run: Annotated[str, typer.Argument(metavar="RUN", help=f"{RUN} It may not exist yet.")],
    stay: Annotated[
        bool,
        typer.Option(
            "--stay",
            help="Go on while nothing writes, or stand by while another sidecar ships, until SIGTERM; then send what "
            "is there and end. For a container.",
        ),
    ] = False,
) -> None:
    """Follow the journals that this node's processes write for a run, and send them until all of them are gone.

    Reads where to send from the standard OTEL_EXPORTER_OTLP_* variables. A training process starts it by itself where
    OTEL_EXPORTER_OTLP_ENDPOINT is set; start it by hand (or as a container) where processes must not start others.
    """
    wanted = _targets()
    directory = _written_to(run)
    make_directory(directory)
    complain(f"follows {directory}")
    _run(Sidecar(directory, wanted, stays=stay, is_by_hand=True, say=complain))


def ship(
    run: RunName = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on while the run writes, as the sidecar does, here in the foreground.")
    ] = False,
    give_up_s: Annotated[
        float,
        typer.Option(
            "--give-up", metavar="SECONDS", min=0.001, max=WEEK_S, help="End when nothing was accepted for so long."
        ),
    ] = 60.0,
) -> None:
    """Send what of a run has not been sent yet: after an outage that outlived the sidecar, or from another machine."""
    wanted = _targets()
    directory = opened(run).path
    if not directory.is_dir():
        leave(f"{directory} is one file; ship takes the directory of a run", WRONG_USAGE)
    if follow:
        _run(Sidecar(directory.absolute(), wanted, is_by_hand=True, say=complain))
    counts: Counter[tuple[Signal, str]] = Counter()
    goes_on = sent_all = True
    while goes_on:
        with _node(directory, wanted) as (node, claims):
            node.update()
            node.start()
            sent_all = _wait(node, claims, give_up_s)
        counts += node.counts()
        # A process that began after our last scan, and is gone, saw until now that one of us ships.
        goes_on = sent_all and any(claims.get(new.boot_id, new) for new in node.newcomers())
    for (signal, name), number in sorted(counts.items()):
        if number:
            typer.echo(f"{signal}: {number} {name.replace('_', ' ')}")
    if not sent_all:
        leave(f"{node.waiting} bytes were not sent ({node.failure or 'no answer'}); try again later", FAILED)


def _written_to(run: str) -> Path:
    """Return the directory into which the processes of a run write, or will.

    An existing directory with a journal is used as it is. Otherwise the name is spelled as trainers spell folders.
    """
    is_name = os.path.basename(run) == run and run not in (os.curdir, os.pardir)
    given = Path(os.path.abspath(run))
    if not run or not given.name:
        leave("RUN takes a name, or the path of a run's directory", WRONG_USAGE)
    if not is_name and os.path.isdir(given):
        return given
    directory = (root().absolute() if is_name else given.parent) / folder_name(given.name)
    return given if any(given.glob("*.otlp")) and not any(directory.glob("*.otlp")) else directory


def _run(sidecar: Sidecar) -> NoReturn:
    """Run the sidecar in the foreground, and end the command with its exit code."""
    code = sidecar.run()
    if code == ANOTHER:
        complain(f"another sidecar of this node ships {sidecar.directory} already")
    raise typer.Exit(code)


@contextmanager
def _node(directory: Path, wanted: tuple[Target, ...]) -> Iterator[tuple[Node, Claims]]:
    me = WriterIdentity.current("ship", 0, __version__)
    claims: Claims = {}

    def mine(writer: WriterIdentity) -> bool:
        if writer.boot_id not in claims:
            claims[writer.boot_id] = owner.claim_by_hand(directory, writer.boot_id, me, complain)
            if claims[writer.boot_id] is None:
                complain(f"a running sidecar already ships the records of {writer.host}; they are not sent here")
        return claims[writer.boot_id] is not None

    node = Node(directory, wanted, mine, complain)
    try:
        yield node, claims
    finally:
        node.stop(is_ours=_are_ours(claims))
        for claim in claims.values():
            if claim is not None:
                claim.release()


def _are_ours(claims: Claims) -> bool:
    """Show that we live; return whether no other process considered us dead and ships in our place."""
    return all([claim.touch() for claim in claims.values() if claim is not None])


def _wait(node: Node, claims: Claims, give_up_s: float) -> bool:
    """Show the progress and keep the claims; return whether all was sent."""
    total = unsent = node.waiting
    since = touched = monotonic()
    columns = (TextColumn("sending"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = stderr()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("send", total=total)
        while node.waiting or node.unclosed:
            sleep(0.2)
            node.update()
            if monotonic() - touched > TOUCH_S:
                touched = monotonic()
                if not _are_ours(claims):
                    leave("another process ships this run now, or it is gone: see otel-rl doctor", FAILED)
            now = node.waiting
            if now != unsent:
                unsent = now
                progress.update(task, completed=total - unsent)
            clock = monotonic()
            if not (unsent or node.failure or errors.get("ship traces")):
                since = clock  # the journals of the dead are being read, which may take long
            if clock - max(since, node.moved_at(node.writers)) > give_up_s:
                return False
    return True


def _targets() -> tuple[Target, ...]:
    try:
        found = targets()
    except ConfigurationError as error:
        leave(str(error), WRONG_USAGE)
    if not found:
        example = "OTEL_EXPORTER_OTLP_ENDPOINT, for example http://localhost:4317"
        leave(f"no endpoint is configured: set {example}", WRONG_USAGE)
    for name, why in ignored().items():
        complain(f"{name} is ignored: {why}")
    return found
