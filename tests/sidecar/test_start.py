"""Tests of who starts the sidecar, and of what happens where that is not possible."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from otel_rl.guard import errors
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import open_run
from otel_rl.process.state import state
from otel_rl.sidecar import owner, start
from otel_rl.sidecar.start import LAST_WAIT_S, Keeper, make_keeper
from tests.waiting import wait_for

pytestmark = pytest.mark.medium

ME = WriterIdentity.current("trainer", 0)
PREFIX = "OTEL_EXPORTER_OTLP_"
SECRET = "hunter2"
WITH = "send them with: otel-rl ship"
PEM = f"-----BEGIN PRIVATE KEY-----\n{SECRET * 40}\n-----END PRIVATE KEY-----\n"
RECORDING = """
import otel_rl
otel_rl.instrument()
for number in (1, 2, 3):
    with otel_rl.step(number):
        pass
print("trained")
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A clock that a test sets."""
    now = {"s": 1000.0}
    monkeypatch.setattr(start, "monotonic", lambda: now["s"])
    return now


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Directories for which a sidecar was started; what is started is a process that ends at once."""
    found: list[Path] = []

    def spawn(directory: Path, environ: Any = None) -> int:
        found.append(directory)
        return os.posix_spawn(sys.executable, [sys.executable, "-c", "pass"], dict(os.environ))

    monkeypatch.setattr(start, "start", spawn)
    return found


def wait_for_child(keeper: Keeper, directory: Path) -> None:
    """Look until the process in between is let go of."""
    while keeper._launcher:
        keeper._reap(directory)


def test_one_is_started_and_looked_after(tmp_path: Path, clock: dict[str, float], started: list[Path]) -> None:
    """Not again while it is on its way, nor while one lives; more and more rarely where they die, within a minute."""
    keeper = Keeper()
    keeper.check(tmp_path, ME)
    keeper.check(tmp_path, ME)
    assert [tmp_path] == started
    wait_for_child(keeper, tmp_path)
    waits = []
    for _ in range(6):
        before = clock["s"]
        while len(started) < len(waits) + 2:
            clock["s"] += 1
            keeper.check(tmp_path, ME)
        waits.append(clock["s"] - before)
        wait_for_child(keeper, tmp_path)
    assert waits == sorted(waits)
    assert max(waits) <= LAST_WAIT_S + 1
    claim = owner.claim(tmp_path, ME.boot_id, WriterIdentity.current("sidecar", 0))
    assert claim is not None
    clock["s"] += 1000
    keeper.check(tmp_path, ME)
    keeper.check_at_end(tmp_path, ME)
    assert 7 == len(started)


def test_the_end_of_a_short_process_starts_one(tmp_path: Path, started: list[Path]) -> None:
    """Unless it is on its way already."""
    keeper = Keeper()
    keeper.check_at_end(tmp_path, ME)
    keeper.check_at_end(tmp_path, ME)
    assert [tmp_path] == started
    wait_for_child(keeper, tmp_path)


def test_the_program_may_wait_for_our_child(tmp_path: Path, started: list[Path]) -> None:
    """Then it is gone, and nothing is wrong."""
    keeper = Keeper()
    keeper.check(tmp_path, ME)
    os.waitpid(keeper._launcher, 0)
    keeper._reap(tmp_path)
    assert (0, False) == (keeper._launcher, keeper._gave_up)


@pytest.mark.parametrize("executable", [None, "/nowhere/python"])
def test_where_none_can_be_started_it_is_said_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clock: dict[str, float],
    caplog: pytest.LogCaptureFixture,
    executable: str | None,
) -> None:
    """With the command that does its work."""
    monkeypatch.setattr(sys, "executable", executable)
    keeper = Keeper()
    for _ in range(3):
        keeper.check(tmp_path, ME)
        clock["s"] += 100
    keeper.check_at_end(tmp_path, ME)
    assert [f"otel-rl ship {tmp_path} --follow"] == [
        record.getMessage().partition("with: ")[2] for record in caplog.records
    ]


