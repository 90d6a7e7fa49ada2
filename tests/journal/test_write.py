"""Writing: files for their owner only, a cap that holds, disks that fail, forks that leave the parent's file alone."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal as signals
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl.journal import frame
from otel_rl.journal.files import ends_closed
from otel_rl.journal.frame import Damage, Frame, Signal
from otel_rl.journal.identity import WriterIdentity, start_time
from otel_rl.journal.otlp.wire import OtlpRequest
from otel_rl.journal.read import open_run
from otel_rl.journal.segment import first_unsent, shipped_path
from otel_rl.journal.write import MIB, Writer

IDENTITY = WriterIdentity("trainer-0-1-abcdef00", "boot", "pid:[1]", 1, 2, "host", 3, "1.0")
OVERHEAD = len(frame.pack(0, IDENTITY.to_json(), 1, 3, 3))


def writer(
    directory: Path, max_bytes: int = 64 * MIB, segment_bytes: int = 16 * MIB, pending_bytes: int = MIB
) -> Writer:
    """Make a writer in a run directory that does not exist yet."""
    return Writer(directory / "runs" / "run", IDENTITY, max_bytes, segment_bytes, pending_bytes)


def items(path: Path) -> list[Frame | Damage]:
    """Read all of a segment but the writer's frames: the first one, and that of a closed journal."""
    first, *rest = frame.scan(path.read_bytes().removesuffix(frame.END))
    assert isinstance(first, Frame)
    assert WriterIdentity.from_json(first.payload) == IDENTITY
    return rest


def payloads(directory: Path, signal: Signal = "traces") -> list[bytes]:
    """Read what was appended, over all segments in order; nothing may be damaged."""
    found = []
    for path in sorted((directory / "runs" / "run").glob(f"*.{signal}.*.otlp")):
        for item in items(path):
            assert isinstance(item, Frame)
            found.append(item.payload)
    return found


def names(directory: Path) -> list[str]:
    """List the segments without the writer's name."""
    return sorted(path.name.removeprefix(IDENTITY.writer + ".") for path in (directory / "runs" / "run").iterdir())


class Disk:
    """Stands in for ``os.write``: has room for so many bytes, or fails otherwise."""

    def __init__(self, room: int, error: int = errno.ENOSPC) -> None:
        self.room, self.error, self.write = room, error, os.write

    def __call__(self, descriptor: int, data: memoryview) -> int:
        """Write what there is room for."""
        size = min(len(data), self.room)
        if size == 0:
            raise OSError(self.error, os.strerror(self.error))
        self.room -= size
        return self.write(descriptor, data[:size])


def told(journal: Writer) -> tuple[object, ...]:
    """What a writer says of itself, but where it writes."""
    return journal.frames, journal.records, journal.bytes, journal.pending_bytes, journal.dropped, journal.failure


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Disk]]:
    """Give a function that makes the disk have only so much room."""

    def limit(room: int, error: int = errno.ENOSPC) -> Disk:
        limited = Disk(room, error)
        monkeypatch.setattr(os, "write", limited)
        return limited

    with monkeypatch.context():
        yield limit


def test_files_of_a_run(tmp_path: Path) -> None:
    """Each signal has its segments, for the owner only, and each begins with the writer's frame."""
    journal = writer(tmp_path)
    for signal in ("traces", "metrics", "logs"):
        journal.append(signal, signal.encode(), 2, 5, 6)
    assert ["logs.000000.otlp", "metrics.000000.otlp", "traces.000000.otlp"] == names(tmp_path)
    assert [b"logs"] == payloads(tmp_path, "logs")
    (path,) = (tmp_path / "runs" / "run").glob("*.traces.*")
    (item,) = items(path)
    assert isinstance(item, Frame)
    assert (1, 2, 5, 6) == (item.type, item.count, item.first_ns, item.last_ns)
    modes = [stat.S_IMODE(found.stat().st_mode) for found in (path, path.parent, path.parent.parent)]
    assert [0o600, 0o700, 0o700] == modes
    size = sum(found.stat().st_size for found in path.parent.iterdir())
    assert (3, {"traces": 2, "metrics": 2, "logs": 2}, size, 0, {}, None) == told(journal)


