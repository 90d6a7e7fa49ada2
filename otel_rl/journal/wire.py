"""The OTLP envelope: encoded records become requests of bounded size, each with the resource and the scope.

The three signals nest alike (request > resource > scope > record, with equal field numbers): one envelope serves all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl import vocabulary
from otel_rl.journal.clean import Cleaner
from otel_rl.journal.frame import Signal
from otel_rl.journal.limit import largest_payload
from otel_rl.records import Attributes

MAX_REQUEST_BYTES: Final = (1 << 20) - 1
PREFIX_BYTES: Final = 6
"""What a record has in front of it, at most."""


@dataclass(frozen=True, slots=True)
class Request:
    """A complete OTLP request."""

    signal: Signal
    payload: bytes
    count: int
    """Records in it: spans, points or log records."""
    first_ns: int
    last_ns: int


class Envelope:
    """What every request of a process has around its records."""

    def __init__(self, resource: Attributes, version: str, cleaner: Cleaner) -> None:
        """Encode resource and scope once for all requests."""
        message = Resource()
        cleaner.fill(message.attributes, resource)
        self._resource = block(1, message.SerializeToString())
        self._scope = block(1, InstrumentationScope(name=vocabulary.SCOPE, version=version).SerializeToString())
        self.room = min(MAX_REQUEST_BYTES, largest_payload()) - len(self._resource) - len(self._scope) - 16
        """Bytes that the records of one request may have, tags and lengths included."""

    def wrap(self, records: Sequence[bytes]) -> bytes:
        """Make a request of records, copying each once."""
        scoped = [self._scope, *chain.from_iterable(zip(map(prefix, map(len, records)), records, strict=True))]
        scope_head = b"\x12" + varint(sum(map(len, scoped)))
        size = len(self._resource) + len(scope_head) + sum(map(len, scoped))
        return b"".join((b"\x0a", varint(size), self._resource, scope_head, *scoped))


class Batch:
    """Encoded messages on their way into requests."""

    def __init__(self, signal: Signal, envelope: Envelope) -> None:
        """Begin without any."""
        self.room = envelope.room
        """Bytes that one request has for records."""
        self._signal: Signal = signal
        self._envelope = envelope
        self._messages: list[bytes] = []
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._counts: list[int] = []

    def add(self, data: bytes, first_ns: int, last_ns: int, count: int = 1) -> None:
        """Add an encoded message that holds ``count`` records, from the first time to the last."""
        self._messages.append(data)
        self._firsts.append(first_ns)
        self._lasts.append(last_ns)
        self._counts.append(count)

    def finish(self) -> list[Request]:
        """Make as few requests as they fit into, in this order; a message that is too large goes alone."""
        ends = list(accumulate(len(message) + PREFIX_BYTES for message in self._messages))
        requests: list[Request] = []
        begin = before = 0
        while begin < len(ends):
            end = max(bisect_right(ends, before + self.room), begin + 1)
            some = slice(begin, end)
            payload = self._envelope.wrap(self._messages[some])
            times = min(self._firsts[some]), max(self._lasts[some])
            requests.append(Request(self._signal, payload, sum(self._counts[some]), *times))
            begin, before = end, ends[end - 1]
        return requests


@lru_cache(maxsize=4096)
def varint(number: int) -> bytes:
    """Encode an unsigned number as protobuf does."""
    out = bytearray()
    while number >> 7:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def block(field: int, payload: bytes) -> bytes:
    """Encode a field that is a message, a string or bytes."""
    return varint(field << 3 | 2) + varint(len(payload)) + payload


@lru_cache(maxsize=4096)
def prefix(length: int) -> bytes:
    """Encode what stands in front of a record of this length: it is field 2 of its scope."""
    return b"\x12" + varint(length)
