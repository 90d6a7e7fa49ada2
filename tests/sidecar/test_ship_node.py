"""A node: its writers live, die and are killed, sidecars come and go, and everything arrives."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from otel_rl import vocabulary as v
from otel_rl.guard import errors
from otel_rl.journal.frame import Signal
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import OtlpRequest
from otel_rl.journal.read import open_run
from otel_rl.process import directories
from otel_rl.records import Log, MetricPoints, Number
from otel_rl.sidecar import ship_node as module
from otel_rl.sidecar.close import close_left_open
from otel_rl.sidecar.settings import targets
from otel_rl.sidecar.ship import shipper
from otel_rl.sidecar.ship.progress import ShipProgress, load
from otel_rl.sidecar.ship_node import Node
from otel_rl.sidecar.streams import find_streams
from tests.made_runs import FakeSpan
from tests.sidecar.test_close import open_log
from tests.sink import ALIVE, DEAD, Answer, Rank, Sink, sink
from tests.waiting import patience, wait_for

PROGRAM = """
import sys, time
from pathlib import Path
from otel_rl.journal.identity import WriterIdentity
from otel_rl.records import Log
from tests.sink import Rank
from tests.sidecar.test_close import open_log
rank = Rank(Path(sys.argv[1]), WriterIdentity.current("trainer", 0))
rank.append(rank.encoder.encode_logs([open_log("rl.rollout", 10**6, 0), open_log("rl.reward", 10**6 + 1, 10**6)]))
print("ready", flush=True)
while True:
    rank.write(5)
    time.sleep(0.002)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look and wait more often than in earnest."""
    monkeypatch.setattr(module, "SCAN_S", 0.05)
    monkeypatch.setattr(module, "SAVE_S", 0.05)
    monkeypatch.setattr(module, "SCAN_COST", 0.0)
    monkeypatch.setattr(shipper, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(shipper, "LAST_WAIT_S", 0.3)


class FakeClock:
    """A monotonic clock that the test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def make(directory: Path, server: Sink, said: list[str] | None = None, **variables: str) -> Node:
    """Make the node's shipping of a directory."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    environ |= {"OTEL_EXPORTER_OTLP_TIMEOUT": "30000", **variables}
    found = targets(environ)
    return Node(directory, found, lambda writer: writer.boot_id == ALIVE.boot_id, (said or []).append)


@contextmanager
def running(directory: Path, server: Sink, **variables: str) -> Iterator[Node]:
    """Ship while the block runs."""
    node = make(directory, server, **variables)
    node.update()
    node.start()
    try:
        yield node
    finally:
        node.stop()


def wait(node: Node) -> None:
    """Look until all is sent and closed."""
    for _ in patience():
        if not (node.waiting or node.unclosed):
            return
        node.update()
    pytest.fail(f"{node.waiting} bytes wait, {node.unclosed} is open: {node.failure}")


def recorded(directory: Path) -> set[bytes]:
    """The ids of the spans of a journal, and of those that a reader closes."""
    return {span.span_id for span in open_run(directory).closed_spans()}


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real process that journals until it is killed."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    assert b"ready" == process.stdout.readline().strip()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_killed_writer(tmp_path: Path, killed: subprocess.Popen[bytes]) -> None:
    """It is shipped while it lives; what it left open is closed once, with its parent, and sent once."""
    with sink("grpc") as server, running(tmp_path, server) as node:
        assert wait_for(lambda: node.update() or len(server.ids()) > 100)  # type: ignore[func-returns-value]
        assert {killed.pid} == {node.writers[writer].pid for writer in node.living}
        assert not node.unclosed
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        node.update()
        assert not node.living
        wait(node)
        time.sleep(0.3)
        assert Counter(recorded(tmp_path)) == Counter(server.ids())
        cut = [span for span in server.taken("traces") if v.TRUNCATED in {item.key for item in span.attributes}]
        assert ["rl.rollout", "rl.reward"] == [span.name for span in cut]
        assert cut[0].span_id == cut[1].parent_span_id
        counts = node.counts()
        assert len(server.ids()) == counts["traces", "shipped"]
        assert 0 == sum(number for (_, name), number in counts.items() if name != "shipped")
    with running(tmp_path, server) as again:
        assert (0, False) == (again.waiting, again.unclosed)


def test_sidecars_come_and_go(tmp_path: Path, killed: subprocess.Popen[bytes]) -> None:
    """Stopped and killed in the middle: nothing is lost, and what comes twice is the same."""
    with sink("grpc") as server:
        server.answer = lambda signal, payload: Answer(delay_s=0.02)
        for number in range(4):
            with running(tmp_path, server) as node:
                begun = len(server.ids())
                assert wait_for(lambda begun=begun: node.update() or len(server.ids()) > begun)  # type: ignore[func-returns-value, misc]
                if number % 2:  # as if it had been killed before it noted what was sent
                    node.save = lambda: None  # type: ignore[method-assign]
                    begun = len(server.ids())
                    assert wait_for(lambda begun=begun: node.update() or len(server.ids()) > begun)  # type: ignore[func-returns-value, misc]
        killed.kill()
        killed.wait()
        with running(tmp_path, server) as node:
            wait(node)
        assert recorded(tmp_path) == set(server.ids()) == set(server.spans())
        assert len(server.ids()) > len(set(server.ids())), "nothing came twice, so nothing was tested"


def test_a_kill_behind_the_closing_closes_again_the_same(tmp_path: Path) -> None:
    """The spans of what was left open come twice with the same content."""
    rank = Rank(tmp_path)
    rank.append(rank.encoder.encode_logs([open_log("rl.rollout", 10**6, 0)]))
    rank.write(10)
    with sink("grpc") as server:
        for _ in range(2):
            with running(tmp_path, server) as node:
                wait(node)
            (tmp_path / f"{rank.identity.writer}.shipped").unlink()
        assert (22, 11) == (len(server.ids()), len(server.spans()))


def test_what_is_left_open_is_sent_once_the_server_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without any span, and while another signal is not taken at all."""
    rank = Rank(tmp_path)
    rank.append(rank.encoder.encode_logs([open_log("rl.rollout", 10**6, 0)]))
    refusals = [Answer(code=grpc.StatusCode.UNAVAILABLE)] * 3
    reads = []

    def close(*arguments: Any) -> list[OtlpRequest]:
        reads.append(arguments)
        return close_left_open(*arguments)

    monkeypatch.setattr(module, "close_left_open", close)

    def answer(signal: Signal, payload: bytes) -> Answer:
        if signal == "logs":
            return Answer(code=grpc.StatusCode.UNIMPLEMENTED)
        return refusals.pop() if refusals else Answer()

    with sink("grpc") as server:
        server.answer = answer
        with running(tmp_path, server) as node:
            assert wait_for(lambda: not (node.update() or node.unclosed))  # type: ignore[func-returns-value]
            assert 1 == len(server.ids())
            assert wait_for(lambda: "UNIMPLEMENTED" in node.failure)
            assert node.waiting > 0
            assert (0, 1) == (len(refusals), len(reads)), "the journal was read for each try"


