"""The sidecar's watch for stalls: what it finds becomes log records and samples of its own journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from otel_rl.config import Config
from otel_rl.guard import guard
from otel_rl.journal.identity import WriterIdentity
from otel_rl.probes.sample import Sample
from otel_rl.records import Log
from otel_rl.sidecar.owner import living
from otel_rl.stalls.bounds import StallBounds
from otel_rl.stalls.finder import StallFinder
from otel_rl.stalls.on_stall import StallHook
from otel_rl.stalls.tell import Teller

CLOSE_S: Final = 5.0
"""How long the end of the sidecar waits for evidence that is being gathered."""


class StallWatch:
    """Watches the processes of one run on one node."""

    def __init__(self, directory: Path, is_mine: Callable[[WriterIdentity], bool], say: Callable[[str], None]) -> None:
        self._watch = StallFinder(
            directory, is_mine, StallBounds.from_env(), lambda one: living(directory, one.boot_id) is not None
        )
        self._teller = Teller(directory.name, StallHook(Config.from_env().on_stall, say), say)

    def look(self, device_errors: Sequence[Sample]) -> list[Log]:
        """Look for stalls if it is time to; return what there is to journal. Never waits.

        Args:
            device_errors: what the devices of the node have counted so far, for the evidence.
        """
        self._teller.device_errors = device_errors
        if self._watch.is_due:
            for change in self._watch.look():
                self._teller.tell(change)
        return list(self._teller.logs())

    def samples(self) -> list[Sample]:
        """Return the age of each stall that goes on."""
        return self._teller.samples(self._watch.active)

    def close(self) -> list[Log]:
        """Tell how the last stalls ended, and return what is still to be journaled."""
        with guard("watch for stalls"):
            for change in self._watch.look():
                self._teller.tell(change)
        self._teller.close(CLOSE_S)
        return list(self._teller.logs())
