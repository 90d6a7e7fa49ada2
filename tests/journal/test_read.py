"""Reading: everything that is whole, in a run that is alive, killed, torn, damaged, full of odd things or not there."""

from __future__ import annotations

import json
import math
import os
import signal as signals
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_rl import vocabulary
from otel_rl.journal import frame
from otel_rl.journal.files import SegmentFile
from otel_rl.journal.frame import Damage
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.read import JournalNotFound, Run, SpanView, open_run
from otel_rl.journal.write import MIB, Writer
from otel_rl.records import Distribution, Log, MetricPoints, Number, Value

DEAD = replace(WriterIdentity.current("trainer", 0, "1.0"), writer="trainer-0-1-dead", pid=1 << 30, start_time=1)
ATTRIBUTES: dict[str, Value] = {"s": "text", "i": -5, "d": math.inf, "b": True, "l": ["x", "y"], "n": 2**40}
WRITING = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_read import Journaled, WriterIdentity
journal = Journaled(Path(sys.argv[1]), WriterIdentity.current("trainer", 0))
number = 0
while True:
    number += 1
    journal.spans(number)
    print(number, flush=True)
    time.sleep(0.0005)
"""


@dataclass
class Finished:
    """A finished span as the recorder gives it."""

    span_id: int
    name: str = "rl.reward"
    trace_id: int = 7
    parent_id: int = 0
    start_ns: int = 1_000
    end_ns: int = 2_000
    attributes: Any = None
    events: None = None
    links: None = None
    status: Any = None
    kind: int = 1


class Journaled:
    """A journal with the encoder in front of it."""

    def __init__(self, directory: Path, identity: WriterIdentity = DEAD, **limits: int) -> None:
        self.encoder = SpanEncoder({"rl.rank": 3, "service.name": "test"}, "1.0")
        self.writer = Writer(directory, identity, **{"max_bytes": 64 * MIB, **limits})

    def write(self, requests: list[Any]) -> None:
        """Append requests."""
        for request in requests:
            self.writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)

    def spans(self, *span_ids: int, **fields: Any) -> None:
        """Append spans as one frame."""
        self.write(self.encoder.encode([Finished(span_id, **fields) for span_id in span_ids]))

    def opened(self, span_id: int, time_ns: int = 1_500, **attributes: Value) -> None:
        """Append the record of an open stage."""
        own: dict[str, Value] = {vocabulary.START_TIME: 1_100, vocabulary.PARENT_ID: "00000000000000ff"}
        log = Log(vocabulary.OPEN, time_ns, {**own, **attributes}, "rl.sample", 9, 7, span_id)
        self.write(self.encoder.encode_logs([log]))


def ids(run: Run) -> list[int]:
    """Read the ids of all spans."""
    return [int.from_bytes(span.span_id, "big") for span in run.spans()]


def damage(run: Run) -> list[tuple[str, str]]:
    """Read all damage: file and reason."""
    return [(Path(item.path).name.partition(".")[2], item.reason) for item in run.damage]


def segment(directory: Path, signal: str = "traces", number: int = 0, writer: str = DEAD.writer) -> Path:
    """Name a segment."""
    return directory / f"{writer}.{signal}.{number:06d}.otlp"


def test_spans(tmp_path: Path) -> None:
    """Core fields are always read, attributes as asked for, the resource is shared."""
    journal = Journaled(tmp_path)
    journal.spans(1, 2, parent_id=9, attributes=ATTRIBUTES, status=(2, "bad"))
    run = open_run(tmp_path)
    first, second = run.spans(keys=("i", "s", "absent"))
    core = ("rl.reward", (7).to_bytes(16, "big"), (1).to_bytes(8, "big"), (9).to_bytes(8, "big"), 1_000, 2_000, 2)
    resource = {"rl.rank": 3, "service.name": "test"}
    assert SpanView(*core, {"s": "text", "i": -5}, resource, run.journals[0]) == first
    assert first.resource is second.resource
    assert [{}, {}] == [span.attributes for span in run.spans()]
    assert {**ATTRIBUTES, "l": ("x", "y")} == next(run.spans(None)).attributes
    assert [DEAD] == [found.identity for found in run.journals]


def test_root_and_status(tmp_path: Path) -> None:
    """A root has no parent, a span without status has code 0."""
    Journaled(tmp_path).spans(1)
    (span,) = open_run(str(tmp_path)).spans()
    assert (b"", 0) == (span.parent_id, span.status_code)


def test_points(tmp_path: Path) -> None:
    """Points of all kinds come back with NaN, start and attributes; by name, by what a function takes, or all."""
    journal = Journaled(tmp_path)
    histogram = Distribution(8, [1, 2, 0], 3.5, 0.5, 2.0, {"k": "v"})
    metrics = [
        MetricPoints("g", "gauge", "s", "", [Number(5, math.nan), Number(6, 7, {"k": True})]),
        MetricPoints("c", "counter", "1", "", [Number(7, 2.5)], 4),
        MetricPoints("h", "histogram", "s", "", [histogram], 4, [1.0, 2.0]),
    ]
    journal.write(journal.encoder.encode_metrics(metrics))
    run = open_run(tmp_path)
    assert ["g", "g", "c", "h"] == [point.name for point in run.points()]
    assert ["c", "h"] == [point.name for point in run.points(lambda name: name != "g")]
    first, second = run.points("g")
    assert math.isnan(first.value)
    assert (6, 0, 7, {"k": True}, "gauge") == (
        second.time_ns,
        second.start_ns,
        second.value,
        second.attributes,
        second.kind,
    )
    (counter,) = run.points("c")
    assert ("counter", 7, 4, 2.5, "1") == (counter.kind, counter.time_ns, counter.start_ns, counter.value, counter.unit)
    (found,) = run.points("h")
    shape = (found.count, found.sum, found.min, found.max, found.boundaries, found.counts, found.attributes)
    assert (3, 3.5, 0.5, 2.0, (1.0, 2.0), (1, 2, 0), {"k": "v"}) == shape


def test_last_points(tmp_path: Path) -> None:
    """Of a cumulative stream the last point counts, by metric, attributes and process."""
    journal = Journaled(tmp_path)
    other = Journaled(tmp_path, WriterIdentity("trainer-1-2-dead"))
    for writer, value in ((journal, 1), (journal, 2), (other, 10)):
        points = [Number(value, value), Number(value, value * 100, {"k": "v", "l": ["x"]})]
        writer.write(writer.encoder.encode_metrics([MetricPoints("c", "counter", "1", "", points, 1)]))
    assert [2, 10, 200, 1000] == sorted(point.value for point in open_run(tmp_path).last_points("c"))


def test_logs(tmp_path: Path) -> None:
    """Log records come back, by event or all."""
    journal = Journaled(tmp_path)
    journal.write(journal.encoder.encode_logs([Log("a", 5, {"k": 1}, "body", 17, 1, 2), Log("b", 6, {})]))
    run = open_run(tmp_path)
    (log,) = run.logs("a")
    assert ("a", 5, {"k": 1}, "body", 17) == (log.event_name, log.time_ns, log.attributes, log.body, log.severity)
    assert [b"\x01", b""] == [log.trace_id[-1:] for log in run.logs()]


def test_frames(tmp_path: Path) -> None:
    """Requests come back as they were written, over all segments of all writers in order."""
    journal = Journaled(tmp_path, segment_bytes=1000)
    for number in range(1, 20):
        journal.spans(number)
    run = open_run(tmp_path)
    assert len(list(tmp_path.iterdir())) > 3
    assert list(range(1, 20)) == ids(run)
    (expected,) = journal.encoder.encode([Finished(1)])
    found, first = next(run.frames("traces"))
    assert (run.journals[0], expected.payload, 1) == (found, first.payload, first.count)
    assert (2_000, {"traces": 19, "metrics": 0, "logs": 0}) == (found.last_ns, found.records)


# --- open stages


def test_open_stages(tmp_path: Path) -> None:
    """A stage whose span never came is open; its latest record counts."""
    journal = Journaled(tmp_path)
    journal.opened(1)
    journal.opened(2, x=1)
    journal.opened(2, x=2)
    journal.spans(1)
    run = open_run(tmp_path)
    (stage,) = run.open_stages()
    expected = ("rl.sample", (2).to_bytes(8, "big"), (0xFF).to_bytes(8, "big"), 1_100, {"x": 2}, False)
    assert expected == (stage.name, stage.span_id, stage.parent_id, stage.start_ns, stage.attributes, stage.alive)


def test_closed_spans(tmp_path: Path) -> None:
    """Stages of a dead process are closed at its last record; those of a living one are not."""
    dead, alive = Journaled(tmp_path), Journaled(tmp_path, WriterIdentity.current("trainer", 1))
    dead.opened(1, a=1, b=2, **{vocabulary.STAGE: "rl.sample"})
    dead.spans(5, end_ns=9_000)
    alive.opened(2)
    run = open_run(tmp_path)
    assert [True, False] == sorted((stage.alive for stage in run.open_stages()), reverse=True)
    finished, closed = run.closed_spans(keys=("a",))
    assert (1_100, 9_000, {"a": 1, vocabulary.TRUNCATED: True}) == (closed.start_ns, closed.end_ns, closed.attributes)
    assert 2_000 < finished.end_ns
    assert {"a": 1, "b": 2, vocabulary.TRUNCATED: True} == list(run.closed_spans(None))[1].attributes


def test_stages_whose_spans_were_removed(tmp_path: Path) -> None:
    """A stage is not taken for open because the size cap removed its span."""
    journal = Journaled(tmp_path, max_bytes=6000)
    for number in range(1, 60):
        journal.opened(number, time_ns=number * 10)
        journal.spans(number, start_ns=number * 10, end_ns=number * 10 + 5)
    journal.opened(60, time_ns=600)
    run = open_run(tmp_path)
    assert ids(run)[0] > 1
    assert [60] == [int.from_bytes(stage.span_id, "big") for stage in run.open_stages()]


# --- damage


def test_cut_at_every_byte(tmp_path: Path) -> None:
    """A segment of a dead writer that is cut off anywhere: what is whole is read, the rest is one torn frame."""
    journal = Journaled(tmp_path)
    ends = []
    for number in range(1, 4):
        journal.spans(number)
        ends.append(segment(tmp_path).stat().st_size)
    whole = segment(tmp_path).read_bytes()
    first = len(frame.pack(0, DEAD.to_json(), 1, 0, 0))
    for cut in range(len(whole) + 1):
        segment(tmp_path).write_bytes(whole[:cut])
        os.utime(segment(tmp_path), (1, 1))
        run = open_run(tmp_path)
        num_whole = sum(end <= cut for end in ends)
        is_clean = cut in (0, first, *ends)
        expected = [] if is_clean else [("traces.000000.otlp", "torn")]
        assert (list(range(1, num_whole + 1)), expected) == (ids(run), damage(run)), cut


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_a_flipped_bit(tmp_path: Path, data: st.DataObject) -> None:
    """A flipped bit anywhere costs at most one frame, which is named."""
    path = segment(tmp_path)
    if not (tmp_path / "whole").exists():
        journal = Journaled(tmp_path)
        for number in range(1, 5):
            journal.spans(number)
        (tmp_path / "whole").write_bytes(path.read_bytes())
    damaged = bytearray((tmp_path / "whole").read_bytes())
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    run = open_run(tmp_path)
    assert len(ids(run)) >= 3
    assert 1 == len(run.damage)
    assert [number for number in ids(run) if not 1 <= number <= 4] == []


def test_undecodable_content(tmp_path: Path) -> None:
    """A frame whose checksum is right and whose content is no request is skipped and named, once."""
    journal = Journaled(tmp_path)
    journal.spans(1)
    for signal in ("traces", "metrics", "logs"):
        journal.writer.append(signal, b"\xff" * 9, 1, 1, 1)
    journal.spans(2)
    run = open_run(tmp_path)
    for _ in range(2):
        assert ([1, 2], [], []) == (ids(run), list(run.points()), list(run.logs()))
    assert ["content"] * 3 == [item.reason for item in run.damage]


@pytest.mark.parametrize(("version", "type", "reason"), [(2, 1, "version"), (1, 7, "type")])
def test_frames_of_the_future(tmp_path: Path, version: int, type: int, reason: str) -> None:
    """A frame of an unknown version or type is skipped and named."""
    journal = Journaled(tmp_path)
    journal.spans(1)
    good = frame.pack(1, b"whatever", 1, 1, 1)
    head = good[:4] + bytes((version, type)) + good[6:36]
    with segment(tmp_path).open("ab") as file:
        file.write(head + frame._CHECKSUM.pack(frame.crc32(head)) + good[40:])
    journal.spans(2)
    run = open_run(tmp_path)
    assert ([1, 2], [("traces.000000.otlp", reason)]) == (ids(run), damage(run))


def test_a_frame_that_is_finished_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its writer is gone when that is over."""
    journal, path = Journaled(tmp_path), segment(tmp_path)
    journal.spans(1)
    journal.spans(2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    run = open_run(tmp_path)
    lives, items = [True], SegmentFile.items

    def read(segment: SegmentFile, *given: int) -> Any:
        found = list(items(segment, *given))
        path.write_bytes(whole)
        lives.clear()
        yield from found

    monkeypatch.setattr(SegmentFile, "items", read)
    monkeypatch.setattr(WriterIdentity, "is_alive", lambda *_: bool(lives))
    assert [] == run.damage


def test_a_damaged_writer_frame(tmp_path: Path) -> None:
    """Without its writer's frame a segment still belongs to the writer in its name, and to its other segments."""
    journal = Journaled(tmp_path)
    journal.spans(1)
    journal.opened(2)
    damaged = bytearray(segment(tmp_path).read_bytes())
    damaged[50] ^= 1
    segment(tmp_path).write_bytes(damaged)
    run = open_run(tmp_path)
    assert [DEAD] == [found.identity for found in run.journals]
    assert ([1], [("traces.000000.otlp", "payload")]) == (ids(run), damage(run))
    segment(tmp_path, "logs").unlink()
    assert [WriterIdentity(DEAD.writer)] == [found.identity for found in open_run(tmp_path).journals]


def test_odd_things_in_the_directory(tmp_path: Path) -> None:
    """Empty files, directories, links to nowhere, pipes and other people's files do not disturb."""
    Journaled(tmp_path).spans(1)
    segment(tmp_path, number=1).touch()
    segment(tmp_path, number=2).mkdir()
    segment(tmp_path, number=3).symlink_to("nowhere")
    os.mkfifo(segment(tmp_path, number=4))
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "other.otlp").write_text("hello")
    os.utime(tmp_path / "other.otlp", (1, 1))
    run = open_run(tmp_path)
    assert [1] == ids(run)
    assert [] == damage(run)
    assert [DEAD.writer] == [journal.identity.writer for journal in run.journals]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    """A file that may not be read is named, the others are read."""
    journal = Journaled(tmp_path, segment_bytes=10)
    journal.spans(1)
    journal.spans(2)
    segment(tmp_path).chmod(0)
    run = open_run(tmp_path)
    assert ([2], [("traces.000000.otlp", "unreadable")]) == (ids(run), damage(run))


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that fails to be read is damage with its name and size, the others are read."""
    journal = Journaled(tmp_path, segment_bytes=10)
    journal.spans(1)
    journal.spans(2)
    real = open

    def fail(path: Any, *args: Any, **kwargs: Any) -> Any:
        if path == segment(tmp_path):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr("builtins.open", fail)
    run = open_run(tmp_path)
    size = segment(tmp_path).stat().st_size
    assert ([2], [Damage(0, size, "unreadable", str(segment(tmp_path)))]) == (ids(run), run.damage)


def test_a_segment_that_vanishes(tmp_path: Path) -> None:
    """A segment that its writer removes while the run is read is not damage."""
    journal = Journaled(tmp_path, segment_bytes=10)
    journal.spans(1)
    journal.spans(2)
    run = open_run(tmp_path)
    segment(tmp_path).unlink()
    assert ([2], []) == (ids(run), run.damage)


# --- living and killed writers


def test_a_living_writers_tail(tmp_path: Path) -> None:
    """The unfinished end of a living writer's newest segment is no damage, anything else is."""
    identity = WriterIdentity.current("trainer", 0)
    journal = Journaled(tmp_path, identity, segment_bytes=10)
    journal.spans(1)
    journal.spans(2)
    old, new = (segment(tmp_path, number=number, writer=identity.writer) for number in (0, 1))
    with new.open("ab") as file:
        file.write(new.read_bytes()[:100])
    run = open_run(tmp_path)
    assert (True, [1, 2], []) == (run.journals[0].alive(), ids(run), damage(run))
    with old.open("ab") as file:
        file.write(b"OTRL")
    assert [("traces.000000.otlp", "torn")] == damage(open_run(tmp_path))