def test_nothing_is_made_without_records(tmp_path: Path) -> None:
    """A writer that wrote nothing leaves nothing behind."""
    journal = writer(tmp_path)
    journal.heartbeat()
    journal.close()
    assert [] == list(tmp_path.iterdir())


def test_segments_rotate(tmp_path: Path) -> None:
    """A segment ends before it would grow over its limit; a frame larger than that has one to itself."""
    journal = writer(tmp_path, segment_bytes=OVERHEAD + 300)
    sent = [b"a" * 100, b"b" * 100, b"c" * 100, b"d" * 1000, b"e"]
    for payload in sent:
        journal.append("traces", payload, 1, 1, 1)
    assert [f"traces.{number:06d}.otlp" for number in range(4)] == names(tmp_path)
    assert sent == payloads(tmp_path)


def test_the_cap_takes_spans_first_and_metrics_last(tmp_path: Path) -> None:
    """At the cap closed segments go: of spans first, then of logs, then of metrics; the cap is never exceeded."""
    cap = 8 * (OVERHEAD + 1100)
    journal = writer(tmp_path, max_bytes=cap)
    for signal, number in (("metrics", 2), ("logs", 2), ("traces", 3)):
        for _ in range(number):
            journal.append(signal, b"x" * 1000, 10, 1, 1)
    history = []
    for number in range(9):
        journal.append("metrics", b"m" * 1000, 1, 1, 1)
        left = names(tmp_path)
        history.append(tuple(sum(name.startswith(signal) for name in left) for signal in ("traces", "logs", "metrics")))
        assert sum(path.stat().st_size for path in (tmp_path / "runs" / "run").iterdir()) <= cap, number
    assert (3, 2, 3) == history[0]
    assert (1, 1, 6) == history[-1]
    assert sorted(history, key=lambda left: (-left[0], -left[1], left[2])) == history
    expected = {("traces", "journal_full"): 20, ("logs", "journal_full"): 10, ("metrics", "journal_full"): 23}
    assert expected == journal.dropped


def test_the_oldest_spans_go_first(tmp_path: Path) -> None:
    """Of the spans the latest stay."""
    journal = writer(tmp_path, max_bytes=8 * (OVERHEAD + 1100))
    sent = [bytes([number]) * 1000 for number in range(30)]
    for payload in sent:
        journal.append("traces", payload, 3, 1, 1)
    kept = payloads(tmp_path)
    assert sent[-len(kept) :] == kept
    assert len(kept) >= 7
    assert {("traces", "journal_full"): 3 * (30 - len(kept))} == journal.dropped


def test_what_has_been_sent_goes_before_all_else(tmp_path: Path) -> None:
    """Without being counted as lost: metrics that were sent go before spans that were not."""
    journal = writer(tmp_path, max_bytes=8 * (OVERHEAD + 1100))
    for _ in range(4):
        journal.append("metrics", b"m" * 1000, 5, 1, 1)
    path = shipped_path(tmp_path / "runs" / "run", IDENTITY.writer)
    path.write_text('{"metrics": {"ranges": [[[3, 0], null]]}}')
    for _ in range(7):
        journal.append("traces", b"t" * 1000, 3, 1, 1)
    path.unlink()
    assert {} == journal.dropped
    assert {"metrics.000003.otlp"} == {name for name in names(tmp_path) if name.startswith("metrics")}


@pytest.mark.parametrize("text", ["", "[]", '{"metrics": 3}', '{"metrics": {"ranges": []}}'])
def test_a_damaged_acknowledgement_says_nothing(tmp_path: Path, text: str) -> None:
    """Then what goes is counted, as without it."""
    shipped_path(tmp_path, "writer").write_text(text)
    assert {} == first_unsent(tmp_path, "writer")