def test_retries_are_counted_and_noted(tmp_path: Path) -> None:
    """Of spans and of what was left open; the next sidecar finds them noted and begins its own count."""
    rank = Rank(tmp_path)
    rank.append(rank.encoder.encode_logs([open_log("rl.rollout", 10**6, 0)]))
    refusals = [Answer(code=grpc.StatusCode.UNAVAILABLE)] * 3
    with sink("grpc") as server:
        server.answer = lambda signal, payload: refusals.pop() if signal == "traces" and refusals else Answer()
        with running(tmp_path, server) as node:
            wait(node)
            assert {("traces", "later", "gRPC UNAVAILABLE"): 3} == dict(node.retries())
        traces = load(tmp_path, rank.identity.writer)["traces"]
        assert ({("later", "gRPC UNAVAILABLE"): 3}, "") == (traces.retries, traces.failure)
        rank.write(1)
        with running(tmp_path, server) as node:
            wait(node)
            assert {} == dict(node.retries())


def test_writers_of_other_nodes_are_left_alone(tmp_path: Path) -> None:
    """Neither sent nor closed nor noted; they are somebody else's."""
    own = Rank(tmp_path)
    far = Rank(tmp_path, replace(DEAD, writer="far", boot_id="another"))
    own.write(10)
    far.write(10)
    far.append(far.encoder.encode_logs([open_log("rl.rollout", 10**6, 0)]))
    with sink("grpc") as server, running(tmp_path, server) as node:
        wait(node)
        time.sleep(0.2)
        assert {own.identity.writer} == set(node.writers)
        assert own.spans == server.spans()
    assert [f"{own.identity.writer}.shipped"] == [path.name for path in tmp_path.glob("*.shipped")]


