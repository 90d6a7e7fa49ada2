"""Shipping one signal: batches of journaled requests, live ones before the backlog, until they are acknowledged.

Frames are sent as they were journaled: OTLP requests can be concatenated, so a batch is encoded by nobody and a batch
that is sent again has the same bytes. A thread for each signal, so that one that hangs holds up no other.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from time import monotonic, time_ns
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from otel_rl.journal.frame import TYPES, WRITER, Damage, Signal
from otel_rl.sidecar.follow import Piece, Position, Stream
from otel_rl.sidecar.ship.client import Client, Outcome
from otel_rl.sidecar.ship.progress import Progress, Range
from otel_rl.sidecar.ship.split import halves
from otel_rl.sidecar.ship.trace_budget import Chosen, Draft, Share

MAX_REQUEST: Final = 2_500_000
"""Bytes of a request: gRPC servers refuse more than 4 MiB unless they are told otherwise, and each Collector on the way
adds up to half a megabyte of other requests (``min_size`` of its batches)."""
SMALLEST: Final = 1 << 16
"""Bytes of a request below which none is made smaller for being late: who hangs takes no small ones either."""
SMALLER: Final = 4
"""A request that was late is followed by smaller ones by this factor: three steps are enough from the largest to the
smallest, which take less than a minute of 10 s each."""
IN_TIME: Final = 0.5
"""Part of the time limit above which requests grow no further, so that on a slow link none is late."""
KEPT_BEGUN: Final = 16
"""Batches in pieces that are held in memory; where they are so many, no other is put together before one is over."""
MAX_FRAMES: Final = 10_000
"""Of a batch; small ones cost the reader more than their bytes."""
LIVE_NS: Final = 30_000_000_000
"""What is older than this while much waits becomes a backlog."""
BACKLOG_BYTES: Final = 1 << 20
BACKLOG_RATE: Final = 8 << 20
"""Bytes a second of a backlog, so that a Collector that comes back is not thrown down again by everybody's."""
FIRST_WAIT_S: Final = 1.0
LAST_WAIT_S: Final = 30.0
BLOCKED_WAIT_S: Final = 60.0
LONGEST_WAIT_S: Final = 300.0
"""However long the other side asks us to wait."""
SAY_AGAIN_S: Final = 600.0


class Followed(NamedTuple):
    """A stream and how far it has been sent."""

    stream: Stream
    progress: Progress
    finished: bool
    """Its writer is dead."""


@dataclass
class Outgoing:
    """A request on its way: where it is too large, in pieces, of which it goes on with the first that was not taken."""

    payload: bytes
    records: int
    counts: Counter[str] = field(default_factory=Counter)
    """What became of the records that were sent."""
    left: list[tuple[bytes, int]] = field(init=False)
    """What is still to be sent, and how many records are in it."""

    def __post_init__(self) -> None:
        self.left = [(self.payload, self.records)] if self.payload else []


class Batch(NamedTuple):
    """A request, and where its part goes on once it is accepted."""

    request: Outgoing
    aside: Mapping[str, int]
    """What of its part was left out, fetched and damaged, see ``COUNTS``."""
    frames: int
    end: Position
    draft: Draft


