"""`otel-rl report` as a user types it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from rich.live import Live
from typer import rich_utils
from typer.testing import CliRunner

import otel_rl.cli
from otel_rl import vocabulary as v
from otel_rl.cli import app
from otel_rl.cli.console import NOT_FOUND
from tests.made_runs import Plan, write_run

pytestmark = pytest.mark.medium

cli = CliRunner()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep runs in a directory of the test."""
    monkeypatch.setenv("OTEL_RL_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def test_without_a_name_the_newest_run_is_shown(root: Path) -> None:
    """A run of a moment ago is what people mean."""
    write_run(root)
    result = cli.invoke(app, ["report"])
    assert 0 == result.exit_code
    assert "TIME    Nothing stands out. Sampling takes 39 % of a step" in result.stdout


@pytest.mark.parametrize("columns", ["0", "1", "7", "wide", "-1", "\u00b2", "999999999"])
def test_any_width_shows_something(root: Path, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    """A width that no terminal has counts as none."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", "0")
    write_run(root)
    result = cli.invoke(app, ["report"])
    assert (0, True) == (result.exit_code, bool(result.stdout.strip()))
    if len(columns) != 1 or columns == "0":
        assert "TIME    Nothing stands out. Sampling takes 39 %" in result.stdout


def test_the_help_is_shown_in_a_width_of_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its console is typer's."""
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", None)
    monkeypatch.setattr(sys, "argv", ["otel-rl", "report", "--help"])
    monkeypatch.setenv("COLUMNS", "0")
    with pytest.raises(SystemExit):
        otel_rl.cli.main()
    assert "Show on one screen where the time of a run goes" in capsys.readouterr().out


def test_a_name_of_no_integration_is_the_trainings_to_mind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads or sends a run needs no integration, and its environment may be the trainer's."""
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "nosuch")
    write_run(root)
    codes = {command: cli.invoke(app, command.split()).exit_code for command in ("report", "export", "stack status")}
    assert {"report": 0, "export": 0, "stack status": NOT_FOUND} == codes


def test_a_run_is_named_by_its_path(root: Path) -> None:
    """Any directory with a journal is a run."""
    path = write_run(root / "elsewhere", Plan(run_id="other"))
    assert "otel_rl  other" in cli.invoke(app, ["report", str(path)]).stdout


def test_a_single_segment_is_shown_and_said_to_be_no_run(root: Path) -> None:
    """Of the spans alone nothing is told over the steps, of the logs alone the training seems killed."""
    segment = next(write_run(root).glob("trainer-0-*.traces.*"))
    result = cli.invoke(app, ["report", str(segment)])
    assert (0, True) == (result.exit_code, " · 12 steps, median " in result.stdout)
    assert f"only one file of a run; to read all of them, give {segment.parent}" in result.stderr


def test_json_goes_to_standard_output_alone(root: Path) -> None:
    """A script parses all of it."""
    write_run(root)
    document = json.loads(cli.invoke(app, ["report", "healthy", "--json"]).stdout)
    assert ("otel_rl.report/2", "healthy", 12) == (document["format"], document["run"], document["steps"]["recorded"])


def test_markdown_goes_to_standard_output_alone(root: Path) -> None:
    """With tables, without a colour."""
    write_run(root)
    shown = cli.invoke(app, ["report", "healthy", "--format", "markdown"], color=True).stdout
    assert (True, False) == ("\n| sample | " in shown, "\x1b" in shown)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([], ""),
        (["--ranks"], "own time|mean step  "),
        (["--memory", "--compute"], "in all steps|memory  "),
        (["--all"], "over the steps|stage |own time|goodput |in all steps|memory  "),
    ],
)
@pytest.mark.parametrize("live", [[], ["--live"]])
def test_what_is_asked_for_stands_below_the_screen(root: Path, flags: list[str], names: str, live: list[str]) -> None:
    """Each option adds its tables, in one order."""
    write_run(root)
    lines = cli.invoke(app, ["report", *flags, *live]).stdout.splitlines()
    heads = ("over the steps", "stage ", "own time", "mean step  ", "goodput ", "in all steps", "memory  ")
    found = {head for head in heads if any(line.startswith(head) for line in lines)}
    assert found >= set(filter(None, names.split("|")))
    assert flags == ["--all"] or found == set(filter(None, names.split("|")))


@pytest.mark.parametrize(
    "options", [["--json", "--live"], ["--json", "--format=markdown"], ["--live", "--format=markdown"]]
)
def test_a_report_has_one_format(root: Path, options: list[str]) -> None:
    """What excludes each other is wrong usage."""
    write_run(root)
    assert 2 == cli.invoke(app, ["report", *options]).exit_code


