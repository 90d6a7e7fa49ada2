"""Following: every whole frame once and in order, however the journal grows, breaks, rotates and shrinks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_rl.journal.frame import Damage, Frame, pack
from otel_rl.sidecar import streams
from otel_rl.sidecar.streams import JournalStream, Position, find_streams, identity_of
from tests.sink import ALIVE, Rank

NAME = "trainer-0-1-ab.traces.000000.otlp"


def stream_of(directory: Path) -> JournalStream:
    """The spans of the only writer, as the directory is now."""
    (stream,) = [stream for (_, signal), stream in find_streams(directory).items() if signal == "traces"]
    return stream


BEGIN = Position()


def read(stream: JournalStream, position: Position = BEGIN, finished: bool = True) -> tuple[list[bytes], Position, int]:
    """Payloads from a position on, where it ends, and how many damaged places were passed."""
    payloads, damaged = [], 0
    for piece in stream.entries(position, finished=finished):
        if isinstance(piece.item, Damage):
            damaged += 1
        elif piece.item.type:
            payloads.append(piece.item.payload)
        position = piece.end
    return payloads, position, damaged


def frames(*payloads: bytes) -> bytes:
    """A segment of spans without a writer."""
    return b"".join(pack(1, payload, 1, 1, 2) for payload in payloads)


def test_a_growing_journal_is_read_frame_by_frame(tmp_path: Path) -> None:
    """Each look gives what was appended since; nothing twice."""
    rank = Rank(tmp_path, ALIVE)
    found: list[bytes] = []
    position = Position()
    for number in range(20):
        rank.write(number + 1)
        payloads, position, damaged = read(stream_of(tmp_path), position, finished=False)
        assert (1, 0) == (len(payloads), damaged)
        found += payloads
    assert read(stream_of(tmp_path))[0] == found
    assert 0 == stream_of(tmp_path).unread(position)


@pytest.mark.parametrize("cut", [1, 10, 39, 40, 41, 99])
def test_a_torn_frame_waits_while_its_writer_lives(tmp_path: Path, cut: int) -> None:
    """At the end of a living writer it is a frame to be, of a finished one it is damage, and the end of it."""
    whole, last = frames(b"a" * 50), frames(b"b" * 60)
    path = tmp_path / NAME
    path.write_bytes(whole + last[:cut])
    assert ([b"a" * 50], Position(0, len(whole)), 0) == read(stream_of(tmp_path), finished=False)
    assert ([b"a" * 50], Position(0, len(whole) + cut), 1) == read(stream_of(tmp_path))
    path.write_bytes(whole + last)
    assert ([b"b" * 60], Position(0, len(whole + last)), 0) == read(
        stream_of(tmp_path), Position(0, len(whole)), finished=False
    )


def test_damage_in_the_middle_costs_what_it_hit(tmp_path: Path) -> None:
    """The frames around it come, of a living writer too."""
    one, two, three = (frames(bytes([letter]) * 100) for letter in b"abc")
    broken = two[:60] + b"\xff" + two[61:]
    (tmp_path / NAME).write_bytes(one + broken + three)
    for finished in (True, False):
        assert ([b"a" * 100, b"c" * 100], Position(0, 3 * len(one)), 1) == read(stream_of(tmp_path), finished=finished)


def test_segments_follow_each_other_and_may_be_gone(tmp_path: Path) -> None:
    """Rotation is passed in order; what the size cap removed meanwhile is passed over."""
    rank = Rank(tmp_path, ALIVE, segment_bytes=4096)
    rank.write(10, frames=20)
    stream = stream_of(tmp_path)
    assert len(stream.files) > 4
    payloads, end, damaged = read(stream, finished=False)
    assert (20, 0) == (len(payloads), damaged)
    first = read(JournalStream("w", "traces"))
    assert ([], Position(), 0) == first
    one_file = JournalStream("w", "traces")
    one_file.files = {0: stream.files[0]}
    before = read(one_file)[0]
    for number in (1, 2):
        stream.files[number].unlink()  # after the directory was listed
    left = read(stream, Position(0, 0), finished=False)
    assert payloads[: len(before)] == left[0][: len(before)]
    assert payloads[-len(left[0]) + len(before) :] == left[0][len(before) :]
    assert end == left[1]
    assert stream_of(tmp_path).unread(Position(1, 77)) == sum(
        path.stat().st_size for number, path in stream.files.items() if number > 2
    )


def test_a_frame_larger_than_what_is_read_at_once(tmp_path: Path) -> None:
    """It comes whole, and so does what is around it."""
    large = os.urandom(streams.CHUNK + 1000)
    (tmp_path / NAME).write_bytes(frames(b"a", large, b"b"))
    for finished in (True, False):
        assert [b"a", large, b"b"] == read(stream_of(tmp_path), finished=finished)[0]


def test_garbage_larger_than_any_frame_is_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse files and overwritten ones end somewhere."""
    monkeypatch.setattr(streams, "CHUNK", 100)
    monkeypatch.setattr(streams, "LARGEST", 200)
    data = frames(b"a") + bytes(1001) + frames(b"b") + b"x" * 977
    (tmp_path / NAME).write_bytes(data)
    payloads, position, _ = read(stream_of(tmp_path))
    assert ([b"a", b"b"], Position(0, len(data))) == (payloads, position)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """It is not passed as if it were empty."""
    stream = JournalStream("w", "traces")
    stream.files = {0: tmp_path}
    with pytest.raises(IsADirectoryError):
        read(stream)