@pytest.mark.parametrize("fault", ["no library", "no import"])
def test_a_start_that_failed_is_said_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """No look comes after that of a process that lived for a moment. The one in between tells what became of both."""
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('none')\n")
    monkeypatch.setenv(*(("PYTHONHOME", "/nowhere") if fault == "no library" else ("PYTHONPATH", str(tmp_path))))
    keeper = Keeper()
    keeper.check(tmp_path, ME)
    os.waitid(os.P_PID, keeper._launcher, os.WEXITED | os.WNOWAIT)
    keeper.check_at_end(tmp_path, ME)
    expected = f"otel_rl: no process is started that sends the records (it ended with 1); {WITH} {tmp_path} --follow"
    assert [expected] == [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("path", ["", ":", "src:"])
def test_what_lies_in_the_working_directory_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A program's own ``queue.py`` is no business of the sidecar, which starts all the same."""
    run, here = tmp_path / "run", tmp_path / "here"
    run.mkdir()
    here.mkdir()
    for name in ("queue", "requests", "grpc", "psutil", "otel_rl"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\nraise ImportError\n")
    monkeypatch.chdir(here)
    environ = {**os.environ, "PYTHONPATH": path, f"{PREFIX}ENDPOINT": "ftp://nowhere"}
    pid = start.start(run, environ)
    assert (pid, 0) == os.waitpid(pid, 0)
    assert wait_for((run / "sidecar.log").exists)
    assert "nothing is sent: OTEL_EXPORTER_OTLP_ENDPOINT is not possible" in (run / "sidecar.log").read_text()
    assert not (tmp_path / "imported").exists()


def slow_import(path: Path) -> Path:
    """Make an ``opentelemetry`` that is not imported as long as a file lies there, with the pid of who imports it."""
    seen = path / "seen"
    (path / "opentelemetry").mkdir()
    (path / "opentelemetry" / "__init__.py").write_text(
        f"import os, time\nopen({str(seen)!r}, 'x').write(str(os.getpid()))\n"
        f"while os.path.exists({str(seen)!r}): time.sleep(0.01)\nraise ImportError('slow')\n"
    )
    return seen


def test_what_ends_a_trainer_ends_no_sidecar_that_is_still_importing(tmp_path: Path) -> None:
    """Its children and its group are killed, as Ray does: the sidecar left both before it imported anything."""
    seen, run = slow_import(tmp_path), tmp_path / "run"
    run.mkdir()
    pid = start.start(run, {**os.environ, "PYTHONPATH": str(tmp_path), f"{PREFIX}ENDPOINT": "ftp://nowhere"})
    assert os.getpgid(pid) == pid != os.getpgid(0)
    assert wait_for(lambda: seen.exists() and seen.read_text() != "")
    sidecar = psutil.Process(int(seen.read_text()))
    assert sidecar.pid == os.getsid(sidecar.pid) != os.getsid(pid)
    assert sidecar not in psutil.Process().children()
    os.killpg(pid, signal.SIGKILL)
    assert (pid, signal.SIGKILL) == os.waitpid(pid, 0)
    assert sidecar.is_running()
    seen.unlink()
    sidecar.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_start_that_somebody_killed_is_made_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clock: dict[str, float],
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    """A program may end all its children, one that was just started among them: that is no failure of the start."""
    started = []

    def spawn(directory: Path, environ: Mapping[str, str]) -> int:
        started.append(directory)
        pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "import signal; signal.pause()"], dict(os.environ))
        os.kill(pid, number)
        return pid

    monkeypatch.setattr(start, "start", spawn)
    keeper = Keeper()
    keeper.check(tmp_path, ME)
    wait_for_child(keeper, tmp_path)
    assert [tmp_path] == started
    clock["s"] += LAST_WAIT_S
    keeper.check(tmp_path, ME)
    assert [tmp_path] * 2 == started
    os.waitid(os.P_PID, keeper._launcher, os.WEXITED | os.WNOWAIT)
    keeper.check_at_end(tmp_path, ME)
    assert [tmp_path] * 3 == started, "no look comes after the last one"
    wait_for_child(keeper, tmp_path)
    assert "" == caplog.text


def test_a_sidecar_is_known_by_its_name(tmp_path: Path) -> None:
    """`ps aux`, `pgrep -f` and `top` show it as `otel-rl sidecar`; the program that started it keeps its own name."""
    (tmp_path / "grpc.py").write_text(f"import time\nopen({str(tmp_path / 'seen')!r}, 'x')\ntime.sleep(60)\n")
    run, mine = tmp_path / "run", psutil.Process().name()
    run.mkdir()
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), f"{PREFIX}ENDPOINT": "http://127.0.0.1:9"}
    os.waitpid(start.start(run, environ), 0)
    assert wait_for((tmp_path / "seen").exists)
    shown = subprocess.run(["pgrep", "-f", f"otel-rl sidecar {run}"], capture_output=True, text=True, check=True)
    (sidecar,) = map(psutil.Process, map(int, shown.stdout.split()))
    try:
        assert [sys.executable, str(start.PROGRAM), "sidecar", str(run)] == sidecar.cmdline()
        names = Path(f"/proc/{sidecar.pid}/comm").read_text(), Path("/proc/self/comm").read_text()
        assert ("otel-rl sidecar\n", f"{mine}\n") == names
    finally:
        sidecar.kill()
        sidecar.wait()


