"""Two nodes with one Collector: network namespaces with boot ids of their own and one directory of the run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import open_run
from otel_rl.sidecar import owner
from tests.backends import collector, free_ports, jaeger
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.backend,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))), reason="needs root and ip"),
]

PROGRAM = Path(__file__).parents[1] / "programs" / "steps.py"
STEPS = 20
BOOT_ID = "/proc/sys/kernel/random/boot_id"


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """A root of runs whose sidecars are gone at the end, of whatever node."""
    root = tmp_path / "runs"
    yield root
    for claim in root.rglob(f"{owner.ROLE}-*.json"):
        identity = WriterIdentity.from_json(claim.read_bytes())
        with suppress(ProcessLookupError):  # it has ended by itself meanwhile
            os.kill(identity.pid, signal.SIGKILL)


@contextmanager
def node(number: int) -> Iterator[tuple[str, str]]:
    """A network namespace that reaches this one; gives its name and this one's address as seen from there."""
    name, link, inside = f"otel_rl_{os.getpid()}_{number}", f"orl{os.getpid() % 10000}_{number}", f"orli{number}"
    subnet = f"10.{64 + os.getpid() % 128}.{number}"  # of its own: what a killed run left has another
    here, there = f"{subnet}.1", f"{subnet}.2"
    commands = [
        f"ip netns add {name}",
        f"ip link add {link} type veth peer name {inside} netns {name}",
        f"ip addr add {here}/24 dev {link}",
        f"ip link set {link} up",
        f"ip netns exec {name} ip addr add {there}/24 dev {inside}",
        f"ip netns exec {name} ip link set {inside} up",
        f"ip netns exec {name} ip link set lo up",
    ]
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{command}: {done.stderr.strip()}")
        yield name, here
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", link], check=False, capture_output=True)


def start(folder: Path, namespace: str, endpoint: str, rank: int) -> subprocess.Popen[bytes]:
    """Train on a node; it has a boot id of its own, by which its sidecar knows its journals."""
    boot_id = folder / f"boot_id_{rank}"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    inner = f"mount --bind {boot_id} {BOOT_ID} && exec {sys.executable} {PROGRAM} {STEPS} return 0.1"
    environ = {
        **os.environ,
        "OTEL_RL_DIR": str(folder / "runs"),
        "OTEL_RL_RUN_ID": "run",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "30000",  # what is answered late is sent again
        "OTEL_METRICS_EXPORTER": "none",  # nobody is there who takes them
        "OTEL_RESOURCE_ATTRIBUTES": f"test.node={rank}",
    }
    return subprocess.Popen(["ip", "netns", "exec", namespace, "unshare", "-m", "sh", "-c", inner], env=environ)


def test_each_node_ships_its_own(tmp_path: Path, runs: Path) -> None:
    """Everything of both arrives once: each sidecar leaves the other node's journals alone. Both end."""
    (port,) = free_ports(1)
    with (
        node(1) as (first, address),
        node(2) as (second, other),
        jaeger(tmp_path) as store,
        collector(tmp_path, OTEL_RL_GRPC=f"0.0.0.0:{port}", OTEL_RL_JAEGER=store.otlp),
    ):
        programs = [
            start(tmp_path, first, f"http://{address}:{port}", 0),
            start(tmp_path, second, f"http://{other}:{port}", 1),
        ]
        assert [0, 0] == [program.wait() for program in programs]
        run = open_run(runs / "run")
        spans = list(run.spans())
        assert 2 == len({span.journal.identity.boot_id for span in spans})
        expected = Counter((span.trace_id.hex(), span.span_id.hex()) for span in spans)

        def stored() -> Counter[tuple[str, str]]:
            traces = {trace for trace, _ in expected}
            return Counter((trace, span["spanId"]) for trace in traces for span in store.trace(trace))

        wait_for(lambda: stored() == expected)
        assert expected == stored()

        def owners() -> int:
            return len([*(runs / "run").glob("*.shipped")])

        wait_for(lambda: owners() == 4)  # a sidecar's own journal begins later than the trainers' are sent
        assert 4 == owners(), "two trainers and two sidecars"
        assert wait_for(lambda: not [*runs.rglob(f"{owner.ROLE}-*.json")]), "a sidecar does not end"
