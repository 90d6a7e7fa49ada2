"""Whole programs with a server at the other end: what was recorded arrives, however they and it fare."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal

import grpc
import pytest

from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import open_run
from otel_rl.sidecar import owner
from tests.sink import ALIVE, Answer, Rank, Sink, sink
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "steps.py"
STAGES = ("rl.sample", "rl.reward", "rl.train.forward", "rl.train.backward", "rl.train.optimizer")
"""What the program records of each step."""
RUN = "run"


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """A root of runs whose sidecars are gone at the end."""
    yield tmp_path
    stop_sidecar(tmp_path / RUN)


def train(root: Path, endpoint: str, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
    """Start the program, sending to an endpoint."""
    variables = {
        **os.environ,
        "OTEL_RL_DIR": str(root),
        "OTEL_RL_RUN_ID": RUN,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "30000",
        **environ,
    }
    return subprocess.Popen([sys.executable, str(PROGRAM), *arguments], env=variables)


@contextmanager
def following(directory: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``otel-rl ship --follow``, at most as long as the block; what it says can be read."""
    command = [sys.executable, "-m", "otel_rl", "ship", str(directory), "--follow"]
    variables = {**os.environ, **environ}
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def sidecar_of(directory: Path) -> WriterIdentity | None:
    """Find the sidecar of this node."""
    return owner.living(directory, WriterIdentity.current("test", 0).boot_id)


def stop_sidecar(directory: Path, number: int = signal.SIGKILL) -> None:
    """End the sidecar of a run, if one lives."""
    identity = sidecar_of(directory)
    if identity is not None:
        with suppress(ProcessLookupError):  # it has ended by itself meanwhile
            os.kill(identity.pid, number)
        wait_for(lambda: sidecar_of(directory) is None)


def journaled(root: Path) -> Counter[bytes]:
    """The ids of the spans in the journal, and of those that a reader closes."""
    return Counter(span.span_id for span in open_run(root / RUN).closed_spans())


def arrived(server: Sink) -> Counter[bytes]:
    """The ids of the spans that were taken."""
    return Counter(span.span_id for span in server.taken("traces"))


def stages_in(*servers: Sink) -> Counter[str]:
    """How many stages of the training arrived, by name; one that came twice is one."""
    spans = {span.span_id: span.name for server in servers for span in server.taken("traces")}
    return Counter(name for name in spans.values() if name in STAGES)


def contents(server: Sink) -> Mapping[bytes, set[bytes]]:
    """By id, the different spans that were taken under it."""
    found: dict[bytes, set[bytes]] = {}
    for span in server.taken("traces"):
        found.setdefault(span.span_id, set()).add(span.SerializeToString(deterministic=True))
    return found


def assert_all_arrived(root: Path, server: Sink, recorded: Mapping[str, int], *, once: bool = True) -> None:
    """Everything recorded and journaled arrived, once or (at least once) with the same content."""
    expected = journaled(root)
    wait_for(lambda: set(expected) <= set(arrived(server)))
    assert set(expected) == set(arrived(server))
    assert recorded == stages_in(server), "recorded and arrived"
    assert wait_for(lambda: sidecar_of(root / RUN) is None), "the sidecar does not end"
    if once:
        assert expected == arrived(server)
    assert all(len(versions) == 1 for versions in contents(server).values())
    points = Counter(point.name for point in open_run(root / RUN).points("user.my.metric"))
    taken = sum(len(metric.gauge.data_points) for metric in server.taken("metrics") if metric.name == "user.my.metric")
    assert taken >= points["user.my.metric"] if not once else taken == points["user.my.metric"]


@pytest.mark.parametrize(("protocol", "compression"), [("grpc", "none"), ("http", "gzip")])
def test_a_run_arrives(runs: Path, protocol: Literal["grpc", "http"], compression: str) -> None:
    """By both protocols, while it runs; the sidecar ends by itself."""
    enough = runs.parent / "enough"
    with sink(protocol) as server:
        name = "grpc" if protocol == "grpc" else "http/protobuf"
        program = train(
            runs, server.endpoint, "100", "return", "0.03", ENOUGH=str(enough),
            OTEL_EXPORTER_OTLP_PROTOCOL=name, OTEL_EXPORTER_OTLP_COMPRESSION=compression,
        )  # fmt: skip
        assert wait_for(lambda: len(arrived(server)) > 50), "nothing arrived while it ran"
        assert program.poll() is None
        enough.touch()
        assert program.wait() == 0
        assert_all_arrived(runs, server, dict.fromkeys(STAGES, 100))


