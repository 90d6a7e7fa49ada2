"""``OTEL_RL_ON_FINDING``: a command that is run, or an address that is posted to, for findings that begin or end."""

from __future__ import annotations

import hmac
import json
import os
import shlex
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from http.client import HTTPException
from queue import Full, Queue
from time import monotonic, sleep, time
from typing import Any, Final
from urllib.parse import urlsplit

from otel_rl.config import ON_FINDING, Config
from otel_rl.config.parsers import is_address
from otel_rl.guard import guard

TRIES: Final = 3
PAUSES_S: Final = (1.0, 5.0)
TIMEOUT_S: Final = 10.0
"""How long a server may send nothing."""
POST_S: Final = 60.0
"""All tries together; a server that drips is given up then."""
COMMAND_S: Final = 60.0
"""A command that takes longer is killed."""
WAITING: Final = 100
"""Messages that may wait; further ones are dropped and counted."""
MOST: Final = 20
PERIOD_S: Final = 600.0
"""At most so many messages are sent in this time: rules that flap flood nobody."""
LONGEST_SLACK: Final = 3000
Body = dict[str, Any]


class FindingHook:
    """Tells the user's program or server about findings, one after the other, on a thread of its own."""

    def __init__(self, config: Config, say: Callable[[str], None]) -> None:
        """Prepare; no thread is started before the first call.

        Args:
            config: its target, secret, format, and the least severity.
            say: gets a line for each message that was not taken. It never has more of an address than its host.
        """
        self._target = config.on_finding
        self._secret = config.on_finding_secret
        self._is_slack = config.on_finding_format == "slack"
        self._severities = ("alarm",) if config.on_finding_from == "alarm" else ("alarm", "warning")
        self._say = say
        self._queue: Queue[tuple[str, Body] | None] = Queue(WAITING)
        self._sent_s: deque[float] = deque(maxlen=MOST)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._opener = urllib.request.build_opener(_NoRedirect)
        self.outcomes: Counter[str] = Counter()
        """How many messages were `sent`, `failed`, or `dropped`: too many, or the hook is too slow."""

    def takes(self, severity: str) -> bool:
        """Return whether findings of a severity are told."""
        return severity in self._severities

    @property
    def has_target(self) -> bool:
        """Return whether there is anybody to call."""
        return bool(self._target)

    def call(self, body: Body) -> None:
        """Send a message; never waits.

        Args:
            body: JSON; in format `slack` its ``sentence`` with what else is known. Its ``id`` and ``state`` identify it
                to a receiver that gets it twice.
        """
        if not self._target:
            return
        with self._lock:
            if len(self._sent_s) == MOST and monotonic() - self._sent_s[0] < PERIOD_S:
                self._drop(f"more than {MOST} in {PERIOD_S / 60:.0f} min")
                return
            self._sent_s.append(monotonic())
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="on finding", daemon=True)
                self._thread.start()
            try:
                self._queue.put_nowait((f"{body.get('id', '')}-{body.get('state', '')}", body))
            except Full:
                self._drop("those before it still wait")

    def close(self, timeout_s: float) -> None:
        """Let the thread send what waits, for at most so long."""
        if self._thread is not None:
            with suppress(Full):
                self._queue.put_nowait(None)
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._say(f"{ON_FINDING}: the sidecar ended before all messages were sent")

    def _drop(self, why: str) -> None:
        self.outcomes["dropped"] += 1
        if self.outcomes["dropped"] == 1:
            self._say(f"{ON_FINDING}: a message was dropped ({why}); further ones are counted")

    def _work(self) -> None:
        while (waiting := self._queue.get()) is not None:
            problem: str | None = None
            with guard(f"call {ON_FINDING}"):
                problem = self._post(*waiting) if is_address(self._target) else self._run(waiting[1])
            self.outcomes["sent" if problem == "" else "failed"] += 1
            if problem:
                self._say(f"{ON_FINDING}: {problem}")

    def _post(self, number: str, body: Body) -> str:
        """Post on a thread that is given up if the server never comes to an end; return what went wrong."""
        payload = json.dumps({"text": slack_text(body)} if self._is_slack else body, default=str).encode()
        outcome = ["it never came to an end"]
        thread = threading.Thread(target=self._try, args=(number, payload, outcome), name="post finding", daemon=True)
        thread.start()
        thread.join(POST_S)
        return f"{urlsplit(self._target).hostname} did not take the message ({outcome[0]})" if outcome[0] else ""

    def _try(self, number: str, payload: bytes, outcome: list[str]) -> None:
        """Post, and again if the server cannot be reached or is in trouble. Error texts may have the address."""
        problem, until = "", monotonic() + POST_S
        for pause_s in (*PAUSES_S[: TRIES - 1], 0.0):
            request = urllib.request.Request(self._target, payload, signed(number, payload, self._secret))
            try:
                with self._opener.open(request, timeout=TIMEOUT_S):  # what it answers is not read
                    outcome[0] = ""
                    return
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}"
                error.close()
                if error.code < 500 and error.code not in {408, 429}:
                    break
            except (OSError, ValueError, HTTPException) as error:
                problem = type(error).__name__
            if monotonic() + pause_s > until:
                break
            sleep(pause_s)
        outcome[0] = problem

    def _run(self, body: Body) -> str:
        try:
            process = subprocess.Popen(
                shlex.split(self._target), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            return f"the command could not be started ({getattr(error, 'strerror', None) or type(error).__name__})"
        try:
            process.communicate(json.dumps(body, default=str).encode() + b"\n", timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"the command took longer than {COMMAND_S:.0f} s and was killed"
        return f"the command exited with code {process.returncode}" if process.returncode else ""


def signed(number: str, payload: bytes, secret: str) -> dict[str, str]:
    """Return the headers of a message, with a signature as standardwebhooks.com has it if there is a secret."""
    headers = {"Content-Type": "application/json", "User-Agent": "otel_rl"}
    if secret:
        stamp = f"{time():.0f}"
        key = b64decode(secret.removeprefix("whsec_"))
        digest = hmac.new(key, f"{number}.{stamp}.".encode() + payload, sha256).digest()
        headers |= {"webhook-id": number, "webhook-timestamp": stamp}
        headers["webhook-signature"] = f"v1,{b64encode(digest).decode()}"
    return headers


def slack_text(body: Body) -> str:
    """Return a message for people, in Slack's markup."""
    head = "*{run}*: {kind} {severity} `{rule}`".format_map(_Known(body))
    parts = [head, body.get("sentence"), body.get("advice") and f"Next: {body['advice']}", body.get("link")]
    text = "\n".join(str(part) for part in parts if part)[:LONGEST_SLACK]
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class _Known(dict[str, Any]):
    """What is known of a message; the remainder is left out."""

    def __missing__(self, key: str) -> str:
        return ""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for a refusal: another server would get signature and evidence, by GET and without the body."""

    def redirect_request(self, *arguments: Any) -> None:
        return None
