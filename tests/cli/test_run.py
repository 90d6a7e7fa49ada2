"""`otel-rl run`: the command stays what it was."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_rl.cli import app
from otel_rl.cli.child import FORWARDED, run_child
from otel_rl.cli.commands.run import child_environment, recorded_since
from otel_rl.cli.conclusion import conclude
from otel_rl.cli.sending import sending
from otel_rl.config import LAUNCH, Config
from otel_rl.guard import shortages
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import open_run
from otel_rl.journal.write import Writer
from otel_rl.process.identity import folder_name
from otel_rl.report.build import build_report
from otel_rl.sidecar import owner
from otel_rl.sidecar.ship.progress import load, save
from otel_rl.sidecar.start import Keeper
from tests.made_runs import Plan, write_run
from tests.sink import sink
from tests.waiting import wait_for

pytestmark = pytest.mark.medium

OTEL_RL = [sys.executable, "-c", "from otel_rl.cli import main; main()"]
RECORDING = """
import otel_rl
otel_rl.instrument()
for number in (1, 2, 3):
    with otel_rl.step(number), otel_rl.stage("reward"):
        pass
print("result")
"""
WAITING = """
import os, signal, sys, time
def note(number, frame):
    os.write(1, b"got %d\\n" % number)  # print is not reentrant: a handler may run inside of another one
    if number == signal.SIGCONT:
        time.sleep(0.2)
        sys.exit(7)
for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "CONT"):
    signal.signal(getattr(signal, "SIG" + name), note)
