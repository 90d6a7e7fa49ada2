"""A process that reads for the server, and what it has sent."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from dataclasses import replace
from time import monotonic
from typing import Any, BinaryIO, Final, cast

from otel_rl.report.page.document import PageParts
from otel_rl.view.pieces import Pieces

QUIET_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""The process forks, so it must have no thread that it does not know."""


class ReadingProcess:
    """Reads a run, or the list of all, until nobody asks any more."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._pieces = Pieces()
        self._parts: PageParts | None = None
        self._part_version = 0
        """The version of ``_parts``."""
        self._lock = threading.Lock()
        self._said = ""
        self._share: float | None = None
        self.started_s = self.asked_s = monotonic()
        """When somebody wanted to know something of it last."""
        self._child = subprocess.Popen(
            [sys.executable, "-m", f"otel_rl.view.{module}", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=os.environ | QUIET_THREADS,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        self._child.terminate()

    def page(self) -> tuple[PageParts | None, str, int]:
        """Return the parts of a whole page, None if there is none yet, and its epoch and version."""
        with self._lock:
            self.asked_s = monotonic()
            return self._parts, self._pieces.epoch if self._parts else "", self._part_version

    def state(self, epoch: str, version: int) -> dict[str, Any]:
        """Return what a browser does not know that has a page of some version."""
        with self._lock:
            self.asked_s = monotonic()
            said = self._said or ("" if self._parts else self._progress())
            if epoch != self._pieces.epoch or self._parts is None:
                return {"epoch": self._pieces.epoch if self._parts else "", "said": said}
            return self._pieces.since(version) | {"said": said}

    def _progress(self) -> str:
        if self._share is None:
            return "Looking for what was recorded"
        return f"Reading: {self._share:.0%}" if self._share < 1 else "Read; drawing its page"

    def _receive(self) -> None:
        source = cast("BinaryIO", self._child.stdout)
        while len(head := source.read(8)) == 8:
            data = source.read(int.from_bytes(head, "little"))
            if len(data) < int.from_bytes(head, "little"):
                break
            self._take(*pickle.loads(data))
        source.close()
        code = self._child.wait()
        with self._lock:
            self._said = f"The process that reads ended with exit code {code}. Standard error says why."

    def _take(self, kind: str, value: Any) -> None:
        with self._lock:
            if kind == "said":
                self._said = value
            elif kind == "progress":
                self._share = value
            else:
                self._pieces.update(value, is_whole=kind == "page")
                if kind == "page":
                    self._parts, self._part_version = value, self._pieces.version
                    self._said = ""


def with_part(parts: PageParts, name: str, html: str, *, after: str) -> PageParts:
    """Return a page with one more part."""
    body: dict[str, str] = {}
    for key, value in parts.body.items():
        body[key] = value
        if key == after:
            body[name] = html
    return replace(parts, body=body)
