"""Comparing ranks on a thread of its own: shipping and the watch for stalls never wait for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_rl.guard import guard
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.wire import OtlpRequest
from otel_rl.probes.sample import Sample
from otel_rl.sidecar.ship_node import Node

if TYPE_CHECKING:
    from otel_rl.sidecar.compare.compare import RankComparer

END_S: Final = 2.0
"""How long the end of the sidecar waits for the round that goes on."""


class Round(NamedTuple):
    """What a round has made."""

    requests: Sequence[OtlpRequest] = ()
    """What to journal."""
    is_behind: bool = False
    """Whether much of the dead is still to be read."""


class ComparisonRounds:
    """Runs one round of the comparison after the other, each on a thread.

    Only the thread of a round uses the comparer, and the main loop gets its results once that thread has ended. Of the
    node it reads single entries, and listings that are replaced as a whole.
    """

    def __init__(self, directory: Path, identity: WriterIdentity, node: Node) -> None:
        self._directory = directory
        self._identity = identity
        self._node = node
        self.samples: Sequence[Sample] = ()
        """What became of the steps so far."""
        self._comparer: RankComparer | None = None
        self._thread: threading.Thread | None = None
        self._made = Round()

    def next(self) -> Round:
        """Return what the last round has made, and begin the next; while a round goes on, only say so. Never wait."""
        if self._thread is not None and self._thread.is_alive():
            return Round(is_behind=True)
        made, self._made = self._made, Round()
        self._thread = threading.Thread(target=self._work, name="compare ranks", daemon=True)
        self._thread.start()
        return made

    def close(self) -> Round:
        """Return what the round that goes on makes, if it ends soon; otherwise the next sidecar does it again."""
        if self._thread is not None:
            self._thread.join(END_S)
        return Round() if self._thread is None or self._thread.is_alive() else self._made

    def _work(self) -> None:
        """Compare for a while. After an error the comparison begins anew with what comes next."""
        with guard("compare ranks"):
            comparer = self._comparer or self._make_comparer()
            self._made = Round(comparer.work(self._node), comparer.is_behind)
            self.samples = [*comparer.samples()]
            return
        with guard("compare ranks"):
            if self._comparer is not None:
                self._comparer.skip()

    def _make_comparer(self) -> RankComparer:
        from otel_rl.sidecar.compare.compare import RankComparer  # numpy: a sidecar that only watches does without

        self._comparer = RankComparer(self._directory, self._identity, self._node.say)
        return self._comparer