def test_where_it_is_forbidden_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, started: list[Path]
) -> None:
    """With the command that does its work; nothing is started."""
    keeper = Keeper(is_forbidden=True)
    keeper.check_at_end(tmp_path, ME)
    for _ in range(3):
        keeper.check(tmp_path, ME)
    assert ([], 1) == (started, len(caplog.records))
    assert "(OTEL_RL_SIDECAR=false)" in caplog.records[0].getMessage()


def test_what_went_elsewhere_is_sent_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, started: list[Path]
) -> None:
    """The folder for temporary files gets a sidecar of its own, and the command that does its work is said."""
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    monkeypatch.setattr(state, "directory", run)
    keeper = Keeper()
    keeper.check(run, ME)
    assert keeper._launcher
    keeper.check_at_end(run, ME)
    assert ([run], "") == (started, caplog.text)
    keeper.check_at_end(elsewhere, ME)
    assert [run, elsewhere] == started
    assert f"otel-rl ship {elsewhere}" in caplog.text


def test_without_an_endpoint_a_sidecar_watches_once_a_stall_is_possible(
    tmp_path: Path, clock: dict[str, float], caplog: pytest.LogCaptureFixture, started: list[Path]
) -> None:
    """A short program starts none, and its end waits for none."""
    keeper = make_keeper(is_forbidden=False)
    assert keeper is not None
    clock["s"] += start.WATCH_AFTER_S - 0.1
    keeper.check(tmp_path, ME)
    keeper.check_at_end(tmp_path, ME)
    assert [] == started
    clock["s"] += 0.2
    keeper.check(tmp_path, ME)
    assert ([tmp_path], "") == (started, caplog.text)


def test_no_sidecar_watches_where_the_user_forbids_it(
    tmp_path: Path, clock: dict[str, float], caplog: pytest.LogCaptureFixture, started: list[Path]
) -> None:
    """Nothing is said: nothing waits to be sent."""
    keeper = make_keeper(is_forbidden=True)
    assert keeper is not None
    clock["s"] += 100
    keeper.check(tmp_path, ME)
    keeper.check_at_end(tmp_path, ME)
    assert ([], "") == (started, caplog.text)


@pytest.mark.parametrize("name", ["CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"])
def test_a_setting_that_cannot_be_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A certificate or key in the place of its path among them; it is not shown."""
    monkeypatch.setenv(f"{PREFIX}ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(f"{PREFIX}{name}", PEM)
    assert make_keeper(is_forbidden=False) is None
    expected = (
        f"otel_rl: {PREFIX}{name} is not possible: it takes the path of a file, and there is no such file; "
        "the records wait for `otel-rl ship`"
    )
    assert [expected] == [record.getMessage() for record in caplog.records]


@pytest.mark.guarded
def test_an_error_of_ours_keeps_nothing_alive_and_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted and logged as every other one."""
    monkeypatch.setenv(f"{PREFIX}ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(start, "targets", lambda: 1 // 0)
    assert make_keeper(is_forbidden=False) is None
    assert {"find where to send": 1} == errors


@pytest.mark.parametrize("command", [[], ["-m", "otel_rl", "run", "--", sys.executable]])
def test_a_program_is_recorded_whatever_its_certificate_is(tmp_path: Path, command: list[str]) -> None:
    """Alone and below `otel-rl run`: it ends as ever, its journal is there, and nobody shows what may be a key."""
    environ = {
        **os.environ,
        "OTEL_RL_DIR": str(tmp_path),
        "OTEL_RL_RUN_ID": "run",
        f"{PREFIX}ENDPOINT": "http://127.0.0.1:9",
        f"{PREFIX}CERTIFICATE": PEM,
        f"{PREFIX}CLIENT_KEY": PEM,
    }
    result = subprocess.run(
        [sys.executable, *command, "-c", RECORDING], env=environ, capture_output=True, text=True, check=False
    )
    assert (0, "trained\n") == (result.returncode, result.stdout), result.stderr
    assert 3 == sum(span.name == "rl.loop" for span in open_run(tmp_path / "run").closed_spans())
    assert SECRET not in result.stderr