def test_a_writer_that_begins_and_ends_between_two_looks(tmp_path: Path) -> None:
    """What it wrote after the directory was listed counts before it is closed."""
    rank = Rank(tmp_path, ALIVE, segment_bytes=4096)
    rank.append(rank.encoder.encode_logs([open_log("work", 10**6, 0)]))
    with sink("grpc") as server:
        node = make(tmp_path, server)
        node.update()
        listed = node._list

        def list_and_write() -> object:
            found = listed()
            if node.living:  # the process ends a stage, and dies, behind the look
                node.writers[rank.identity.writer] = replace(rank.identity, start_time=1)
                node._list = listed  # type: ignore[method-assign]
                rank.write(100, 3)
            return found

        node._list = list_and_write  # type: ignore[method-assign, assignment]
        node.update()
        stream = find_streams(tmp_path)[rank.identity.writer, "traces"]
        assert set(stream.files) == set(node._streams[rank.identity.writer]["traces"].files)
        node.stop()


def test_a_signal_without_target_waits_for_nobody(tmp_path: Path) -> None:
    """What is not to be sent is neither waiting nor noted as sent."""
    rank = Rank(tmp_path)
    rank.write(10, 3)
    with sink("grpc") as server, running(tmp_path, server, OTEL_TRACES_EXPORTER="none") as node:
        wait(node)
        assert {"metrics", "logs"} == {request[0] for request in server.requests}
        assert {("metrics", "shipped"): 3, ("logs", "shipped"): 3} == dict(node.counts())


def test_a_removed_run(tmp_path: Path) -> None:
    """The look says so, and nothing else fails."""
    run = tmp_path / "run"
    Rank(run).write(10)
    with sink("grpc") as server, running(run, server) as node:
        wait(node)
        shutil.rmtree(run)
        with pytest.raises(FileNotFoundError):
            node.update()
    assert {} == dict(errors)


def test_a_removed_journal_waits_for_nobody(tmp_path: Path) -> None:
    """One of several is taken away while nobody takes records; how large it was is forgotten."""
    rank, other = Rank(tmp_path, segment_bytes=4096), Rank(tmp_path)
    rank.write(10, 20)
    expected = other.write(10)
    with sink("grpc") as server:
        node = make(tmp_path, server)
        node.update()
        before = node.waiting
        for path in tmp_path.glob(f"{rank.identity.writer}.*"):
            path.unlink()
        node.update()
        assert 0 < node.waiting < before
        node.start()
        wait(node)
        node.stop()
        assert expected == server.ids()


def be_silent(directory: Path, seconds: float = 61.0) -> None:
    """Let the files of a run be as old as that."""
    for path in directory.glob("*.otlp"):
        os.utime(path, (0, time.time() - seconds))