os.write(1, b"ready\\n")
time.sleep(120)
"""


def run_python(root: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program below `otel-rl run`."""
    command = [*OTEL_RL, "run", f"--dir={root}", *options, "--", sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_output_is_the_commands_and_the_report_goes_to_stderr(tmp_path: Path) -> None:
    """Standard output holds what the command printed and nothing else."""
    result = run_python(tmp_path, RECORDING, "--run-id", "mine")
    assert (0, "result\n") == (result.returncode, result.stdout)
    assert " · 3 steps, median " in result.stderr
    assert result.stderr.endswith(f"{tmp_path / 'mine'}\n")


def test_quiet_prints_the_path_alone(tmp_path: Path) -> None:
    """No report, one line."""
    result = run_python(tmp_path, RECORDING, "--run-id", "mine", "--quiet")
    assert f"otel-rl: recorded in {tmp_path / 'mine'}\n" == result.stderr


def test_that_a_run_is_there_already_is_said(tmp_path: Path) -> None:
    """A restart wants it; who only took a name twice would find two trainings in one report."""
    told = "otel-rl: the run twice exists already; new records are added to it"
    first, second = (run_python(tmp_path, RECORDING, "--run-id=twice", "-q") for _ in range(2))
    assert (False, True) == (told in first.stderr, told in second.stderr)
    assert told not in run_python(tmp_path, RECORDING, "-q").stderr


def test_where_the_records_go_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that watches the run, in a form that works as it is; nothing where nothing is recorded."""
    monkeypatch.setenv("OTEL_RL_DIR", str(tmp_path))
    noted: list[str] = []
    monkeypatch.setattr(sys.modules["otel_rl.cli.commands.run"], "complain", noted.append)
    monkeypatch.setattr(sys.modules["otel_rl.cli.commands.run"], "run_child", lambda *_: noted.append("begins") or 0)
    monkeypatch.setattr("otel_rl.cli.conclusion.conclude", lambda *_, **__: None)
    for options in ([], ["--run-id=my run"], [f"--dir={tmp_path / 'b c'}"], ["-q"]):
        assert 0 == CliRunner().invoke(app, ["run", *options, "--", "true"]).exit_code
    assert 0 == CliRunner().invoke(app, ["run", "--", "true"], env={"OTEL_RL_ENABLED": "false"}).exit_code
    below, folder = f"records go below {tmp_path}", tmp_path / folder_name("my run")
    assert [
        f"{below}; to watch the run: otel-rl report --live",
        "begins",
        f"records go to {folder}; to watch the run: otel-rl report --live {folder}",
        "begins",
        f"{below}/b c; to watch the run: OTEL_RL_DIR='{tmp_path}/b c' otel-rl report --live",
        *3 * ["begins"],
    ] == noted


def test_a_training_that_outlives_its_command_is_told(tmp_path: Path) -> None:
    """Whether it has recorded something until then or not; what it records is of this command."""
    waits = "\nimport pathlib, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.05)\n"
    (tmp_path / "early.py").write_text(f"{RECORDING}{waits}")
    (tmp_path / "late.py").write_text(waits)
    written = "until ls runs/mine/*.otlp; do sleep 0.05; done"
    try:
        for name, until in (("late", ":"), ("early", f"{written} 2> /dev/null")):
            shell = f"{sys.executable} {name}.py > /dev/null 2>&1 & {until}"
            command = [*OTEL_RL, "run", "--dir=runs", "--run-id=mine", "-q", "--", "bash", "-c", shell]
            result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
            assert 1 == len(re.findall(r"goes on in the background \(pid \d+\)", result.stderr))
            hint = f"to follow it: otel-rl report --live {tmp_path}/runs/mine\n"
            assert (name == "early") == result.stderr.endswith(hint)
    finally:
        (tmp_path / "go").touch()


def test_nothing_recorded_is_one_line(tmp_path: Path) -> None:
    """A command without training leaves no run, and the exit code is its own."""
    result = run_python(tmp_path, "raise SystemExit(5)", "-q")
    assert (5, "", 1) == (result.returncode, result.stdout, result.stderr.count("\n"))
    assert result.stderr.startswith("otel-rl: nothing was recorded; `otel-rl doctor` says what can be")
    assert [] == list(tmp_path.iterdir())


def test_a_recording_that_is_off_is_said(tmp_path: Path) -> None:
    """It is the setting, and nothing that doctor knows."""
    command = [*OTEL_RL, "run", "-q", "--", sys.executable, "-c", ""]
    environ = os.environ | {"OTEL_RL_ENABLED": "false"}
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environ)
    assert "otel-rl: nothing was recorded: OTEL_RL_ENABLED is false\n" == result.stderr


@pytest.mark.parametrize(
    ("code", "expected"),
    [("pass", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137), ("1/0", 1)],
)
def test_the_exit_code_is_the_childs(code: str, expected: int) -> None:
    """128 + the signal where one killed it."""
    assert expected == run_child([sys.executable, "-c", code], os.environ)


def test_signals_are_passed_on_and_the_child_finishes(tmp_path: Path) -> None:
    """The child gets each of them once and ends in its own way and time."""
    command = [*OTEL_RL, "run", f"--dir={tmp_path}", "--", sys.executable, "-c", WAITING]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert signal.SIGCONT == FORWARDED[-1]
    with process.stdout:
        assert "ready\n" == process.stdout.readline()
        for number in FORWARDED:
            process.send_signal(number)
            assert f"got {int(number)}\n" == process.stdout.readline()
        assert "" == process.stdout.read()
    assert 7 == process.wait()


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="the system has none")
def test_an_end_that_another_thread_is_told_of_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGCHLD is the process's: a library's thread may take it, and nobody else ever hears of it."""
    taken = []
    wait = signal.sigtimedwait

    def take(watched: set[signal.Signals], timeout_s: float) -> None:
        taken.append(wait(watched, 60))

    monkeypatch.setattr(signal, "sigtimedwait", take)
    assert 5 == run_child(["sh", "-c", "sleep 0.2; exit 5"], os.environ)
    assert {signal.SIGCHLD} == {one.si_signo for one in taken if one is not None}


def test_the_child_has_the_signals_of_a_shell() -> None:
    """Python's own ignored SIGPIPE and our blocked signals are not inherited."""
    code = (
        "import signal; s = signal; "
        "exit(s.getsignal(s.SIGXFSZ) == s.SIG_DFL and 0 or len(s.pthread_sigmask(s.SIG_BLOCK, [])))"
    )
    assert 0 == run_child([sys.executable, "-c", code], os.environ)
    assert 141 == run_child(["sh", "-c", "kill -PIPE $$"], os.environ)


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("", 127), ("/", 126)])
def test_a_command_that_cannot_start_is_named(tmp_path: Path, command: str, code: int) -> None:
    """With the exit codes of a shell."""
    arguments = [*OTEL_RL, "run", f"--dir={tmp_path}", "--", command]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (code, "", True) == (result.returncode, result.stdout, repr(command) in result.stderr)


