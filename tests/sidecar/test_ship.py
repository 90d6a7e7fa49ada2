"""Shipping to real servers that fail in every way they can: what was recorded, and what arrived."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo

from otel_rl.journal.frame import Signal
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.sidecar.settings import SIGNALS, targets
from otel_rl.sidecar.ship import client, shipper, trace_budget
from otel_rl.sidecar.ship.client import connect
from otel_rl.sidecar.ship.progress import ShipProgress
from otel_rl.sidecar.ship.shipper import Followed, Shipper
from otel_rl.sidecar.ship.split import records
from otel_rl.sidecar.ship.trace_budget import SIBLINGS, TraceBudget
from otel_rl.sidecar.streams import Position, find_streams
from tests.made_runs import FakeSpan
from tests.sidecar.test_client import status_of
from tests.sink import MAX_BYTES, Answer, Rank, Sink, sink
from tests.waiting import patience

pytestmark = pytest.mark.medium

Protocol = Literal["grpc", "http"]
STATUS = grpc.StatusCode
GOOD = Answer()
FRAMES = SpanEncoder({}, "1.0")


@pytest.fixture(params=["grpc", "http"])
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """By which protocol."""
    found: Protocol = request.param
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a twentieth of the time."""
    monkeypatch.setattr(shipper, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(shipper, "LAST_WAIT_S", 0.4)
    monkeypatch.setattr(shipper, "BLOCKED_WAIT_S", 0.1)
    monkeypatch.setattr(client, "RECONNECT_MS", 100)


class Shipping:
    """Ships one signal of a directory, by the calling thread."""

    def __init__(
        self, directory: Path, endpoint: str, protocol: Protocol, signal: Signal = "traces", timeout_ms: int = 30_000
    ) -> None:
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": {"grpc": "grpc", "http": "http/protobuf"}[protocol],
            "OTEL_EXPORTER_OTLP_TIMEOUT": str(timeout_ms),
        }
        (target,) = [target for target in targets(environ) if target.signal == signal]
        self.said: list[str] = []
        self.stop = threading.Event()
        self.shipper = Shipper(signal, connect(target), TraceBudget(), self.said.append, self.stop)
        self.directory = directory
        self.signal = signal
        self.progress: dict[str, ShipProgress] = {}

    def followed(self, finished: bool = True) -> list[Followed]:
        """The streams of the signal as the directory is now."""
        return [
            Followed(stream, self.progress.setdefault(writer, ShipProgress()), finished)
            for (writer, signal), stream in sorted(find_streams(self.directory).items())
            if signal == self.signal
        ]

    def work(self, until: Callable[[], bool] | None = None) -> None:
        """Ship until nothing waits, or something is so."""
        for _ in patience():
            while not (is_over := until() if until else not self.waiting) and self.shipper.work(self.followed()):
                pass
            if is_over:
                return
        pytest.fail(f"{self.waiting} bytes wait: {self.shipper.failure}, {self.said}")

    @property
    def waiting(self) -> int:
        """Bytes that are to be sent."""
        return sum(item.progress.waiting(item.stream) for item in self.followed())

    def counts(self) -> dict[str, int]:
        """What became of the records."""
        total: dict[str, int] = {}
        for progress in self.progress.values():
            for name, number in progress.counts.items():
                total[name] = total.get(name, 0) + number
        return {name: number for name, number in total.items() if number}


@contextmanager
def shipping(
    directory: Path, server: Sink, protocol: Protocol, signal: Signal = "traces", timeout_ms: int = 30_000
) -> Iterator[Shipping]:
    """Ship to a server."""
    found = Shipping(directory, server.endpoint, protocol, signal, timeout_ms)
    try:
        yield found
    finally:
        found.shipper.close()


def script(*answers: Answer) -> Callable[[Signal, bytes], Answer]:
    """Answer the first requests so, and take the others."""
    left = list(answers)
    return lambda signal, payload: left.pop(0) if left else GOOD


