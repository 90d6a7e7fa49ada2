"""The sidecar's life: claim the node, ship until every writer is gone and all is sent, say what remains."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Final

from otel_rl.config import Config
from otel_rl.guard import guard, logger, report
from otel_rl.journal.identity import WriterIdentity
from otel_rl.records import Log
from otel_rl.sidecar import owner
from otel_rl.sidecar.compare.rounds import ComparisonRounds
from otel_rl.sidecar.finding_teller import FindingTeller
from otel_rl.sidecar.read_ahead import ReadAhead
from otel_rl.sidecar.self_journal import PERIOD_S, OwnJournal
from otel_rl.sidecar.settings import Target
from otel_rl.sidecar.ship_node import SCAN_S, Node
from otel_rl.sidecar.stall_watch import StallWatch
from otel_rl.version import __version__

QUIET_S: Final = 3.0
"""The sidecar stays this long after the last writer died: another may be about to begin."""
GRACE_S: Final = 600.0
"""It tries for this long once every writer is gone and nothing is accepted."""
FIRST_S: Final = 60.0
"""It waits this long for the first journal."""
TOUCH_S: Final = 5.0
ANOTHER: Final = 3
"""The exit code if another sidecar ships."""


class Sidecar:
    """The process that ships the journals of one node and run."""

    def __init__(
        self,
        directory: Path,
        targets: tuple[Target, ...],
        *,
        grace_s: float = GRACE_S,
        stays: bool = False,
        is_by_hand: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare; nothing is claimed or sent before ``run``.

        Args:
            directory: of the run.
            targets: where to send; none: it only watches for stalls.
            grace_s: it tries for so long once every writer is gone and nothing is accepted.
            stays: also while nothing writes and while another sidecar ships, until SIGTERM; then until all is sent.
            is_by_hand: a person started it: it ships also from a disk that is full and cannot say who ships.
            say: takes the lines for people too, besides ``sidecar.log``; any thread calls it.
        """
        self.directory = directory
        self.identity = WriterIdentity.current(owner.ROLE, 0, __version__)
        self._targets = targets
        self._grace_s = grace_s
        self._stays = stays
        self._is_by_hand = is_by_hand
        self._also_say = say
        self._is_leaving = False
        self._ended = False
        self._node = self._make_node()
        self._comparison: ComparisonRounds | None = None
        self._teller: FindingTeller | None = None
        self._watch: StallWatch | None = None
        self._ahead: ReadAhead | None = None

    def run(self) -> int:
        """Ship until all is done.

        Returns:
            The exit code: 0 all was sent or the run is gone, 1 something remains, 3 another sidecar ships.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        while True:
            claim = self._claim()
            if isinstance(claim, int):
                return claim
            code = self._serve(claim)
            if code is None:
                if self._is_leaving or not self._is_needed():
                    return self._farewell()
            elif not self._stays or self._is_leaving:
                return code
            self._node = self._make_node()

    def _make_node(self) -> Node:
        log = log_to(self.directory / f"{owner.ROLE}.log")

        def say(text: str) -> None:
            log(text)
            if self._also_say is not None:
                self._also_say(text)

        return Node(self.directory, self._targets, self._is_mine, say)

    def _claim(self) -> owner.Owner | int:
        """Become the sidecar of this node; if that is not possible, return the exit code.

        One that stays stands by while another one ships, the directory is gone, or its file system is in trouble.
        """
        me = self.directory, self.identity.boot_id, self.identity
        sends = bool(self._targets)
        while True:
            try:
                claim = owner.claim_by_hand(*me, self._node.say) if self._is_by_hand else owner.claim(*me, sends=sends)
                code = ANOTHER
            except OSError as error:
                if not self._stays:
                    raise
                report("claim the node", error)
                claim, code = None, 0 if isinstance(error, FileNotFoundError) else 1
            if claim is not None:
                return claim
            if not self._stays or self._is_leaving:
                return code
            time.sleep(SCAN_S)

    def _serve(self, claim: owner.Owner) -> int | None:
        """Ship as the sidecar of this node; return the exit code if the run is gone or no longer ours."""
        handler = _Lines(self._node.say)
        logger.addHandler(handler)
        own = None
        with guard("sample this node"):
            own = OwnJournal(self.directory, self.identity)
        if self._targets:
            self._comparison = ComparisonRounds(self.directory, self.identity, self._node)
        with guard("watch the run"):
            me, say = (self.directory, self._is_mine), self._node.say
            self._teller = FindingTeller(self.directory, self.identity.writer, Config.from_env(), say)
            self._watch = StallWatch(*me, say, self._teller)
            self._ahead = ReadAhead(*me, self._teller)
            self._ahead.start()
        self._node.start()
        code: int | None = ANOTHER
        try:
            code = self._follow(claim, own)
        finally:
            logs = self._end_watch()
            if own is not None:
                if self._comparison is not None:
                    with guard("compare ranks"):
                        own.append(self._comparison.close().requests)
                own.append_logs(logs)
                own.close()
            self._node.stop(is_ours=code is None)
            claim.release()
            logger.removeHandler(handler)
        return code

    def _follow(self, claim: owner.Owner, own: OwnJournal | None) -> int | None:
        """Ship until there is nothing more to do; return the exit code if the run is gone or no longer ours."""
        quiet_since = touched = begun = monotonic()
        written, is_last = 0.0, False
        while not self._ended:
            try:
                self._node.update()
            except FileNotFoundError:
                return self._leave(is_gone=True)
            except OSError as error:  # a network file system in trouble: what is known is sent
                report("read the run", error)
            is_behind = self._compare(own)
            self._watch_for_stalls(own)
            now = monotonic()
            if now - touched > TOUCH_S:
                touched = now
                if not claim.touch():
                    return self._leave(is_gone=not os.path.isdir(self.directory))
            if now - written > PERIOD_S and not is_last:  # a further one would say that our own last numbers wait
                written = now
                self._sample(own)
            trainers = self._node.trainers
            is_awaited = self._stays or (not trainers and now - begun < FIRST_S)
            if not self._is_leaving and (is_behind or trainers & self._node.living or is_awaited):
                quiet_since, is_last = now, False
            if self._is_over(quiet_since, now):
                if is_last:
                    break
                is_last, written = True, now
                self._node.scan_soon()  # what is missing may be in a segment that was begun after the last scan
                self._sample(own)  # and send that too: the sample before says that something waits
            time.sleep(SCAN_S)
        return None

    def _sample(self, own: OwnJournal | None) -> None:
        if own is not None and self._targets:
            with guard("sample this node"):
                of_stalls = self._watch.samples() if self._watch else ()
                of_findings = self._teller.samples() if self._teller else ()
                of_ranks = self._comparison.samples if self._comparison else ()
                own.write(self._node, [*of_ranks, *of_stalls, *of_findings])

    def _watch_for_stalls(self, own: OwnJournal | None) -> None:
        if self._watch is not None and own is not None:
            with guard("watch for stalls"):
                own.append_logs(self._watch.look(own.device_errors))
        if self._teller is not None and own is not None:
            with guard("tell of findings"):
                own.append_logs(self._teller.logs())

    def _end_watch(self) -> list[Log]:
        """Tell what is left to be told, and return what is to be journaled of it."""
        logs: list[Log] = []
        with guard("end the watch"):
            if self._ahead is not None:
                self._ahead.close()
            if self._watch is not None:
                logs += self._watch.close()
            if self._teller is not None:
                self._teller.close()
                logs += self._teller.logs()
        return logs

    def _is_over(self, quiet_since: float, now: float) -> bool:
        """Return whether all is sent, or nothing of the dead was accepted for the grace period."""
        node = self._node
        if not node.waiting and not node.unclosed:
            return now - quiet_since > QUIET_S
        return now - max(quiet_since, node.moved_at(set(node.writers) - node.living)) > self._grace_s

    def _leave(self, *, is_gone: bool) -> int:
        if is_gone:
            self._node.say(f"{self.directory} is gone: the run was removed")
            return 0
        why = "it considered this one dead" if self._targets else "this one only watched for stalls"
        self._node.say(f"another sidecar ships in its place: {why}")
        return ANOTHER

    def _compare(self, own: OwnJournal | None) -> bool:
        """Journal what was compared meanwhile; return whether much of the dead is still to be read."""
        if self._comparison is None or own is None:
            return False
        with guard("compare ranks"):
            made = self._comparison.next()
            own.append(made.requests)
            return made.is_behind
        return False

    def _is_needed(self) -> bool:
        """Return whether a process began after our last scan.

        It started no sidecar of its own if it saw that this one lived.
        """
        if owner.living(self.directory, self.identity.boot_id) is not None:
            return False  # another one lives, and sends it
        return any(map(self._is_mine, self._node.newcomers()))

    def _is_mine(self, writer: WriterIdentity) -> bool:
        return writer.boot_id == self.identity.boot_id

    def _end(self, number: int, frame: FrameType | None) -> None:
        """End now; one that stays sends what is there first, unless it gets a second signal."""
        self._ended = self._is_leaving or not self._stays
        self._is_leaving = True

    def _farewell(self) -> int:
        remaining = self._node.waiting
        if not self._node.trainers:
            self._node.say(f"no process on this node has written in {self.directory}")
        if not remaining and not self._node.unclosed:
            return 0
        why = f" ({self._node.failure})" if self._node.failure else ""
        self._node.say(f"{remaining} bytes were not sent{why}; send them with: otel-rl ship {self.directory}")
        return 1


class _Lines(logging.Handler):
    """Passes our own errors on to where a person looks."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._say(record.getMessage() + (f": {type(error).__name__}: {error}" if error else ""))


def log_to(path: Path) -> Callable[[str], None]:
    """Return a function that appends lines to a file, for its owner only, and never fails."""

    def say(text: str) -> None:
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n"
        with suppress(OSError):  # the disk may be what the line is about
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                file.write(line.encode("utf-8", "replace"))

    return say
