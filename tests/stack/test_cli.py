"""`otel-rl stack` as a user types it, with small programs that listen and answer as the real ones do."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from click.testing import Result
from typer.testing import CliRunner

from otel_rl.cli import app
from otel_rl.journal.identity import start_time
from otel_rl.stack import control, processes
from otel_rl.stack.plan import PORTS, Program
from otel_rl.stack.processes import RunningProgram, RunningStack, used_ports
from otel_rl.stack.programs import NO_TEMPO
from tests.fixtures import commands

pytestmark = pytest.mark.medium

FAKE = """#!{python} -IS
import json, os, select, signal, socket, sys, time

name = os.path.basename(sys.argv[0])
how = os.environ.get("FAKE_" + name.upper(), "")
flags = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
config = flags.get("--config.file") or flags.get("-config.file") or sys.argv[2]
open(config).close()
print(name, "reads", config, flush=True)
if how == "dies":
    sys.exit(f"Error: {{name}} cannot\\x1b[2J unmarshal")
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(name + ".json", "w") as file:
    json.dump([dict(os.environ), sys.argv, os.getcwd(), os.getsid(0) == os.getpid()], file)

env = os.environ.get
own = "127.0.0.1:" + env({{"otelcol": "OTEL_RL_OWN", "jaeger": "OTEL_RL_JAEGER_OWN"}}.get(name, ""), "0")
health, path, others = {{
    "otelcol": (env("OTEL_RL_HEALTH"), "/", [env("OTEL_RL_GRPC"), env("OTEL_RL_HTTP"), own]),
    "jaeger": (
        env("OTEL_RL_JAEGER_HEALTH"),
        "/status",
        [env("OTEL_RL_JAEGER_OTLP"), env("OTEL_RL_JAEGER_UI"), env("OTEL_RL_JAEGER_QUERY"), own],
    ),
    "prometheus": (flags.get("--web.listen-address"), "/-/ready", []),
    "tempo": (
        f"{{env('OTEL_RL_TEMPO_HOST')}}:{{env('OTEL_RL_TEMPO_PORT')}}",
        "/ready",
        [
            env("OTEL_RL_TEMPO_OTLP"),
            f"127.0.0.1:{{env('OTEL_RL_TEMPO_GRPC_PORT')}}",
            f"127.0.0.1:{{flags.get('-memberlist.bind-port')}}",
        ],
    ),
}}[name]


def listen(address):
    host, _, port = address.rpartition(":")
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, int(port)))
    server.listen()
    return server


held = [listen(address) for address in others]
server = listen(health)
ready_s = time.monotonic() + 0.2
while True:
    client, _ = server.accept()
    asked = client.recv(1000).decode().split(" ")[1:2]  # nothing, from one that was killed
    is_well = asked == [path] and time.monotonic() > ready_s and how != "silent"
    client.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n" if is_well else b"HTTP/1.1 503 Service Unavailable\\r\\n\\r\\n")
    client.close()
    if how == "leaves" and is_well:
        sys.exit("Error: out of disk")