def test_everything_arrives_once(tmp_path: Path, protocol: Protocol) -> None:
    """Of each signal and several writers, in order within each; no request is large."""
    ranks = [Rank(tmp_path, segment_bytes=100_000) for _ in range(3)]
    expected = [span for rank in ranks for span in rank.write(100, frames=30, text="x" * 50)]
    with sink(protocol) as server:
        for signal in SIGNALS:
            with shipping(tmp_path, server, protocol, signal) as found:
                found.work()
                assert {"shipped": 9000 if signal == "traces" else 90} == found.counts()
        assert sorted(expected) == sorted(server.ids())
        for rank in ranks:
            assert list(rank.spans) == [span for span in server.ids() if span in rank.spans]
        assert {key: value for rank in ranks for key, value in rank.spans.items()} == server.spans()
        assert 90 == sum(len(metric.gauge.data_points) for metric in server.taken("metrics"))
        assert 90 == len(server.taken("logs"))
        assert max(len(payload) for _, payload, _, _ in server.requests) < MAX_BYTES


def test_a_gigabyte_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many megabytes go in requests below 4 MB, and memory does not grow with what waits."""
    import resource

    monkeypatch.setattr(shipper, "BACKLOG_RATE", 1 << 40)
    rank = Rank(tmp_path)
    rank.write(1000, 40, text=os.urandom(900).hex(), age_s=100)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > 70 << 20
    with sink("grpc") as server, shipping(tmp_path, server, "grpc") as found:
        sizes = []
        server.answer = lambda signal, payload: sizes.append(len(payload)) or GOOD
        found.work(lambda: len(sizes) > 2)
        server.requests.clear()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found.work(lambda: bool(server.requests.clear()) or not found.waiting)
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert {"shipped": 40_000} == found.counts()
        assert max(sizes) < MAX_BYTES
        assert grown_mb < 60, f"{grown_mb:.0f} MB"


@pytest.mark.parametrize("many", [False, True])
def test_the_server_comes_back(tmp_path: Path, protocol: Protocol, many: bool) -> None:
    """One shipper, a server on the same port three times."""
    ranks = [Rank(tmp_path, segment_bytes=50_000) for _ in range(3 if many else 1)]
    arrived: list[bytes] = []
    contents: dict[bytes, bytes] = {}
    port = 0
    found: Shipping | None = None
    for _ in range(3):
        for rank in ranks:
            rank.write(100, frames=5)
        if found is not None:
            found.shipper.work(found.followed())
            time.sleep(0.2)
            found.shipper.work(found.followed())
            assert found.waiting and found.shipper.failure
        with sink(protocol, port) as server:
            port = int(server.endpoint.rpartition(":")[2])
            found = found or Shipping(tmp_path, server.endpoint, protocol)
            found.work()
            assert "" == found.shipper.failure
            arrived += server.ids()
            contents |= server.spans()
    assert found is not None
    found.shipper.close()
    assert sorted(key for rank in ranks for key in rank.spans) == sorted(arrived)
    for rank in ranks:
        assert list(rank.spans) == [span for span in arrived if span in rank.spans]
        assert rank.spans.items() <= contents.items()


def test_live_data_goes_before_a_backlog(tmp_path: Path, protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written now does not wait for hours of backlog, which goes in order and at its rate."""
    rank = Rank(tmp_path, segment_bytes=1 << 20)
    old = rank.write(100, frames=100, text="x" * 900, age_s=3600)
    with sink(protocol) as server, shipping(tmp_path, server, protocol) as found:
        monkeypatch.setattr(shipper, "BACKLOG_RATE", 1000)  # a batch of it, then none for an hour
        for _ in range(10):
            found.shipper.work(found.followed(finished=False))
        assert 2 == len(next(iter(found.progress.values())).ranges)
        assert server.ids() == old[: len(server.ids())]
        assert len(server.ids()) < len(old)
        assert 3500 < found.progress[rank.identity.writer].oldest_ns / -1e9 + time.time() < 7000
        begun = len(server.ids())
        new = rank.write(10)
        found.shipper.work(found.followed(finished=False))
        assert new == server.ids()[begun : begun + 10]
        monkeypatch.setattr(shipper, "BACKLOG_RATE", 1 << 40)
        found.shipper._backlog_at = 0.0
        while found.waiting:
            found.shipper.work(found.followed(finished=False))
        assert old == [span for span in server.ids() if span not in new]
        assert {"shipped": 10_010} == found.counts()
        assert rank.spans == server.spans()
        found.shipper.work(found.followed(finished=False))
        assert 0 == found.progress[rank.identity.writer].oldest_ns


