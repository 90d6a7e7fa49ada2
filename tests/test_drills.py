"""Whole programs on disks that fail, and Ray actors that are killed, with a server at the other end.

Each drill counts what was recorded, what was journaled and what arrived.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import JournalNotFound, open_run
from otel_rl.sidecar import owner
from tests.sink import Sink, sink
from tests.test_shipping import RUN, STAGES, arrived, assert_all_arrived, contents, sidecar_of, stages_in, stop_sidecar
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "programs"
Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mount small file systems in memory, where that is permitted."""
    mounted: list[Path] = []

    def make(name: str, *options: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


@pytest.fixture
def fallback(tmp_path: Path) -> Iterator[Path]:
    """Where runs go whose disk takes nothing; all sidecars below the test's folder are gone at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    yield folder / f"otel_rl_runs-{os.getuid()}"
    for claim in tmp_path.rglob(f"{owner.ROLE}-*.json"):
        stop_sidecar(claim.parent)


def variables(root: Path, endpoint: str, tmp_path: Path) -> dict[str, str]:
    """Make the environment of a program."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(PROGRAMS.parents[1]), os.environ.get("PYTHONPATH", "")))),
        "OTEL_RL_DIR": str(root),
        "OTEL_RL_RUN_ID": RUN,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "30000",
        "TMPDIR": str(tmp_path / "temporary"),
        "RAY_AUTH_MODE": "disabled",  # no token is written into the home directory
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "200",
        "RAY_memory_monitor_refresh_ms": "0",  # a machine whose memory is nearly full kills none of the actors
    }


def run(environ: dict[str, str], program: str, *arguments: str) -> tuple[str, str, int]:
    """Run a program to its end; what it printed on both streams, and its exit code."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), *arguments],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout, done.stderr, done.returncode


def journaled(*directories: Path) -> Counter[bytes]:
    """The ids of the finished spans in these directories."""
    found: Counter[bytes] = Counter()
    for directory in directories:
        try:
            found.update(span.span_id for span in open_run(directory).spans())
        except JournalNotFound:
            continue
    return found


def assert_arrived(server: Sink, *directories: Path) -> Counter[bytes]:
    """All that was journaled arrives, nothing under one id with two contents; gives the journaled ids."""
    expected = journaled(*directories)
    assert wait_for(lambda: set(expected) <= set(arrived(server))), (len(expected), len(arrived(server)))
    assert wait_for(lambda: all(sidecar_of(directory) is None for directory in directories)), "a sidecar does not end"
    assert all(len(versions) == 1 for versions in contents(server).values())
    assert set(expected.values()) == {1}
    return expected


def test_a_full_disk(tmp_path: Path, mount: Mount, fallback: Path) -> None:
    """1 MiB, full in the middle of the run: the rest goes to the folder for temporary files; all of both arrives."""
    root = mount("small", "size=1m")
    with sink("grpc") as server:
        _, said, code = run(variables(root, server.endpoint, tmp_path), "steps.py", "2500", "return", "0.001")
        assert 0 == code, said
        here, there = root / RUN, fallback / RUN
        assert f"otel-rl ship {there}" in said
        both = assert_arrived(server, here, there)
        assert min(len(journaled(here)), len(journaled(there))) > 100, "the disk did not fill"
        recorded = dict.fromkeys(STAGES, 2500)
        assert recorded == stages_in(server), "recorded and arrived"
        assert set(both) == set(arrived(server)), "nothing was closed that ended elsewhere"
        assert 0 < len(arrived(server)) - sum(recorded.values()) < len(arrived(server))


def fill(root: Path) -> None:
    """Take what is left of a file system."""
    with suppress(OSError), (root / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x")


def test_what_went_elsewhere_can_be_sent_by_hand(tmp_path: Path, mount: Mount, fallback: Path) -> None:
    """Where no process may be started, the two commands that were said send everything, once, from a full disk too."""
    root = mount("small", "size=1m")
    with sink("grpc") as server:
        environ = {**variables(root, server.endpoint, tmp_path), "OTEL_RL_SIDECAR": "false"}
        _, said, code = run(environ, "steps.py", "2500", "return", "0.001")
        assert 0 == code, said
        assert not server.ids()
        fill(root)
        for directory in (root / RUN, fallback / RUN):
            assert f"otel-rl ship {directory}" in said
            ship = subprocess.run([sys.executable, "-m", "otel_rl", "ship", str(directory)], env=environ, check=False)
            assert 0 == ship.returncode
        assert dict.fromkeys(STAGES, 2500) == stages_in(server)
        assert assert_arrived(server, root / RUN, fallback / RUN) == arrived(server)


def test_a_read_only_disk_from_the_beginning(tmp_path: Path, mount: Mount, fallback: Path) -> None:
    """The run lies in the folder for temporary files, and arrives from there."""
    root = mount("sealed", "ro")
    with sink("grpc") as server:
        _, said, code = run(variables(root, server.endpoint, tmp_path), "steps.py", "50", "return", "0.001")
        assert 0 == code, said
        assert f"{root} cannot be used" in said
        assert_arrived(server, fallback / RUN)
        assert dict.fromkeys(STAGES, 50) == stages_in(server)


@pytest.mark.parametrize("illness", ["slow", "read-only", "hangs"])
def test_a_disk_that_falls_ill(tmp_path: Path, fallback: Path, illness: str) -> None:
    """Training goes on and ends; what was journaled arrives, and that is all where the disk answers at all."""
    root = tmp_path / "runs"
    with sink("grpc") as server:
        _, said, code = run(
            variables(root, server.endpoint, tmp_path), "sick_disk.py", illness, "300", "return", "0.02"
        )
        assert 0 == code, said
        directories = [root / RUN, *([fallback / RUN] if illness == "read-only" else [])]
        both = assert_arrived(server, *directories)
        stages = stages_in(server)
        if illness == "hangs":  # what the disk never took is lost, and that is said
            assert "what was recorded last may be lost" in said
            assert 0 < sum(stages.values()) < 1500
            closed = {
                span.span_id for span in server.taken("traces") if v.TRUNCATED in {a.key for a in span.attributes}
            }
            assert set(arrived(server)) == set(both) | closed
        else:
            assert dict.fromkeys(STAGES, 300) == stages
            assert set(both) == set(arrived(server))


def test_ray_actors_that_are_killed(tmp_path: Path, fallback: Path) -> None:
    """By ``ray.kill`` and by SIGKILL, each inside a stage: all that ended arrives, and what was open is closed."""
    pytest.importorskip("ray")
    steps = 40
    with sink("grpc") as server:
        environ = variables(tmp_path, server.endpoint, tmp_path)
        del environ["TMPDIR"]  # Ray's sockets lie there, and their names are short
        printed, said, code = run(environ, "ray_actors.py", str(steps))
        assert 0 == code, said
        (line,) = [line for line in printed.splitlines() if line.startswith("{")]
        recorded = json.loads(line)
        assert {2 * steps} == set(recorded.values())
        assert 2 == len(recorded)
        assert_all_arrived(tmp_path, server, {"rl.sample": 2 * steps + 2, "rl.reward": 2 * steps})
        ended = Counter(span.journal.identity.pid for span in open_run(tmp_path / RUN).spans() if span.name in STAGES)
        assert {int(pid): number for pid, number in recorded.items()} == ended, "recorded and journaled"
        spans = server.taken("traces")
        closed = Counter(span.name for span in spans if v.TRUNCATED in {item.key for item in span.attributes})
        assert {"rl.sample": 2, "rl.loop": 2, "rl.rank 0": 2} == closed
