"""While a command runs: a line on standard error for each stall and each finding of its runs, and one for its end.

A further line says that the user's hook does not take findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.cli.console import complain
from otel_rl.cli.sending import JOIN_S, start_without_signals
from otel_rl.guard import guard
from otel_rl.journal.columns.messages import logs
from otel_rl.journal.files import Journal
from otel_rl.journal.frame import TYPES, Frame
from otel_rl.journal.identity import SIDECAR
from otel_rl.runs.locate import recorded_below, roots, written_at
from otel_rl.runs.spans import text
from otel_rl.sidecar.streams import JournalStream, Position, find_streams, identity_of

LOOK_S: Final = 2.0
TOLD: Final = v.STALL, v.FINDING, v.FINDING_CALL_FAILED
OF_STALLS: Final = frozenset({"stalled", "stood_still"})
"""Rules whose findings are told as stalls already."""
END_S: Final = 6.0
"""A command that ends in a stall is followed for so long: the sidecar tells then how the stall ended."""


class StallLines:
    """Follows what the sidecars of a command write."""

    def __init__(self, root: Path, launch: str, since_s: float) -> None:
        """Prepare to read the runs below a root that were written since a time (monotonic, s)."""
        self._root = root
        self._launch = launch
        self._since_s = since_s
        self._read: dict[str, tuple[Journal | None, Position]] = {}
        """The sidecars that were met, and how far they are read; no journal for those of other commands."""
        self.active: set[str] = set()
        """The stalls that go on."""

    def new(self) -> Iterator[str]:
        """Yield the lines that are new. Cost: lists the run directories that were written since the begin."""
        for place in roots(self._root):
            for run in recorded_below(place):
                if written_at(run) >= self._since_s:
                    with suppress(OSError):  # it was removed, or renamed
                        yield from self._of_run(run)

    def _of_run(self, run: Path) -> Iterator[str]:
        for (writer, signal), stream in find_streams(run).items():
            if signal == "logs" and writer.startswith(f"{SIDECAR}-"):
                yield from self._of_sidecar(writer, stream)

    def _of_sidecar(self, writer: str, stream: JournalStream) -> Iterator[str]:
        if writer not in self._read:
            identity = identity_of(stream)
            if identity is None:
                return
            is_ours = f"{identity.launch}/".startswith(f"{self._launch}/")
            self._read[writer] = Journal(identity, []) if is_ours else None, Position()
        journal, position = self._read[writer]
        if journal is None:
            return
        for entry in stream.entries(position, finished=False):
            self._read[writer] = journal, entry.end
            if isinstance(entry.item, Frame) and entry.item.type == TYPES["logs"]:
                for log in logs(entry.item.payload, journal, TOLD):
                    if log.event_name == v.STALL:
                        self._note(str(log.attributes[v.STALL_ID]), is_found=log.attributes[v.STALL_STATE] == "found")
                        yield str(log.attributes[v.STALL_CHAIN])
                    elif log.event_name == v.FINDING_CALL_FAILED:
                        yield log.body
                    elif text(log.attributes, v.FINDING_RULE) not in OF_STALLS:
                        yield f"{text(log.attributes, v.FINDING_KIND)}: {log.body}"

    def _note(self, stall: str, *, is_found: bool) -> None:
        if is_found:
            self.active.add(stall)
        else:
            self.active.discard(stall)


@contextmanager
def shown_stalls(root: Path, launch: str, since_s: float) -> Iterator[None]:
    """Print the stalls of a command within the block, from a thread."""
    lines, over = StallLines(root, launch, since_s), Event()

    def follow() -> None:
        until = inf
        while monotonic() < until:
            if until == inf:
                until = monotonic() + END_S if over.wait(LOOK_S) else inf
            else:
                sleep(LOOK_S / 4)
            with guard("look for stalls"):
                for line in lines.new():
                    complain(line)
            if until < inf and not lines.active:
                return

    thread = Thread(target=follow, name="otel_rl-stalls", daemon=True)
    with guard("look for stalls"):
        start_without_signals(thread)
    try:
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join(END_S + JOIN_S)