def test_a_backlog_is_never_cut_inside_a_frame(tmp_path: Path) -> None:
    """A frame that was being written when the backlog was made arrives too."""
    rank = Rank(tmp_path)
    rank.write(1000, frames=3, text="x" * 900, age_s=3600)
    (path,) = tmp_path.glob("*.traces.*")
    whole = path.read_bytes()
    with sink("grpc") as server, shipping(tmp_path, server, "grpc") as found:
        path.write_bytes(whole[:-5000])
        for _ in range(20):
            found.shipper.work(found.followed(finished=False))
        path.write_bytes(whole)
        found.work()
        assert (rank.spans, {"shipped": 3000}) == (server.spans(), found.counts())


LATER = [
    ("grpc", Answer(code=STATUS.UNAVAILABLE)),
    ("grpc", Answer(code=STATUS.ABORTED)),
    ("grpc", Answer(code=STATUS.RESOURCE_EXHAUSTED, text="rate limit exceeded")),
    ("grpc", Answer(delay_s=1.0)),
    ("http", Answer(429)),
    ("http", Answer(503)),
    ("http", Answer(delay_s=1.0)),
    ("http", Answer(401)),
    ("grpc", Answer(code=STATUS.UNAUTHENTICATED)),
]
COUNTED = [
    ("grpc", Answer(code=STATUS.UNAVAILABLE), ("later", "gRPC UNAVAILABLE")),
    ("grpc", Answer(code=STATUS.RESOURCE_EXHAUSTED, text="rate limit"), ("later", "gRPC RESOURCE_EXHAUSTED")),
    ("grpc", Answer(code=STATUS.UNAUTHENTICATED), ("blocked", "gRPC UNAUTHENTICATED")),
    ("http", Answer(429), ("later", "HTTP 429")),
    ("http", Answer(503), ("later", "HTTP 503")),
    ("http", Answer(401), ("blocked", "HTTP 401")),
]


@pytest.mark.parametrize(("by", "answer"), LATER)
def test_what_is_asked_to_wait_waits(tmp_path: Path, by: Protocol, answer: Answer) -> None:
    """Everything arrives, once unless the server took what it did not answer; nothing is counted twice."""
    rank = Rank(tmp_path)
    expected = rank.write(100, frames=5)
    timeout_ms = 500 if answer.delay_s else 30_000
    with sink(by) as server, shipping(tmp_path, server, by, timeout_ms=timeout_ms) as found:
        server.answer = script(answer, answer, answer)
        found.work()
        assert {"shipped": 500} == found.counts()
        assert rank.spans == server.spans()
        if not answer.delay_s:
            assert expected == server.ids()
            assert 4 == len(server.requests)


@pytest.mark.parametrize(("by", "answer", "counted"), COUNTED)
def test_what_is_asked_to_wait_is_counted_and_said_once(
    tmp_path: Path, by: Protocol, answer: Answer, counted: tuple[str, str]
) -> None:
    """By what the other side answered, with the last answer until something is taken; one line, however often."""
    rank = Rank(tmp_path)
    rank.write(100)
    with sink(by) as server, shipping(tmp_path, server, by) as found:
        server.answer = script(answer, answer, answer)
        found.work(lambda: len(server.requests) == 3)
        progress = found.progress[rank.identity.writer]
        assert ({counted: 3}, counted[1]) == (progress.retries, progress.failure)
        (line,) = found.said
        assert "traces" in line
        assert counted[1] in line
        found.work()
        assert ({counted: 3}, "") == (progress.retries, progress.failure)
        assert {"shipped": 100} == found.counts()


def test_a_backlog_has_an_age_while_nothing_is_taken(tmp_path: Path) -> None:
    """After a sidecar began anew in an outage: of each writer, though the live part of the first fails before."""
    old_ns = time.time_ns() - 3600 * 10**9
    progress = {}
    for number in range(2):
        rank = Rank(tmp_path)
        rank.append(rank.encoder.encode([FakeSpan("work", 7, 100 + number, 1, old_ns - 5, old_ns + number)]))
        ((_, stream),) = [
            item for item in find_streams(tmp_path).items() if item[0] == (rank.identity.writer, "traces")
        ]
        progress[rank.identity.writer] = ShipProgress()
        progress[rank.identity.writer].split(stream.end(Position()))
        rank.write(10)
    with sink("http") as server, shipping(tmp_path, server, "http") as found:
        found.progress = progress
        server.answer = lambda signal, payload: Answer(503)
        for _ in range(3):
            found.shipper.work(found.followed(finished=False))
        assert {old_ns, old_ns + 1} == {row.oldest_ns for row in progress.values()}
        server.answer = lambda signal, payload: GOOD
        found.work()
        found.shipper.work(found.followed())
        assert {0} == {row.oldest_ns for row in progress.values()}