def test_the_writer_is_told_by_any_segment(tmp_path: Path) -> None:
    """A damaged begin of the first one does not hide the others."""
    rank = Rank(tmp_path, ALIVE, segment_bytes=4096)
    rank.write(10, frames=10)
    stream = stream_of(tmp_path)
    assert rank.identity == identity_of(stream)
    with open(stream.files[0], "r+b") as file:
        file.write(b"xxxx")
    assert rank.identity == identity_of(stream)


def test_the_end_is_that_of_a_whole_frame(tmp_path: Path) -> None:
    """A backlog never ends inside of a frame that is being written."""
    whole = frames(b"a" * 100, b"b")
    (tmp_path / NAME).write_bytes(whole + frames(b"c")[:-1])
    assert Position(0, len(whole)) == stream_of(tmp_path).end(Position())
    assert Position(0, len(whole)) == stream_of(tmp_path).end(Position(0, len(whole)))
    (tmp_path / NAME.replace("000000", "000001")).write_bytes(b"")
    assert Position(1, 0) == stream_of(tmp_path).end(Position(0, 7))


PARTS = st.one_of(
    st.binary(max_size=300).map(lambda payload: ("frame", payload)),
    st.binary(max_size=60).map(lambda payload: ("frame", frames(payload) + b"x")),
    st.binary(max_size=60).map(lambda payload: ("torn", frames(payload)[:-1])),
    st.binary(max_size=150).map(lambda data: ("garbage", data.replace(b"OTRL", b"otrl"))),
)


@pytest.mark.medium
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    segments=st.lists(st.lists(PARTS, max_size=6), min_size=1, max_size=3),
    chunk=st.integers(1, 400),
    cuts=st.lists(st.integers(0, 3000), max_size=8),
)
def test_reading_in_steps_gives_the_same_frames(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    segments: list[list[tuple[str, bytes]]],
    chunk: int,
    cuts: list[int],
) -> None:
    """Whatever is read at once, and however often reading begins anew while the journal grows."""
    for path in tmp_path.iterdir():
        path.unlink()
    contents = [b"".join(frames(part) if kind == "frame" else part for kind, part in parts) for parts in segments]
    for number, content in enumerate(contents):
        (tmp_path / f"w.traces.{number:06d}.otlp").write_bytes(content)
    monkeypatch.setattr(streams, "CHUNK", 4 << 20)
    at_once = read(stream_of(tmp_path))[0]
    assert [part for parts in segments for kind, part in parts if kind == "frame"] == at_once or any(
        kind == "torn" for parts in segments for kind, _ in parts
    )

    monkeypatch.setattr(streams, "CHUNK", chunk)
    for path in tmp_path.iterdir():
        path.unlink()
    found: list[bytes] = []
    position = Position()
    for number, content in enumerate(contents):
        path = tmp_path / f"w.traces.{number:06d}.otlp"
        for size in [*sorted(cut for cut in cuts if cut < len(content)), len(content)]:
            path.write_bytes(content[:size])
            payloads, position, _ = read(stream_of(tmp_path), position, finished=False)
            found += payloads
    payloads, position, _ = read(stream_of(tmp_path), position)
    assert at_once == found + payloads
    assert 0 == stream_of(tmp_path).unread(position)


def test_every_end_of_a_frame_is_a_place_to_begin(tmp_path: Path) -> None:
    """Going on there gives the rest."""
    rank = Rank(tmp_path, ALIVE, segment_bytes=4096)
    rank.write(10, frames=12)
    pieces = list(stream_of(tmp_path).entries(Position(), finished=False))
    for index, piece in enumerate(pieces):
        rest = list(stream_of(tmp_path).entries(piece.end, finished=False))
        assert [piece.item.payload for piece in pieces[index + 1 :] if isinstance(piece.item, Frame)] == [
            piece.item.payload for piece in rest if isinstance(piece.item, Frame)
        ]


@pytest.mark.medium
def test_ten_thousand_segments_cost_little(tmp_path: Path) -> None:
    """What is not written any more is looked up once."""
    for number in range(10_000):
        (tmp_path / f"w.traces.{number:06d}.otlp").write_bytes(b"x")
    stream = stream_of(tmp_path)
    assert 10_000 == stream.unread(Position())
    for path in sorted(stream.files.values())[:-1]:
        path.unlink()
    assert 10_000 == stream.unread(Position()), "the sizes were looked up again"
