"""``OTEL_RL_ON_STALL``: a command that is run, or an address that is posted to, for each stall and for its end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from otel_rl.guard import guard

TRIES: Final = 3
PAUSES_S: Final = (1.0, 5.0)
TIMEOUT_S: Final = 10.0
COMMAND_S: Final = 60.0
"""A command that takes longer is killed."""


class StallHook:
    """Tells the user's program or server about stalls, each on a thread of its own."""

    def __init__(self, target: str, say: Callable[[str], None]) -> None:
        self._target = target
        self._say = say
        self._is_address = target.startswith(("https://", "http://"))

    def call(self, stall: dict[str, Any]) -> threading.Thread | None:
        """Tell of a stall, or of its end; never waits. Return the thread that does it; None without a target."""
        if not self._target:
            return None
        thread = threading.Thread(target=self._call, args=(json.dumps(stall).encode(),), name="on stall", daemon=True)
        thread.start()
        return thread

    def _call(self, payload: bytes) -> None:
        with guard("call OTEL_RL_ON_STALL"):
            if self._is_address:
                self._post(payload)
            else:
                self._run(payload)

    def _post(self, payload: bytes) -> None:
        """Post, and again if the server cannot be reached or is in trouble. The address may hold a secret."""
        request = urllib.request.Request(self._target, payload, {"Content-Type": "application/json"})
        problem = ""
        for number in range(TRIES):
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                    return
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}"
                if error.code < 500 and error.code not in {408, 429}:
                    break
            except (OSError, ValueError, HTTPException) as error:  # their texts may have the address
                problem = type(error).__name__
            if number < len(PAUSES_S):
                time.sleep(PAUSES_S[number])
        host = urlsplit(self._target).hostname
        self._say(f"OTEL_RL_ON_STALL: {host} did not take the message ({problem})")

    def _run(self, payload: bytes) -> None:
        process = subprocess.Popen(
            shlex.split(self._target), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.communicate(payload, timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._say(f"OTEL_RL_ON_STALL: the command took longer than {COMMAND_S:.0f} s and was killed")
            return
        if process.returncode:
            self._say(f"OTEL_RL_ON_STALL: the command exited with code {process.returncode}")
