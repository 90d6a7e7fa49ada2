"""`otel-rl stacks`: where the processes of a live run are in their code."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Final

import typer

from otel_rl.cli.console import FAILED, RunName, leave, opened
from otel_rl.runs.format import printable, seconds
from otel_rl.stalls.bounds import StallBounds
from otel_rl.stalls.chain import Link, Situation
from otel_rl.stalls.finder import newest_attempt
from otel_rl.stalls.inspect_process import evidence_of
from otel_rl.stalls.members import Process, find_here
from otel_rl.stalls.sentences import chain_of, place_of, what_of

AT_ONCE: Final = 8


def stacks(
    run: RunName = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only the processes of this rank.")] = None,
) -> None:
    """Show the open stages and the Python stacks of the processes of a run on this machine, without stopping them.

    A process answers by itself. Where its interpreter is held, for example by a regular expression, its stacks are
    written by a handler in C, and `py-spy` reads those of a stopped one, if it is installed.
    """
    path = opened(run).path
    everyone = newest_attempt(find_here(path))
    situation = Situation(everyone, StallBounds.for_readers())
    for stall in situation.stalls():
        typer.echo(chain_of(stall) + "\n")
    asked = [one for one in everyone if one.is_local and one.state != "dead" and rank in (None, one.page.rank)]
    if not asked:
        which = "no process" if rank is None else f"no process of rank {rank}"
        leave(f"{which} of {path.name} runs on this machine; stacks can be read while a run goes on", FAILED)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for process, evidence in zip(asked, pool.map(evidence_of, asked), strict=True):
            typer.echo("\n".join([*_head(process, situation), *map(printable, evidence.splitlines()), ""]))


def _head(process: Process, situation: Situation) -> Iterator[str]:
    links = [link for link in situation.links if link.process is process]
    yield f"== {place_of(process)} =="
    yield from map(_line, links)


def _line(link: Link) -> str:
    normally = "" if link.bound.normal_s is None else f" (normally {seconds(link.bound.normal_s)})"
    return f"In {what_of(link)} for {seconds(link.age_s)}{normally}"