def test_a_writer_that_cannot_be_looked_up_lives_while_it_touches_its_files(tmp_path: Path) -> None:
    """One of another pid namespace, also after it was only stopped for a while."""
    rank = Rank(tmp_path, replace(ALIVE, pid_namespace="pid:[1]"))
    rank.write(1)
    with sink("grpc") as server:
        node = make(tmp_path, server)
        seen = []
        for seconds in (0, 50, 61, 0):
            be_silent(tmp_path, seconds)
            node._scan()
            seen.append(node.living)
        assert [{rank.identity.writer}, {rank.identity.writer}, set(), {rank.identity.writer}] == seen
        node.stop()


def test_a_writer_that_cannot_be_looked_up_says_that_it_ended(tmp_path: Path) -> None:
    """By its last frame, also of another node; one that was killed lives until its heartbeat runs out."""
    ranks = [
        Rank(tmp_path, replace(ALIVE, writer=f"trainer-{number}", **place))
        for number, place in enumerate(({"pid_namespace": "pid:[1]"}, {"boot_id": "another"}))
    ]
    with sink("grpc") as server:
        node = make(tmp_path, server)
        for rank in ranks:
            rank.write(1)
        node._scan()
        assert [True, True] == [node.is_alive(rank.identity.writer) for rank in ranks]
        for rank in ranks:
            rank.writer.close()
        node._scan()
        assert [False, False] == [node.is_alive(rank.identity.writer) for rank in ranks]
        node.stop()


def test_a_writer_that_was_only_paused_is_not_harmed(tmp_path: Path) -> None:
    """A container that stood still for a minute: what was closed stays so, all else arrives, its next end is closed."""
    rank = Rank(tmp_path, replace(ALIVE, pid_namespace="pid:[1]"))
    rank.append(rank.encoder.encode_logs([open_log("rl.rollout", 10**6, 0), open_log("rl.reward", 10**6 + 1, 10**6)]))
    before = rank.write(10)
    with sink("grpc") as server:
        with running(tmp_path, server) as node:
            wait(node)
            assert not node._dead
            be_silent(tmp_path)
            assert wait_for(lambda: node.update() or node.progress[rank.identity.writer]["traces"].closed)  # type: ignore[func-returns-value]
            assert set(before) | ids(10**6, 10**6 + 1) == set(server.ids())
        real = FakeSpan("rl.rollout", 7, 10**6, 0, time.time_ns() - 5000, time.time_ns())
        rank.append(rank.encoder.encode([real]))  # it goes on
        rank.append(rank.encoder.encode_logs([open_log("rl.update", 10**6 + 2, 0)]))
        behind = rank.write(10)
        with running(tmp_path, server) as node:  # another sidecar, which learns from the file what was closed
            writer = rank.identity.writer
            wait(node)
            assert set(behind) <= set(server.ids())
            assert {writer} == node.living
            assert not node.progress[writer]["traces"].closed
            assert {("traces", "shipped"): 10, ("traces", "left_out"): 1} == {
                key: number for key, number in node.counts().items() if key[0] == "traces"
            }
            be_silent(tmp_path)
            assert wait_for(lambda: node.update() or node.progress[writer]["traces"].closed)  # type: ignore[func-returns-value]
        assert Counter([*before, *behind, *ids(10**6, 10**6 + 1, 10**6 + 2)]) == Counter(server.ids())
        assert 23 == len(server.spans()), "two contents under one id"


def ids(*numbers: int) -> set[bytes]:
    """Give span ids as they are sent."""
    return {number.to_bytes(8, "big") for number in numbers}


