"""A sidecar that stays stands by while it cannot have the run; one that does not ends, or says what is wrong."""

from __future__ import annotations

import errno
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.guard import errors
from otel_rl.journal.frame import Signal
from otel_rl.journal.read import open_run
from otel_rl.sidecar import main, owner, ship_node
from otel_rl.sidecar.main import ANOTHER, Sidecar
from otel_rl.sidecar.settings import Target, targets
from otel_rl.sidecar.ship import progress
from tests.peers import Peer
from tests.sink import ALIVE, DEAD, Answer, Rank, Sink, SlowLink, sink
from tests.waiting import wait_for
from tests.watched import DEAD as GONE
from tests.watched import uneven

Sleeps = Callable[..., None]


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    """Say what happens while the sidecar sleeps, each time the next; once more is an error."""

    def happen(*events: Callable[[], object]) -> None:
        left = iter(events)
        monkeypatch.setattr(main.time, "sleep", lambda seconds: next(left)())

    return happen


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def trouble(*arguments: object, **more: object) -> None:
    """Fail as a network file system does for a while."""
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.guarded
def test_it_stands_by_while_the_run_is_gone(run: Path, sleeps: Sleeps, caplog: pytest.LogCaptureFixture) -> None:
    """It never makes the directory, says so once, and goes on as soon as somebody else makes it."""
    assert owner.claim(run, ALIVE.boot_id, replace(ALIVE, writer="other")) is not None
    there: list[bool] = []
    sleeps(
        lambda: shutil.rmtree(run), lambda: there.append(run.exists()), lambda: there.append(run.exists()), run.mkdir
    )
    sidecar = Sidecar(run, (), stays=True)
    claim = sidecar._claim()
    assert isinstance(claim, owner.Owner)
    assert sidecar.identity == owner.living(run, ALIVE.boot_id)
    assert ([False, False], {"claim the node": 3}) == (there, dict(errors))
    assert 1 == len(caplog.records)