IN_40_S = status_of(RetryInfo(retry_delay=Duration(seconds=40)))


@pytest.mark.parametrize(
    ("by", "answer"),
    [
        ("http", Answer(503, headers=(("Retry-After", "40"),))),
        (
            "grpc",
            Answer(code=STATUS.RESOURCE_EXHAUSTED, trailing=status_of(RetryInfo(retry_delay=Duration(seconds=40)))),
        ),
    ],
)
def test_it_waits_as_long_as_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: Protocol, answer: Answer
) -> None:
    """No request before that, and one behind it."""
    now = {"s": 1000.0}
    monkeypatch.setattr(shipper, "monotonic", lambda: now["s"])
    Rank(tmp_path).write(10)
    with sink(by) as server, shipping(tmp_path, server, by) as found:
        server.answer = script(answer)
        seen = []
        for now["s"] in (1000.0, 1001.0, 1039.0, 1041.0):
            found.shipper.work(found.followed())
            seen.append(len(server.requests))
        assert ([1, 1, 1, 2], {"shipped": 10}) == (seen, found.counts())


def test_a_page_instead_of_an_answer_is_said_once(tmp_path: Path) -> None:
    """A proxy that answers everything with status 200: nothing counts as sent until an OTLP server answers."""
    rank = Rank(tmp_path)
    rank.write(10, frames=3)
    with sink("http") as server, shipping(tmp_path, server, "http") as found:
        server.body, server.kind = b"<html>", "text/html"
        found.work(lambda: len(server.requests) > 2)
        assert ({}, 1) == (found.counts(), len(found.said))
        assert "the answer is text/html and not OTLP" in found.said[0]
        server.body = b""
        found.work()
        assert ({"shipped": 30}, rank.spans) == (found.counts(), server.spans())


def test_an_answer_that_cannot_be_read_counts_as_accepted(tmp_path: Path) -> None:
    """A server with an answer of its own gets every record once, and its type is said once."""
    rank = Rank(tmp_path)
    rank.write(10, frames=3)
    with sink("http") as server, shipping(tmp_path, server, "http") as found:
        server.body, server.kind = b"OK", "text/plain"
        found.work()
        rank.write(10)
        found.work()
        assert ({"shipped": 40}, rank.spans) == (found.counts(), server.spans())
        assert ["the traces count as sent, but the answer is text/plain and not OTLP; check the endpoint"] == found.said