def test_what_ended_elsewhere_is_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer whose disk was full put its end into the folder for temporary files: its stages ended there."""
    fallback = tmp_path / "fallback"
    fallback.mkdir(0o700)
    monkeypatch.setattr("otel_rl.process.directories.fallback_name", lambda: fallback)
    rank = Rank(tmp_path / "run")
    rank.append(rank.encoder.encode_logs([open_log("rl.rollout", 10**6, 0), open_log("rl.reward", 10**6 + 1, 10**6)]))
    rank.write(10)
    rank.writer.redirect(fallback / "run")
    rank.append(rank.encoder.encode([FakeSpan("rl.rollout", 7, 10**6, 0, 1, 2)]))
    rank.writer.close()
    with sink("grpc") as server:
        for directory in (tmp_path / "run", fallback / "run"):
            with running(directory, server) as node:
                wait(node)
        assert Counter([*rank.spans, *ids(10**6 + 1)]) == Counter(server.ids())
        fallback.chmod(0o777)  # anybody could have put something there: it is not believed
        assert directories.redirected(tmp_path / "run") is None


def test_how_it_stands_can_be_asked_while_it_ships(tmp_path: Path) -> None:
    """Counts, what waits and its age, from another thread, while the shipping threads change them."""
    rank = Rank(tmp_path, segment_bytes=20_000)
    rank.write(1, 500)
    with sink("grpc") as server, running(tmp_path, server) as node:
        seen = []
        while node.waiting or node.unclosed:
            seen.append(sum(node.counts().values()))
            assert node.oldest_s() < 60
            node.save()
            node.update()
        assert seen == sorted(seen)
        assert 1500 == sum(node.counts().values())
        for row in node.progress[rank.identity.writer].values():
            row.oldest_ns = row.oldest_ns or 1  # as right behind what was sent last
        assert 0 == node.oldest_s()
    assert dict(node.counts()) == {
        (signal, name): number
        for signal, row in load(tmp_path, rank.identity.writer).items()
        for name, number in row.counts.items()
    }


def test_what_is_sent_while_its_age_is_asked_still_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the age of the epoch."""
    rank = Rank(tmp_path)
    rank.write(1)
    with sink("grpc") as server:
        node = make(tmp_path, server)
    node.update()
    began = time.time_ns()
    for row in node.progress[rank.identity.writer].values():
        row.oldest_ns = began

    def waiting(progress: ShipProgress, _: object) -> int:
        progress.oldest_ns = 0  # as by the thread that ships
        return 1

    monkeypatch.setattr(ShipProgress, "waiting", waiting)
    assert 0 < node.oldest_s() <= (time.time_ns() - began) / 1e9


def test_what_was_sent_is_noted_only_when_it_changed(tmp_path: Path) -> None:
    """A sidecar that waits for the next step writes nothing."""
    rank = Rank(tmp_path, ALIVE)
    rank.write(3)
    with sink("grpc") as server, running(tmp_path, server) as node:
        wait(node)
        node.save()
        path = tmp_path / f"{rank.identity.writer}.shipped"
        before = path.stat().st_ino, path.stat().st_mtime_ns
        time.sleep(0.1)
        node.save()
        assert before == (path.stat().st_ino, path.stat().st_mtime_ns)