"""
MAIN = (sys.executable, "-m", "otel_rl", "stack")
THREE = {"jaeger", "prometheus", "collector"}


class Machine:
    """A root of runs, a PATH with small programs, and ports that nobody has."""

    def __init__(self, root: Path, programs: Path) -> None:
        self.root = root
        self.programs = programs
        self.folder = root / ".stack"
        self.offset = free_offset()

    def stack(self, *words: str) -> Result:
        """Type `otel-rl stack ...`."""
        return CliRunner().invoke(app, ["stack", *words])

    def up(self, *words: str) -> Result:
        """Type `otel-rl stack up` with free ports."""
        return self.stack("up", "--port-offset", str(self.offset), *words)

    @property
    def noted(self) -> dict[str, RunningProgram]:
        """Return the programs that `up` started, by name."""
        found = processes.load(self.folder)
        return {part.name: part for part in found.programs} if found else {}

    @property
    def living(self) -> list[int]:
        """List the pids of our programs that run, wherever they are noted."""
        pids = [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if any(str(self.programs) in word for word in process.info["cmdline"] or ())
        ]
        return [pid for pid in pids if start_time(pid)]

    def add(self, *names: str) -> None:
        """Install programs."""
        for name in names:
            path = self.programs / name
            path.write_text(FAKE.format(python=sys.executable))
            path.chmod(0o755)


def free_offset() -> int:
    """Find an offset at which nobody has a port; below those that the system gives to connections."""
    return next(
        offset
        for offset in iter(lambda: random.randrange(1, 7000), None)
        if not used_ports(port + offset for port in PORTS.values())
    )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Make a machine with three programs; whatever a test left running is ended."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("otel_rl.stack.processes.ASK_S", 60.0)  # a busy machine
    found = Machine(Path(os.environ["OTEL_RL_DIR"]), programs)
    found.add("jaeger", "prometheus", "otelcol")
    yield found
    for pid in found.living:
        os.kill(pid, signal.SIGKILL)


def test_up_status_down(machine: Machine) -> None:
    """Everything answers when `up` returns, is listed, and nothing is left by `down`, which says what it ended."""
    up = machine.up()
    assert (0, THREE) == (up.exit_code, set(machine.noted)), up.output
    base = machine.offset
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{4317 + base} otel-rl run -- python train.py" in up.stdout
    assert all(f"http://127.0.0.1:{port + base}" in up.stdout for port in (16686, 9090))
    status = machine.stack("status")
    rows = {row.split()[0]: row.split()[1:] for row in status.stdout.splitlines()[1:]}
    expected = {part.name: ["answers", part.address, str(part.pid)] for part in machine.noted.values()}
    assert (0, expected) == (status.exit_code, {name: row[:3] for name, row in rows.items()})
    assert sorted(part.pid for part in machine.noted.values()) == sorted(machine.living)

    down = machine.stack("down")
    assert (0, "Stopped: jaeger, prometheus, collector.\n", []) == (down.exit_code, down.stdout, machine.living)
    assert not (machine.folder / "stack.json").exists()
    again = machine.stack("down")
    assert (0, "The stack was not up.\n") == (again.exit_code, again.stdout)
    gone = machine.stack("status")
    assert (3, "The stack is not up; `otel-rl stack up` starts it.\n") == (gone.exit_code, gone.stdout)


def test_every_option_says_what_happens_without_it() -> None:
    """As of every other command; exit codes are told."""
    known: dict[str, Any] = commands()["stack"].commands
    assert {"up", "down", "status"} == set(known)
    for command in known.values():
        valued = [row for row in command.params if not getattr(row, "is_flag", False) and row.name != "help"]
        assert [] == [row.name for row in valued if "Without it: " not in row.help]
        assert command.epilog.startswith("Exit code: ")


def test_each_program_is_on_its_own(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads a session, logs into its file, gets no variable of the training, and outlives the command."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    done = subprocess.run(
        [*MAIN, "up", "--port-offset", str(machine.offset)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    for name in ("jaeger", "prometheus", "otelcol"):
        environ, _, cwd, leads = json.loads((machine.folder / f"{name}.json").read_text())
        assert (str(machine.folder), True, None) == (cwd, leads, environ.get("OTEL_EXPORTER_OTLP_HEADERS"))
    assert "jaeger reads" in (machine.folder / "jaeger.log").read_text()
    secret = [path.name for path in machine.folder.glob("*") if path.is_file() and "secret" in path.read_text()]
    assert ([], 0) == (secret, machine.stack("status").exit_code)
    assert (0, []) == (machine.stack("down").exit_code, machine.living)


def test_a_second_up_finds_it_running(machine: Machine) -> None:
    """It starts nothing, and needs neither the programs nor free ports for that; other ports need a `down` first."""
    machine.up()
    before = machine.noted
    shutil.rmtree(machine.programs)
    machine.programs.mkdir()
    again = machine.up()
    assert (0, True, before) == (again.exit_code, "The stack already runs." in again.stdout, machine.noted)
    other = machine.stack("up")
    assert (1, before) == (other.exit_code, machine.noted)
    assert f"already runs with --port-offset {machine.offset}: run `otel-rl stack down` first" in other.stderr


def test_ports_that_are_taken_are_named_with_their_holder(machine: Machine) -> None:
    """And nothing is started."""
    ports = [port + machine.offset for port in (9090, 4317)]
    with socket.create_server(("127.0.0.1", ports[0])), socket.create_server(("127.0.0.1", ports[1])):
        up = machine.up()
    holder = f"{psutil.Process().name()} (pid {os.getpid()})"
    expected = (
        f"otel-rl: ports that are needed are in use: {holder} has {ports[0]}, {ports[1]}. Stop what uses them, or "
    )
    assert (1, True, []) == (up.exit_code, up.stderr.startswith(expected), machine.living), up.stderr


def test_a_missing_program_is_named_with_how_to_get_it(machine: Machine) -> None:
    """And nothing is started."""
    (machine.programs / "jaeger").unlink()
    up = machine.up()
    expected = "otel-rl: jaeger is missing: `scripts/backends` of the repository builds"
    assert (1, True, []) == (up.exit_code, up.stderr.startswith(expected), machine.living), up.stderr


@pytest.mark.parametrize("name", ["jaeger", "prometheus", "otelcol"])
def test_a_program_that_ends_at_once_is_named_with_what_it_said(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The others are ended, nothing is noted; what it said cannot order the terminal about."""
    monkeypatch.setenv(f"FAKE_{name.upper()}", "dies")
    up = machine.up()
    part = name.replace("otelcol", "collector")
    log = machine.folder / f"{part}.log"
    first, *lines = up.stderr.splitlines()
    assert f"otel-rl: {part} ended right after it was started (exit code 1); its log is {log}, and ends with:" == first
    assert (1, f"  Error: {name} cannot\ufffd[2J unmarshal") == (up.exit_code, lines[-1])
    assert ([], {}) == (machine.living, machine.noted)
    assert (3, 0) == (machine.stack("status").exit_code, machine.stack("down").exit_code)


