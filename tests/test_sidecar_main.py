"""A sidecar that stays stands by while it cannot have the run; one that does not ends, or says what is wrong."""

from __future__ import annotations

import errno
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl.guard import errors
from otel_rl.sidecar import main, node, owner
from otel_rl.sidecar.main import ANOTHER, Sidecar
from tests.sink import ALIVE, Rank

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


def trouble(*arguments: object) -> None:
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

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(owner, "claim", full)
    claim = Sidecar(run, (), stays=stays, is_by_hand=True, say=said.append)._claim()
    assert isinstance(claim, owner.Owner)
    assert claim.touch()
    expected = f"{run} takes no note of what is sent (No space left on device): whoever ships it next sends it again"
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
        monkeypatch.setattr(node.Node, "look", lambda self: None)
    sleeps(lambda: shutil.rmtree(run))
    assert code == Sidecar(run, (), say=said.append).run()
    taken = "another sidecar took this one for dead and ships in its place"
    assert [taken if why == "taken over" else f"{run} is gone: somebody removed the run"] == said


def test_it_says_that_nobody_wrote(run: Path, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute, where a person looks: the run has another name perhaps."""
    said: list[str] = []
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(main, "FIRST_S", 0.0)
    monkeypatch.setattr(main, "QUIET_S", 0.0)
    monkeypatch.setattr(main, "PERIOD_S", 3600.0)
    sleeps(*[lambda: None] * 100)
    assert 0 == Sidecar(run, (), say=said.append).run()
    expected = [f"nobody on this node has written in {run}"]
    assert expected == said == [line.partition(" ")[2] for line in (run / "sidecar.log").read_text().splitlines()]


def test_it_says_nothing_where_somebody_wrote(run: Path, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch) -> None:
    """And all is sent."""
    Rank(run).write()
    said: list[str] = []
    monkeypatch.setattr(main.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(main, "QUIET_S", 0.0)
    sleeps(*[lambda: None] * 100)
    assert (0, []) == (Sidecar(run, (), say=said.append).run(), said)