def test_a_frame_above_the_cap(tmp_path: Path) -> None:
    """What is larger than the cap is counted, and the writer goes on."""
    journal = writer(tmp_path, max_bytes=OVERHEAD + 1000)
    journal.append("traces", bytes(2000), 7, 1, 1)
    journal.append("traces", b"small", 1, 1, 1)
    assert [b"small"] == payloads(tmp_path)
    assert ({("traces", "journal_full"): 7}, 0) == (journal.dropped, journal.pending_bytes)


def test_a_payload_above_the_hard_limit(tmp_path: Path) -> None:
    """A payload that no frame may have is counted."""
    journal = writer(tmp_path)
    journal.append("logs", bytes(frame.MAX_PAYLOAD_BYTES + 1), 4, 1, 1)
    assert {("logs", "too_large"): 4} == journal.dropped


@pytest.mark.parametrize("room", [0, 1, OVERHEAD - 1, OVERHEAD, OVERHEAD + 10, OVERHEAD + 139])
def test_a_full_disk_at_the_start(tmp_path: Path, disk: Callable[..., Disk], room: int) -> None:
    """While the disk is full nothing half-written stays, and all is written once there is room."""
    journal = writer(tmp_path)
    limited = disk(room)
    journal.append("traces", b"a" * 100, 1, 1, 1)
    journal.append("traces", b"b" * 100, 1, 1, 1)
    assert "No space left on device" in str(journal.failure)
    assert 280 == journal.pending_bytes
    for path in (tmp_path / "runs" / "run").iterdir():
        assert [] == items(path)
    limited.room = 10**6
    journal.retry()
    assert [b"a" * 100, b"b" * 100] == payloads(tmp_path)
    assert (None, 0, {}) == (journal.failure, journal.pending_bytes, journal.dropped)
    assert ["traces.000000.otlp"] == names(tmp_path)


def test_a_full_disk_later(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    """A frame that did not fit is cut off again, and the file goes on whole."""
    journal = writer(tmp_path)
    journal.append("traces", b"before", 1, 1, 1)
    (path,) = (tmp_path / "runs" / "run").iterdir()
    size = path.stat().st_size
    limited = disk(50)
    journal.append("traces", b"x" * 100, 1, 1, 1)
    assert size == path.stat().st_size
    limited.room = 10**6
    journal.append("traces", b"after", 1, 1, 1)
    assert [b"before", b"x" * 100, b"after"] == payloads(tmp_path)


def test_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that takes a part of the bytes is gone on with."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    journal = writer(tmp_path)
    journal.append("traces", b"payload" * 50, 1, 1, 1)
    assert [b"payload" * 50] == payloads(tmp_path)


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EFBIG])
def test_a_file_that_fails(tmp_path: Path, disk: Callable[..., Disk], error: int) -> None:
    """After an error that is not a full disk a new segment is begun."""
    journal = writer(tmp_path)
    journal.append("traces", b"before", 1, 1, 1)
    limited = disk(10, error)
    journal.append("traces", b"x" * 100, 1, 1, 1)
    limited.room = 10**6
    journal.close()
    assert [b"before", b"x" * 100] == payloads(tmp_path)
    assert ["traces.000000.otlp", "traces.000001.otlp"] == names(tmp_path)


