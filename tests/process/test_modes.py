"""Who may read what we write: its owner alone, whoever makes it and whatever the umask."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_IMODE

import pytest

from otel_rl.journal.filesystem import make_directory
from tests.made_runs import Plan, write_run
from tests.sink import sink

pytestmark = pytest.mark.medium

UMASKS = [0, 0o022, 0o077, 0o777]
OTEL_RL = [sys.executable, "-m", "otel_rl"]
RECORDING = [
    sys.executable,
    "-c",
    "import otel_rl\notel_rl.instrument()\nwith otel_rl.step(1):\n    pass",
]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Have a umask for a while; it is that of the whole process."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(root: Path) -> dict[str, str]:
    """The kind and mode of all that is below a folder that is not as it should be, and of the folder itself."""
    should_be = {True: 0o700, False: 0o600}
    found = {path: S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    return {str(path): f"{mode:o}" for path, mode in found.items() if mode != should_be[path.is_dir()]}


@pytest.mark.parametrize(
    ("mask", "maker", "code", "made"),
    [
        *((mask, RECORDING, 0, True) for mask in UMASKS),
        (0, [*OTEL_RL, "run", "-q", "--", *RECORDING], 0, True),
        (0o777, [*OTEL_RL, "sidecar", "--stay", "mine"], None, True),
        (0o777, [*OTEL_RL, "stack", "up"], 1, True),
        (0, [*OTEL_RL, "doctor"], None, False),
        (0, [*OTEL_RL, "report", "mine"], 3, False),
        (0, [*OTEL_RL, "export", "mine"], 3, False),
        (0, [*OTEL_RL, "ship", "mine"], 3, False),
    ],
    ids=[*(f"trainer {mask:o}" for mask in UMASKS), "run", "sidecar", "stack", "doctor", "report", "export", "ship"],
)
def test_a_new_root_is_its_owners_alone(
    tmp_path: Path, mask: int, maker: list[str], code: int | None, made: bool
) -> None:
    """With its missing parents and all that is in it; what only reads makes none."""
    root = tmp_path / "deep" / "runs"
    nowhere = dict.fromkeys(("PATH", "OTEL_RL_BACKENDS", "XDG_CACHE_HOME"), str(tmp_path))
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_RL_SIDECAR": "false"}
    environ = {"OTEL_RL_DIR": str(root), **nowhere, **settings}
    with umask(mask):
        process = subprocess.Popen(
            maker, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[2]
        )
    if "--stay" in maker:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"otel-rl: follows")
        process.kill()
    said, _ = process.communicate()
    assert code in (None, process.returncode), said
    assert made == root.exists(), said
    assert {} == (modes(tmp_path / "deep") if made else {}), said


def test_a_root_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    """A team may share it; what is made in it is the owner's alone."""
    root = tmp_path / "runs"
    root.mkdir()
    root.chmod(0o2775)
    environ = {**os.environ, "OTEL_RL_DIR": str(root), "OTEL_RL_RUN_ID": "mine", "OTEL_RL_SIDECAR": "false"}
    subprocess.run(RECORDING, env=environ, check=True)
    assert 0o2775 == S_IMODE(root.stat().st_mode)
    assert 0o2700 == S_IMODE((root / "mine").stat().st_mode), "the group goes on below"
    assert {0o600} == {S_IMODE(path.stat().st_mode) for path in (root / "mine").iterdir()}


def test_what_a_sidecar_and_ship_write(tmp_path: Path) -> None:
    """Claims, locks, notes of what was sent and their log."""
    with sink("grpc") as server, umask(0):
        environ = {**os.environ, "OTEL_RL_DIR": str(tmp_path / "runs"), "OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint}
        run = write_run(tmp_path / "runs", Plan(steps=1))
        (tmp_path / "runs").chmod(0o700)
        for options in (["ship"], ["ship", "--follow"], ["sidecar"]):
            subprocess.run([*OTEL_RL, *options, run.name], env=environ, check=True)
    assert {"sidecar"} < {path.name.partition("-")[0] for path in run.iterdir()}
    assert {} == modes(tmp_path / "runs")


def test_a_directory_is_made_or_its_problem_said(tmp_path: Path) -> None:
    """Not where a file lies, nor below one; a link to a folder is one."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "loose").symlink_to(tmp_path / "nowhere")
    make_directory(tmp_path / "link")
    make_directory(tmp_path / "link" / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    problems = {
        "file": FileExistsError,
        "file/x": NotADirectoryError,
        "loose": FileExistsError,
        "loose/x": FileExistsError,
    }
    for name, error in problems.items():
        with pytest.raises(error):
            make_directory(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        make_directory(Path("/proc/nowhere/deep"))
