"""Frames: what goes in comes out, and damage costs the frame that it hit and no other."""

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.journal import frame
from otel_rl.journal.frame import HEADER_BYTES, MAGIC, Damage, Frame

payloads = st.binary(max_size=60) | st.sampled_from([b"", MAGIC, MAGIC * 12, frame.pack(1, b"inner", 1, 2, 3)])
contents = st.lists(st.tuples(st.integers(0, 3), payloads, st.integers(0, 2**32 - 1)), min_size=1, max_size=6)


def packed(content: list[tuple[int, bytes, int]]) -> list[bytes]:
    """Pack each of ``content`` as a frame."""
    return [frame.pack(type, payload, count, 5, 9) for type, payload, count in content]


def seen(data: bytes) -> list[tuple[int, bytes, int]]:
    """Scan ``data`` for what was packed."""
    return [(item.type, item.payload, item.count) for item in frame.scan(data) if isinstance(item, Frame)]


def covered(data: bytes) -> list[int]:
    """Give the bytes in which the results of a scan begin, and the end of the last one."""
    position, starts = 0, []
    for item in frame.scan(data):
        starts.append(item.offset)
        assert position == item.offset
        position = item.end if isinstance(item, Frame) else item.offset + item.length
    return [*starts, position]


def test_layout() -> None:
    """The header is laid out as the format says, byte for byte."""
    head = b"OTRL" + bytes((1, 2, 0, 0)) + struct.pack("<IIQQI", 7, 3, 11, 12, crc32(b"abc"))
    assert head + struct.pack("<I", crc32(head)) + b"abc" == frame.pack(2, b"abc", 7, 11, 12)


@given(contents)
def test_round_trip(content: list[tuple[int, bytes, int]]) -> None:
    """Frames come back as they were packed, and concatenation is all it takes to join segments."""
    assert content == seen(b"".join(packed(content)))


@given(contents, st.data())
def test_one_flipped_bit(content: list[tuple[int, bytes, int]], data: st.DataObject) -> None:
    """A flipped bit costs the frame that it is in; all others are read."""
    frames = packed(content)
    victim = data.draw(st.integers(0, len(frames) - 1))
    bit = data.draw(st.integers(0, len(frames[victim]) * 8 - 1))
    damaged = bytearray(frames[victim])
    damaged[bit // 8] ^= 1 << bit % 8
    found = seen(b"".join([*frames[:victim], bytes(damaged), *frames[victim + 1 :]]))
    inner = [item for item in found if item == (1, b"inner", 1)]
    kept = [item for position, item in enumerate(content) if position != victim]
    assert [item for item in kept if item not in inner] == [item for item in found if item not in inner]


@given(contents, st.data())
def test_truncated_anywhere(content: list[tuple[int, bytes, int]], data: st.DataObject) -> None:
    """Of a segment that is cut off anywhere, every frame before the cut is read, and the rest is one torn piece."""
    frames = packed(content)
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))
    ends = [sum(map(len, frames[: number + 1])) for number in range(len(frames))]
    num_whole = sum(end <= cut for end in ends)
    items = list(frame.scan(whole[:cut]))
    assert content[:num_whole] == [(item.type, item.payload, item.count) for item in items[:num_whole]]
    rest = cut - ([0, *ends])[num_whole]
    if rest:
        assert isinstance(items[num_whole], Damage)
        assert "torn" == items[num_whole].reason


@given(st.binary(max_size=300) | st.lists(st.sampled_from([MAGIC, b"O", b"OT", *packed([(1, b"x", 1)])])).map(b"".join))
def test_anything_is_covered(data: bytes) -> None:
    """Whatever the bytes are, each belongs to exactly one result."""
    assert len(data) == covered(data)[-1]


def test_garbage_between_frames() -> None:
    """What is no frame is skipped and named."""
    good = frame.pack(1, b"x", 1, 2, 3)
    items = list(frame.scan(good + b"nonsense OTRL" + good + b"end"))
    size = len(good)
    expected = [(0, "frame"), (size, "garbage"), (size + 13, "frame"), (2 * size + 13, "garbage")]
    assert expected == [(item.offset, item.reason if isinstance(item, Damage) else "frame") for item in items]


def test_torn_before_a_frame() -> None:
    """A frame that was cut off does not swallow the one appended behind it."""
    torn = frame.pack(1, b"payload that is cut off", 1, 2, 3)[: HEADER_BYTES + 4]
    good = frame.pack(2, b"x", 1, 2, 3)
    first, second = frame.scan(torn + good)
    assert (Damage(0, len(torn), "torn"), b"x") == (first, second.payload if isinstance(second, Frame) else None)


def forged(version: int, type: int) -> bytes:
    """Make a frame of a format that is not ours, with the right checksums."""
    head = struct.pack("<4sBBHIIQQI", MAGIC, version, type, 0, 1, 3, 0, 0, crc32(b"abc"))
    return head + struct.pack("<I", crc32(head)) + b"abc"


@pytest.mark.parametrize(("version", "type", "reason"), [(2, 1, "version"), (1, 9, "type")])
def test_unknown_format(version: int, type: int, reason: str) -> None:
    """A frame of an unknown version or type is skipped as a whole and named."""
    unknown = forged(version, type)
    first, second = frame.scan(unknown + frame.pack(1, b"x", 1, 2, 3))
    assert Damage(0, len(unknown), reason) == first
    assert isinstance(second, Frame)


def claiming(length: int, type: int = 1) -> bytes:
    """Make a header whose own checksum is right and which claims a payload that is not there."""
    head = struct.pack("<4sBBHIIQQI", MAGIC, 1, type, 0, 1, length, 0, 0, 0xDEAD)
    return head + struct.pack("<I", crc32(head))


def test_a_payload_larger_than_any_is_not_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No writer makes one, so its header is damage, and the frame behind it is found."""
    monkeypatch.setattr(frame, "MAX_PAYLOAD_BYTES", 2)
    good = frame.pack(1, b"x", 1, 2, 3)
    first, second = frame.scan(claiming(3) + good)
    assert (HEADER_BYTES, "torn") == (second.offset, getattr(first, "reason", ""))