def test_a_file_that_cannot_be_cut_back(
    tmp_path: Path, disk: Callable[..., Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the torn end stays, a new segment is begun and readers see one torn frame."""

    def fail(descriptor: int, length: int) -> None:
        raise OSError(errno.EIO, "broken")

    journal = writer(tmp_path)
    journal.append("traces", b"before", 1, 1, 1)
    limited = disk(50)
    monkeypatch.setattr(os, "ftruncate", fail)
    journal.append("traces", b"x" * 100, 1, 1, 1)
    limited.room = 10**6
    journal.append("traces", b"after", 1, 1, 1)
    first, second = sorted((tmp_path / "runs" / "run").iterdir())
    assert ["Frame", "Damage"] == [type(item).__name__ for item in items(first)]
    assert [b"x" * 100, b"after"] == [item.payload for item in items(second) if isinstance(item, Frame)]


UNLIMITED = "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)"
"""For the end of a program: the coverage of what it ran is a file, too."""


@pytest.mark.medium
def test_the_limit_of_file_sizes(tmp_path: Path) -> None:
    """Under RLIMIT_FSIZE segments end where they must, and every frame that fits a file at all is written."""
    code = f"""
import resource, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_write import writer
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
journal = writer(Path(sys.argv[1]))
for number in range(10):
    journal.append("traces", bytes([number]) * 600, 1, 1, 1)
journal.close()
assert journal.dropped == {{}}, journal
{UNLIMITED}
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert [bytes([number]) * 600 for number in range(10)] == payloads(tmp_path)
    assert resource.RLIM_INFINITY == resource.getrlimit(resource.RLIMIT_FSIZE)[1]


def test_pending_is_bounded(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    """While nothing can be written the oldest spans are given up, then logs, metrics last."""
    journal = writer(tmp_path, pending_bytes=5 * 1040)
    disk(0)
    for signal in ("metrics", "traces", "logs", "traces", "metrics", "metrics", "metrics", "metrics"):
        journal.append(signal, bytes(1000), 1, 1, 1)
        assert journal.pending_bytes <= 5 * 1040
    assert {("traces", "pending_full"): 2, ("logs", "pending_full"): 1} == journal.dropped
    journal.close()
    assert 5 == journal.dropped["metrics", "unwritten"]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A path that is no directory is a failure with a sentence, and what was appended waits."""
    (tmp_path / "runs").write_text("a file")
    journal = writer(tmp_path)
    journal.append("traces", b"x", 1, 1, 1)
    assert "cannot write the journal in" in str(journal.failure)
    (tmp_path / "runs").unlink()
    journal.retry()
    assert [b"x"] == payloads(tmp_path)


@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced by a file"])
def test_a_removed_directory(tmp_path: Path, *, is_replaced: bool) -> None:
    """When somebody removes the run's directory, the next heartbeat sees it and writing goes on in a new one."""
    journal = writer(tmp_path)
    journal.append("traces", b"lost", 1, 1, 1)
    shutil.rmtree(tmp_path / "runs")
    if is_replaced:
        (tmp_path / "runs").touch()
    journal.heartbeat()
    (tmp_path / "runs").unlink(missing_ok=True)
    journal.append("traces", b"kept", 1, 1, 1)
    assert ([b"kept"], {("traces", "run_moved"): 1}) == (payloads(tmp_path), journal.dropped)


def test_what_lies_in_a_moved_directory_is_counted(tmp_path: Path) -> None:
    """The files there say that, so that nobody takes their writer for killed; what comes next is in new ones."""
    journal = writer(tmp_path, segment_bytes=300)
    for number in range(3):
        journal.append("traces", b"x" * 200, 10, 1, number)
    (tmp_path / "runs").rename(tmp_path / "old")
    for _ in range(2):
        journal.heartbeat()
        journal.append("traces", b"new", 1, 1, 1)
    journal.close()
    assert {("traces", "run_moved"): 30} == journal.dropped
    assert [b"new", b"new"] == payloads(tmp_path)
    moved = open_run(tmp_path / "old" / "run")
    assert [(True, 3)] == [(one.is_left(), len(one.segments)) for one in moved.journals]


def test_a_reused_descriptor(tmp_path: Path) -> None:
    """A host that closes all descriptors and opens its own files never finds our frames in them."""
    journal = writer(tmp_path)
    journal.append("traces", b"before", 1, 1, 1)
    file = journal._current["traces"].file
    assert file is not None
    descriptor = file.number
    os.close(descriptor)
    theirs = os.open(tmp_path / "theirs", os.O_CREAT | os.O_RDWR)
    assert descriptor == theirs
    journal.append("traces", b"after", 1, 1, 1)
    journal.close()
    assert b"" == os.read(theirs, 100)
    os.close(theirs)
    assert [b"before", b"after"] == payloads(tmp_path)


def test_heartbeat(tmp_path: Path) -> None:
    """A heartbeat sets the time of the current segments."""
    journal = writer(tmp_path)
    journal.append("traces", b"x", 1, 1, 1)
    (path,) = (tmp_path / "runs" / "run").iterdir()
    os.utime(path, (1, 1))
    journal.heartbeat()
    assert path.stat().st_mtime > 1


def test_move(tmp_path: Path) -> None:
    """Open and closed segments go along, the old directory goes, and writing goes on in the new one."""
    journal = Writer(tmp_path / ".pending" / "x", IDENTITY, 64 * MIB, segment_bytes=OVERHEAD + 100)
    journal.append("traces", b"a" * 90, 1, 1, 1)
    journal.append("traces", b"b" * 90, 1, 1, 1)
    journal.move(tmp_path / "runs" / "run")
    journal.append("traces", b"c" * 90, 1, 1, 1)
    assert [b"a" * 90, b"b" * 90, b"c" * 90] == payloads(tmp_path)
    assert [] == list((tmp_path / ".pending").iterdir())
    assert tmp_path / "runs" / "run" == journal.directory


def test_move_before_the_first_frame(tmp_path: Path) -> None:
    """Without segments a move only decides where they will be."""
    journal = Writer(tmp_path / ".pending" / "x", IDENTITY, 64 * MIB)
    journal.move(tmp_path / "runs" / "run")
    journal.append("traces", b"x", 1, 1, 1)
    assert [b"x"] == payloads(tmp_path)


def test_a_move_that_fails(tmp_path: Path) -> None:
    """What cannot be moved stays and goes on to be written, the failure has a sentence, and the move is tried again."""
    journal = Writer(tmp_path / ".pending" / "x", IDENTITY, 64 * MIB)
    journal.append("traces", b"x", 1, 1, 1)
    (tmp_path / "runs").write_text("a file")
    journal.move(tmp_path / "runs" / "run")
    journal.append("traces", b"y", 1, 1, 1)
    assert "cannot move the journal" in str(journal.failure)
    assert 1 == len(list((tmp_path / ".pending" / "x").iterdir()))
    (tmp_path / "runs").unlink()
    journal.retry()
    assert [b"x", b"y"] == payloads(tmp_path)
    assert (None, []) == (journal.failure, list((tmp_path / ".pending").iterdir()))


def test_redirect(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    """What waits goes elsewhere, what is written stays."""
    journal = Writer(tmp_path / "first", IDENTITY, 64 * MIB)
    journal.append("traces", b"x", 1, 1, 1)
    limited = disk(0)
    journal.append("traces", b"y", 1, 1, 1)
    limited.room = 10**6
    journal.redirect(tmp_path / "runs" / "run")
    journal.close()
    assert [b"y"] == payloads(tmp_path)
    assert 1 == len(list((tmp_path / "first").iterdir()))
    assert {} == journal.dropped


def test_close(tmp_path: Path) -> None:
    """A closed writer counts what it is still given, and may be closed again."""
    journal = writer(tmp_path)
    journal.append("traces", b"x", 1, 1, 1)
    journal.close()
    journal.close()
    journal.append("traces", b"y", 3, 1, 1)
    journal.heartbeat()
    journal.move(tmp_path / "elsewhere")
    assert [b"x"] == payloads(tmp_path)
    assert {("traces", "closed"): 3} == journal.dropped


@pytest.mark.parametrize("is_told", [True, False])
def test_fork(tmp_path: Path, disk: Callable[..., Disk], is_told: bool) -> None:
    """A forked child, told of it or not, writes nothing of the parent's and nothing into its file."""
    journal = writer(tmp_path)
    journal.append("traces", b"first", 1, 1, 1)
    limited = disk(0)
    journal.append("traces", b"pending", 1, 1, 1)
    limited.room = 10**6
    child = os.fork()
    if child == 0:
        if is_told:
            journal.close_in_child()
        journal.append("traces", b"child", 1, 1, 1)
        journal.retry()
        journal.heartbeat()
        journal.close()
        os._exit(0 if journal.dropped == {("traces", "closed"): 1} else 1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    journal.append("traces", b"last", 1, 1, 1)
    assert [b"first", b"pending", b"last"] == payloads(tmp_path)


@pytest.mark.medium
@pytest.mark.usefixtures("unmeasured")
def test_forks_while_a_thread_writes(tmp_path: Path) -> None:
    """A process that forks again and again while its flusher writes: no child hangs, and the file is whole."""
    code = f"""
import faulthandler, os, signal, sys, threading
from pathlib import Path
faulthandler.register(signal.SIGALRM, chain=True)  # a process that hangs says where, and ends
signal.alarm(50)
os.register_at_fork(after_in_child=lambda: signal.alarm(40))
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_write import writer
journal = writer(Path(sys.argv[1]), segment_bytes=20_000)
end = threading.Event()
sent = 0
def write():
    global sent
    while not end.is_set():
        journal.append("traces", b"%d" % sent, 1, 1, 1)
        sent += 1
thread = threading.Thread(target=write)
thread.start()
for _ in range(40):
    child = os.fork()
    if child == 0:
        journal.close_in_child()
        journal.append("traces", b"child", 1, 1, 1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
end.set()
thread.join()
journal.close()
print(sent)
"""
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert [b"%d" % number for number in range(int(output))] == payloads(tmp_path)


def test_a_journal_may_go_on_after_its_end(tmp_path: Path) -> None:
    """It is complete again after the next end; where nothing came, no second mark is written."""
    journal = writer(tmp_path)
    journal.append("traces", b"first", 1, 1, 1)
    journal.end()
    (path,) = (tmp_path / "runs" / "run").iterdir()
    ended, size = ends_closed(path), path.stat().st_size
    journal.end()
    again = path.stat().st_size
    journal.append("traces", b"late", 1, 1, 1)
    goes_on = ends_closed(path)
    journal.end()
    assert (True, size, False, True) == (ended, again, goes_on, ends_closed(path))
    assert [b"first", b"", b"late"] == payloads(tmp_path)  # the mark between them is a frame without payload


def test_a_child_closes_the_descriptors(tmp_path: Path) -> None:
    """The child keeps none of the parent's files open."""
    journal = writer(tmp_path)
    journal.append("traces", b"x", 1, 1, 1)
    file = journal._current["traces"].file
    assert file is not None
    descriptor = file.number
    child = os.fork()
    if child == 0:
        journal.close_in_child()
        try:
            os.fstat(descriptor)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --- identity


def test_this_process() -> None:
    """The identity names this process, and says that it lives."""
    identity = WriterIdentity.current("role with/slash.", 3, "1.0")
    assert identity.writer.startswith(f"role_with_slash_-3-{os.getpid()}-")
    assert (os.getpid(), start_time(os.getpid()) or 0, "1.0") == (identity.pid, identity.start_time, identity.version)
    assert identity != WriterIdentity.current("role with/slash.", 3, "1.0")
    assert identity == WriterIdentity.from_json(identity.to_json())


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", None),
        (b"\xff\xfe", None),
        (b"[]", None),
        (b'{"pid": 4}', None),
        (b'{"writer": "w", "pid": 4, "host": "h", "new": 1}', WriterIdentity("w", pid=4, host="h")),
    ],
    ids=["empty", "bytes", "list", "nameless", "another version"],
)
def test_foreign_identities(payload: bytes, expected: WriterIdentity | None) -> None:
    """Whatever a writer's frame holds, it is read or refused."""
    assert expected == WriterIdentity.from_json(payload)


def old() -> float:
    """Files that nobody has touched since 1970."""
    return 1e9


def new() -> float:
    """Files of the future."""
    return -1e9


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_liveness() -> None:
    """A process lives until it is killed; the file's age does not matter where it can be looked up."""
    identity = WriterIdentity.current("trainer", 0)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = WriterIdentity("w", identity.boot_id, identity.pid_namespace, child.pid, start_time(child.pid) or 0)
    reused = WriterIdentity("w", identity.boot_id, identity.pid_namespace, child.pid, 1)
    assert (True, True, False) == (identity.is_alive(old), other.is_alive(old), reused.is_alive(new))
    child.send_signal(signals.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not other.is_alive(new), "a zombie is dead"
    child.communicate()
    assert not other.is_alive(new)


def test_a_writer_of_a_pid_namespace_below(tmp_path: Path) -> None:
    """One that is stopped touches nothing, and lives all the same until it is killed."""
    code = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from otel_rl.journal.identity import WriterIdentity
Path(sys.argv[1]).write_bytes(WriterIdentity.current("trainer", 0).to_json())
print("ready", flush=True)
time.sleep(600)
"""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command = [*unshare, sys.executable, "-c", code, str(tmp_path / "identity")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            pytest.skip(f"no pid namespace can be made here: {process.communicate()[1].strip()}")
        identity = WriterIdentity.from_json((tmp_path / "identity").read_bytes())
        assert identity is not None
        (child,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        os.kill(child, signals.SIGSTOP)
        assert (1, True) == (identity.pid, identity.is_alive(old))
        assert not replace(identity, start_time=identity.start_time + 1).is_alive(old)
        assert not replace(identity, pid=2).is_alive(old)
        os.kill(child, signals.SIGKILL)
        process.wait()
        assert not identity.is_alive(old)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("identity", [WriterIdentity("w"), IDENTITY])
def test_liveness_elsewhere(identity: WriterIdentity) -> None:
    """A process that cannot be looked up lives while its files are touched."""
    assert (False, True) == (identity.is_alive(lambda: 60.0), identity.is_alive(lambda: 59.9))


def test_a_platform_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without /proc the identity has gaps and the age of the files decides."""
    monkeypatch.setattr("otel_rl.journal.identity._PROC", str(tmp_path))
    identity = WriterIdentity.current("trainer", 0)
    assert ("", "", 0, os.getpid()) == (identity.boot_id, identity.pid_namespace, identity.start_time, identity.pid)
    assert (False, True) == (identity.is_alive(old), identity.is_alive(new))


def test_a_process_that_is_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """/proc can hide the processes of others: one that is there and not shown is judged by its files."""
    identity = replace(WriterIdentity.current("trainer", 0), pid=1 << 22)
    errors = iter([PermissionError(), ProcessLookupError(), PermissionError()])

    def kill(pid: int, number: int) -> None:
        assert (1 << 22, 0) == (pid, number)
        raise next(errors)

    monkeypatch.setattr(os, "kill", kill)
    assert [True, False, False] == [
        identity.is_alive(new),
        identity.is_alive(new),
        identity.is_alive(new, lambda: True),
    ]


@pytest.mark.parametrize("signal", ["traces", "logs"])
def test_a_closed_journal_says_so_at_its_end(tmp_path: Path, signal: Signal) -> None:
    """Once, behind the last records; not in a segment that others follow."""
    journal = writer(tmp_path, segment_bytes=1200)
    for _ in range(3):
        journal.append(signal, b"x" * 400, 1, 1, 1)
    paths = sorted((tmp_path / "runs" / "run").iterdir())
    assert [False, False] == [ends_closed(path) for path in paths]
    journal.close()
    assert [False, True] == [ends_closed(path) for path in paths]
    assert sum(path.stat().st_size for path in paths) == journal.bytes
    assert [b"x" * 400] * 3 == payloads(tmp_path, signal)


def test_a_full_disk_cannot_mark_a_journal_as_closed(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    """The records stay, and the heartbeat runs out."""
    journal = writer(tmp_path)
    journal.append("traces", b"x", 1, 1, 1)
    disk(10)
    journal.close()
    (path,) = (tmp_path / "runs" / "run").iterdir()
    assert ([b"x"], False, journal.bytes) == (payloads(tmp_path), ends_closed(path), path.stat().st_size)


@pytest.mark.parametrize("missing", [0, 1])
def test_the_mark_of_a_closed_journal_is_below_the_cap(tmp_path: Path, missing: int) -> None:
    """No record is removed for it."""
    journal = writer(tmp_path, max_bytes=1000)
    journal.append("traces", b"x" * (1000 - OVERHEAD - frame.HEADER_BYTES - len(frame.END) + missing), 1, 1, 1)
    (path,) = (tmp_path / "runs" / "run").iterdir()
    journal.close()
    assert (bool(missing), 1) == (not ends_closed(path), len(payloads(tmp_path)))


def test_a_directory_that_was_removed_is_made_anew_at_once(tmp_path: Path) -> None:
    """What is written after the run's directory was deleted does not go into a file that has no name any more."""
    journal = writer(tmp_path / "run")
    journal.append("traces", b"before", 1, 1, 1)
    shutil.rmtree(tmp_path / "run")
    journal.append("traces", b"after", 1, 2, 2)
    journal.close()
    assert [b"after"] == payloads(tmp_path / "run")


# --- the spool --------------------------------------------------------------------------------------------------------


def request(signal: Signal, size: int = 1) -> list[OtlpRequest]:
    """Make a request of one record."""
    return [OtlpRequest(signal, b"x" * size, 1, 5, 6)]


def test_the_spool_counts_nowhere(tmp_path: Path) -> None:
    """It lies beside the segments, in their form, and is replaced as a whole until it goes."""
    journal = writer(tmp_path)
    assert journal.spool("traces", request("traces"))
    assert journal.spool("traces", request("traces", 2) * 2)
    assert ["traces.spool.otlp"] == names(tmp_path)
    assert [b"xx", b"xx"] == payloads(tmp_path)
    assert (0, {}, 0, 0, {}, None) == told(journal)
    journal.unspool("metrics")
    journal.unspool("traces")
    assert [] == names(tmp_path)


def test_the_spool_stays_until_its_records_are_on_disk(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    """Frames that are pending are not in the journal yet."""
    journal = writer(tmp_path)
    journal.spool("traces", request("traces"))
    limited = disk(0)
    journal.append("traces", b"x", 1, 5, 6)
    journal.unspool("traces")
    assert ["traces.spool.otlp"] == names(tmp_path)
    limited.room = MIB
    journal.retry()
    journal.unspool("traces")
    assert ["traces.000000.otlp"] == names(tmp_path)


def test_the_spool_moves_along(tmp_path: Path) -> None:
    """A redirected journal leaves it, and removes it once its records are appended."""
    journal = writer(tmp_path)
    journal.spool("metrics", request("metrics"))
    journal.move(tmp_path / "other")
    assert [] == [*(tmp_path / "runs").iterdir()]
    assert journal.spool("metrics", request("metrics") * 2)
    (path,) = (tmp_path / "other").iterdir()
    assert [b"x", b"x"] == [item.payload for item in items(path) if isinstance(item, Frame)]
    journal.redirect(tmp_path / "third")
    journal.append("metrics", b"x", 1, 5, 6)
    journal.unspool("metrics")
    assert ([], 1) == ([*(tmp_path / "other").iterdir()], len([*(tmp_path / "third").iterdir()]))


def test_too_much_is_not_spooled(tmp_path: Path) -> None:
    """An eighth of the cap for each signal: the file stays as it is, and nothing counts as lost."""
    journal = writer(tmp_path, max_bytes=80_000)
    assert journal.spool("traces", request("traces", 5_000))
    assert not journal.spool("traces", request("traces", 10_000))
    assert ([b"x" * 5_000], {}) == (payloads(tmp_path), journal.dropped)


def test_after_a_close_or_a_fork_nothing_is_spooled(tmp_path: Path) -> None:
    """The spool stays as it is: another process's, or the only place of its records."""
    journal = writer(tmp_path)
    journal.spool("traces", request("traces"))
    child = os.fork()
    if not child:
        journal.close_in_child()
        is_well = not journal.spool("traces", request("traces"))
        journal.unspool("traces")
        os._exit(0 if is_well else 1)
    assert 0 == os.waitpid(child, 0)[1]
    assert journal.spool("traces", request("traces", 2))
    journal.close()
    journal.unspool("traces")
    assert not journal.spool("traces", request("traces"))
    assert [b"xx"] == payloads(tmp_path)
