"""Sending one signal: batches of journaled requests, live ones before the backlog, until they are acknowledged.

Frames are sent as they were journaled: OTLP requests can be concatenated, so nothing is encoded again and a batch that
is sent again has the same bytes. Each signal has a thread, so that one that hangs holds up no other.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from time import monotonic, time_ns
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from otel_rl.journal.frame import TYPES, WRITER, Damage, Frame, Signal
from otel_rl.sidecar.ship.client import Client, Outcome, explain
from otel_rl.sidecar.ship.progress import Range, ShipProgress
from otel_rl.sidecar.ship.split import halves
from otel_rl.sidecar.ship.trace_budget import Chosen, TraceBudget
from otel_rl.sidecar.streams import JournalStream, Position

MAX_REQUEST: Final = 2_500_000
"""Bytes of a request: gRPC servers refuse more than 4 MiB by default, and each Collector on the way adds up to half a
megabyte of other requests (``min_size`` of its batches)."""
SMALLEST: Final = 1 << 16
"""Bytes of a request that is not made smaller for being slow: a server that hangs takes no small ones either."""
SMALLER: Final = 4
"""Requests shrink by this factor after one that was slow: in three steps from the largest to the smallest."""
IN_TIME: Final = 0.5
"""Requests grow while they take less than this part of the time limit."""
KEPT_BATCHES: Final = 16
"""Batches in memory that were put off; no further one is made before one of them is over."""
MAX_FRAMES: Final = 10_000
LIVE_NS: Final = 30_000_000_000
"""What is older than this while much waits becomes a backlog."""
BACKLOG_BYTES: Final = 1 << 20
BACKLOG_RATE: Final = 8 << 20
"""Bytes a second of a backlog, so that a Collector that comes back is not overrun by all sidecars at once."""
FIRST_WAIT_S: Final = 1.0
LAST_WAIT_S: Final = 30.0
BLOCKED_WAIT_S: Final = 60.0
LONGEST_WAIT_S: Final = 300.0
"""The longest wait, whatever the server asks for."""
SAY_AGAIN_S: Final = 600.0

Frames = list[tuple[bytes, int]]
"""Requests that are sent as one, each with the number of its records."""


class Followed(NamedTuple):
    """A stream and how far it has been sent."""

    stream: JournalStream
    progress: ShipProgress
    finished: bool
    """Its writer is dead."""


@dataclass
class Outgoing:
    """A request on its way; it goes on with the first part that was not accepted."""

    left: list[Frames]
    """Its parts: one, or more where the server takes no request of its size or refuses one of its frames."""
    end: Position | None = None
    """Where its range goes on after it."""
    counts: Counter[str] = field(default_factory=Counter)
    """What became of its records, see ``COUNTS``."""


class Shipper:
    """Sends one signal of all journals of a node; one thread calls ``work`` again and again."""

    def __init__(
        self, signal: Signal, client: Client, budget: TraceBudget, say: Callable[[str], None], stop: Event | None = None
    ) -> None:
        """Prepare; ``say`` takes lines for people, and no request is begun once ``stop`` is set."""
        self.signal = signal
        self.failure = ""
        """Why nothing is sent at present."""
        self._client = client
        self._budget = budget
        self._say = say
        self._stop = stop or Event()
        self._said: dict[str, float] = {}
        self._wait_until = 0.0
        self._wait_s = FIRST_WAIT_S
        self._max_bytes = MAX_REQUEST
        self._batches: dict[int, tuple[Range, Outgoing]] = {}
        """Batches that were put off, by the id of their range; made again they might hold other spans."""
        self._backlog_at = 0.0
        self._random = random.Random()

    def work(self, followed: list[Followed]) -> bool:
        """Send one batch of what each stream writes, then one of a backlog; return whether anything was sent."""
        waited_until = self._wait_until
        sent = self._send_some(followed)
        if self._wait_until != waited_until:
            self._date(followed)
        return sent

    def send(self, progress: ShipProgress, batch: Outgoing) -> bool:
        """Send a batch, in parts if it is too large; return whether all of it is over, else the next call goes on."""
        while batch.left:
            part = batch.left[0]
            size = sum(len(payload) for payload, _ in part)
            smaller = self._split(part) if size > max(self._max_bytes, SMALLEST) else []
            if not smaller:
                outcome = self._request(progress, b"".join(payload for payload, _ in part))
                if outcome.kind in ("later", "blocked"):
                    return False
                if outcome.kind == "too_large" or (outcome.kind == "refused" and len(part) > 1):
                    smaller = self._split(part)
                if not smaller:
                    batch.counts += self._over(sum(records for _, records in part), outcome)
            batch.left[:1] = smaller
        return True

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @property
    def _waits(self) -> bool:
        return self._stop.is_set() or monotonic() < self._wait_until

    def _send_some(self, followed: list[Followed]) -> bool:
        sent = False
        for item in followed:
            if self._waits:
                return sent
            sent = self._try(item, item.progress.live) or sent
        for item in followed:
            if self._waits or monotonic() < self._backlog_at:
                return sent
            if len(item.progress.ranges) > 1 and self._try(item, item.progress.ranges[0]):
                return True
        return sent

    @staticmethod
    def _date(followed: list[Followed]) -> None:
        """Find out since when streams wait that had no turn because nothing is accepted at present."""
        for stream, progress, _ in followed:
            if not progress.oldest_ns:
                with suppress(OSError):  # that is said once its turn comes
                    progress.oldest_ns = progress.first_ns(stream)

    def _try(self, item: Followed, part: Range) -> bool:
        """Send the next batch of a range; one that cannot be read holds up no other."""
        progress = item.progress
        try:
            batch = self._next(item, part)
        except OSError as error:
            self._log_rarely(
                "read", f"the {self.signal} of {item.stream.writer} cannot be read: {error.strerror or error}"
            )
            return False
        if batch is None:
            return False
        self._batches[id(part)] = part, batch
        if not self.send(progress, batch):
            return False
        del self._batches[id(part)]
        progress.advance(part, batch.end or part.start, batch.counts)
        return True

    def _next(self, item: Followed, part: Range) -> Outgoing | None:
        """Return the next batch of a range: one that was put off, with what came after it, or a new one."""
        progress, stream = item.progress, item.stream
        if id(part) in self._batches:
            batch = self._batches[id(part)][1]
            self._fill(item, part, batch)
            return batch
        if len(self._batches) >= KEPT_BATCHES:
            return None
        is_live = part is progress.live
        batch = Outgoing([], part.start)
        oldest_ns = self._fill(item, part, batch) if not is_live or stream.unread(part.start) else 0
        if part is progress.ranges[0]:
            progress.oldest_ns = oldest_ns
        if batch.end == part.start:
            if is_live and oldest_ns:
                progress.split(stream.end(part.start))
            elif part.end is not None:  # removed at the size cap
                progress.advance(part, part.end)
            return None
        if not is_live:
            size = sum(len(payload) for frames in batch.left for payload, _ in frames)
            self._backlog_at = monotonic() + size / BACKLOG_RATE * self._random.uniform(0.8, 1.2)
        return batch

    def _fill(self, item: Followed, part: Range, batch: Outgoing) -> int:
        """Add frames to a batch as long as it is no backlog; return the time of the first one."""
        frames = batch.left[-1] if batch.left else []
        size = sum(len(payload) for payload, _ in frames)
        number = len(frames)
        oldest_ns = 0
        start = batch.end or part.start
        for entry in item.stream.entries(start, finished=item.finished):
            frame = entry.item
            if part.end is not None and entry.end > part.end:
                break
            if isinstance(frame, Damage) or frame.type not in (WRITER, TYPES[self.signal]):
                batch.counts["damaged"] += 1
            elif frame.type != WRITER:
                if (frames and size + len(frame.payload) > self._max_bytes) or number >= MAX_FRAMES:
                    break
                if not oldest_ns and start == part.start and self._is_backlog(item, part, frame.last_ns):
                    batch.end = part.start
                    return frame.last_ns
                oldest_ns = oldest_ns or frame.last_ns
                chosen = self._choose(item, frame)
                batch.counts.update(left_out=chosen.left_out, fetched=chosen.fetched)
                if chosen.payload:
                    frames.append((chosen.payload, chosen.records))
                size, number = size + len(chosen.payload), number + 1
            batch.end = entry.end
        if frames and not batch.left:
            batch.left.append(frames)
        return oldest_ns

    @staticmethod
    def _is_backlog(item: Followed, part: Range, oldest_ns: int) -> bool:
        is_old = time_ns() - oldest_ns > LIVE_NS
        return part.end is None and is_old and item.stream.unread(part.start) > BACKLOG_BYTES

    def _choose(self, item: Followed, frame: Frame) -> Chosen:
        if self.signal != "traces":
            return Chosen(frame.payload, frame.count)
        return self._budget.choose(item.stream.writer, frame.payload, frame.count, item.progress.closed_ids)

    def _request(self, progress: ShipProgress, payload: bytes) -> Outcome:
        if self._waits:
            return Outcome("later", reason=self.failure)
        begun = monotonic()
        outcome = self._client.send(payload)
        self._fit(outcome, len(payload), is_slow=monotonic() - begun > self._client.timeout_s * IN_TIME)
        if outcome.kind in ("later", "blocked"):
            progress.put_off(outcome.kind, outcome.reason)
            self._pause(outcome)
        else:
            self.failure, self._wait_s = "", FIRST_WAIT_S
            if outcome.kind == "accepted":
                progress.accepted()
            if outcome.advice:
                self._log_rarely("unread", f"the {self.signal} count as sent, but {outcome.advice}; check the endpoint")
        return outcome

    def _fit(self, outcome: Outcome, size: int, *, is_slow: bool) -> None:
        """Make requests smaller after one that was slow or too large, and larger after one that was quick."""
        if outcome.kind == "later" and is_slow:
            self._max_bytes = min(self._max_bytes, max(size // SMALLER, SMALLEST))
        elif outcome.kind == "too_large":
            self._max_bytes = min(self._max_bytes, max(size // 2, 1))
        elif outcome.kind == "accepted" and not is_slow and size > self._max_bytes // 2:
            self._max_bytes = min(self._max_bytes * 21 // 20 + 1, MAX_REQUEST)

    def _split(self, part: Frames) -> list[Frames]:
        """Split a request in two; return nothing if it is one record, or no OTLP."""
        if len(part) > 1:
            middle = len(part) // 2
            return [part[:middle], part[middle:]]
        ((payload, records),) = part
        with suppress(DecodeError):
            return [[half] for half in halves(self.signal, payload)] if records > 1 else []
        return []

    def _over(self, records: int, outcome: Outcome) -> Counter[str]:
        """Return what became of the records of a request that is not sent again."""
        if outcome.kind != "accepted":
            self._log_rarely("refuse", f"the server refused {records} {self.signal}: {outcome.reason}")
            return Counter(refused=records)
        rejected = min(outcome.rejected, records)
        if rejected:
            why = outcome.reason or "it gives no reason"
            self._log_rarely("reject", f"the server rejected {rejected} of {records} {self.signal}: {why}")
        return Counter(shipped=records - rejected, rejected=rejected)

    def _pause(self, outcome: Outcome) -> None:
        """Wait as the server asks, else longer each time, never all sidecars at the same moment."""
        self.failure = outcome.reason
        wait = min(outcome.after_s, LONGEST_WAIT_S) or self._wait_s * self._random.uniform(0.8, 1.2)
        if outcome.kind == "blocked":
            wait = BLOCKED_WAIT_S
        self._log_rarely(
            outcome.kind + outcome.advice, f"{explain(outcome, self.signal)}; they wait and are sent again"
        )
        self._wait_until = monotonic() + wait
        self._wait_s = min(self._wait_s * 2, LAST_WAIT_S)

    def _log_rarely(self, kind: str, text: str) -> None:
        now = monotonic()
        if now >= self._said.get(kind, 0.0):
            self._said[kind] = now + SAY_AGAIN_S
            self._say(text)