def test_the_other_side_does_not_keep_us_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day is too long, whoever asks for it."""
    monkeypatch.setattr(shipper, "LONGEST_WAIT_S", 0.2)
    Rank(tmp_path).write(10)
    with sink("http") as server, shipping(tmp_path, server, "http") as found:
        server.answer = script(Answer(503, headers=(("Retry-After", "86400"),)))
        found.work()
        assert 10 == len(server.ids())


def test_half_is_rejected(tmp_path: Path, protocol: Protocol) -> None:
    """It is counted, said once, and not sent again."""
    Rank(tmp_path).write(100, frames=4)
    Rank(tmp_path).write(100, frames=4)
    with sink(protocol) as server, shipping(tmp_path, server, protocol) as found:
        server.answer = lambda signal, payload: Answer(rejected=150)
        found.work()
        assert {"shipped": 500, "rejected": 300} == found.counts()
        assert (2, 1) == (len(server.requests), len(found.said))
        assert "rejected 150 of 400 traces: as the test wants" in found.said[0]


REFUSED = [
    ("grpc", Answer(code=STATUS.INVALID_ARGUMENT)),
    ("grpc", Answer(code=STATUS.INTERNAL)),
    ("http", Answer(400)),
]


@pytest.mark.parametrize(("by", "refusal"), REFUSED)
def test_one_bad_frame_takes_no_other_with_it(tmp_path: Path, by: Protocol, refusal: Answer) -> None:
    """The one that is refused is counted, the others arrive once and in order."""
    rank = Rank(tmp_path)
    before, bad, behind = rank.write(10, frames=9), rank.write(10, text="bad"), rank.write(10, frames=20)
    with sink(by) as server, shipping(tmp_path, server, by) as found:
        server.answer = lambda signal, payload: refusal if b"\x03bad" in payload else GOOD
        found.work()
        assert before + behind == server.ids()
        assert {"shipped": 290, "refused": 10} == found.counts()
        assert 1 == len([text for text in found.said if "refused 10 traces" in text])
        assert bad


@pytest.mark.parametrize("status", [400, 413])
@pytest.mark.parametrize("signal", SIGNALS)
def test_what_is_no_request_is_refused_alone(tmp_path: Path, signal: Signal, status: int) -> None:
    """A frame whose checksum is right and whose content is not OTLP."""
    rank = Rank(tmp_path)
    rank.write(10, frames=3)
    rank.writer.append(signal, b"\xff\xff\xff", 5, 1, 2)
    rank.write(10, frames=3)

    def judge(signal: Signal, payload: bytes) -> Answer:
        try:
            records(signal, payload)
        except DecodeError:
            return Answer(status)
        return GOOD

    with sink("http") as server, shipping(tmp_path, server, "http", signal) as found:
        server.answer = judge
        found.work()
        assert f"refused 5 {signal}: HTTP {status}" in found.said[0]
        assert {"shipped": 60 if signal == "traces" else 6, "refused": 5} == found.counts()


@pytest.mark.parametrize("answer", [GOOD, Answer(400), Answer(413)])
def test_what_is_large_and_no_request_is_sent_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    """It cannot be cut: the other side says what it thinks of it."""
    monkeypatch.setattr(shipper, "MAX_REQUEST", 100_000)
    Rank(tmp_path).writer.append("logs", b"\xff" * 150_000, 5, 1, 2)
    with sink("http") as server, shipping(tmp_path, server, "http", "logs") as found:
        server.answer = lambda signal, payload: answer
        found.work()
        assert [150_000] == [len(payload) for _, payload, _, _ in server.requests]
        assert {"shipped" if answer is GOOD else "refused": 5} == found.counts()
        expected = [] if answer is GOOD else [f"the server refused 5 logs: HTTP {answer.status}"]
        assert expected == found.said


@pytest.mark.parametrize("limit", [100_000, 3_000, 260])
@pytest.mark.parametrize("signal", SIGNALS)
def test_too_large_becomes_smaller(tmp_path: Path, protocol: Protocol, signal: Signal, limit: int) -> None:
    """Fewer frames, then parts of one; a record that is too large alone is refused and counted."""
    rank = Rank(tmp_path)
    rank.write(60, frames=10, text="x" * 60)
    huge = rank.write(1, text="x" * 300)
    too_large = Answer(413, STATUS.RESOURCE_EXHAUSTED, text="received message larger than max")
    with sink(protocol) as server, shipping(tmp_path, server, protocol, signal) as found:
        server.answer = lambda signal, payload: too_large if len(payload) > limit else GOOD
        found.work()
        refused = int(limit == 260 and signal == "traces")
        total = 601 if signal == "traces" else 11
        assert total == sum(found.counts().values())
        assert refused == found.counts().get("refused", 0)
        if signal == "traces":
            assert {key: value for key, value in rank.spans.items() if not refused or key not in huge} == server.spans()
            assert total - refused == len(server.ids())


def test_a_frame_above_the_limit_goes_in_parts(tmp_path: Path) -> None:
    """No request above 4 MB, also of a journal with larger frames."""
    rank = Rank(tmp_path)
    rank.write(10)
    payload = b"".join(rank.encoder.encode(requests)[0].payload for requests in _many_spans(12))
    rank.writer.append("traces", payload, 12_000, 1, time.time_ns())
    assert len(payload) > 2 * MAX_BYTES
    with sink("http") as server, shipping(tmp_path, server, "http") as found:
        found.work()
        assert {"shipped": 12_010} == found.counts()
        assert 12_010 == len(set(server.ids()))
        assert max(len(payload) for _, payload, _, _ in server.requests) < MAX_BYTES


def _many_spans(frames: int) -> Iterator[list[Any]]:
    text = {"text": "x" * 700}
    for frame in range(frames):
        ids = range(10**9 + 1000 * frame, 10**9 + 1000 * frame + 1000)
        yield [FakeSpan("work", 100 + frame, number, 5, 1, 2, text) for number in ids]


def test_a_piece_that_waits_is_sent_alone(tmp_path: Path) -> None:
    """In the middle of a frame in pieces: what of it was taken does not come again."""
    rank = Rank(tmp_path)
    rank.write(100)
    answers = iter([Answer(413), GOOD, Answer(503), GOOD])
    with sink("http") as server, shipping(tmp_path, server, "http") as found:
        server.answer = lambda signal, payload: next(answers)
        found.work()
        assert {"shipped": 100} == found.counts()
        assert (100, rank.spans) == (len(server.ids()), server.spans())


def test_what_was_put_off_goes_with_what_came_after_it(tmp_path: Path) -> None:
    """In one request: a server that takes one of three would never have all of what a sidecar writes."""
    rank = Rank(tmp_path)
    before = rank.write(10)
    with sink("http") as server, shipping(tmp_path, server, "http") as found:
        server.answer = script(Answer(503))
        found.work(lambda: len(server.requests) == 1)
        after = rank.write(10)
        found.work()
        assert ({"shipped": 20}, before + after, 2) == (found.counts(), server.ids(), len(server.requests))


def test_many_pieces_of_several_writers_come_once(tmp_path: Path) -> None:
    """Where the other side takes small requests, and of those one and then none for a while."""
    ranks = [Rank(tmp_path) for _ in range(2)]
    expected = [span for rank in ranks for span in rank.write(64, frames=2)]
    number = itertools.count()

    def judge(signal: Signal, payload: bytes) -> Answer:
        return Answer(413) if len(payload) > 2000 else (GOOD, Answer(503))[next(number) % 2]

    with sink("http") as server, shipping(tmp_path, server, "http") as found:
        server.answer = judge
        found.work()
        assert ({"shipped": 256}, sorted(expected)) == (found.counts(), sorted(server.ids()))


def test_a_frame_in_pieces_is_chosen_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its pieces another rank uses up the trace's siblings: it goes on as it was chosen, and counts so."""
    monkeypatch.setattr(trace_budget, "SIBLINGS", 110)
    first, second = sorted((Rank(tmp_path) for _ in range(2)), key=lambda rank: rank.identity.writer)
    answers = iter([Answer(413), GOOD, Answer(503)])
    with sink("http") as server, shipping(tmp_path, server, "http") as found:
        server.answer = lambda signal, payload: next(answers, GOOD)
        _write_siblings(second, range(100, 180))
        found.work(lambda: len(server.requests) == 3)
        _write_siblings(first, range(200, 300))
        found.work()
        counts = found.counts()
        assert (180, counts["shipped"]) == (counts["shipped"] + counts["left_out"], len(server.ids()))
        assert counts["shipped"] == len(set(server.ids()))
        assert {} == found.shipper._batches