def started(tmp_path: Path, num_spans: int) -> subprocess.Popen[str]:
    """Start a process that writes one span after the other, and wait for some."""
    command = [sys.executable, "-c", WRITING, str(tmp_path / "run"), str(Path(__file__).parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while int(process.stdout.readline()) < num_spans:
        pass
    return process


@pytest.mark.medium
def test_reading_while_it_is_written(tmp_path: Path) -> None:
    """A run that grows is read again and again, never with damage or a gap, always up to the last finished frame."""
    process = started(tmp_path, 1)
    assert process.stdout is not None
    try:
        for _ in range(50):
            num_written = int(process.stdout.readline())
            run = open_run(tmp_path / "run")
            found = ids(run)
            assert list(range(1, len(found) + 1)) == found
            assert len(found) >= num_written
            assert (True, []) == (run.journals[0].alive(), run.damage)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.medium
def test_kill_9(tmp_path: Path) -> None:
    """Of a killed process everything that it had appended is read, and it is seen to be dead."""
    process = started(tmp_path, 200)
    process.send_signal(signals.SIGKILL)
    output, _ = process.communicate()
    num_written = int(output.split()[-1]) if output else 200
    run = open_run(tmp_path / "run")
    found = ids(run)
    assert list(range(1, len(found) + 1)) == found
    assert num_written <= len(found) <= num_written + 1
    assert not run.journals[0].alive()
    assert {"torn"} >= {item.reason for item in run.damage}


# --- what is no run


def test_no_directory(tmp_path: Path) -> None:
    """A path that does not exist is said to be wrong, with what to give instead."""
    with pytest.raises(JournalNotFound, match="does not exist; give the directory of a run"):
        open_run(tmp_path / "nowhere")


def test_a_path_through_a_file(tmp_path: Path) -> None:
    """A path that cannot be looked at is answered with the system's reason."""
    (tmp_path / "file").touch()
    with pytest.raises(JournalNotFound, match=r"cannot be read: Not a directory$"):
        open_run(tmp_path / "file" / "run")


def test_an_empty_directory(tmp_path: Path) -> None:
    """A directory without segments is said to hold none."""
    with pytest.raises(JournalNotFound, match="holds no journal"):
        open_run(tmp_path)


def test_a_directory_of_runs(tmp_path: Path) -> None:
    """The directory above the runs is answered with their names."""
    for name in ("one", "two", ".pending/x"):
        Journaled(tmp_path / name).spans(1)
    with pytest.raises(JournalNotFound, match=r"give one of them: one, two$"):
        open_run(tmp_path)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    """A file that is no journal is said to be none."""
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(JournalNotFound, match="is no file of a journal"):
        open_run(path)


def test_what_reading_imports() -> None:
    """Reading and writing need neither the SDK nor torch."""
    code = (
        "import sys, json, otel_rl.journal.read, otel_rl.journal.write, otel_rl.journal.otlp.encode;"
        "print(json.dumps([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'torch', 'numpy'))]))"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert [] == json.loads(output)


def test_a_heartbeat_that_stops(tmp_path: Path) -> None:
    """A writer without /proc lives for a minute after its last heartbeat."""
    Journaled(tmp_path, replace(DEAD, boot_id="")).spans(1)
    (journal,) = open_run(tmp_path).journals
    assert journal.alive()
    old = time.time() - 61
    os.utime(segment(tmp_path), (old, old))
    assert not journal.alive()


def test_the_end_of_a_process_that_cannot_be_looked_up(tmp_path: Path) -> None:
    """Its last frame says that it closed its journal; one that was killed lives until its heartbeat runs out."""
    finished, killed = (replace(DEAD, writer=f"trainer-{rank}-1-0000000{rank}", boot_id="") for rank in (0, 1))
    for identity in (finished, killed):
        journal = Journaled(tmp_path / "run", identity)
        journal.spans(1)
        journal.opened(2)
        if identity is finished:
            journal.writer.close()
    states = {one.identity.writer: one.alive() for one in open_run(tmp_path / "run").journals}
    assert {finished.writer: False, killed.writer: True} == states