@pytest.mark.parametrize("command", ["train.py", "./train.py"])
def test_a_script_in_the_place_of_the_command(tmp_path: Path, command: str) -> None:
    """It is on no PATH, or nobody may execute it: both say how it is run."""
    (tmp_path / "train.py").touch()
    result = subprocess.run([*OTEL_RL, "run", command], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode in (126, 127)
    assert f"; a script is run by Python: `otel-rl run -- python {command}`" in result.stderr


def test_the_exit_code_is_known_though_who_starts_us_ignores_ends_of_children() -> None:
    """As some supervisors do, and all that they start inherits it: the system would tell nobody the code."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert 5 == run_child(["sh", "-c", "exit 5"], os.environ)
        assert signal.SIG_IGN == signal.getsignal(signal.SIGCHLD)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_variable_without_a_name_stops_no_command() -> None:
    """A shell hands it on; Python cannot."""
    assert 3 == run_child([sys.executable, "-c", "raise SystemExit(3)"], {**os.environ, "": "x"})


def test_options_of_the_command_stay_with_it(tmp_path: Path) -> None:
    """Nothing after CMD is an option of otel-rl, with or without `--`."""
    command = [*OTEL_RL, "run", f"--dir={tmp_path}", "echo", "--quiet", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (0, "--quiet --help\n") == (result.returncode, result.stdout)


@pytest.mark.parametrize("option", [["--integrations", "tlr"], []])
def test_an_integration_that_does_not_exist_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    """Three days of training without a record are found out at their begin."""
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "trl" if option else "tlr")
    result = run_python(tmp_path, "print(1)", *option)
    assert (2, "") == (result.returncode, result.stdout)
    assert "no integration is called 'tlr'; choose from torch, " in result.stderr


def test_a_setting_with_a_wrong_value_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be left out of the training's own record as well."""
    monkeypatch.setenv("OTEL_RL_SIDECAR", "perhaps")
    result = run_python(tmp_path, "print(1)")
    assert (2, "") == (result.returncode, result.stdout)
    assert "OTEL_RL_SIDECAR" in result.stderr


def test_options_win_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands there; and an empty one is not given: the variable of a script may not be set."""
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "tlr")
    monkeypatch.setenv("OTEL_RL_RUN_ID", "theirs")
    monkeypatch.setenv("OTEL_RL_DIR", str(tmp_path))
    code = "import os; print(*(os.environ['OTEL_RL_' + name] for name in ('DIR', 'RUN_ID', 'INTEGRATIONS')))"
    options = ["--dir", "", "--run-id", "mine", "--integrations", "torch"]
    result = subprocess.run(
        [*OTEL_RL, "run", *options, "--", sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (0, f"{tmp_path} mine torch\n") == (result.returncode, result.stdout)


def test_the_environment_is_extended_and_nothing_is_lost(tmp_path: Path) -> None:
    """The directory comes first on PYTHONPATH, once; what was there stays as it was, empty entries too."""
    first = child_environment({"PYTHONPATH": ":/a", "HOME": "/h"}, tmp_path)
    autoload = first["PYTHONPATH"].removesuffix("::/a")
    assert Path(autoload, "sitecustomize.py").is_file()
    assert ("/h", str(tmp_path)) == (first["HOME"], first["OTEL_RL_DIR"])
    assert first == child_environment(first, tmp_path)
    assert {"PYTHONPATH": autoload, "OTEL_RL_DIR": str(tmp_path)} == child_environment({}, tmp_path)


def test_only_runs_of_this_command_are_its_runs(tmp_path: Path) -> None:
    """A run whose processes began before is somebody else's."""
    write_run(tmp_path, Plan(steps=1, run_id="before"))
    moment_ns = time.time_ns()
    mine = write_run(tmp_path, Plan(steps=1, run_id="mine"))
    assert [mine] == [run.path for run in recorded_since(tmp_path, moment_ns)]


def test_the_report_is_not_of_a_run_that_still_goes_on(tmp_path: Path) -> None:
    """Two commands in one directory: the one that ends first does not show the other's run, though written last.

    Its own is over though a sidecar still ships it.
    """
    moment_ns = time.time_ns()
    before = write_run(tmp_path, Plan(steps=1, run_id="before"))
    mine = write_run(tmp_path, Plan(steps=1, run_id="mine"))
    other = write_run(tmp_path, Plan(steps=1, run_id="other", is_alive=True))
    sidecar = Writer(mine, WriterIdentity.current("sidecar", 0), max_bytes=1 << 20)
    sidecar.append("metrics", b"", 1, 1, 1)
    sidecar.close()
    found = [run.path for run in recorded_since(tmp_path, moment_ns)]
    assert [mine, before, other] == [
        path for path in found if path.parent == tmp_path
    ]  # others are in the temporary folder


def test_of_two_at_once_each_shows_its_own_run(tmp_path: Path) -> None:
    """The one that ends last, though the run of the other was written after its own; one that records nothing, none."""
    waits = f"{RECORDING}\nimport pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists():\n"
    first = [*OTEL_RL, "run", f"--dir={tmp_path}", "--run-id=first", "-q", "--", sys.executable, "-c"]
    with subprocess.Popen([*first, f"{waits}    time.sleep(0.05)\n"], stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not [*(tmp_path / "first").glob("*.otlp")]:
            time.sleep(0.05)
        nothing = run_python(tmp_path, "pass", "--quiet")
        second = run_python(tmp_path, RECORDING, "--quiet", "--run-id=second")
        later_s = time.time() + 30
        for segment in (tmp_path / "second").glob("*.otlp"):
            os.utime(segment, (later_s, later_s))
        (tmp_path / "go").touch()
        _, said = process.communicate()
    assert nothing.stderr.startswith("otel-rl: nothing was recorded")
    assert f"otel-rl: recorded in {tmp_path / 'second'}\n" == second.stderr
    assert f"otel-rl: recorded in {tmp_path / 'first'}\n" == said


def test_a_run_of_a_launch_within_is_of_both(tmp_path: Path) -> None:
    """The inner one shows it, and the outer one as well."""
    inner = [*OTEL_RL, "run", "--quiet", "--", sys.executable, "-c", RECORDING]
    result = subprocess.run(
        [*OTEL_RL, "run", f"--dir={tmp_path}", "--run-id=mine", "--quiet", "--", *inner],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 2 * f"otel-rl: recorded in {tmp_path / 'mine'}\n" == result.stderr


def test_a_command_that_cleans_its_environment_is_found_by_time(tmp_path: Path) -> None:
    """It hands no mark down, as ray's workers that were started elsewhere do not."""
    command = ["env", "-i", f"OTEL_RL_DIR={tmp_path}", "OTEL_RL_RUN_ID=mine", sys.executable, "-c", RECORDING]
    result = subprocess.run(
        [*OTEL_RL, "run", f"--dir={tmp_path}", "--quiet", "--", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"otel-rl: recorded in {tmp_path / 'mine'}\n" == result.stderr


def test_marks_say_whose_a_run_is(tmp_path: Path) -> None:
    """Own ones come first, whatever a clock says; then those without a mark, by time; a sidecar never counts."""
    me = WriterIdentity.current("trainer", 0)

    def recorded(name: str, launch: str = "", role: str = "trainer", created_ns: int = 2_000) -> None:
        identity = replace(me, writer=f"{role}-0-1-{launch.replace('/', '-')}", launch=launch, created_ns=created_ns)
        writer = Writer(tmp_path / name, identity, max_bytes=1 << 20)
        writer.append("metrics", b"", 1, 1, 1)
        writer.close()

    recorded("mine", "a/b", created_ns=500)  # of a host whose clock is behind
    recorded("mine", created_ns=500)
    recorded("within", "a/b/c")
    recorded("around", "a")
    recorded("beside", "a/bc")
    recorded("unmarked")
    recorded("before", created_ns=500)
    recorded("shipped", "a/b", "sidecar")
    recorded("shipped", role="sidecar")
    recorded("shipped", "x", created_ns=500)
    recorded("mixed", "x")
    recorded("mixed")
    found = [run.path.name for run in recorded_since(tmp_path, 1_000, "a/b") if run.path.parent == tmp_path]
    assert ({"mine", "within"}, ["unmarked"]) == ({*found[:2]}, found[2:])


@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&-", ">&- 2>&-", ">/dev/full 2>&1", "2>&1 | true"])
def test_the_exit_code_survives_any_stream(tmp_path: Path, streams: str) -> None:
    """Whether the report can be written or not."""
    (tmp_path / "circle").symlink_to("circle")
    write_run(tmp_path, Plan(steps=1))
    inner = shlex.join([*OTEL_RL, "run", f"--dir={tmp_path}", "--", "sh", "-c", "exit 5"])
    assert 5 == subprocess.run(["bash", "-o", "pipefail", "-c", f"{inner} {streams}"], check=False).returncode


@pytest.mark.guarded
@pytest.mark.parametrize("error", [OSError, RuntimeError, MemoryError, KeyboardInterrupt, SystemExit])
def test_the_exit_code_survives_a_failing_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Whatever goes wrong after the command has ended."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("otel_rl.cli.conclusion.conclude", fail)
    result = CliRunner().invoke(app, ["run", f"--dir={tmp_path}", "--", "sh", "-c", "exit 5"])
    assert 5 == result.exit_code


def test_a_signal_that_comes_too_late_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was meant for the command, which has ended."""

    def wait(pid: int, *_: object) -> int:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        signal.raise_signal(signal.SIGUSR1)
        return code

    monkeypatch.setattr("otel_rl.cli.child._wait", wait)
    assert 6 == run_child(["sh", "-c", "exit 6"], os.environ)
    assert set() == signal.sigpending()


MOVING = """
import pathlib, time
import otel_rl
otel_rl.instrument()
mine = pathlib.Path("runs/mine")
for number in range(4):
    with otel_rl.step(number), otel_rl.stage("reward"):
        while number == 2 and not [*mine.glob("*.otlp")]:
            time.sleep(0.05)
    if number == 1:
        otel_rl.flush(60)
        mine.parent.rename("old")
"""


def test_a_run_that_is_moved_while_it_goes_on_says_so(tmp_path: Path) -> None:
    """On the terminal, and in the report of what came after; what was moved is of no process that was killed."""
    command = [*OTEL_RL, "run", "--dir=runs", "--run-id=mine", "--", sys.executable, "-c", MOVING]
    environ = {**os.environ, "COLUMNS": "300"}
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert f"otel_rl: {tmp_path}/runs/mine was moved or removed; what comes now goes there anew" in result.stderr
    assert "spans (their files were moved or removed)" in result.stderr
    before = build_report(open_run(tmp_path / "old" / "mine"), time.time_ns())
    assert ("moved", 2) == (before.state, sum(attempt.steps for attempt in before.attempts))


def test_a_run_that_went_elsewhere_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where its root cannot be written it lies in the folder for temporary files, and that is said."""
    fallback = tmp_path / "fallback"
    monkeypatch.setattr("otel_rl.process.directories.fallback_name", lambda: fallback)
    monkeypatch.setenv("COLUMNS", "300")
    lost = write_run(fallback, Plan(steps=1, run_id="lost"))
    found = recorded_since(tmp_path / "absent", 0)
    assert [lost] == [run.path for run in found]
    conclude(lambda: found, tmp_path, quiet=True)
    reason = "is in the folder for temporary files: the directory of its runs could not be written"
    assert f"otel-rl: recorded in {lost}\notel-rl: {lost} {reason}\n" == capsys.readouterr().err


def test_the_end_of_a_run_that_went_elsewhere_is_no_run_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk was full: the run is shown whole, though its end was written last."""
    fallback = tmp_path / "fallback"
    monkeypatch.setattr("otel_rl.process.directories.fallback_name", lambda: fallback)
    begun = write_run(tmp_path / "runs", Plan(steps=1, run_id="full"))
    write_run(fallback, Plan(steps=1, run_id="full"))
    assert [begun] == [run.path for run in recorded_since(tmp_path / "runs", 0)]


def test_a_command_that_failed_is_said_with_its_exit_code(tmp_path: Path) -> None:
    """A program may catch what failed, and end itself."""
    command = [*OTEL_RL, "run", f"--dir={tmp_path}", "--", sys.executable, "-c", f"{RECORDING}\nraise SystemExit(3)"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (3, True) == (result.returncode, result.stderr.endswith("\notel-rl: the command ended with exit code 3\n"))


SILENT = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[1])
from tests.sink import Rank
from otel_rl.journal.identity import WriterIdentity
directory = pathlib.Path(sys.argv[2])
Rank(directory, WriterIdentity.current("trainer", 0)).write(10)
while sys.argv[3] == "stay" and not [*directory.glob("trainer*.shipped")]:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("stays", "options"), [("stay", ["--run-id", "mine"]), ("leave", [])])
def test_it_has_the_records_sent(tmp_path: Path, stays: str, options: list[str]) -> None:
    """Of a command that starts no sidecar itself: while it runs where the run's name is known, else at the end."""
    arguments = [str(Path(__file__).parents[2]), str(tmp_path / "mine"), stays]
    command = [*OTEL_RL, "run", f"--dir={tmp_path}", "-q", *options, "--", sys.executable, "-c", SILENT, *arguments]
    with sink("grpc") as server:
        environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint}
        assert 0 == subprocess.run(command, env=environ, check=False).returncode
        assert wait_for(lambda: 10 == len(server.spans()))
        me = WriterIdentity.current("test", 0)
        identity = owner.living(tmp_path / "mine", me.boot_id)
        if identity is not None:
            with suppress(ProcessLookupError):  # it has ended by itself meanwhile
                os.kill(identity.pid, signal.SIGTERM)
        assert wait_for(lambda: owner.living(tmp_path / "mine", me.boot_id) is None), "it ignores SIGTERM"


def test_what_the_other_side_does_not_take_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dead endpoint is named once, with its signals, and nothing where the records were taken."""
    path = write_run(tmp_path)
    conclude(lambda: [open_run(path)], tmp_path, quiet=True)
    assert "could be sent" not in capsys.readouterr().err
    name = next(path.glob("*.traces.*")).name.partition(".")[0]
    progress = load(path, name)
    for kind in ("traces", "logs"):
        progress[kind].put_off("later", "gRPC UNAVAILABLE")
    save(path, name, {kind: row.row() for kind, row in progress.items()})
    conclude(lambda: [open_run(path)], tmp_path, quiet=True)
    told = f"not all of it could be sent so far: gRPC UNAVAILABLE (logs, traces); `otel-rl doctor {path}`"
    assert told in capsys.readouterr().err


def test_a_signal_passes_by_the_one_who_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that keeps the sidecar alive takes none."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    with sending(tmp_path, "mine", Config()) as keeper:
        assert keeper is not None
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "otel_rl-sidecar"]
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        (blocked,) = re.findall(r"SigBlk:\t([0-9a-f]+)", status)
        assert all(int(blocked, 16) >> (number - 1) & 1 for number in FORWARDED)
    thread.join(60)  # leaving waits for two seconds
    assert not thread.is_alive()
    assert set() == signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_sidecar_that_the_command_starts_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the mark of its processes: the terminal tells what such a sidecar finds."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("otel_rl.cli.sending.CHECK_S", 0.001)
    given, started = [], threading.Event()

    def start(directory: Path, environ: Mapping[str, str]) -> int:
        given.append(environ.get(LAUNCH))
        started.set()
        return 0

    monkeypatch.setattr("otel_rl.sidecar.start.start", start)
    (tmp_path / "mine").mkdir()
    with sending(tmp_path, "mine", Config(), {**os.environ, LAUNCH: "this"}):
        assert started.wait(60)
    assert "this" == given[0]


@pytest.mark.guarded
def test_a_command_runs_though_no_thread_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it recorded is seen to at the end."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with sending(tmp_path, "mine", Config()) as keeper:
        assert keeper is not None
    assert {"start the thread that keeps the sidecar alive": 1} == shortages
    assert set() == signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_look_that_hangs_does_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody joins a thread for ever that waits for a file server."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("otel_rl.cli.sending.CHECK_S", 0.001)
    monkeypatch.setattr("otel_rl.cli.sending.JOIN_S", 0.001)
    looks, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr(Keeper, "check", lambda *_: (looks.set(), goes_on.wait(60)))
    (tmp_path / "mine").mkdir()
    with sending(tmp_path, "mine", Config()):
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "otel_rl-sidecar"]
        assert looks.wait(60)
    assert thread.is_alive()
    goes_on.set()
    thread.join()


def test_it_starts_nothing_where_that_is_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or where nothing says whereto to send, or nothing is recorded at all."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    for config in (Config(sidecar=False), Config(enabled=False)):
        with sending(tmp_path, "mine", config) as keeper:
            assert keeper is None
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    with sending(tmp_path, "mine", Config()) as keeper:
        assert keeper is None