def _write_siblings(rank: Rank, numbers: Iterable[int]) -> None:
    rank.append(rank.encoder.encode([FakeSpan("work", 5, 10**9 + number, 3, 1, 2) for number in numbers]))


def test_a_frame_in_pieces_is_not_joined_by_the_next(tmp_path: Path) -> None:
    """Which the other side would take together with it: what it has would come again."""
    rank = Rank(tmp_path)
    rank.write(64)
    answers = iter([Answer(413), GOOD, Answer(503)])
    with sink("http") as server, shipping(tmp_path, server, "http") as found:
        server.answer = lambda signal, payload: next(answers, GOOD)
        found.work(lambda: len(server.requests) == 3)
        rank.write(10)
        found.work()
        assert ({"shipped": 74}, list(rank.spans)) == (found.counts(), server.ids())


def test_few_requests_in_pieces_are_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above that a writer's next batch waits until one of them is over, so that none is forgotten and comes twice."""
    monkeypatch.setattr(shipper, "KEPT_BATCHES", 1)
    begun = []
    ranks = [Rank(tmp_path) for _ in range(3)]
    expected = [span for rank in ranks for span in rank.write(64, frames=2)]
    number = itertools.count()
    with sink("http") as server, shipping(tmp_path, server, "http") as found:

        def judge(signal: Signal, payload: bytes) -> Answer:
            begun.append(len(found.shipper._batches))
            return Answer(413) if len(payload) > 2000 else (GOOD, Answer(503))[next(number) % 2]

        server.answer = judge
        found.work()
        assert ({"shipped": 384}, sorted(expected)) == (found.counts(), sorted(server.ids()))
        assert max(begun) <= 1