def test_a_run_that_is_over_is_not_followed(root: Path) -> None:
    """--live of a dead run is its report."""
    write_run(root, Plan(killed_in=v.SAMPLE))
    result = cli.invoke(app, ["report", "--live"])
    assert (0, True) == (result.exit_code, "was last seen in rl.sample, step 12, " in result.stdout)


def test_a_running_run_is_followed_until_interrupted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C leaves the last state on the screen."""

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    write_run(root, Plan(killed_in=v.SAMPLE, is_alive=True))
    monkeypatch.setattr("time.sleep", interrupt)
    result = cli.invoke(app, ["report", "--live"])
    assert 0 == result.exit_code
    assert "rank 0 may hang: in rl.sample, step 12, for " in result.stdout


@pytest.mark.parametrize("options", [[], ["--json"], ["--format", "markdown"]])
def test_an_empty_run_is_exit_code_3(root: Path, options: list[str]) -> None:
    """The report still says why it is empty."""
    (root / "empty").mkdir()
    (root / "empty" / "trainer-0-1-x.traces.000000.otlp").touch()
    result = cli.invoke(app, ["report", "empty", *options])
    assert (3, True) == (result.exit_code, "journal" in result.stdout)


@pytest.mark.parametrize("arguments", [["report"], ["report", "absent"], ["export", "absent"], ["doctor", "absent"]])
def test_no_run_is_exit_code_3(root: Path, arguments: list[str]) -> None:
    """One line on standard error says what was looked for; standard output stays empty."""
    result = cli.invoke(app, arguments)
    assert (3, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert str(root) in result.stderr


@pytest.mark.parametrize("command", [["demo"], ["demo", "--dir=x"], ["run", "--", "true"]])
def test_an_impossible_setting_is_wrong_usage(root: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    """Before anything trains; the message names the setting and what it takes."""
    monkeypatch.setenv("OTEL_RL_ENABLED", "perhaps")
    result = cli.invoke(app, command)
    assert 2 == result.exit_code
    assert "OTEL_RL_ENABLED='perhaps' is not possible: it takes true or false" in result.stderr


def test_readers_read_no_setting_of_the_training(root: Path) -> None:
    """They show a run whatever the environment says, and print nothing else."""
    write_run(root)
    nonsense = ("TRACES_SAMPLER", "PYTHON_CONTEXT", "SPAN_ATTRIBUTE_COUNT_LIMIT", "RL_JOURNAL_MAX_BYTES")
    environ = {**os.environ, **{f"OTEL_{name}": "nonsense" for name in nonsense}}
    for command in ("report", "export"):
        arguments = [sys.executable, "-m", "otel_rl", command]
        done = subprocess.run(arguments, env=environ, capture_output=True, check=False)
        assert (0, b"", True) == (done.returncode, done.stderr, bool(done.stdout))


def test_readers_need_no_folder_for_temporary_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system that is read-only there is none; doctor looks for none either."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(root / "nowhere")])
    path = write_run(root)
    commands = ["report", f"report {path}", f"report {path.name}", "export", f"doctor {path.name}"]
    assert dict.fromkeys(commands, 0) == {name: cli.invoke(app, name.split()).exit_code for name in commands}


def test_a_root_is_found_as_a_shell_would(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable, and by an option whose ``~`` the shell leaves alone."""
    write_run(root / "mine")
    monkeypatch.setenv("HOME", str(root))
    monkeypatch.setenv("OTEL_RL_DIR", "~/mine")
    assert 0 == cli.invoke(app, ["export", "--output=~/run.jsonl"]).exit_code
    monkeypatch.setenv("OTEL_RL_DIR", "$HOME/mine")
    assert 0 == cli.invoke(app, ["export", "--output=$HOME/again.jsonl"]).exit_code
    assert (root / "run.jsonl").read_bytes() == (root / "again.jsonl").read_bytes()
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "")
    code = f"import os; print(os.environ['OTEL_RL_DIR'], file=open({str(root / 'seen')!r}, 'w'))"
    cli.invoke(app, ["run", "--dir=~/other", "--", sys.executable, "-c", code])
    assert f"{root}/other\n" == (root / "seen").read_text()


@pytest.mark.parametrize("arguments", [["report", "--json", "--live"], ["report", "--what"], ["nothing"]])
def test_wrong_usage_is_exit_code_2(root: Path, arguments: list[str]) -> None:
    """As every command line tool has it."""
    assert 2 == cli.invoke(app, arguments).exit_code


