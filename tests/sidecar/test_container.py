"""The sidecar as a container: a pid namespace of its own, the directory of the run shared; who lives is never dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest

from otel_rl import vocabulary as v
from otel_rl.journal import identity
from otel_rl.journal.read import open_run
from otel_rl.sidecar.main import QUIET_S, TOUCH_S
from tests.sink import ALIVE, TAKEN, Answer, Sink, sink
from tests.test_shipping import RUN, arrived, contents, journaled, train
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "otel_rl")
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
STALE_S = 12
"""Instead of 60 s; a trainer touches its files every 5 s."""
SIDECAR = f"""
import sys
from otel_rl.journal import identity
identity.STALE_S = {STALE_S}.0
from otel_rl.cli import main
sys.argv = ["otel-rl", "sidecar", "--stay", sys.argv[1]]
main()
"""
TRAINER = """
import sys, time
import otel_rl
otel_rl.instrument()
for number in range(1, 4):
    with otel_rl.step(number), otel_rl.stage("sample"):
        time.sleep(0.1)
with otel_rl.step(4), otel_rl.stage("sample"):
    print("inside", flush=True)
    sys.stdin.readline()
"""


class Containers:
    """Programs in pid namespaces of their own, which share a root of runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[subprocess.Popen[str]] = []

    def start(self, code: str, *arguments: str, namespace: Sequence[str] = NAMESPACE, **environ: str) -> int:
        """Start a program; give its place in ``started``."""
        self.started.append(
            subprocess.Popen(
                [*namespace, sys.executable, "-c", code, *arguments],
                env={**os.environ, **environ, "PYTHONPATH": str(ROOT)},
                cwd=self.root,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return len(self.started) - 1

    def sidecar(self, server: Sink) -> int:
        """Start `otel-rl sidecar --stay`."""
        return self.start(SIDECAR, str(self.root / RUN), OTEL_EXPORTER_OTLP_ENDPOINT=server.endpoint)

    def trainer(self) -> int:
        """Start a trainer, and wait until it is inside a stage."""
        variables = {"OTEL_RL_DIR": str(self.root), "OTEL_RL_RUN_ID": RUN, "OTEL_RL_SIDECAR": "false"}
        place = self.start(TRAINER, **variables)
        stdout = self.started[place].stdout
        assert stdout is not None
        assert "inside\n" == stdout.readline()
        return place

    def end(self, place: int) -> int:
        """Let a trainer leave its stage and end; give how it did."""
        self.started[place].communicate("\n")
        return self.started[place].returncode

    def signal(self, place: int, number: int) -> None:
        """Send a signal to the program itself, which is number 1 in its namespace."""
        unshare = self.started[place].pid
        (child,) = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
        os.kill(int(child), number)


@pytest.fixture
def containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Containers]:
    """Containers that are gone at the end."""
    monkeypatch.setattr(identity, "STALE_S", float(STALE_S))
    probe = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no pid namespace can be made here: {probe.stderr.strip()}")
    found = Containers(tmp_path)
    yield found
    for process in found.started:
        process.kill()
        process.communicate()


def truncated(server: Sink) -> set[bytes]:
    """The spans that were sent as left open by somebody dead."""
    return {span.span_id for span in server.taken("traces") if any(pair.key == v.TRUNCATED for pair in span.attributes)}


def test_nobody_is_called_dead_who_lives(containers: Containers) -> None:
    """In a stage that outlasts all patience; the next attempt is killed, and SIGTERM comes once its rest is there."""
    with sink("grpc") as server:
        place = containers.sidecar(server)
        first = containers.trainer()
        assert not wait_for(lambda: truncated(server), 2.5 * STALE_S), "a living trainer was called dead"
        assert 0 < len(arrived(server))
        assert 0 == containers.end(first)
        assert wait_for(lambda: set(journaled(containers.root)) <= set(arrived(server)))
        assert set() == truncated(server)

        second = containers.trainer()
        assert wait_for(lambda: open_run(containers.root / RUN).open_stages())
        containers.signal(second, signal.SIGKILL)
        assert wait_for(lambda: truncated(server))
        containers.signal(place, signal.SIGTERM)
        assert 0 == containers.started[place].wait()
        assert journaled(containers.root) == arrived(server), "lost, or sent twice"
        assert {1} == {len(versions) for versions in contents(server).values()}
        run = open_run(containers.root / RUN)
        assert {
            span.span_id for span in run.closed_spans([v.TRUNCATED]) if v.TRUNCATED in span.attributes
        } == truncated(server)


def test_the_next_container_takes_over(containers: Containers) -> None:
    """Two that stay: one ships, the other stands by, and goes on where the first one was killed."""
    with sink("grpc") as server:
        first = containers.sidecar(server)
        assert wait_for(lambda: [*(containers.root / RUN).glob("sidecar-*.json")])
        second = containers.sidecar(server)
        trainer = containers.trainer()
        assert wait_for(lambda: arrived(server))
        assert [None, None] == [containers.started[place].poll() for place in (first, second)]
        containers.signal(first, signal.SIGKILL)
        containers.started[first].wait()
        assert 0 == containers.end(trainer)
        assert wait_for(lambda: set(journaled(containers.root)) <= set(arrived(server)))
        containers.signal(second, signal.SIGTERM)
        assert 0 == containers.started[second].wait()
        assert set(journaled(containers.root)) == set(arrived(server))
        assert {1} == {len(versions) for versions in contents(server).values()}


def test_a_run_that_is_removed_and_begun_anew(tmp_path: Path) -> None:
    """One that stays stands by while its directory is gone, and ships what is written there later."""
    with sink("grpc") as server:
        environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint}
        process = subprocess.Popen([*COMMAND, "sidecar", "--stay", str(tmp_path / RUN)], env=environ, cwd=ROOT)
        try:
            for number in (1, 2):
                assert number == 2 or wait_for(lambda: [*(tmp_path / RUN).glob("sidecar-*.json")])
                assert 0 == train(tmp_path, server.endpoint, "3", "return", OTEL_RL_SIDECAR="false").wait()
                assert wait_for(lambda: set(journaled(tmp_path)) <= set(arrived(server)))
                assert process.poll() is None
                (tmp_path / RUN).rename(tmp_path / f"gone {number}")
                assert not wait_for(lambda: process.poll() is not None, 2 * TOUCH_S)
            process.terminate()
            assert 0 == process.wait()
        finally:
            process.kill()
            process.wait()


