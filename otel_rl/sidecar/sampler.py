"""Sample on a thread, so that a driver that hangs holds up neither shipping nor the sidecar's end."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final

from otel_rl.guard import guard, say
from otel_rl.probes.hardware import NodeProbe
from otel_rl.probes.sample import Sample

ANSWER_S: Final = 1.0
"""How long to wait for a reading; a driver that answers takes milliseconds."""
FIRST_S: Final = 60.0
"""The first reading may take this long: a driver without persistence wakes its devices for it."""


class Sampler:
    """Reads the node's hardware."""

    def __init__(self, probe: NodeProbe | None = None, answer_s: float = ANSWER_S) -> None:
        self._probe = probe
        self._answer_s = answer_s
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._answers: SimpleQueue[list[Sample]] = SimpleQueue()
        self._waits = self._said = False
        self._say_from = monotonic() + FIRST_S
        self._thread = threading.Thread(target=self._work, name="sample", daemon=True)
        self._thread.start()

    def read(self) -> list[Sample]:
        """Sample the node; return nothing while an earlier reading hangs, whose numbers would be old."""
        deadline = monotonic() + self._answer_s
        while True:
            is_old = self._waits
            if not is_old:
                self._asked.put(True)
            try:
                found = self._answers.get(timeout=max(deadline - monotonic(), 0))
            except Empty:
                self._waits = True
                if not self._said and monotonic() >= self._say_from:
                    self._said = True
                    say("Hardware metrics are paused: the driver does not respond.")
                return []
            self._waits = self._said = False
            self._say_from = 0.0
            if not is_old:
                return found

    def close(self) -> None:
        """End; a driver that hangs is given up."""
        self._asked.put(False)
        self._thread.join(self._answer_s)

    def _work(self) -> None:
        with guard("sample this node"):
            probe = self._probe or NodeProbe()
            while self._asked.get():
                self._answers.put(probe.read())
            probe.close()