@pytest.mark.parametrize("command", ["run", "demo", "report", "export", "doctor"])
def test_every_command_explains_itself(command: str) -> None:
    """Help says what a command does and what its exit codes mean."""
    result = cli.invoke(app, [command, "--help"])
    assert (0, True) == (result.exit_code, "Exit code: " in result.stdout)


def test_the_version_is_that_of_the_package() -> None:
    """For bug reports."""
    assert "otel-rl 0.1.0\n" == cli.invoke(app, ["--version"]).stdout


def shell(root: Path, command: str) -> tuple[int, str]:
    """Run `otel-rl` with redirections; give its exit code and what it said on standard error."""
    otel_rl = shlex.join([sys.executable, "-c", "from otel_rl.cli import main; main()"])
    environ = {**os.environ, "OTEL_RL_DIR": str(root)}
    done = subprocess.run(
        ["bash", "-c", f"{otel_rl} {command}"], env=environ, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["report", "report --json", "export", "doctor"])
def test_a_full_disk_below_the_output_is_one_sentence(root: Path, command: str) -> None:
    """Exit code 1, no traceback, nothing from the interpreter's own last attempt."""
    write_run(root)
    assert (1, "otel-rl: No space left on device\n") == shell(root, f"{command} > /dev/full")


@pytest.mark.parametrize("command", ["report >&-", "export >&-", "report --json >&-", "report 2>&- >&-"])
def test_a_closed_output_is_silent(root: Path, command: str) -> None:
    """Who closes standard output wants nothing on it."""
    write_run(root)
    assert (0, "") == shell(root, command)


@pytest.mark.parametrize("command", ["report", "doctor"])
def test_an_encoding_without_our_characters(root: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """What it cannot say is a question mark."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    write_run(root)
    assert (0, "") == shell(root, command)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(5, "Input/output error", "a\x1bb"), "otel-rl: a\ufffdb: Input/output error\n"),
        (MemoryError(), "otel-rl: there is not enough memory for this\n"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"), "odd\n"),
    ],
)
def test_what_the_machine_refuses_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, sentence: str
) -> None:
    """And exit code 1."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(otel_rl.cli, "app", fail)
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as end:
        otel_rl.cli.main()
    assert (1, True) == (end.value.code, capsys.readouterr().err.endswith(sentence))


def test_a_message_cannot_order_the_terminal_about(root: Path) -> None:
    """Names in it are printable."""
    assert "'a\ufffd[2Jb'" in cli.invoke(app, ["report", "a\x9b[2Jb"]).stderr.replace("\\x9b", "\ufffd")
    write_run(root, Plan(run_id="odd\x9bname"))
    assert "odd\ufffdname" in cli.invoke(app, ["report", "absent"]).stderr


@pytest.mark.usefixtures("unmeasured")
def test_a_terminal_is_given_back_when_a_signal_ends_it(root: Path) -> None:
    """The screen and the cursor of before; the exit code is that of a shell."""
    write_run(root, Plan(is_alive=True))
    terminal, its = os.openpty()
    live = [sys.executable, "-m", "otel_rl", "report", "--live"]
    with subprocess.Popen(live, stdin=its, stdout=its, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(its)
        shown = b""
        while b"reward" not in shown:
            shown += os.read(terminal, 1 << 16)
        process.terminate()
        with suppress(OSError):  # so a terminal ends that nobody has open any more
            while more := os.read(terminal, 1 << 16):
                shown += more
    os.close(terminal)
    on, off, hidden, seen = (shown.count(code) for code in (b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l", b"\x1b[?25h"))
    assert (143, 1, 1) == (process.returncode, on, off)
    assert hidden == seen > 0


def test_what_a_live_report_says_is_not_lost_with_its_screen(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is removed meanwhile: the sentence comes when the screen is the one of before, and once."""
    path = write_run(root, Plan(is_alive=True))
    order: list[str] = []

    def remove(seconds: float) -> None:
        shutil.rmtree(path)

    class Screen(Live):
        def stop(self) -> None:
            order.append("back")
            super().stop()

    def complain(message: str) -> None:
        order.append(message)

    monkeypatch.setattr("time.sleep", remove)
    monkeypatch.setattr(import_module("otel_rl.cli.commands.report"), "Live", Screen)
    monkeypatch.setattr(sys.modules["otel_rl.cli.console"], "complain", complain)
    assert NOT_FOUND == cli.invoke(app, ["report", "--live"]).exit_code
    assert ["back", True] == [order[0], str(path) in order[1]]
    assert 2 == len(order)