def test_a_live_frame_in_pieces_that_becomes_old_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waited so much was written that all of it is a backlog."""
    rank = Rank(tmp_path)
    before = rank.write(64)
    monkeypatch.setattr(shipper, "BACKLOG_RATE", 1 << 40)
    answers = iter([Answer(413), GOOD, Answer(503)])
    with sink("http") as server, shipping(tmp_path, server, "http") as found:
        server.answer = lambda signal, payload: next(answers, GOOD)
        found.work(lambda: len(server.requests) == 3)
        monkeypatch.setattr(shipper, "LIVE_NS", 0)
        behind = rank.write(1000, frames=3, text="x" * 900)
        while found.waiting:
            found.shipper.work(found.followed(finished=False))
        assert ({"shipped": 3064}, before + behind) == (found.counts(), server.ids())


def slow_link(bytes_per_s: float) -> Callable[[Signal, bytes], Answer]:
    """Take everything, after as long as it needs on such a link."""
    return lambda signal, payload: Answer(delay_s=len(payload) / bytes_per_s)


@pytest.mark.parametrize(("spans", "frames", "size"), [(100, 60, 400), (1000, 1, 1500)])
def test_a_slow_link_takes_everything(tmp_path: Path, protocol: Protocol, spans: int, frames: int, size: int) -> None:
    """In requests that go in time, also of one frame that does not: what was late comes again a few times at most."""
    rank = Rank(tmp_path)
    rank.write(spans, frames=frames, text="x" * size)
    with sink(protocol) as server, shipping(tmp_path, server, protocol, timeout_ms=1000) as found:
        server.answer = slow_link(1_000_000)
        found.work()
        assert ({"shipped": spans * frames}, rank.spans) == (found.counts(), server.spans())
        retries = found.progress[rank.identity.writer].retries
        assert 0 < sum(retries.values()) <= 3, retries
        grown = found.shipper._max_bytes
        rank.write(10, frames=30)
        found.work()
        assert grown == found.shipper._max_bytes  # small ones say nothing of the link


def test_a_server_that_hangs_gets_no_crumbs(tmp_path: Path, protocol: Protocol) -> None:
    """Requests become smaller only so far, and are large again soon after it answers."""
    rank = Rank(tmp_path)
    rank.write(40, frames=80, text="x" * 1000)
    hangs = Answer(delay_s=3.0)
    sizes: list[int] = []
    with sink(protocol) as server, shipping(tmp_path, server, protocol, timeout_ms=1000) as found:
        server.answer = lambda signal, payload: sizes.append(len(payload)) or hangs  # type: ignore[func-returns-value]
        found.work(lambda: len(sizes) >= 6)
        assert sizes == sorted(sizes, reverse=True)
        assert shipper.SMALLEST / 2 < sizes[-1] <= sizes[3] <= shipper.SMALLEST < sizes[2]
        server.answer = lambda signal, payload: sizes.append(len(payload)) or GOOD  # type: ignore[func-returns-value]
        found.work()
        assert ({"shipped": 3200}, rank.spans) == (found.counts(), server.spans())
        assert max(sizes[6:]) > shipper.SMALLEST


def test_a_removed_backlog_holds_nothing_up(tmp_path: Path) -> None:
    """The size cap takes a backlog that was not sent: it is over, and what is written now arrives."""
    rank = Rank(tmp_path, segment_bytes=300_000)
    rank.write(100, frames=30, text="x" * 900, age_s=3600)
    with sink("grpc") as server, shipping(tmp_path, server, "grpc") as found:
        found.shipper._backlog_at = time.monotonic() + 60
        found.shipper.work(found.followed(finished=False))
        progress = found.progress[rank.identity.writer]
        end = progress.ranges[0].end
        assert end is not None
        live = rank.write(100, frames=10, text="x" * 900)
        for path in tmp_path.glob("*.traces.*"):
            if int(path.name.split(".")[2]) <= end.segment:
                path.unlink()
        found.shipper._backlog_at = 0.0
        found.work(lambda: len(progress.ranges) == 1 and not found.waiting)
        assert server.ids() == live[-len(server.ids()) :]
        assert 500 < len(server.ids())


def test_the_share_of_a_trace_counts_over_batches(tmp_path: Path) -> None:
    """What is not sent is counted, and waits for nobody."""
    rank = Rank(tmp_path)
    with sink("grpc") as server, shipping(tmp_path, server, "grpc") as found:
        for number in range(10):
            ids = range(10**9 + 1000 * number, 10**9 + 1000 * (number + 1))
            rank.append(rank.encoder.encode([FakeSpan("work", 5, span, 3, 1, 2) for span in ids]))
            found.work()
        counts = found.counts()
        assert SIBLINGS * 0.6 < counts["shipped"] == len(server.ids()) <= SIBLINGS
        assert 10_000 == counts["shipped"] + counts["left_out"]


def test_what_is_counted_never_falls(tmp_path: Path) -> None:
    """A parent that was left out and is sent after all, for a child of its own, stays counted as left out: a counter.

    It counts as shipped, too, and as fetched, so that what was recorded is the sum of the others without that.
    """
    rank, seen = Rank(tmp_path), []
    error = FakeSpan("work", 5, 10**9 + 500, 10**9 + 7, 1, 2, status=(2, ""))
    frames = [[FakeSpan("work", 5, 10**9 + number, 3, 1, 2) for number in range(100)], [error]]
    with sink("grpc") as server, shipping(tmp_path, server, "grpc") as found:
        for spans in frames:
            found.shipper._budget.trace_bytes = 20_000 * (len(spans) == 1)
            rank.append(rank.encoder.encode(spans))
            found.work()
            seen.append(found.counts())
        assert [{"left_out": 100}, {"left_out": 100, "fetched": 1, "shipped": 2}] == seen
        assert [10**9 + 500, 10**9 + 7] == [int.from_bytes(span, "big") for span in server.ids()]


def test_a_file_that_cannot_be_read_holds_nothing_up(tmp_path: Path) -> None:
    """It is said, and waits; the other writers' spans arrive."""
    bad, good = Rank(tmp_path), Rank(tmp_path)
    bad.write(10)
    expected = good.write(10)
    with sink("grpc") as server, shipping(tmp_path, server, "grpc") as found:
        followed = found.followed()
        (stream,) = [item.stream for item in followed if item.stream.writer == bad.identity.writer]
        (tmp_path / "directory").mkdir()
        stream.files = {0: tmp_path / "directory"}
        for _ in range(3):
            found.shipper.work(followed)
        assert expected == server.ids()
        assert 1 == len(found.said)
        assert "cannot be read" in found.said[0]


