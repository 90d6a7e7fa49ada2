"""`otel-rl export` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_rl.cli import app
from otel_rl.journal.read import open_run
from otel_rl.report.otlp_json import lines
from tests.runs import Plan, write_run

cli = CliRunner()
OTEL_RL = [sys.executable, "-c", "from otel_rl.cli import main; main()"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run."""
    return write_run(tmp_path)


def test_every_line_is_a_request(run: Path) -> None:
    """Standard output holds the requests and nothing else."""
    result = cli.invoke(app, ["export", str(run), "--to", "otlp-json"])
    assert 0 == result.exit_code
    assert [line for line, _ in lines(open_run(run))] == result.stdout.splitlines()


def test_a_file_holds_the_same(run: Path, tmp_path: Path) -> None:
    """With --output standard output stays empty."""
    file = tmp_path / "run.jsonl"
    result = cli.invoke(app, ["export", str(run), "--output", str(file)])
    assert (0, "") == (result.exit_code, result.stdout)
    assert [line for line, _ in lines(open_run(run))] == file.read_text(encoding="utf-8").splitlines()


def test_a_file_that_cannot_be_written_is_exit_code_1(run: Path, tmp_path: Path) -> None:
    """The message names the file and the reason."""
    result = cli.invoke(app, ["export", str(run), "--output", str(tmp_path)])
    assert (1, f"otel-rl: cannot write {tmp_path}: Is a directory\n") == (result.exit_code, result.stderr)


def test_an_unknown_format_is_wrong_usage(run: Path) -> None:
    """The message lists what there is."""
    result = cli.invoke(app, ["export", str(run), "--to", "csv"])
    assert (2, True) == (result.exit_code, "otlp-json" in result.stderr)


def test_a_reader_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    """`otel-rl export RUN | head -1` prints one line and no error."""
    path = write_run(tmp_path, Plan(steps=400))
    export = subprocess.Popen([*OTEL_RL, "export", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert export.stdout is not None and export.stderr is not None
    first = export.stdout.readline()
    export.stdout.close()
    with export.stderr:
        assert b"" == export.stderr.read()
    assert 0 == export.wait()
    assert ["resourceSpans"] == list(json.loads(first))
