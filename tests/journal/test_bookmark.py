"""Reading on from where a reader has come to: nothing is lost, and nothing is told twice."""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import crc32

from otel_rl.journal.bookmark import Bookmark
from otel_rl.journal.files import SegmentFile
from otel_rl.journal.frame import TYPES, pack


def frame(number: int, *, version: int = 1) -> bytes:
    """Make a frame; of a later version it cannot be read."""
    data = bytearray(pack(TYPES["logs"], b"payload %d" % number, 1, number, number))
    if version != 1:
        data[4] = version
        data[36:40] = struct.pack("<I", crc32(data[:36]))
    return bytes(data)


def test_damage_is_found_once(tmp_path: Path) -> None:
    """What is no frame counts as soon as it is seen, however often it is looked at."""
    path = tmp_path / "w.logs.000000.otlp"
    segment, bookmark = SegmentFile(path, "logs", 0), Bookmark()
    written, seen = b"", []
    for piece in (frame(1), frame(2, version=9), frame(3, version=9), b"", frame(4), frame(5)[:20], frame(5)[20:]):
        written += piece
        path.write_bytes(written)
        frames = [one.first_ns for one in bookmark.frames(segment)]
        seen.append((frames, [one.reason for one in bookmark.all_damage(())]))
    two = ["version", "version"]
    assert [([1], []), ([], ["version"]), ([], two), ([], two), ([4], two), ([], [*two, "torn"]), ([5], two)] == seen


def test_the_end_of_a_file_that_is_written_is_no_damage(tmp_path: Path) -> None:
    """Its writer has not finished the frame yet."""
    path = tmp_path / "w.logs.000000.otlp"
    path.write_bytes(frame(1) + frame(2, version=9) + frame(3)[:20])
    bookmark = Bookmark(is_written=True)
    assert [1] == [one.first_ns for one in bookmark.frames(SegmentFile(path, "logs", 0))]
    assert ["version"] == [one.reason for one in bookmark.all_damage([path])]
