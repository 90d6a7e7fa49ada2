"""The comparison of ranks runs beside the sidecar's main loop, however long it takes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.otlp.wire import OtlpRequest
from otel_rl.journal.read import open_run
from otel_rl.probes.sample import Sample
from otel_rl.records import Log
from otel_rl.sidecar import main
from otel_rl.sidecar.compare.compare import RankComparer
from otel_rl.sidecar.compare.rounds import ComparisonRounds, Round
from otel_rl.sidecar.main import Sidecar
from otel_rl.sidecar.ship_node import Node
from otel_rl.sidecar.stall_watch import StallWatch
from tests.peers import ALIVE, Peer
from tests.sidecar.test_main import targets_of
from tests.sink import Rank, sink
from tests.waiting import wait_for
from tests.watched import DEAD, SIDECAR, uneven


class SlowComparison:
    """Comparisons that wait until the test lets them go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        work = RankComparer.work

        def wait(comparer: RankComparer, node: Node) -> list[OtlpRequest]:
            self.has_begun.set()
            self.may_end.wait()
            return work(comparer, node)

        monkeypatch.setattr(RankComparer, "work", wait)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two ranks that are gone."""
    for rank in range(2):
        peer = Peer(tmp_path / "run", rank, identity=DEAD, clock_ms=rank * 5000)
        for number in range(1, 4):
            peer.step(number, uneven(rank, 10 * number))
        peer.die()
    return tmp_path / "run"


@pytest.mark.medium
def test_shipping_and_the_watch_go_on_while_ranks_are_compared(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who begins to write meanwhile is found and sent, stalls are looked for, and what is compared comes then."""
    slow, looks, look = SlowComparison(monkeypatch), list[float](), StallWatch.look
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(main, "QUIET_S", 0.1)

    def count(watch: StallWatch, device_errors: Sequence[Sample]) -> list[Log]:
        looks.append(monotonic())
        return look(watch, device_errors)

    monkeypatch.setattr(StallWatch, "look", count)
    codes: list[int] = []
    with sink("http") as server:
        sidecar = Sidecar(run, targets_of(server, "traces"))
        thread = threading.Thread(target=lambda: codes.append(sidecar.run()))
        thread.start()
        assert wait_for(slow.has_begun.is_set)
        newcomer = Rank(run, DEAD)
        newcomer.write(5)
        seen = len(looks)
        assert wait_for(lambda: set(newcomer.spans) <= set(server.ids()))
        assert wait_for(lambda: len(looks) > seen + 1)
        before = [span.name for span in open_run(run).spans(None) if span.name == v.IDLE]
        slow.may_end.set()
        thread.join()
        compared = [span.span_id for span in open_run(run).spans(None) if span.name == v.IDLE]
        assert ([0], []) == (codes, before)
        assert sorted(compared) == sorted(span.span_id for span in server.taken("traces") if span.name == v.IDLE) != []


def test_a_round_is_returned_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the call after its end; while it goes on something is still to be read."""
    slow = SlowComparison(monkeypatch)
    node = Node(run, (), lambda writer: writer.boot_id == ALIVE.boot_id, print)
    node.update()
    rounds = ComparisonRounds(run, SIDECAR, node)
    first, second = rounds.next(), rounds.next()
    slow.may_end.set()
    compared = rounds.close()
    waits = sum(request.count for request in compared.requests if request.signal == "traces")
    assert (Round(), Round(is_behind=True), 6) == (first, second, waits)
