"""`otel-rl demo` around its training; the training itself is tested with the demo."""

from __future__ import annotations

import signal
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_rl.cli import app
from tests.made_runs import Plan, write_run

cli = CliRunner()
module = import_module("otel_rl.cli.commands.demo")


def test_the_ranks_are_started_by_torchs_launcher() -> None:
    """With this interpreter, and with the options that were given."""
    expected = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "otel_rl.demo.train"]
    assert [sys.executable, *expected] == module.demo_command(2, None)
    assert "--steps=7" == module.demo_command(2, 7)[-1]


def test_what_is_missing_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer is told what to install."""
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "trl" else name)
    result = cli.invoke(app, ["demo"])
    assert (1, "otel-rl: the demo needs trl: pip install trl\n") == (result.exit_code, result.stderr)


@pytest.mark.parametrize(("code", "steps", "expected"), [(0, 12, 0), (9, 3, 1), (0, 0, 3)])
def test_the_exit_code_says_how_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, steps: int, expected: int
) -> None:
    """0 when trained and recorded, 1 when the training failed, 3 when nothing was recorded."""

    def train(command: list[str], environ: dict[str, str]) -> int:
        if steps:
            write_run(Path(environ["OTEL_RL_DIR"]), Plan(steps=steps))
        return code

    monkeypatch.setattr(module, "NEEDED", ())
    monkeypatch.setattr(module, "run_child", train)
    result = cli.invoke(app, ["demo", "--dir", str(tmp_path)])
    assert expected == result.exit_code
    assert (str(tmp_path / "healthy") in result.stderr.replace("\n", "")) == bool(steps)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind_by_ranks_that_a_signal_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """The command removes what it made for them, and says how they ended."""
    monkeypatch.setattr(module, "NEEDED", ())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import os, pathlib, sys; scratch = sys.argv[1].partition('=')[2]; "
        f"pathlib.Path(scratch, 'model').touch(); os.kill(os.getpid(), {int(number)})"
    )
    monkeypatch.setattr(module, "demo_command", lambda *_: [sys.executable, "-c", code])
    result = cli.invoke(app, ["demo", "--dir", str(tmp_path / "runs")])
    assert result.stderr.endswith(f"otel-rl: the demo's training ended with exit code {128 + number}\n")
    assert [] == [*tmp_path.glob("otel_rl_demo_*")]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python cannot be told before")
def test_files_in_the_working_directory_are_no_modules_of_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People try the demo where their own `datasets.py` lies, or a `random.py`."""
    (tmp_path / "heapq.py").write_text("raise ImportError")  # sched imports it
    monkeypatch.setattr(module, "NEEDED", ())
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(module, "demo_command", lambda *_: [sys.executable, "-m", "sched"])
    monkeypatch.chdir(tmp_path)
    result = cli.invoke(app, ["demo", "--dir", str(tmp_path)])
    assert "otel-rl: nothing was recorded" in result.stderr
    assert 3 == result.exit_code


def test_what_to_do_next_can_be_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a shell, wherever the run lies."""

    def train(command: list[str], environ: dict[str, str]) -> int:
        write_run(Path(environ["OTEL_RL_DIR"]), Plan(steps=1))
        return 0

    monkeypatch.setattr(module, "NEEDED", ())
    monkeypatch.setattr(module, "run_child", train)
    root = tmp_path / "my runs"
    result = cli.invoke(app, ["demo", "--dir", str(root)])
    name = f"'{root / 'healthy'}'"
    said = f"Next: otel-rl report {name} --html run.html, otel-rl report {name} --json, or otel-rl export {name} "
    assert said in result.stderr
    assert result.stderr.splitlines()[-1] == f"Look at it in a browser: otel-rl view {name}"
