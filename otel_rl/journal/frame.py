"""The frame: a journal segment is a sequence of frames.

A frame is a 40-byte header and a payload. Both carry a checksum, so damage is found wherever it is and costs only the
frame that it hit; concatenated segments are a segment again::

    magic "OTRL" | version u8 | type u8 | 2 zero bytes | count u32 | payload length u32 |
    first time u64 | last time u64 | crc32 of the payload u32 | crc32 of the 36 bytes before it u32

All numbers are little endian, times are ns since 1970, ``count`` is the number of records in the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple
from zlib import crc32

Signal = Literal["traces", "metrics", "logs"]

MAGIC: Final = b"OTRL"
VERSION: Final = 1
WRITER: Final = 0
"""The type of the first frame of every segment, the writer's identity (JSON). A closed journal ends with another frame
of this type without payload, ``END``. The other types hold OTLP requests."""
TYPES: Final[dict[Signal, int]] = {"traces": 1, "metrics": 2, "logs": 3}
SIGNALS: Final[dict[int, Signal]] = {number: signal for signal, number in TYPES.items()}

HEADER_BYTES: Final = 40
MAX_PAYLOAD_BYTES: Final = 64 << 20
"""The encoder aims at 1 MiB; only a single larger record makes a larger frame."""

_HEADER: Final = struct.Struct("<4sBBHIIQQI")
_CHECKSUM: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole frame with a correct checksum."""

    type: int
    count: int
    first_ns: int
    last_ns: int
    payload: bytes
    offset: int

    @property
    def end(self) -> int:
        return self.offset + HEADER_BYTES + len(self.payload)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that are no frame, or a frame that cannot be understood."""

    offset: int
    length: int
    reason: str
    """``torn`` (cut off), ``garbage`` (no frame), ``payload`` (wrong checksum), ``version`` or ``type`` (unknown),
    ``content`` (no OTLP request) or ``unreadable`` (the file)."""
    path: str = ""


class _Header(NamedTuple):
    magic: bytes
    version: int
    type: int
    zero: int
    records: int
    length: int
    first_ns: int
    last_ns: int
    checksum: int


def pack(type: int, payload: bytes, count: int, first_ns: int, last_ns: int) -> bytes:
    """Make a frame of a payload that is at most ``MAX_PAYLOAD_BYTES`` long."""
    head = _HEADER.pack(MAGIC, VERSION, type, 0, count, len(payload), first_ns, last_ns, crc32(payload))
    return b"".join((head, _CHECKSUM.pack(crc32(head)), payload))


def scan(data: bytes, begin: int = 0) -> Iterator[Frame | Damage]:
    """Yield the frames in the bytes of a segment from ``begin`` on, and the damage between them, in order.

    After damage the next whole frame is searched, also inside what the damaged frame claims as its payload: one broken
    frame never hides another. Every byte belongs to exactly one result.
    """
    offset = 0
    while offset < len(data):
        header = _header(data, offset)
        item = (_frame(data, offset, header) if header else None) or _damage(data, offset, header)
        offset += HEADER_BYTES + len(item.payload) if isinstance(item, Frame) else item.length
        yield replace(item, offset=begin + item.offset) if begin else item


def _header(data: bytes, offset: int) -> _Header | None:
    if not data.startswith(MAGIC, offset) or len(data) - offset < HEADER_BYTES:
        return None
    end = offset + _HEADER.size
    if _CHECKSUM.unpack_from(data, end)[0] != crc32(data[offset:end]):
        return None
    return _Header(*_HEADER.unpack_from(data, offset))


def _frame(data: bytes, offset: int, header: _Header) -> Frame | Damage | None:
    """Read the frame of a header; None if its payload is cut off or damaged."""
    start = offset + HEADER_BYTES
    if header.length > min(MAX_PAYLOAD_BYTES, len(data) - start):
        return None
    payload = data[start : start + header.length]
    if crc32(payload) != header.checksum:
        return None
    if header.version != VERSION:
        return Damage(offset, HEADER_BYTES + header.length, "version")
    if header.type != WRITER and header.type not in SIGNALS:
        return Damage(offset, HEADER_BYTES + header.length, "type")
    return Frame(header.type, header.records, header.first_ns, header.last_ns, payload, offset)


def _damage(data: bytes, offset: int, header: _Header | None) -> Damage:
    """Describe the damage from ``offset`` to the next header or the end."""
    position = data.find(MAGIC, offset + 1)
    while position >= 0 and _header(data, position) is None:
        position = data.find(MAGIC, position + 1)
    end = position if position >= 0 else len(data)
    if header is not None:
        reason = "torn" if offset + HEADER_BYTES + header.length > end else "payload"
    else:
        start = data[offset : min(end, offset + HEADER_BYTES)]
        is_cut_header = len(start) < HEADER_BYTES and (start.startswith(MAGIC) or MAGIC.startswith(start))
        reason = "torn" if is_cut_header else "garbage"
    return Damage(offset, end - offset, reason)


END: Final = pack(WRITER, b"", 0, 0, 0)
LEFT: Final = pack(WRITER, b"{}", 0, 0, 0)
"""What a segment ends with that somebody moved: its writer goes on elsewhere."""