@pytest.mark.medium
def test_ten_thousand_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many segments make looking rare, not expensive: a look that takes 0.2 s comes every 4.2 s."""
    for number in range(50):
        identity = replace(ALIVE if number < 5 else replace(DEAD, boot_id="another"), writer=f"trainer-{number}-1-ab")
        Rank(tmp_path, identity).write(1)
    for path in list(tmp_path.glob("*.traces.*")):
        for number in range(1, 200):
            os.link(path, path.with_name(path.name.replace("000000", f"{number:06d}")))
    assert 10_000 < len(list(tmp_path.iterdir()))
    with sink("grpc") as server:
        node = make(tmp_path, server)
        monkeypatch.setattr(module, "SCAN_COST", 20.0)
        clock = FakeClock()
        scan, begun = node._scan, list[float]()

        def slow_scan() -> None:
            begun.append(clock())
            if len(begun) == 1:
                scan()
            clock.seconds += 0.2

        monkeypatch.setattr(module, "monotonic", clock)
        monkeypatch.setattr(node, "_scan", slow_scan)
        while clock() < 100:
            node.update()
            assert node.waiting
            clock.seconds += 0.05
        assert pytest.approx([4.2 * number for number in range(len(begun))], abs=0.05 * len(begun)) == begun
        assert 24 == len(begun)
        node.stop()


def test_the_identity_of_a_writer_may_come_later(tmp_path: Path) -> None:
    """A file that is being made is met when its first frame is there."""
    rank = Rank(tmp_path / "other")
    rank.write(10)
    (source,) = (tmp_path / "other").glob("*.traces.*")
    target = tmp_path / source.name
    target.write_bytes(b"")
    with sink("grpc") as server, running(tmp_path, server) as node:
        assert {} == node.writers
        target.write_bytes(source.read_bytes()[:50])
        node.update()
        assert {} == node.writers
        target.write_bytes(source.read_bytes())
        assert wait_for(lambda: node.update() or len(server.ids()) == 10)  # type: ignore[func-returns-value]
        assert isinstance(node.writers[rank.identity.writer], WriterIdentity)


# --- the spool --------------------------------------------------------------------------------------------------------


def spool(rank: Rank, *, first: int, spans: int, trace: int = 7) -> list[bytes]:
    """Spool spans below the stage 1, and a point; return the ids of the spans."""
    made = [FakeSpan("work", trace, first + number, 1, 5, 9, {}) for number in range(spans)]
    point = MetricPoints("m", "gauge", "1", "", [Number(9, 1.0)])
    assert rank.writer.spool("traces", rank.encoder.encode(made))
    assert rank.writer.spool("metrics", rank.encoder.encode_metrics([point]))
    return [span.span_id.to_bytes(8, "big") for span in made]


def test_the_spool_of_a_dead_writer_is_sent_once(tmp_path: Path) -> None:
    """With the stages in which it died, in one trace; that of a living one waits."""
    dead, living = Rank(tmp_path), Rank(tmp_path, ALIVE)
    for rank in (dead, living):
        rank.append(rank.encoder.encode_logs([open_log("rl.rank 1", 1, 0, 0)]))
    ids = spool(dead, first=100, spans=3)
    waiting = spool(living, first=200, spans=3)
    with sink("grpc") as server:
        for _ in range(2):
            with running(tmp_path, server) as node:
                wait(node)
        assert {living.identity.writer} == node.living
        assert [*sorted(ids), (1).to_bytes(8, "big")] == [*sorted(server.ids()[:3]), *server.ids()[3:]]
        assert 1 == len({span.trace_id for span in server.taken("traces")})
        assert (1, 2) == (len(server.taken("metrics")), len(server.taken("logs")))
    assert recorded(tmp_path) == {*server.ids(), *waiting}
    names = sorted(path.name.removeprefix(dead.identity.writer) for path in tmp_path.glob("*.otlp"))
    assert [".logs.000000.otlp", ".metrics.000000.otlp", ".traces.000000.otlp"] == [
        name for name in names if name.startswith(".")
    ]


def test_a_dead_writer_may_have_nothing_but_its_spool(tmp_path: Path) -> None:
    """It is found by that."""
    rank = Rank(tmp_path)
    ids = spool(rank, first=100, spans=3)
    with sink("grpc") as server, running(tmp_path, server) as node:
        wait(node)
        assert (sorted(ids), 1) == (sorted(server.ids()), len(server.taken("metrics")))
        assert {rank.identity.writer} == set(node.writers)


def test_the_spool_on_a_disk_that_can_only_be_read_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All else is sent; a report shows it."""
    rank = Rank(tmp_path)
    spool(rank, first=100, spans=3)
    rank.append(rank.encoder.encode_logs([Log("event", 9, {})]))

    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with sink("grpc") as server, monkeypatch.context() as disk:
        disk.setattr(Path, "rename", refuse)
        with running(tmp_path, server) as node:
            wait(node)
        assert (0, 0, 1) == (len(server.ids()), len(server.taken("metrics")), len(server.taken("logs")))
    assert 3 == len(recorded(tmp_path))
