"""The journals of one node: who writes them, what of them is sent, and when all is done."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from time import monotonic, time_ns
from typing import Any, Final

from otel_rl.guard import guard
from otel_rl.journal.file_time import silent_s
from otel_rl.journal.files import ends_closed
from otel_rl.journal.frame import Signal
from otel_rl.journal.identity import WriterIdentity
from otel_rl.sidecar.close import close_left_open
from otel_rl.sidecar.follow import Stream, find_streams, identity_of
from otel_rl.sidecar.settings import SIGNALS, Target
from otel_rl.sidecar.ship.client import connect
from otel_rl.sidecar.ship.progress import Progress, load, save
from otel_rl.sidecar.ship.shipper import Batch, Followed, Shipper
from otel_rl.sidecar.ship.split import records
from otel_rl.sidecar.ship.trace_budget import TraceBudget

SCAN_S: Final = 0.5
SAVE_S: Final = 1.0
SCAN_COST: Final = 20.0
"""So many times as long as a look took comes the next one at the earliest."""
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
        """Prepare; nothing is read or sent yet.

        Args:
            directory: of the run.
            targets: where each signal goes; one without a target is not sent.
            mine: whether this process ships what a writer wrote.
            say: takes lines for people.
        """
        self.directory = directory
        self._stop = threading.Event()
        self.shippers: dict[Signal, Shipper] = {
            target.signal: Shipper(target.signal, connect(target), TraceBudget(), say, self._stop) for target in targets
        }
        self.writers: dict[str, WriterIdentity] = {}
        self.progress: dict[str, dict[Signal, Progress]] = {}
        self.say = say
        self._mine = mine
        self._streams: dict[str, dict[Signal, Stream]] = {}
        """Of our writers."""
        self.strangers: dict[str, WriterIdentity] = {}
        """Whose journals are here and are another process's to ship."""
        self.found: dict[tuple[str, Signal], Stream] = {}
        """Every stream of the directory, as it was listed last."""
        self._before: Counter[tuple[Signal, str]] = Counter()
        """What others had sent before,"""
        self._retried_before: Counter[tuple[Signal, str, str]] = Counter()
        """and what was put off."""
        self._dead: frozenset[str] = frozenset()
        self._touched: dict[str, tuple[float, float]] = {}
        """When a writer's files were modified by their own clock, s since 1970, and by our monotonic one."""
        self._followed: dict[Signal, list[Followed]] = {signal: [] for signal in SIGNALS}
        self._left_open: dict[str, tuple[int, list[tuple[bytes, Batch]]]] = {}
        """What the dead left open, as long as it is not sent, and ``Progress.lives`` when it was looked for."""
        self._saved: dict[str, Rows] = {}
        self._saved_at = 0.0
        self._scan_at = 0.0
        self._threads: list[threading.Thread] = []

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to ship, a thread for each signal."""
        for signal, shipper in self.shippers.items():
            thread = threading.Thread(target=self._work, args=(signal, shipper), name=f"ship {signal}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, timeout_s: float = 12.0, *, is_ours: bool = True) -> None:
        """Let requests that are under way end, and note what was sent, unless the run is somebody else's by now."""
        self._stop.set()
        deadline = monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(deadline - monotonic(), 0))
        if is_ours:
            self.save()
        for shipper in self.shippers.values():
            shipper.close()

    def _work(self, signal: Signal, shipper: Shipper) -> None:
        while not self._stop.is_set():
            sent = False
            with guard(f"ship {signal}"):
                sent = shipper.work(self._followed[signal])
                if signal == "traces" and not sent:
                    sent = any([self._close(writer, shipper) for writer in self._dead])
            if not sent:
                self._stop.wait(SCAN_S / 2)

    # --- looking ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Find new journals and segments, see who died, and note now and then what was sent.

        Cost: 10 us a segment; where they are many it looks more rarely, for a twentieth of the time.

        Raises:
            OSError: the directory cannot be listed.
        """
        now = monotonic()
        if now >= self._scan_at:
            self._scan()
            self._scan_at = monotonic() + SCAN_COST * (monotonic() - now)
        if now - self._saved_at > SAVE_S:
            self.save()

    def look_soon(self) -> None:
        """Have the next look list the directory, whatever that costs."""
        self._scan_at = 0.0

    def newcomers(self) -> list[WriterIdentity]:
        """List who began to write behind the last look; nobody where the directory cannot be listed."""
        found: dict[str, Stream] = {}
        with suppress(OSError):
            found = {name: stream for (name, _), stream in find_streams(self.directory).items()}
        new = (identity_of(found[name]) for name in found.keys() - self.writers.keys() - self.strangers.keys())
        return [identity for identity in new if identity is not None]

    def _scan(self) -> None:
        found = self._list()
        dead = frozenset(writer for writer in self.writers if not self._is_alive(writer))
        for writer in set(self.writers) - dead:
            self._revive(writer)
        if not dead <= self._dead:
            self._adopt(dead - self._dead)
            found = self._list()  # what they wrote between the two looks
        for writer, streams in self._streams.items():
            for signal, known in streams.items():
                listed = found.get((writer, signal))
                known.files, known.held = (listed.files, listed.held) if listed else ({}, None)
        self._dead = dead
        for signal in SIGNALS:
            self._followed[signal] = [
                Followed(streams[signal], self.progress[writer][signal], writer in dead)
                for writer, streams in self._streams.items()
                if signal in streams
            ]

    def _adopt(self, dead: Iterable[str]) -> None:
        """Take what these have held for journaled: nobody will do it any more."""
        for (writer, _), stream in find_streams(self.directory).items():
            if writer in dead:
                with suppress(OSError):  # a disk that can only be read: a report of the run shows it
                    stream.adopt()

    def _list(self) -> dict[tuple[str, Signal], Stream]:
        """List the directory and meet who is new in it."""
        found = self.found = find_streams(self.directory)
        for (writer, signal), stream in found.items():
            if writer not in self.writers and writer not in self.strangers:
                self._meet(writer, stream)
            if writer in self.writers:
                self._streams[writer].setdefault(signal, stream)
        return found

    def _meet(self, writer: str, stream: Stream) -> None:
        identity = identity_of(stream)
        if identity is None:
            return  # its first frame is not there yet
        if not self._mine(identity):
            self.strangers[writer] = identity
            return
        self.progress[writer] = load(self.directory, writer)
        self._before.update(_counts(self.progress[writer]))
        self._retried_before.update(_retries(self.progress[writer]))
        self._streams[writer] = {}
        self.writers[writer] = identity

    def _is_alive(self, writer: str) -> bool:
        """Whether a writer lives; how long its files were not touched is taken by a clock that does not jump."""
        newest = [stream.newest for stream in self._streams[writer].values()]
        modified = max((_modified(path) for path in newest if path), default=0.0)
        clock = monotonic()
        before = self._touched.get(writer)
        if writer in self._dead and before is not None and before[0] == modified:
            return False  # one that was only stopped writes again
        if before is None:
            self._touched[writer] = modified, clock - max(min(map(_silent_s, filter(None, newest)), default=inf), 0.0)
        elif before[0] != modified:
            self._touched[writer] = modified, clock
        ends = [path for path in newest if path]
        touched = self._touched[writer][1]
        return self.writers[writer].is_alive(lambda: clock - touched, lambda: any(map(ends_closed, ends)))

    def _revive(self, writer: str) -> None:
        """See to it that what a living writer leaves open one day is closed, also where we took it for dead before."""
        self.progress[writer]["traces"].reopen()
        self._left_open.pop(writer, None)

    def save(self) -> None:
        """Note what was sent; where that fails it is sent again by the next sidecar."""
        self._saved_at = monotonic()
        for writer, progress in self.progress.items():
            rows: Rows = {signal: row.row() for signal, row in progress.items()}
            if rows != self._saved.get(writer):
                with suppress(OSError):  # the disk is full, or somebody removed the run
                    save(self.directory, writer, rows)
                    self._saved[writer] = rows

    def _close(self, writer: str, shipper: Shipper) -> bool:
        """Send what a dead writer left open, once its own spans are sent; say whether that was done now."""
        progress, streams = self.progress[writer]["traces"], self._streams[writer]
        lives = progress.lives  # before its journal is read, which may take minutes: it may live again, and die
        if progress.closed or ("traces" in streams and progress.waiting(streams["traces"])):
            return False
        at, requests = self._left_open.get(writer, (-1, []))
        if at != lives:  # a journal of gigabytes is read once, however often the other side says no
            identity, closed = self.writers[writer], progress.closed_ids
            made = close_left_open(self.directory, identity, list(streams.values()), closed)
            requests = [(request.payload, Batch([[(request.payload, request.count)]])) for request in made]
            self._left_open[writer] = lives, requests
        while requests:
            payload, batch = requests[0]
            if not shipper.send(progress, batch):
                return False
            del requests[0]
            progress.close_some((record[2].span_id for record in records("traces", payload)), batch.counts)
        progress.close(lives)
        self._left_open.pop(writer, None)
        return True

    # --- how it stands ------------------------------------------------------------------------------------------------

    def _waiting(self, writer: str) -> int:
        return sum(
            self.progress[writer][signal].waiting(stream)
            for signal, stream in self._streams[writer].items()
            if signal in self.shippers
        )

    @property
    def living(self) -> set[str]:
        """Who still writes."""
        return set(self.writers) - self._dead

    @property
    def trainers(self) -> set[str]:
        """Who wrote here on this node, other than sidecars."""
        return {writer for writer, identity in self.writers.items() if not identity.is_sidecar}

    def is_alive(self, writer: str) -> bool:
        """Whether somebody whose journal is here, of this node or another, still writes."""
        if writer in self.writers:
            return writer not in self._dead
        newest = self.found[writer, "traces"].newest if (writer, "traces") in self.found else None
        return newest is not None and self.strangers[writer].is_alive(
            lambda: _silent_s(newest), lambda: ends_closed(newest)
        )

    @property
    def waiting(self) -> int:
        """Bytes that are still to be sent."""
        return sum(map(self._waiting, self.writers))

    def moved_at(self, writers: Iterable[str]) -> float:
        """When something of these was taken or came to its end last, s of the monotonic clock; 0 where nothing did."""
        return max((row.moved_at for writer in writers for row in self.progress[writer].values()), default=0.0)

    @property
    def unclosed(self) -> bool:
        """Whether stages that dead processes left open may still have to be sent."""
        return "traces" in self.shippers and any(not self.progress[writer]["traces"].closed for writer in self._dead)

    @property
    def failure(self) -> str:
        """Why nothing is sent at present; empty where it goes well."""
        reasons = {signal: shipper.failure for signal, shipper in self.shippers.items()}  # its thread changes it
        return "; ".join(f"{signal}: {reason}" for signal, reason in reasons.items() if reason)

    def counts(self) -> Counter[tuple[Signal, str]]:
        """Records by signal and by what became of them, since this process began."""
        counts: Counter[tuple[Signal, str]] = Counter()
        for progress in list(self.progress.values()):
            counts.update(_counts(progress))
        return counts - self._before

    def retries(self) -> Counter[tuple[Signal, str, str]]:
        """Requests that were put off since this process began, by signal, ``later`` or ``blocked`` and answer."""
        retries: Counter[tuple[Signal, str, str]] = Counter()
        for progress in list(self.progress.values()):
            retries.update(_retries(progress))
        return retries - self._retried_before

    def oldest_s(self) -> float:
        """Age of the oldest record that waits, s; 0 where nothing does."""
        times = [
            oldest_ns  # looked up once: the thread that ships sets it to 0
            for writer, streams in self._streams.items()
            for signal, stream in streams.items()
            if (oldest_ns := (progress := self.progress[writer][signal]).oldest_ns) and progress.waiting(stream)
        ]  # what was sent a moment ago keeps its time until the stream's next turn
        return max(time_ns() - min(times), 0) / 1e9 if times else 0.0


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _silent_s(path: Path) -> float:
    try:
        return silent_s(path)
    except OSError:
        return inf


def _counts(progress: Mapping[Signal, Progress]) -> Counter[tuple[Signal, str]]:
    """Records of one writer by signal and by what became of them."""
    rows = {signal: row.row()["counts"] for signal, row in progress.items()}
    return Counter({(signal, name): number for signal, counts in rows.items() for name, number in counts.items()})


def _retries(progress: Mapping[Signal, Progress]) -> Counter[tuple[Signal, str, str]]:
    """Requests of one writer that were put off, by signal, ``later`` or ``blocked`` and answer."""
    rows = {signal: row.row()["retries"] for signal, row in progress.items()}
    return Counter({(signal, kind, why): number for signal, found in rows.items() for kind, why, number in found})