def test_damage_is_counted(tmp_path: Path) -> None:
    """And costs what it hit."""
    rank = Rank(tmp_path)
    rank.write(10, frames=3)
    (path,) = tmp_path.glob("*.traces.*")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with sink("grpc") as server, shipping(tmp_path, server, "grpc") as found:
        found.work()
        assert {"shipped": 20, "damaged": 1} == found.counts()
        assert 20 == len(server.ids())


def test_an_empty_request_is_not_sent(tmp_path: Path) -> None:
    """Nothing is nothing; what comes behind it is."""
    rank = Rank(tmp_path)
    rank.writer.append("logs", b"", 0, 1, 2)
    with sink("grpc") as server, shipping(tmp_path, server, "grpc", "logs") as found:
        found.work()
        assert 0 == len(server.requests)
        rank.write(1)
        found.work()
        assert 1 == len(server.taken("logs"))


def test_it_stops_between_requests(tmp_path: Path) -> None:
    """Once it is told to, no further request is begun."""
    for _ in range(5):
        Rank(tmp_path).write(1)
    with sink("grpc") as server, shipping(tmp_path, server, "grpc") as found:
        server.answer = lambda signal, payload: found.stop.set() or GOOD  # type: ignore[func-returns-value]
        assert found.shipper.work(found.followed())
        assert 1 == len(server.requests)


def test_a_clock_that_jumped_loses_nothing(tmp_path: Path) -> None:
    """Times of another day make a backlog at most."""
    rank = Rank(tmp_path)
    rank.write(100, frames=30, text="x" * 900, age_s=1e6)
    rank.write(100, frames=30, text="x" * 900, age_s=-1e6)
    with sink("grpc") as server, shipping(tmp_path, server, "grpc") as found:
        found.work()
        assert 6000 == sum(found.counts().values())
        assert rank.spans.items() >= server.spans().items()