def test_a_program_that_is_killed_at_once_says_by_what(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is as good as empty then."""
    monkeypatch.setenv("FAKE_JAEGER", "killed")
    up = machine.up()
    assert (1, True, []) == (
        up.exit_code,
        "jaeger ended right after it was started (killed by signal 9)" in up.stderr,
        machine.living,
    )


def test_a_program_that_cannot_be_executed(machine: Machine) -> None:
    """Built for another machine, say."""
    (machine.programs / "jaeger").write_bytes(b"\x7fELF no program")
    up = machine.up()
    expected = f"otel-rl: {machine.programs}/jaeger cannot be started: Exec format error\n"
    assert (1, expected, []) == (up.exit_code, up.stderr, machine.living)


def test_a_program_that_never_answers(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait has an end, and leaves nothing."""
    monkeypatch.setenv("FAKE_PROMETHEUS", "silent")
    well: set[str] = set()
    real = processes.answers

    def answers(program: RunningProgram) -> bool:
        if is_well := real(program):
            well.add(program.name)
        return is_well

    def monotonic() -> float:
        """Jump past the end of the wait once all others answer."""
        return time.monotonic() + (processes.WAIT_S + 1 if len(well) == 2 else 0)

    monkeypatch.setattr(processes, "answers", answers)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep, time=time.time))
    up = machine.up()
    expected = f"prometheus runs, but did not answer on port {9090 + machine.offset} within 120 s; its log is "
    assert (1, True, []) == (up.exit_code, expected in up.stderr, machine.living)


@pytest.mark.usefixtures("unmeasured")
def test_an_interrupted_up_leaves_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while it waits."""
    monkeypatch.setenv("FAKE_JAEGER", "silent")
    command = [*MAIN, "up", "--port-offset", str(machine.offset)]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as up:
        while len(machine.living) < 3:
            time.sleep(0.05)
        up.send_signal(signal.SIGINT)
        up.communicate()
    assert ([], {}, True) == (machine.living, machine.noted, up.returncode != 0)


@pytest.mark.usefixtures("unmeasured")
def test_an_interrupt_while_a_program_starts_leaves_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after its process was made, before anybody knows of it."""
    real = processes.start

    def start(program: Program, folder: Path) -> RunningProgram:
        started = real(program, folder)
        os.kill(os.getpid(), signal.SIGINT)
        return started

    monkeypatch.setattr(processes, "start", start)
    before = signal.getsignal(signal.SIGINT)
    up = machine.up()
    assert ([], {}, True, before) == (
        machine.living, machine.noted, up.exit_code != 0, signal.getsignal(signal.SIGINT)
    )  # fmt: skip