def test_who_ships_by_hand_leaves_it_to_who_took_over(tmp_path: Path) -> None:
    """Two never ship one journal for long: it looks every 5 s, says why it ends, and leaves the other one's claim."""
    with sink("grpc") as server:
        server.answer = lambda kind, payload: Answer(code=grpc.StatusCode.UNAVAILABLE)
        assert 0 == train(tmp_path, server.endpoint, "3", "return", OTEL_RL_SIDECAR="false").wait()
        environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint}
        command = [*COMMAND, "ship", str(tmp_path / RUN)]
        process = subprocess.Popen(command, env=environ, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert wait_for(lambda: server.requests)
        (claim,) = (tmp_path / RUN).glob("sidecar-*.json")
        claim.write_bytes(ALIVE.to_json())
        _, stderr = process.communicate()
        assert (1, True) == (process.returncode, "another process ships this run now" in stderr)
        assert claim.read_bytes() == ALIVE.to_json()


def test_told_once_it_goes_on_trying_and_told_twice_it_ends(tmp_path: Path) -> None:
    """With a server that takes nothing: what remains is said by the exit code, and is there for the next one."""
    with sink("grpc") as server:
        server.answer = lambda kind, payload: Answer(code=grpc.StatusCode.UNAVAILABLE)
        assert 0 == train(tmp_path, server.endpoint, "3", "return", OTEL_RL_SIDECAR="false").wait()
        command = [*COMMAND, "sidecar", "--stay", str(tmp_path / RUN)]
        environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint}
        process = subprocess.Popen(command, env=environ, cwd=ROOT, stderr=subprocess.DEVNULL)
        assert wait_for(lambda: server.requests)
        process.terminate()
        time.sleep(QUIET_S + 2)
        assert process.poll() is None
        process.terminate()
        assert 1 == process.wait()
        server.answer = lambda kind, payload: TAKEN
        subprocess.run([*COMMAND, "ship", str(tmp_path / RUN)], env=environ, cwd=ROOT, check=True)
        assert set(journaled(tmp_path)) == set(arrived(server))
