"""What `--help` tells a newcomer."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from otel_rl.cli import app
from tests.fixtures import commands

COMMANDS = commands()


def test_every_command_is_listed() -> None:
    """With how to begin."""
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).stdout
    expected = (*COMMANDS, "otel-rl run -- python train.py", "otel-rl COMMAND --help", "python -m otel_rl")
    assert [] == [name for name in expected if name not in text]
    assert {
        "run",
        "demo",
        "report",
        "view",
        "compare",
        "watch",
        "query",
        "export",
        "doctor",
        "ship",
        "sidecar",
        "stack",
        "stacks",
    } == set(COMMANDS)


@pytest.mark.parametrize(
    "command", ["run", "demo", "report", "view", "compare", "watch", "query", "export", "doctor", "ship", "sidecar"]
)
def test_every_option_says_what_happens_without_it(command: str) -> None:
    """Each argument and option that takes a value is required, shows its default or says it; exit codes are told."""
    valued = [row for row in COMMANDS[command].params if not getattr(row, "is_flag", False) and row.name != "help"]
    told = [row.required or "Without it: " in row.help or (row.show_default and row.default) for row in valued]
    assert ([], True) == (
        [row.name for row, is_told in zip(valued, told, strict=True) if not is_told],
        COMMANDS[command].epilog.startswith("Exit code: "),
    )


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("report", "Without it: the run written last."),
        ("query", "Without it: the run written last."),
        ("export", "Without it: the run written last."),
        ("doctor", "Without it: only this machine is checked, no run."),
    ],
)
def test_which_run_is_meant(command: str, expected: str) -> None:
    """The doctor looks at no run unless it is told."""
    (run,) = (row for row in COMMANDS[command].params if row.name == "run")
    assert run.help.endswith(expected)
