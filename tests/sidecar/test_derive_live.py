"""A real sidecar compares ranks: what it finds is in its journal and at the other end, as long as it lives."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.guard import errors
from otel_rl.journal.read import open_run
from otel_rl.sidecar import main
from otel_rl.sidecar.compare.compare import RankComparer
from otel_rl.sidecar.main import Sidecar
from otel_rl.sidecar.start import start
from tests.peers import MS, Peer
from tests.sink import Sink, sink
from tests.test_shipping import sidecar_of, stop_sidecar
from tests.waiting import wait_for
from tests.watched import DEAD, uneven


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run of two ranks that are gone, and no sidecar left at the end."""
    directory = tmp_path / "run"
    for rank in range(2):
        peer = Peer(directory, rank, identity=DEAD, clock_ms=rank * 5000)
        for number in range(1, 21):
            peer.step(number, uneven(rank, 10 * number))
        peer.die()
    yield directory
    stop_sidecar(directory)


def send(directory: Path, server: Sink) -> None:
    """Start a sidecar and wait until it has ended by itself."""
    variables = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint}
    before = len(server.requests)
    pid = start(directory, variables)
    assert (pid, 0) == os.waitpid(pid, 0)
    assert wait_for(lambda: sidecar_of(directory) is not None or len(server.requests) > before)
    assert wait_for(lambda: sidecar_of(directory) is None), "the sidecar does not end"


@pytest.mark.slow
def test_a_sidecar_sends_what_it_found(run: Path) -> None:
    """All of it, before it ends, under the ranks that waited; a second one finds nothing more."""
    with sink("grpc") as server:
        send(run, server)
        send(run, server)
        arrived = [span for span in server.taken("traces") if span.name == v.IDLE]
    recorded = [span for span in open_run(run).spans(None) if span.name == v.IDLE]
    waits = {
        (span.resource[v.RANK], span.attributes[v.COMM_SEQUENCE], (span.end_ns - span.start_ns) / MS)
        for span in recorded
    }
    expected = {(0, 10 * number, 20.0) for number in range(1, 21)} | {
        (1, 10 * number + 2, 2.0) for number in range(1, 21)
    }
    assert expected == waits
    assert 40 == len(recorded)
    assert Counter(span.span_id for span in recorded) == Counter(span.span_id for span in arrived)
    known = {span.span_id: span for span in open_run(run).spans()}
    assert all(known[span.parent_id].trace_id == span.trace_id for span in recorded)
    (told,) = {point.value for point in open_run(run).points(v.SELF_DERIVED)} - {0}
    assert 20 == told


@pytest.mark.guarded
def test_a_failure_of_the_comparison_is_no_failure_of_the_sidecar(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted, what was there is passed over, and shipping goes on."""
    monkeypatch.setattr(main, "QUIET_S", 0.2)
    skipped: list[RankComparer] = []

    def fail(*arguments: object) -> None:
        raise RuntimeError("as the test wants")

    def note(deriver: RankComparer) -> None:
        skipped.append(deriver)

    monkeypatch.setattr(RankComparer, "work", fail)
    monkeypatch.setattr(RankComparer, "skip", note)
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    sidecar = Sidecar(run, ())
    monkeypatch.setattr(sidecar, "_targets", ("somewhere",))  # without any it compares nothing
    assert 0 == sidecar.run()
    assert errors["compare ranks"] == len(skipped) > 0


def test_a_sidecar_stays_until_all_of_the_dead_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little it waits for newcomers."""
    monkeypatch.setattr(main, "QUIET_S", 0.0)
    monkeypatch.setattr(main, "SCAN_S", 0.01)
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    left = [False, True, True, True]
    monkeypatch.setattr(RankComparer, "is_behind", property(lambda deriver: bool(left) and left.pop()))
    sidecar = Sidecar(run, ())
    monkeypatch.setattr(sidecar, "_targets", ("somewhere",))  # without any it compares nothing
    assert 0 == sidecar.run()
    assert [] == left