@pytest.mark.parametrize("end", ["kill", "_exit", "raise"])
def test_a_program_that_dies_leaves_nothing_behind(runs: Path, end: str) -> None:
    """What it left open arrives closed, with its parents."""
    with sink("grpc") as server:
        code = train(runs, server.endpoint, "20", end).wait()
        assert {"kill": -signal.SIGKILL, "_exit": 0, "raise": 1}[end] == code
        assert_all_arrived(runs, server, {**dict.fromkeys(STAGES, 20), "rl.sample": 21})
        known = set(arrived(server))
        assert [] == [span.name for span in server.taken("traces") if span.parent_span_id not in known | {b""}]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_program_that_is_killed_in_its_set_up_arrives(runs: Path, rank: int) -> None:
    """With what it held: the metrics of rank 0, the spans of rank 1 too, which does not know its attempt."""
    with sink("grpc") as server:
        variables = {"OTEL_RL_DIR": str(runs), "OTEL_RL_RUN_ID": RUN, "OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint}
        command = [sys.executable, str(PROGRAM.with_name("processes.py")), "dying_in_set_up", ""]
        environ = {**os.environ, **variables, "RANK": str(rank), "WORLD_SIZE": "2"}
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(300):
                process.stdout.readline()
            process.kill()
        with following(runs / RUN, OTEL_EXPORTER_OTLP_ENDPOINT=server.endpoint) if rank else nullcontext():
            assert wait_for(lambda: journaled(runs) == arrived(server))
            points = sorted(point.value for point in open_run(runs / RUN).points("user.turn.number"))
            assert wait_for(lambda: points == turns(server))
    assert (True, []) == (len(points) > 0, list((runs / RUN).glob("*.spool.otlp")))


def turns(server: Sink) -> list[int]:
    """The numbers of the turns that were taken."""
    metrics = [metric for metric in server.taken("metrics") if metric.name == "user.turn.number"]
    return sorted(point.as_int for metric in metrics for point in metric.gauge.data_points)


def test_a_server_that_is_down_gets_everything_later(runs: Path) -> None:
    """The training ends without waiting for it, the sidecar waits."""
    with sink("grpc") as placeholder:
        endpoint = placeholder.endpoint
    assert train(runs, endpoint, "50", "return").wait() == 0
    with sink("grpc", int(endpoint.rpartition(":")[2])) as server:
        assert_all_arrived(runs, server, dict.fromkeys(STAGES, 50))


def test_a_server_that_restarts_in_the_middle(runs: Path) -> None:
    """What it had taken may come again, the same."""
    with sink("grpc") as first:
        endpoint = first.endpoint
        program = train(runs, endpoint, "150", "return", "0.03")
        assert wait_for(lambda: len(arrived(first)) > 50)
    time.sleep(2)
    with sink("grpc", int(endpoint.rpartition(":")[2])) as second:
        assert program.wait() == 0
        wait_for(lambda: set(journaled(runs)) <= set(arrived(first)) | set(arrived(second)))
        both = set(arrived(first)) | set(arrived(second))
        assert set(journaled(runs)) == both
        assert dict.fromkeys(STAGES, 150) == stages_in(first, second), "recorded and arrived"
        versions = [contents(server) for server in (first, second)]
        assert all(versions[0][key] == versions[1][key] for key in versions[0].keys() & versions[1].keys())


@pytest.mark.parametrize(
    "answer",
    [
        Answer(code=grpc.StatusCode.UNAVAILABLE),
        Answer(code=grpc.StatusCode.DEADLINE_EXCEEDED, delay_s=0.1),
        Answer(delay_s=3.0, code=grpc.StatusCode.ABORTED),
    ],
    ids=["unavailable", "too late", "hangs"],
)
def test_a_server_that_is_in_trouble_for_a_while(runs: Path, answer: Answer) -> None:
    """Every third request is answered well."""
    with sink("grpc") as server:
        turns: Counter[str] = Counter()

        def sometimes(kind: str, payload: bytes) -> Answer:
            turns[kind] += 1
            return Answer() if turns[kind] % 3 == 0 else answer

        server.answer = sometimes  # type: ignore[assignment]
        assert train(runs, server.endpoint, "30", "return", OTEL_EXPORTER_OTLP_TIMEOUT="2000").wait() == 0
        assert_all_arrived(runs, server, dict.fromkeys(STAGES, 30), once=False)


def test_the_sidecar_is_killed(runs: Path) -> None:
    """The trainer starts another one: nothing is missing, and what comes twice is the same."""
    with sink("grpc") as server:
        enough = runs.parent / "enough"  # the program outlives a sidecar that begins late
        program = train(runs, server.endpoint, "500", "return", "0.03", ENOUGH=str(enough))
        assert wait_for(lambda: len(arrived(server)) > 50)
        stop_sidecar(runs / RUN)
        assert wait_for(lambda: sidecar_of(runs / RUN) is not None), "no other sidecar"
        enough.touch()
        assert program.wait() == 0
        assert_all_arrived(runs, server, dict.fromkeys(STAGES, 500), once=False)


def test_where_no_process_may_be_started_a_person_ships(runs: Path) -> None:
    """After the run, by a command, exactly once; a second time there is nothing left to do."""
    with sink("http") as server:
        assert train(runs, server.endpoint, "50", "return", OTEL_RL_SIDECAR="false").wait() == 0
        assert sidecar_of(runs / RUN) is None
        ship = [sys.executable, "-m", "otel_rl", "ship", str(runs / RUN)]
        variables = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        for _ in range(2):
            assert subprocess.run(ship, env=variables, check=False).returncode == 0
            assert_all_arrived(runs, server, dict.fromkeys(STAGES, 50))


def test_a_person_ships_while_the_run_writes(runs: Path) -> None:
    """Everything arrives, exactly once, while it is written; the command ends behind the run without a word."""
    with sink("grpc") as server:
        enough = runs.parent / "enough"
        program = train(runs, server.endpoint, "500", "return", "0.03", ENOUGH=str(enough), OTEL_RL_SIDECAR="false")
        assert wait_for(lambda: any(path.stat().st_size for path in (runs / RUN).glob("*.otlp")))
        with following(runs / RUN, OTEL_EXPORTER_OTLP_ENDPOINT=server.endpoint) as ship:
            assert wait_for(lambda: len(arrived(server)) > 50), "nothing arrived while it ran"
            assert program.poll() is None
            enough.touch()
            assert program.wait() == 0
            assert ("", 0) == (ship.communicate()[1], ship.returncode)
        assert_all_arrived(runs, server, dict.fromkeys(STAGES, 500))


def test_who_follows_leaves_a_run_to_its_sidecar(tmp_path: Path) -> None:
    """It says so, and its exit code is that of ``otel-rl sidecar``."""
    Rank(tmp_path).write()
    assert owner.claim(tmp_path, ALIVE.boot_id, ALIVE) is not None
    with following(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9") as ship:
        said = ship.communicate()[1]
    assert (f"otel-rl: another sidecar of this node ships {tmp_path} already\n", 3) == (said, ship.returncode)


@pytest.mark.usefixtures("unmeasured")
def test_who_follows_reads_what_the_sidecar_says(tmp_path: Path) -> None:
    """What is wrong, and at the end what was not sent, as it stands in ``sidecar.log``."""
    Rank(tmp_path).write()
    waiting = sum(path.stat().st_size for path in tmp_path.glob("*traces*"))
    log = tmp_path / "sidecar.log"
    with sink("grpc") as server:
        server.answer = lambda kind, payload: Answer(code=grpc.StatusCode.PERMISSION_DENIED)
        with following(tmp_path, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=server.endpoint) as ship:
            assert wait_for(log.exists)
            ship.send_signal(signal.SIGINT)
            said = ship.communicate()[1]
    expected = [
        "The server rejected our credentials for traces (gRPC PERMISSION_DENIED); "
        "check endpoint, headers and certificates; they wait and are sent again",
        f"{waiting} bytes were not sent (traces: gRPC PERMISSION_DENIED); send them with: otel-rl ship {tmp_path}",
    ]
    assert expected == [line.partition(" ")[2] for line in log.read_text().splitlines()]
    assert ("".join(f"otel-rl: {line}\n" for line in expected), 1) == (said, ship.returncode)
