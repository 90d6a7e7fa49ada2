"""One sidecar for each node: a claim of a living process holds, one of a dead process does not."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl.journal.identity import WriterIdentity, start_time
from otel_rl.sidecar import owner
from tests.sink import ALIVE, DEAD

BOOT = ALIVE.boot_id
PROGRAM = """
import sys, time
from pathlib import Path
from otel_rl.journal.identity import WriterIdentity
from otel_rl.sidecar import owner
me = WriterIdentity.current("sidecar", 0)
while time.time() < float(sys.argv[2]):
    pass
print(owner.claim(Path(sys.argv[1]), me.boot_id, me) is not None, flush=True)
sys.stdin.read()
"""


def test_the_first_claim_holds(tmp_path: Path) -> None:
    """Until it is given back; another node has its own."""
    first = owner.claim(tmp_path, BOOT, ALIVE)
    assert first is not None
    assert ALIVE == owner.living(tmp_path, BOOT)
    assert owner.claim(tmp_path, BOOT, replace(ALIVE, writer="other")) is None
    assert owner.claim(tmp_path, BOOT[:8] + "-other", ALIVE) is not None
    assert first.touch()
    first.release()
    assert owner.living(tmp_path, BOOT) is None
    assert not first.touch()
    assert owner.claim(tmp_path, BOOT, replace(ALIVE, writer="other")) is not None
    first.release()
    assert "other" == getattr(owner.living(tmp_path, BOOT), "writer", None), "somebody else's claim was given back"


def test_who_only_watches_gives_way_to_one_that_sends(tmp_path: Path) -> None:
    """Not to another one that watches; and nobody gives way to it."""
    watches, sends = ALIVE, replace(ALIVE, writer="other")
    first = owner.claim(tmp_path, BOOT, watches, sends=False)
    assert first is not None
    assert (watches, None) == (owner.living(tmp_path, BOOT), owner.living(tmp_path, BOOT, sends=True))
    assert owner.claim(tmp_path, BOOT, sends, sends=False) is None
    assert owner.claim(tmp_path, BOOT, sends) is not None
    assert (sends, False) == (owner.living(tmp_path, BOOT, sends=True), first.touch())
    assert owner.claim(tmp_path, BOOT, watches, sends=False) is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_claim_by_hand_needs_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It is said that it stands nowhere; nothing is left behind. Any other error is one."""
    said: list[str] = []
    failure = OSError(number, "no room")

    def fails(*_: object) -> None:
        raise failure

    monkeypatch.setattr(os, "replace", fails)
    ours = owner.claim_by_hand(tmp_path, BOOT, ALIVE, said.append)
    assert ours is not None
    assert (True, None, [f"sidecar-{BOOT}.lock"]) == (ours.touch(), owner.living(tmp_path, BOOT), os.listdir(tmp_path))
    assert [f"progress cannot be saved in {tmp_path} (no room): what is sent now may be sent again later"] == said
    failure = OSError(errno.EIO, "broken")
    with pytest.raises(OSError, match="broken"):
        owner.claim_by_hand(tmp_path, BOOT, ALIVE, said.append)
    monkeypatch.undo()
    noted = owner.claim_by_hand(tmp_path, BOOT, replace(ALIVE, writer="other"), said.append)
    assert (True, False, 1) == (noted is not None, ours.touch(), len(said))


@pytest.mark.medium
def test_of_many_at_once_one_wins(tmp_path: Path) -> None:
    """Real processes at the same moment; one that is killed makes room."""
    begin = str(time.time() + 1.5)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), begin]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        for _ in range(6)
    ]
    answers = [process.stdout.readline().strip() for process in started if process.stdout]
    assert [b"False"] * 5 + [b"True"] == sorted(answers)
    (winner,) = [process for process, answer in zip(started, answers, strict=True) if answer == b"True"]
    assert winner.pid == getattr(owner.living(tmp_path, BOOT), "pid", None)
    winner.kill()
    winner.wait()
    assert owner.living(tmp_path, BOOT) is None
    assert owner.claim(tmp_path, BOOT, ALIVE) is not None
    for process in started:
        process.communicate()


def test_a_claim_of_the_dead_is_taken_over(tmp_path: Path) -> None:
    """Looked up where that is possible, else by how long it was silent."""
    assert owner.claim(tmp_path, BOOT, DEAD) is not None
    assert owner.claim(tmp_path, BOOT, ALIVE) is not None
    far = replace(ALIVE, writer="far", boot_id="another", start_time=start_time(os.getpid()) or 0)
    claim = owner.claim(tmp_path, "another", far)
    assert claim is not None
    assert owner.claim(tmp_path, "another", ALIVE) is None
    os.utime(claim.path, (0, time.time() - 61))
    assert owner.living(tmp_path, "another") is None
    assert claim.touch()
    assert far == owner.living(tmp_path, "another")
    os.utime(claim.path, (0, time.time() - 61))
    assert owner.claim(tmp_path, "another", ALIVE) is not None
    assert not claim.touch(), "it was taken over"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"writer": 1}'])
def test_a_damaged_claim_holds_nobody_up(tmp_path: Path, content: bytes) -> None:
    """It is nobody's."""
    owner.path_of(tmp_path, BOOT).write_bytes(content)
    assert owner.living(tmp_path, BOOT) is None
    assert owner.claim(tmp_path, BOOT, ALIVE) is not None


def test_a_disk_without_locks_and_one_that_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lock a claim is made all the same; one that cannot be touched is still ours."""

    def fails(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fails)
    claim = owner.claim(tmp_path, BOOT, ALIVE)
    assert claim is not None
    assert owner.claim(tmp_path, BOOT, ALIVE) is None
    monkeypatch.setattr(os, "utime", fails)
    assert claim.touch()
    claim.path.unlink()
    assert not claim.touch()
    claim.release()


@pytest.mark.parametrize("method", ["read_bytes", "stat"])
def test_a_disk_that_does_not_say_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Nobody takes over because of that; who only looks sees nobody."""
    far = replace(ALIVE, boot_id="another")
    claim = owner.claim(tmp_path, BOOT, far)
    assert claim is not None
    with monkeypatch.context() as patched:

        def fails(path: Path) -> None:
            raise OSError(errno.EIO, "Input/output error", str(path))

        patched.setattr(Path, method, fails)
        with pytest.raises(OSError, match="Input/output error"):
            owner.claim(tmp_path, BOOT, replace(ALIVE, writer="other"))
        assert owner.living(tmp_path, BOOT) is None
        assert claim.touch()
    assert far == owner.living(tmp_path, BOOT)


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    """And nothing else is left in the directory."""
    claim = owner.claim(tmp_path, BOOT, WriterIdentity.current("sidecar", 0))
    assert claim is not None
    assert 0o600 == claim.path.stat().st_mode & 0o777
    assert sorted([claim.path.name, claim.path.with_suffix(".lock").name]) == sorted(os.listdir(tmp_path))