@pytest.mark.guarded
def test_it_stands_by_while_the_file_system_is_in_trouble(
    run: Path, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lasts for a moment ends nothing."""
    claim = owner.claim
    monkeypatch.setattr(owner, "claim", trouble)
    sleeps(lambda: None, lambda: monkeypatch.setattr(owner, "claim", claim))
    assert isinstance(Sidecar(run, (), stays=True)._claim(), owner.Owner)
    assert {"claim the node": 2} == dict(errors)


@pytest.mark.guarded
@pytest.mark.parametrize(("why", "code"), [("another", ANOTHER), ("gone", 0), ("trouble", 1)])
def test_it_ends_where_it_is_told_to_while_it_stands_by(
    run: Path, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch, why: str, code: int
) -> None:
    """Its exit code says why it had nothing."""
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    if why == "another":
        owner.claim(run, ALIVE.boot_id, replace(ALIVE, writer="other"))
    elif why == "gone":
        run.rmdir()
    else:
        monkeypatch.setattr(owner, "claim", trouble)
    sidecar = Sidecar(run, (), stays=True)
    sleeps(lambda: sidecar._end(signal.SIGTERM, None))
    assert code == sidecar.run()
    assert (why != "gone") == run.exists()


def test_one_that_does_not_stay_says_what_is_wrong(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once; nobody would look at it later."""
    monkeypatch.setattr(owner, "claim", trouble)
    with pytest.raises(OSError, match="Input/output error"):
        Sidecar(run, ())._claim()


@pytest.mark.parametrize("stays", [False, True])
def test_one_that_a_person_started_needs_no_note(run: Path, monkeypatch: pytest.MonkeyPatch, stays: bool) -> None:
    """On a disk that takes nothing it ships all the same and says so; what a trainer starts does not."""
    said: list[str] = []

    def full(*arguments: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(owner, "claim", full)
    claim = Sidecar(run, (), stays=stays, is_by_hand=True, say=said.append)._claim()
    assert isinstance(claim, owner.Owner)
    assert claim.touch()
    expected = f"progress cannot be saved in {run} (No space left on device): what is sent now may be sent again later"
    assert [expected] == said
    with pytest.raises(OSError, match="No space left"):
        Sidecar(run, ())._claim()


@pytest.mark.parametrize(("why", "code"), [("gone", 0), ("gone unseen", 0), ("taken over", ANOTHER)])
def test_it_says_why_it_leaves_before_all_is_sent(
    run: Path, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch, why: str, code: int
) -> None:
    """The run was removed under it, or somebody took it for dead."""
    said: list[str] = []
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(main, "TOUCH_S", 0.0)
    if why == "taken over":
        monkeypatch.setattr(owner.Owner, "touch", lambda self: False)
    elif why == "gone unseen":  # a directory that takes long to list is listed rarely
        monkeypatch.setattr(ship_node.Node, "update", lambda self: None)
    sleeps(lambda: shutil.rmtree(run))
    assert code == Sidecar(run, (), say=said.append).run()
    taken = "another sidecar ships in its place: this one only watched for stalls"
    assert [taken if why == "taken over" else f"{run} is gone: the run was removed"] == said


def test_it_says_that_nobody_wrote(run: Path, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute, where a person looks: the run has another name perhaps."""
    said: list[str] = []
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(main, "FIRST_S", 0.0)
    monkeypatch.setattr(main, "QUIET_S", 0.0)
    monkeypatch.setattr(main, "PERIOD_S", 3600.0)
    sleeps(*[lambda: None] * 100)
    assert 0 == Sidecar(run, (), say=said.append).run()
    expected = [f"no process on this node has written in {run}"]
    assert expected == said == [line.partition(" ")[2] for line in (run / "sidecar.log").read_text().splitlines()]


def targets_of(server: Sink, *signals: str) -> tuple[Target, ...]:
    """Where to send these signals."""
    sending = {"ENDPOINT": server.endpoint, "PROTOCOL": "http/protobuf", "TIMEOUT": "60000"}
    environ = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in sending.items()}
    return tuple(target for target in targets(environ) if target.signal in signals)


@pytest.mark.medium
def test_it_goes_on_as_long_as_something_is_taken(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry by piece, over a link that is slow: the grace period is that of a side that takes nothing."""
    rank, link, said = Rank(run), SlowLink(), list[str]()
    rank.write(640)
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(main, "SCAN_S", 0.001)
    monkeypatch.setattr(main, "monotonic", link)
    monkeypatch.setattr(progress, "monotonic", link)
    with sink("http") as server:
        server.answer = link.answer
        code = Sidecar(run, targets_of(server, "traces"), grace_s=60.0, say=said.append).run()
        assert (0, [], list(rank.spans)) == (code, said, server.ids())


@pytest.mark.medium
def test_its_own_metrics_are_no_reason_to_go_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are taken, the trainers' spans never: it ends after its grace period."""
    Rank(run).write()
    said: list[str] = []
    clock = {"s": 1000.0}
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(ship_node, "SCAN_COST", 0.0)
    monkeypatch.setattr(main, "monotonic", lambda: clock["s"])
    monkeypatch.setattr(progress, "monotonic", lambda: clock["s"])
    with sink("http") as server:
        server.answer = lambda signal, payload: Answer(401 if signal == "traces" else 200)
        sidecar = Sidecar(run, targets_of(server, "traces", "metrics"), grace_s=60.0, say=said.append)

        def sleep(seconds: float) -> None:
            sidecar._node.update()
            assert wait_for(lambda: not waiting_of(sidecar._node, "metrics"))
            clock["s"] += main.PERIOD_S + 1
            assert clock["s"] < 1200, "it does not end"

        monkeypatch.setattr(main, "time", SimpleNamespace(sleep=sleep, strftime=main.time.strftime))
        assert 1 == sidecar.run()
        assert "bytes were not sent (traces: HTTP 401)" in said[-1]
        assert 9 < len(server.taken("metrics"))


@pytest.mark.medium
def test_its_last_numbers_are_of_the_end(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That nothing waits any more arrives too, and what was sent: a dashboard shows the last points for ever."""
    Rank(run).write(640)
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(main, "QUIET_S", 0.0)
    monkeypatch.setattr(main, "SCAN_S", 0.001)
    with sink("http") as server:
        assert 0 == Sidecar(run, targets_of(server, "traces", "metrics")).run()
        sent = {name: number for name, number in numbers(server) if name != (v.SELF_SHIPPED, "metrics")}
    none = {(name, ""): 0 for name in (v.SELF_WAITING, v.SELF_OLDEST, v.SELF_WRITERS)}
    shipped = {(v.SELF_SHIPPED, "traces"): 640, **none}
    assert shipped == {name: sent[name] for name in shipped}


def after(monkeypatch: pytest.MonkeyPatch, method: str, event: Callable[[], object]) -> None:
    """Have something happen behind each call of a method of a node."""
    original = getattr(ship_node.Node, method)

    def around(self: ship_node.Node, *arguments: Any, **more: Any) -> None:
        original(self, *arguments, **more)
        event()

    monkeypatch.setattr(ship_node.Node, method, around)


@pytest.mark.medium
def test_what_it_found_out_at_the_end_is_sent(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its own journal began behind the last look: a directory that takes long to list is looked at rarely."""
    for rank in range(2):
        peer = Peer(run, rank, identity=GONE, clock_ms=rank * 5000)
        for number in range(1, 4):
            peer.step(number, uneven(rank, 10 * number))
        peer.die()
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(ship_node, "SCAN_COST", 1e6)
    with sink("http") as server:
        assert 0 == Sidecar(run, targets_of(server, "traces")).run()
        found = [span.span_id for span in open_run(run).spans(None) if span.name == v.IDLE]
        assert found
        assert sorted(found) == sorted(span.span_id for span in server.taken("traces") if span.name == v.IDLE)


@pytest.mark.medium
@pytest.mark.parametrize("when", ["in the quiet time", "behind the last look"])
def test_who_ends_beside_it_is_sent(run: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """He saw a living sidecar, so that he started none."""
    ranks = [Rank(run, DEAD)]
    ranks[0].write(5)
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(main, "QUIET_S", 0.5)

    def end_beside() -> None:
        if len(ranks) == 1:
            ranks.append(Rank(run, DEAD))
            ranks[1].write(5)
            assert owner.living(run, ALIVE.boot_id) is not None

    if when == "in the quiet time":
        monkeypatch.setattr(ship_node, "SCAN_COST", 1e5)
        after(monkeypatch, "_scan", end_beside)
    else:
        after(monkeypatch, "stop", end_beside)
    with sink("http") as server:
        assert 0 == Sidecar(run, targets_of(server, "traces")).run()
        assert owner.living(run, ALIVE.boot_id) is None
        assert {*ranks[0].spans, *ranks[1].spans} == set(server.ids())


@pytest.mark.parametrize("why", ["a writer came", "its last numbers wait"])
def test_its_last_sample_is_of_the_end(run: Path, monkeypatch: pytest.MonkeyPatch, sleeps: Sleeps, why: str) -> None:
    """It is taken again where the end was none, and no other behind it, which would say that it waits."""
    rank = Rank(run)
    rank.write()
    clock, sampled = {"s": 10_000.0}, list[float]()
    living, waiting = set[str](), {"bytes": 0}
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(main, "monotonic", lambda: clock["s"])
    monkeypatch.setattr(main.Sidecar, "_sample", lambda *arguments: sampled.append(clock["s"]))
    monkeypatch.setattr(ship_node.Node, "living", property(lambda found: living))
    monkeypatch.setattr(ship_node.Node, "unclosed", False)
    monkeypatch.setattr(ship_node.Node, "waiting", property(lambda found: waiting["bytes"]))
    sidecar = Sidecar(run, ())

    def at(now_s: float, writers: set[str] | None = None, left: int = 0) -> Callable[[], None]:
        def happen() -> None:
            clock["s"], waiting["bytes"] = now_s, left
            living.clear()
            living.update(writers or ())

        return happen

    if why == "a writer came":
        sleeps(at(10_004), at(10_004.5, {rank.identity.writer}), at(10_006), at(10_008.5), at(10_009))
    else:
        sleeps(at(10_004), at(10_004.5, left=7), at(10_100, left=7), at(10_200))
    assert 0 == sidecar.run()
    assert ([10_000, 10_004, 10_008.5] if why == "a writer came" else [10_000, 10_004]) == sampled


def numbers(server: Sink) -> list[tuple[tuple[str, str], float]]:
    """What arrived of shipping, in order: name and signal, and the number."""
    found = []
    for metric in server.taken("metrics"):
        for point in (*metric.sum.data_points, *metric.gauge.data_points):
            labels = {item.key: item.value.string_value for item in point.attributes}
            if labels.get(v.OUTCOME, "shipped") == "shipped":
                found.append(((metric.name, labels.get(v.SIGNAL, "")), point.as_double or point.as_int))
    return found


def waiting_of(found: ship_node.Node, signal: Signal) -> int:
    """Bytes of a signal that are still to be sent."""
    streams = {writer: streams[signal] for writer, streams in found._streams.items() if signal in streams}
    return sum(found.progress[writer][signal].waiting(stream) for writer, stream in streams.items())


def test_it_says_nothing_where_somebody_wrote(run: Path, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch) -> None:
    """And all is sent."""
    Rank(run).write()
    said: list[str] = []
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(main, "QUIET_S", 0.0)
    sleeps(*[lambda: None] * 100)
    assert (0, []) == (Sidecar(run, (), say=said.append).run(), said)
