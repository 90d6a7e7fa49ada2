"""The journals of one node: who writes them, what of them is sent, and when all is done."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from pathlib import Path
from time import monotonic, time_ns
from typing import Any, Final

from otel_rl.guard import guard
from otel_rl.journal.files import ends_closed
from otel_rl.journal.filesystem import silent_s
from otel_rl.journal.frame import Signal
from otel_rl.journal.identity import WriterIdentity
from otel_rl.sidecar.close import close_left_open
from otel_rl.sidecar.settings import SIGNALS, Target
from otel_rl.sidecar.ship.client import connect
from otel_rl.sidecar.ship.progress import ShipProgress, load, save
from otel_rl.sidecar.ship.shipper import Followed, Outgoing, Shipper
from otel_rl.sidecar.ship.split import records
from otel_rl.sidecar.ship.trace_budget import TraceBudget
from otel_rl.sidecar.streams import JournalStream, find_streams, identity_of

SCAN_S: Final = 0.5
SAVE_S: Final = 1.0
SCAN_COST: Final = 20.0
"""The time between two scans is this many times the duration of one."""
Rows = dict[Signal, dict[str, Any]]


class Node:
    """Ships the journals of a run that lie in its directory and belong to this node."""

    def __init__(
        self,
        directory: Path,
        targets: Iterable[Target],
        mine: Callable[[WriterIdentity], bool],
        say: Callable[[str], None],
    ) -> None:
        """Prepare; ``mine`` decides whether this process ships what a writer wrote, ``say`` takes lines for people."""
        self.directory = directory
        self._stop = threading.Event()
        self.shippers: dict[Signal, Shipper] = {
            target.signal: Shipper(target.signal, connect(target), TraceBudget(), say, self._stop) for target in targets
        }
        self.writers: dict[str, WriterIdentity] = {}
        self.strangers: dict[str, WriterIdentity] = {}
        """Writers whose journals are here, but are another process's to ship."""
        self.progress: dict[str, dict[Signal, ShipProgress]] = {}
        self.found: dict[tuple[str, Signal], JournalStream] = {}
        """Every stream of the directory, as it was listed last."""
        self.say = say
        self._mine = mine
        self._streams: dict[str, dict[Signal, JournalStream]] = {}
        """The streams of our writers."""
        self._dead: frozenset[str] = frozenset()
        self._followed: dict[Signal, list[Followed]] = {signal: [] for signal in SIGNALS}
        self._left_open: dict[str, list[tuple[bytes, Outgoing]]] = {}
        """What the dead left open, as long as it is not sent: a journal of gigabytes is read once."""
        self._saved: dict[str, Rows] = {}
        self._saved_at = 0.0
        self._scan_at = 0.0
        self._threads: list[threading.Thread] = []

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to ship, with a thread for each signal."""
        for signal, shipper in self.shippers.items():
            thread = threading.Thread(target=self._work, args=(signal, shipper), name=f"ship {signal}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, timeout_s: float = 12.0, *, is_ours: bool = True) -> None:
        """Let requests that are under way end, and save the progress unless another process ships the run now."""
        self._stop.set()
        deadline = monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(deadline - monotonic(), 0))
        if is_ours:
            self.save()
        for shipper in self.shippers.values():
            shipper.close()

    def save(self) -> None:
        """Save what was sent; if that fails, the next sidecar sends it again."""
        self._saved_at = monotonic()
        known = self.progress.items() if self.shippers else ()  # who sends nothing knows of no progress
        for writer, progress in known:
            rows: Rows = {signal: row.row() for signal, row in progress.items()}
            if rows != self._saved.get(writer):
                with suppress(OSError):  # the disk is full, or the run was removed
                    save(self.directory, writer, rows)
                    self._saved[writer] = rows

    def _work(self, signal: Signal, shipper: Shipper) -> None:
        while not self._stop.is_set():
            sent = False
            with guard(f"ship {signal}"):
                sent = shipper.work(self._followed[signal])
                if signal == "traces" and not sent:
                    sent = any([self._close(writer, shipper) for writer in self._dead])
            if not sent:
                self._stop.wait(SCAN_S / 2)

    def _close(self, writer: str, shipper: Shipper) -> bool:
        """Send what a dead writer left open, once its own spans are sent; return whether that was done now."""
        progress, streams = self.progress[writer]["traces"], self._streams[writer]
        if progress.closed or ("traces" in streams and progress.waiting(streams["traces"])):
            return False
        if writer not in self._left_open:
            identity, closed = self.writers[writer], progress.closed_ids
            self._left_open[writer] = [
                (request.payload, Outgoing([[(request.payload, request.count)]]))
                for request in close_left_open(self.directory, identity, list(streams.values()), closed)
            ]
        requests = self._left_open[writer]
        while requests:
            payload, batch = requests[0]
            if not shipper.send(progress, batch):
                return False
            del requests[0]
            progress.close_some((record[2].span_id for record in records("traces", payload)), batch.counts)
        progress.close()
        self._left_open.pop(writer, None)
        return True

    # --- scanning -----------------------------------------------------------------------------------------------------

    def update(self) -> None:
        """Find new journals, segments and the dead, and save the progress now and then. Cost: 10 us a segment."""
        now = monotonic()
        if now >= self._scan_at:
            self._scan()
            self._scan_at = monotonic() + SCAN_COST * (monotonic() - now)
        if now - self._saved_at > SAVE_S:
            self.save()

    def scan_soon(self) -> None:
        """Make the next update list the directory, whatever that costs."""
        self._scan_at = 0.0

    def newcomers(self) -> list[WriterIdentity]:
        """Return who began to write after the last scan; nothing if the directory cannot be listed."""
        found: dict[str, JournalStream] = {}
        with suppress(OSError):
            found = {name: stream for (name, _), stream in find_streams(self.directory).items()}
        new = (identity_of(found[name]) for name in found.keys() - self.writers.keys() - self.strangers.keys())
        return [identity for identity in new if identity is not None]

    def _scan(self) -> None:
        found = self._list()
        dead = frozenset(writer for writer in self.writers if not self._lives(writer))
        for writer in set(self.writers) - dead:  # what a living one leaves open one day has to be closed
            self.progress[writer]["traces"].reopen()
            self._left_open.pop(writer, None)
        if not dead <= self._dead:
            self._adopt(dead - self._dead)
            found = self._list()  # what they wrote between the two lists
        for writer, streams in self._streams.items():
            for signal, known in streams.items():
                listed = found.get((writer, signal))
                known.files, known.spool = (listed.files, listed.spool) if listed else ({}, None)
        self._dead = dead
        for signal in SIGNALS:
            self._followed[signal] = [
                Followed(streams[signal], self.progress[writer][signal], writer in dead)
                for writer, streams in self._streams.items()
                if signal in streams
            ]

    def _adopt(self, dead: Iterable[str]) -> None:
        for (writer, _), stream in find_streams(self.directory).items():
            if writer in dead:
                with suppress(OSError):  # a read-only disk: a report of the run shows it
                    stream.adopt()

    def _list(self) -> dict[tuple[str, Signal], JournalStream]:
        found = self.found = find_streams(self.directory)
        for (writer, signal), stream in found.items():
            if writer not in self.writers and writer not in self.strangers:
                self._add(writer, stream)
            if writer in self.writers:
                self._streams[writer].setdefault(signal, stream)
        return found

    def _add(self, writer: str, stream: JournalStream) -> None:
        identity = identity_of(stream)
        if identity is None:
            return  # its first frame is not there yet
        if not self._mine(identity):
            self.strangers[writer] = identity
            return
        self.progress[writer] = load(self.directory, writer)
        self._streams[writer] = {}
        self.writers[writer] = identity

    def _lives(self, writer: str) -> bool:
        files = [stream.newest for stream in self._streams[writer].values() if stream.newest]
        return self.writers[writer].is_alive(
            lambda: min(map(_silent_s, files), default=inf), lambda: any(map(ends_closed, files))
        )

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def living(self) -> set[str]:
        """Return the writers that still write."""
        return set(self.writers) - self._dead

    @property
    def trainers(self) -> set[str]:
        """Return the writers on this node other than sidecars."""
        return {writer for writer, identity in self.writers.items() if not identity.is_sidecar}

    def is_alive(self, writer: str) -> bool:
        """Return whether a writer whose journal is here, of this node or another, still writes."""
        if writer in self.writers:
            return writer not in self._dead
        stream = self.found.get((writer, "traces"))  # another thread calls this: replaced meanwhile
        newest = stream.newest if stream is not None else None
        return newest is not None and self.strangers[writer].is_alive(
            lambda: _silent_s(newest), lambda: ends_closed(newest)
        )

    @property
    def waiting(self) -> int:
        """Bytes that are still to be sent."""
        return sum(
            self.progress[writer][signal].waiting(stream)
            for writer, streams in self._streams.items()
            for signal, stream in streams.items()
            if signal in self.shippers
        )

    def moved_at(self, writers: Iterable[str]) -> float:
        """Return when something of these was accepted last, s of the monotonic clock; 0 if nothing was."""
        return max((row.moved_at for writer in writers for row in self.progress[writer].values()), default=0.0)

    @property
    def unclosed(self) -> bool:
        """Return whether stages that dead processes left open may still have to be sent."""
        return "traces" in self.shippers and any(not self.progress[writer]["traces"].closed for writer in self._dead)

    @property
    def failure(self) -> str:
        """Why nothing is sent at present; empty if all is well."""
        reasons = {signal: shipper.failure for signal, shipper in self.shippers.items()}  # its thread changes it
        return "; ".join(f"{signal}: {reason}" for signal, reason in reasons.items() if reason)

    def counts(self) -> Counter[tuple[Signal, str]]:
        """Return the records by signal and by what became of them, since this process began."""
        counts: Counter[tuple[Signal, str]] = Counter()
        for progress in list(self.progress.values()):
            for signal, row in progress.items():
                found = Counter(row.row()["counts"]) - row.counts_before
                counts.update({(signal, name): number for name, number in found.items()})
        return counts

    def retries(self) -> Counter[tuple[Signal, str, str]]:
        """Return the requests that were put off since this process began, by signal, kind and answer."""
        retries: Counter[tuple[Signal, str, str]] = Counter()
        for progress in list(self.progress.values()):
            for signal, row in progress.items():
                found = Counter({(kind, why): number for kind, why, number in row.row()["retries"]})
                retries.update({(signal, *key): number for key, number in (found - row.retries_before).items()})
        return retries

    def oldest_s(self) -> float:
        """Return the age of the oldest record that waits, s; 0 if nothing does."""
        times = [
            oldest_ns  # read once: the thread that ships sets it to 0
            for writer, streams in self._streams.items()
            for signal, stream in streams.items()
            if (oldest_ns := (progress := self.progress[writer][signal]).oldest_ns) and progress.waiting(stream)
        ]
        return max(time_ns() - min(times), 0) / 1e9 if times else 0.0


def _silent_s(path: Path) -> float:
    try:
        return silent_s(path)
    except OSError:
        return inf