def test_an_up_that_was_killed_can_be_taken_down(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it started is noted before it waits."""
    monkeypatch.setenv("FAKE_JAEGER", "silent")
    command = [*MAIN, "up", "--port-offset", str(machine.offset)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL) as up:
        while len(machine.noted) < 3:
            time.sleep(0.05)
        up.kill()
    status, down = machine.stack("status"), machine.stack("down")
    assert (1, True) == (status.exit_code, "does not answer" in status.stdout)
    assert (0, []) == (down.exit_code, machine.living)


def test_a_part_that_died_by_itself(machine: Machine) -> None:
    """`status` shows it, `up` says what to do, `down` ends the others."""
    machine.up()
    dead = machine.noted["jaeger"].pid
    os.kill(dead, signal.SIGKILL)
    while start_time(dead):
        time.sleep(0.01)
    status = machine.stack("status")
    rows = {row.split()[0]: row.split()[1] for row in status.stdout.splitlines()[1:]}
    assert (1, {"jaeger": "dead", "prometheus": "answers", "collector": "answers"}) == (status.exit_code, rows)
    up = machine.up()
    assert (1, 2) == (up.exit_code, len(machine.living))
    assert "the stack runs in part: jaeger ended by itself" in up.stderr
    down = machine.stack("down")
    assert (0, "Stopped: prometheus, collector.\n", []) == (down.exit_code, down.stdout, machine.living)


def test_after_all_of_it_died_up_starts_it_anew(machine: Machine) -> None:
    """The machine was started again, say."""
    machine.up()
    before = machine.noted
    for part in before.values():
        os.kill(part.pid, signal.SIGKILL)
    while machine.living:
        time.sleep(0.01)
    up = machine.up()
    assert (0, True, 3) == (up.exit_code, "The stack runs." in up.stdout, len(machine.living)), up.output
    assert set() == {part.pid for part in before.values()} & set(machine.living)


def test_another_process_with_the_same_pid_is_left_alone(machine: Machine) -> None:
    """The one that was noted is gone; who has its pid now started at another moment."""
    with subprocess.Popen(["/bin/sleep", "60"]) as other:
        machine.folder.mkdir(parents=True)
        part = RunningProgram("jaeger", other.pid, (start_time(other.pid) or 0) + 1, 0.0, "x", 1, "/")
        processes.save(machine.folder, RunningStack.here(0, (part,)))
        status, down = machine.stack("status"), machine.stack("down")
        assert (1, 0, None) == (status.exit_code, down.exit_code, other.poll())
        other.kill()


def test_who_does_not_listen_to_sigterm_is_killed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time that it has for it."""
    monkeypatch.setenv("FAKE_PROMETHEUS", "stubborn")
    monkeypatch.setattr(processes, "STOP_S", 0.5)
    machine.up()
    down = machine.stack("down")
    assert (0, "Stopped: jaeger, prometheus, collector.\n", []) == (down.exit_code, down.stdout, machine.living)


def test_that_there_is_no_tempo_is_one_line(machine: Machine) -> None:
    """It is not built; the others do without it."""
    assert [NO_TEMPO] == [line for line in machine.up().stdout.splitlines() if "tempo" in line.lower()]


def test_tempo_is_started_where_there_is_one_and_killed_at_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes minutes to end by itself."""
    monkeypatch.setenv("FAKE_TEMPO", "stubborn")
    machine.add("tempo")
    up = machine.up()
    assert (0, THREE | {"tempo"}, False) == (up.exit_code, set(machine.noted), NO_TEMPO in up.stdout), up.output
    environ = json.loads((machine.folder / "otelcol.json").read_text())[0]
    assert ("[otlp_grpc/jaeger, otlp_grpc/tempo]", f"127.0.0.1:{24317 + machine.offset}") == (
        environ["OTEL_RL_TRACES_TO"],
        environ["OTEL_RL_TEMPO"],
    )
    monkeypatch.setattr(processes, "STOP_S", 3600.0)  # nobody waits for it
    down = machine.stack("down")
    assert (0, []) == (down.exit_code, machine.living)


def test_delete_removes_the_data_and_nothing_else(machine: Machine) -> None:
    """Also when it is not up; without it the data stay."""
    machine.up()
    run = machine.root / "run"
    run.mkdir()
    data = machine.folder / "prometheus"
    data.mkdir()
    machine.stack("down")
    assert data.is_dir()
    down = machine.stack("down", "--delete")
    assert (0, [run], True) == (down.exit_code, list(machine.root.iterdir()), "removed" in down.stdout)
    assert 0 == machine.stack("down", "--delete").exit_code


def test_the_root_of_the_runs_may_be_named(machine: Machine, tmp_path: Path) -> None:
    """Then `up` says it in what to type next."""
    other = tmp_path / "other root"
    up = machine.up("--dir", str(other))
    assert (0, True) == (up.exit_code, f"otel-rl stack down --dir '{other}'" in up.stdout), up.output
    assert (3, 0) == (machine.stack("status").exit_code, machine.stack("status", "--dir", str(other)).exit_code)
    assert (0, []) == (machine.stack("down", "--dir", str(other)).exit_code, machine.living)


def test_a_stack_of_another_machine_is_left_alone(machine: Machine) -> None:
    """Its root is on a shared disk; its pids mean other processes here."""
    machine.up()
    noted = json.loads((machine.folder / "stack.json").read_text()) | {"host": "node7", "boot_id": "x"}
    (machine.folder / "stack.json").write_text(json.dumps(noted))
    results = [machine.stack("status"), machine.up(), machine.stack("down")]
    assert ([1, 1, 1], 3) == ([result.exit_code for result in results], len(machine.living))
    assert all("node7" in result.stderr for result in results)


def test_a_root_that_cannot_be_written(machine: Machine) -> None:
    """One sentence, as of every command."""
    done = subprocess.run(
        [*MAIN, "up", "--dir", "/proc/nowhere"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (1, "otel-rl: /proc/nowhere: No such file or directory\n") == (done.returncode, done.stderr)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"programs": [{"pid": -1}]}'])
def test_a_damaged_file_ends_nothing(machine: Machine, content: str) -> None:
    """The sentence says what to do."""
    machine.folder.mkdir(parents=True)
    (machine.folder / control.processes.FILE).write_text(content)
    results = [machine.stack("status"), machine.up(), machine.stack("down")]
    assert [1, 1, 1] == [result.exit_code for result in results]
    assert all("stack.json is damaged: remove it, and end the programs" in result.stderr for result in results)
