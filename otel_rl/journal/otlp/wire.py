"""The OTLP envelope: encoded records become requests of bounded size, each with the resource and the scope.

The three signals nest alike (request > resource > scope > record, with equal field numbers): one envelope serves all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl import vocabulary
from otel_rl.journal.frame import Signal
from otel_rl.journal.otlp.clean import Cleaner
from otel_rl.records import Attributes

MAX_REQUEST_BYTES: Final = (1 << 20) - 1
Encoded = tuple[bytes, int, int, int]
"""Records in bytes as their scope holds them (``record``), their first and last time (ns since 1970), their number."""


@dataclass(frozen=True, slots=True)
class OtlpRequest:
    """A complete OTLP request; ``count`` is its number of spans, points or log records."""

    signal: Signal
    payload: bytes
    count: int
    first_ns: int
    last_ns: int


class Envelope:
    """The resource and the scope of every request of a process, encoded once."""

    def __init__(self, resource: Attributes, version: str, cleaner: Cleaner) -> None:
        message = Resource()
        cleaner.fill(message.attributes, resource, is_limited=False)
        self._resource = block(1, message.SerializeToString())
        self._scope = block(1, InstrumentationScope(name=vocabulary.SCOPE, version=version).SerializeToString())
        self.room = MAX_REQUEST_BYTES - len(self._resource) - len(self._scope) - 16
        """The bytes of records, with tags and lengths, that fit one request."""

    def wrap(self, records: Sequence[bytes]) -> bytes:
        scope_head = b"\x12" + varint(len(self._scope) + sum(map(len, records)))
        size = len(self._resource) + len(scope_head) + len(self._scope) + sum(map(len, records))
        return b"".join((b"\x0a", varint(size), self._resource, scope_head, self._scope, *records))


class OtlpBatch:
    """Encoded records on their way into requests."""

    def __init__(self, signal: Signal, envelope: Envelope) -> None:
        self.room = envelope.room
        self._signal: Signal = signal
        self._envelope = envelope
        self._added: list[Encoded] = []
        self.add: Callable[[Encoded], None] = self._added.append
        """The list's own method: a function of ours would cost a tenth of encoding a span."""

    def finish(self) -> list[OtlpRequest]:
        """Make as few requests as possible, in this order; a record that is too large is alone in its request."""
        requests: list[OtlpRequest] = []
        if self._added:
            data, firsts, lasts, counts = zip(*self._added, strict=True)
            ends = list(accumulate(map(len, data)))
            begin = before = 0
            while begin < len(ends):
                end = max(bisect_right(ends, before + self.room), begin + 1)
                some = slice(begin, end)
                times = min(firsts[some]), max(lasts[some])
                requests.append(OtlpRequest(self._signal, self._envelope.wrap(data[some]), sum(counts[some]), *times))
                begin, before = end, ends[end - 1]
        return requests


def record(message: bytes) -> bytes:
    """Encode a record as a field of its scope, 2 for every signal."""
    return b"\x12" + varint(len(message)) + message


@lru_cache(maxsize=4096)
def varint(number: int) -> bytes:
    out = bytearray()
    while number >> 7:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def block(field: int, payload: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(payload)) + payload