class Shipper:
    """Sends one signal of all journals of a node; one thread calls ``work`` again and again."""

    def __init__(
        self, signal: Signal, client: Client, share: Share, say: Callable[[str], None], stop: Event | None = None
    ) -> None:
        """Prepare.

        Args:
            signal: which one.
            client: sends a request.
            share: chooses what of a trace is sent.
            say: takes lines for people.
            stop: once it is set, no further request is begun.
        """
        self.signal = signal
        self.failure = ""
        """Why nothing is sent at present."""
        self._client = client
        self._share = share
        self._say = say
        self._stop = stop or Event()
        self._said: dict[str, float] = {}
        self._wait_until = 0.0
        self._wait_s = FIRST_WAIT_S
        self._max_bytes = MAX_REQUEST
        """Of a request; less, where the other side finds that too large or it is not over in time."""
        self._begun: dict[int, tuple[Range, Batch]] = {}
        """Batches of which some pieces were taken and the next was put off, by the id of their part, which is kept with
        them: chosen again they might be others."""
        self._max_frames = MAX_FRAMES
        """Of a batch; less, while a bad one among them is looked for."""
        self._backlog_at = 0.0
        self._random = random.Random()

    def work(self, followed: list[Followed]) -> bool:
        """Send one batch of what each stream writes, then one of a backlog; say whether anything was sent."""
        waited_until = self._wait_until
        sent = self._send_some(followed)
        if self._wait_until != waited_until:
            self._date(followed)
        return sent

    def send(self, progress: Progress, request: Outgoing) -> bool:
        """Send one request, in pieces where it is too large; say whether all of it is over.

        If not, it goes on where it was another time: else a link or a rate limit that now and then takes nothing would
        be given its first pieces for ever.
        """
        while request.left:
            payload, records = request.left[0]
            is_large = len(payload) > max(self._max_bytes, SMALLEST)
            pieces = self._cut(payload, records) if is_large else []
            if not pieces:
                outcome = self._request(progress, payload)
                if outcome.kind in ("later", "blocked"):
                    return False
                pieces = self._cut(payload, records) if outcome.kind == "too_large" else []
                if not pieces:
                    request.counts += self._over(records, outcome)
            request.left[:1] = pieces
        return True

    def close(self) -> None:
        """Let go of the connection."""
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
        """Find out since when the streams wait whose turn did not come, as nothing is taken at present."""
        for stream, progress, _ in followed:
            if not progress.oldest_ns:
                with suppress(OSError):  # that is said once its turn comes
                    progress.oldest_ns = progress.first_ns(stream)

    def _try(self, item: Followed, part: Range) -> bool:
        """Send the next batch of a part; one that cannot be read holds up no other."""
        try:
            return self._part(item, part)
        except OSError as error:
            self._tell("read", f"the {self.signal} of {item.stream.writer} cannot be read: {error.strerror or error}")
            return False

    def _part(self, item: Followed, part: Range) -> bool:
        progress = item.progress
        if id(part) in self._begun:
            return self._ship(progress, *self._begun.pop(id(part)))
        if len(self._begun) >= KEPT_BEGUN:
            return False
        is_live = part is progress.live
        if is_live and not item.stream.unread(part.start):
            if part is progress.ranges[0]:
                progress.oldest_ns = 0
            return False
        batch, oldest_ns = self._batch(item, part)
        if part is progress.ranges[0]:
            progress.oldest_ns = oldest_ns
        is_late = bool(oldest_ns) and time_ns() - oldest_ns > LIVE_NS
        if is_live and is_late and item.stream.unread(part.start) > BACKLOG_BYTES:
            progress.split(item.stream.end(part.start))
            return False
        if batch is None:
            if not is_live and part.end is not None:  # removed at the size cap
                progress.advance(part, part.end)
            return False
        if not is_live:
            self._backlog_at = monotonic() + len(batch.request.payload) / BACKLOG_RATE * self._random.uniform(0.8, 1.2)
        return self._ship(progress, part, batch)

    def _batch(self, item: Followed, part: Range) -> tuple[Batch | None, int]:
        """Put together the next batch of a part; and the time of the first frame in it."""
        payloads: list[bytes] = []
        size = records = oldest_ns = 0
        aside: Counter[str] = Counter()
        end: Position | None = None
        draft = self._share.draft()
        for piece in self._pieces(item, part):
            frame = piece.item
            if isinstance(frame, Damage) or frame.type not in (WRITER, TYPES[self.signal]):
                aside["damaged"] += 1
            elif frame.type != WRITER:
                if payloads and (size + len(frame.payload) > self._max_bytes or len(payloads) >= self._max_frames):
                    break
                oldest_ns = oldest_ns or frame.last_ns
                chosen = Chosen(frame.payload, frame.count)
                if self.signal == "traces":
                    chosen = draft.select(item.stream.writer, frame, item.progress.closed_ids)
                payloads.append(chosen.payload)
                size += len(chosen.payload)
                records += chosen.records
                aside.update(left_out=chosen.left_out, fetched=chosen.fetched)
            end = piece.end
        if end is None:
            return None, 0
        return Batch(Outgoing(b"".join(payloads), records), aside, len(payloads), end, draft), oldest_ns

    @staticmethod
    def _pieces(item: Followed, part: Range) -> Iterator[Piece]:
        for piece in item.stream.pieces(part.start, finished=item.finished):
            if part.end is not None and piece.end > part.end:
                return
            yield piece

    def _ship(self, progress: Progress, part: Range, batch: Batch) -> bool:
        """Send a batch and draw the consequences; say whether to go on at once."""
        request = batch.request
        send = self._send_many if batch.frames > 1 and request.left else self.send
        is_over = send(progress, request)
        if request.counts or is_over:
            batch.draft.commit()
        if not is_over:
            if request.counts:
                self._begun[id(part)] = part, batch
            return not self._waits
        self._max_frames = min(self._max_frames * 2, MAX_FRAMES)
        progress.advance(part, batch.end, {**request.counts, **batch.aside})
        return True

    def _send_many(self, progress: Progress, request: Outgoing) -> bool:
        """Send a request of several frames; say whether it is over, else they go again, fewer at once or later."""
        outcome = self._request(progress, request.payload)
        if outcome.kind == "too_large":
            self._max_bytes = max(len(request.payload) // 2, 1)
        if outcome.kind == "refused":
            self._max_frames = 1  # only the bad one among them shall be lost
        if outcome.kind == "accepted":
            request.counts += self._over(request.records, outcome)
        return outcome.kind == "accepted"

    def _request(self, progress: Progress, payload: bytes) -> Outcome:
        """Send one request, unless the other side asked to wait."""
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
                progress.taken()
            if outcome.advice:
                self._tell("unread", f"the {self.signal} count as sent, though {outcome.advice}; look at the endpoint")
        return outcome

    def _fit(self, outcome: Outcome, size: int, *, is_slow: bool) -> None:
        """Make requests smaller after one that was late, and larger after one that shows that there is time."""
        if outcome.kind == "later" and is_slow:
            self._max_bytes = min(self._max_bytes, max(size // SMALLER, SMALLEST))
        elif outcome.kind == "accepted" and not is_slow and size > self._max_bytes // 2:
            self._max_bytes = min(self._max_bytes * 21 // 20 + 1, MAX_REQUEST)

    def _cut(self, payload: bytes, records: int) -> list[tuple[bytes, int]]:
        """Cut a request in two; nothing where it is one record, or none that can be read."""
        with suppress(DecodeError):
            return list(halves(self.signal, payload)) if records > 1 else []
        return []

    def _over(self, records: int, outcome: Outcome) -> Counter[str]:
        """Say what became of the records of a request that is not sent again."""
        if outcome.kind != "accepted":
            self._tell("refuse", f"the other side refused {records} {self.signal}: {outcome.reason}")
            return Counter(refused=records)
        rejected = min(outcome.rejected, records)
        if rejected:
            why = outcome.reason or "it does not say why"
            self._tell("reject", f"the other side rejected {rejected} of {records} {self.signal}: {why}")
        return Counter(shipped=records - rejected, rejected=rejected)

    def _pause(self, outcome: Outcome) -> None:
        """Wait as the other side asks, else longer each time, never all sidecars at the same moment."""
        self.failure = outcome.reason
        wait = min(outcome.after_s, LONGEST_WAIT_S) or self._wait_s * self._random.uniform(0.8, 1.2)
        if outcome.kind == "blocked":
            wait = BLOCKED_WAIT_S
            self._tell(
                "block",
                f"nobody lets the {self.signal} in ({outcome.reason}): look at endpoint, headers and certificates",
            )
        elif outcome.advice:
            self._tell("mend", f"the {self.signal} wait: {outcome.advice}; look at endpoint and certificates")
        else:
            self._tell("later", f"the {self.signal} wait and are sent again ({outcome.reason})")
        self._wait_until = monotonic() + wait
        self._wait_s = min(self._wait_s * 2, LAST_WAIT_S)

    def _tell(self, kind: str, text: str) -> None:
        """Say it, but things of one kind only now and then."""
        now = monotonic()
        if now >= self._said.get(kind, 0.0):
            self._said[kind] = now + SAY_AGAIN_S
            self._say(text)
