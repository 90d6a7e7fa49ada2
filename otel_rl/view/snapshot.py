"""A copy of this process that makes something of what was read so far, while this process reads on."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from otel_rl.guard import guard


class Snapshot:
    """What a forked copy of this process makes: the copy may use up what it works on."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.result: Any = None
        """None if it could not be made."""
        self.cpu_s = 0.0
        source, sink = os.pipe()
        self._process = os.fork()
        if not self._process:
            try:
                os.close(source)
                with guard("make a page"), suppress(BrokenPipeError), open(sink, "wb") as file:
                    pickle.dump(make(), file, pickle.HIGHEST_PROTOCOL)
            finally:
                os._exit(0)  # whatever happens: it must not go on as the process that it is a copy of
        os.close(sink)
        self._thread = threading.Thread(target=self._collect, args=(source,), daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()

    def _collect(self, source: int) -> None:
        with open(source, "rb") as file:
            data = file.read()
        _, _, usage = os.wait4(self._process, 0)
        self.cpu_s = usage.ru_utime + usage.ru_stime
        with suppress(EOFError, pickle.UnpicklingError):
            self.result = pickle.loads(data)
