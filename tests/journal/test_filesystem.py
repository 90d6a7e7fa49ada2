"""File servers whose clock is not ours: what is judged by the age of files does not depend on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rl.journal import filesystem
from otel_rl.journal.filesystem import ahead_s, silent_s

pytestmark = pytest.mark.medium

SHIFTS = [-3600, 0, 120]
RECORDING = """
import otel_rl
otel_rl.instrument()
with otel_rl.step(1):
    pass
"""
LIVENESS = """
import os, sys, time
from dataclasses import replace
from pathlib import Path
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import open_run
from otel_rl.journal.write import Writer
from otel_rl.runs.locate import written_at
from otel_rl.sidecar import owner
from otel_rl.sidecar.ship_node import Node

server, local = map(Path, sys.argv[1:])
far = replace(WriterIdentity.current("trainer", 0), boot_id="another")
for place in (server, local):
    writer = Writer(place / "run", far, max_bytes=1 << 20)
    writer.append("traces", b"", 1, 1, 1)
    writer.append("metrics", b"", 1, 1, 1)
    time.sleep(0.02)
run = server / "run"
assert owner.claim(run, "another", far) is not None
files = [*run.glob("*.otlp"), owner.path_of(run, "another")]
for silent_s, expected in ((55, True), (65, False), (7200, False)):
    for file in files:
        moment = time.time() - silent_s
        os.utime(file, (moment, moment))
    node = Node(run, (), lambda identity: True, print)
    node._scan()
    strange = Node(run, (), lambda identity: False, print)
    strange._scan()
    (journal,) = open_run(run).journals
    found = journal.alive(), owner.living(run, "another") is not None, bool(node.living), strange.is_alive(far.writer)
    assert (expected,) * 4 == found, (silent_s, found)
assert written_at(run) < written_at(local / "run") < written_at(run) + 7300
"""


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that shifts times of modification."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("shim") / "file_server.so"
    source = Path(__file__).parent.parent / "programs" / "file_server.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than the one for temporary files."""
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system that can be written")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def environment(shim: Path, server: Path, shift_s: int) -> dict[str, str]:
    """Let the files of a folder's file system have times of another clock."""
    return {**os.environ, "LD_PRELOAD": str(shim), "SERVER": str(server), "AHEAD": str(shift_s)}


@pytest.mark.parametrize("shift_s", SHIFTS)
def test_what_was_recorded_is_found(shim: Path, server: Path, shift_s: int) -> None:
    """By `otel-rl run`, by its mark or (where the command cleans its environment) by time; no older run is taken."""
    environ = environment(shim, server, shift_s)
    run = [sys.executable, "-m", "otel_rl", "run", "-q", f"--dir={server}"]
    kept = [f"{name}={environ[name]}" for name in ("LD_PRELOAD", "SERVER", "AHEAD")]
    cleaned = ["env", "-i", *kept, f"OTEL_RL_DIR={server}", "OTEL_RL_RUN_ID=b"]
    for name, command in (("a", ["--run-id=a", "--"]), ("b", ["--", *cleaned])):
        done = subprocess.run(
            [*run, *command, sys.executable, "-c", RECORDING], env=environ, capture_output=True, text=True, check=True
        )
        assert f"otel-rl: recorded in {server / name}\n" == done.stderr
    for file in (server / "a").iterdir():
        os.utime(file, (0, file.stat().st_mtime - 7200))
    done = subprocess.run([*run, "--", "true"], env=environ, capture_output=True, text=True, check=True)
    assert done.stderr.startswith("otel-rl: nothing was recorded"), done.stderr


@pytest.mark.parametrize("shift_s", SHIFTS)
def test_who_cannot_be_looked_up_lives_by_the_servers_clock(
    shim: Path, server: Path, tmp_path: Path, shift_s: int
) -> None:
    """A journal's writer and a sidecar of another host; of two file systems the run that was written last is newer."""
    subprocess.run(
        [sys.executable, "-c", LIVENESS, server, tmp_path], env=environment(shim, server, shift_s), check=True
    )


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are judged by the clock of this host; nothing is left behind, and the next one asks again."""
    file = tmp_path / "file"
    file.touch()
    moment = file.stat().st_mtime - 100
    os.utime(file, (moment, moment))

    def fails(**_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(filesystem, "_clocks", {})
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryFile", fails)
        assert 100 == pytest.approx(silent_s(file), abs=5)
    assert {} == filesystem._clocks
    assert ahead_s(tmp_path) == ahead_s(tmp_path)
    assert 1 == len(filesystem._clocks)
    assert 100 == pytest.approx(silent_s(file), abs=5)
    assert ["file"] == os.listdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        silent_s(tmp_path / "absent")
