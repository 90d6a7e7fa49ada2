"""`otel-rl doctor`: what is installed, which settings win, whether recording would work."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from otel_rl.cli.checks import (
    NO_FRAMEWORK,
    Check,
    absent,
    compiled,
    hook,
    installed,
    integrations,
    journal_root,
    protobuf,
    recorded,
    redaction,
    rules_changed,
    settings_rows,
    standard_variables,
    writers,
)
from otel_rl.cli.collector_own import collectors
from otel_rl.cli.console import FAILED, RUN, opened, stdout
from otel_rl.cli.shipping import HONOURED, sending, sent
from otel_rl.config import root
from otel_rl.report.terminal import GOOD, HEADING, NOTE, WARNING, plain_table
from otel_rl.runs.format import printable

MARKS = {"ok": ("✓", "+", GOOD), "note": ("·", "-", NOTE), "wrong": ("✗", "x", WARNING)}
"""The second where the encoding lacks the first."""
NOT_YET: Final = (
    "No framework is installed in this Python: only what you open yourself (otel_rl.step, otel_rl.stage) is recorded."
)


def doctor(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help=f"{RUN} Without it: only this machine is checked, no run.")
    ] = None,
) -> None:
    """Show what is installed, which settings are used and where each comes from, and whether recording works here.

    If an endpoint is set, doctor asks that Collector (port 8888 of its host, or OTEL_RL_OWN) what it lost and what
    waits in it. With RUN, it also says how many records the run holds, what was lost or damaged, which of its
    processes live, and, of a run of verl, which recorded nothing. Each line begins with ✓ (fine), · (worth knowing) or
    ✗ (wrong), in ASCII with +, - or x. Values that may be secret are never printed.
    """
    console = stdout()
    found = opened(run) if run is not None else None
    runs = root().absolute() if found is None else found.path.parent
    sections = {
        "installed": installed(),
        "integrations": integrations(),
        "settings": [*settings_rows(), *hook(), *redaction()],
        "OpenTelemetry variables": standard_variables(HONOURED),
        "rules": rules_changed(runs),
        "sending": [*sending(), *collectors()],
        "recording": [protobuf(), compiled(), *journal_root(root().absolute())],
    }
    if found is not None:
        sections[f"run {found.path}"] = [*recorded(found), *sent(found), *writers(found), *absent(found)]
    for title, findings in sections.items():
        _print(console, title, findings)
    wrong = [finding for findings in sections.values() for finding in findings if finding.state == "wrong"]
    if wrong:
        names = dict.fromkeys(printable(finding.name) for finding in wrong)
        console.print(Text(f"{len(wrong)} wrong: " + "; ".join(names), style=WARNING))
        raise typer.Exit(FAILED)
    if any(finding.name == NO_FRAMEWORK for finding in sections["integrations"]):
        console.print(Text(NOT_YET, style=WARNING))
    else:
        console.print(Text("Nothing is wrong.", style=GOOD))


def _print(console: Console, title: str, findings: list[Check]) -> None:
    if not findings:
        return
    console.print(Text(printable(title), style=HEADING))
    table = plain_table()
    table.show_header = False
    table.add_column("")
    table.add_column("", overflow="fold")
    table.add_column("", overflow="fold")
    for finding in findings:
        sign, ascii_sign, style = MARKS[finding.state]
        mark = sign if console.encoding.startswith("utf") else ascii_sign
        detail = Text(printable(finding.detail), style=NOTE if finding.state == "note" else "")
        table.add_row(Text(mark, style=style), printable(finding.name), detail)
    console.print(table)
    console.print()
