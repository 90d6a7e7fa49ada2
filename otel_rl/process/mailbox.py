"""Messages from the sidecars of a run to its training processes, which share its directory and nothing else.

A sidecar appends lines of JSON to a file of its own, ``RUN/messages/WRITER.jsonl``. A process that listens looks there
once a second, on a thread of its own, and calls a function for each message of its attempt. So a message waits until
the process has a listener, is heard once, and never reaches a later attempt, such as the one that resumes after a stop.

Every process of the attempt hears every message, each at its own time: ranks that have to act together must agree on
the step themselves.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from otel_rl.guard import guard
from otel_rl.journal.filesystem import make_directory
from otel_rl.journal.own_file import OwnFile
from otel_rl.process.memory import Memory
from otel_rl.process.state import state

FOLDER: Final = "messages"
SUFFIX: Final = ".jsonl"
LOOK_S: Final = 1.0
MOST_BYTES: Final = 1 << 20
"""What is read of a file at once; a line that is longer is skipped."""

Message = dict[str, Any]


def send(directory: Path, sender: str, kind: str, attempt: str, content: Message) -> None:
    """Append a message for all processes of an attempt; called by the sidecar.

    Args:
        directory: of the run.
        sender: the writer's name of the sidecar: each has a file of its own, which nobody else writes.
        kind: which listeners it is for, such as ``finding`` or ``stop``.
        attempt: whose processes hear it (``rl.attempt.id``).
        content: what JSON can hold, for the listeners.

    Raises:
        OSError: it cannot be written.
    """
    folder = directory / FOLDER
    make_directory(folder)
    line = json.dumps({"kind": kind, "attempt": attempt, "content": content}, separators=(",", ":"), default=str)
    data = b"\n" + line.encode("utf-8", "replace") + b"\n"  # the line before may be torn
    with OwnFile(folder / f"{sender}{SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
        if os.write(file.number, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def listen(kind: str, function: Callable[[Message], object]) -> None:
    """Call a function with the content of each message of a kind, on a thread of ours; called in a training process.

    It also gets those that were sent before in the attempt. An error in it is logged once and counted, and others are
    called all the same. One that does not return holds up later messages, never the training. The end of the recording
    (``uninstrument``) forgets it, and a forked child does not have it.
    """
    listening.listeners.append(_Listener(kind, function))
    if state.awake:
        start()


def start() -> None:
    """Begin to look for messages if anybody listens; the flusher of the process begins then, too."""
    with listening.lock, guard("listen to the sidecar"):
        if listening.listeners and listening.thread is None:
            thread = threading.Thread(target=_look_out, args=(listening.over,), name="otel_rl-messages", daemon=True)
            thread.start()
            listening.thread = thread


class Inbox:
    """Reads what sidecars send to a run."""

    def __init__(self) -> None:
        self._read: dict[str, int] = {}
        """How far each file is read."""

    def new(self, directory: Path, attempt: str) -> Iterator[tuple[str, Message]]:
        """Yield kind and content of the messages to an attempt that have come since. What is no message is skipped."""
        for message in self._messages(directory):
            if message["attempt"] == attempt:
                yield message["kind"], message["content"]

    def all(self, directory: Path) -> Iterator[tuple[str, Message]]:
        """Yield kind and content of all messages to any attempt that have come since."""
        before: dict[str, int] | None = None
        while before != self._read:
            before = dict(self._read)
            for message in self._messages(directory):
                yield message["kind"], message["content"]

    def _messages(self, directory: Path) -> Iterator[Message]:
        try:
            names = sorted(one.name for one in os.scandir(directory / FOLDER) if one.name.endswith(SUFFIX))
        except OSError:  # no message was sent, or the file system is in trouble: then they come later
            return
        for name in names:
            for line in self._lines(directory / FOLDER / name):
                message = _parsed(line)
                if message is not None:
                    yield message

    def _lines(self, path: Path) -> Iterator[bytes]:
        begin = self._read.get(path.name, 0)
        data = b""
        with suppress(OSError), path.open("rb") as file:
            file.seek(begin)
            data = file.read(MOST_BYTES)
        whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == MOST_BYTES else 0)
        self._read[path.name] = begin + whole
        yield from data[:whole].splitlines()


@dataclass(slots=True)
class _Listener:
    kind: str
    function: Callable[[Message], object]
    heard: int = 0
    """How many messages it has been told, also of other kinds."""

    def hear(self, messages: list[tuple[str, Message]]) -> None:
        """Call the function for those that are new."""
        for kind, content in messages[self.heard :]:
            self.heard += 1
            if kind == self.kind:
                with guard(f"call the function that listens for {kind}s"):
                    try:
                        self.function(content)
                    except SystemExit:
                        raise RuntimeError("sys.exit() ends no training: this is another thread") from None


@dataclass(eq=False)
class Listening(Memory):
    """Who listens in this process."""

    listeners: list[_Listener] = field(default_factory=list)
    thread: threading.Thread | None = None
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def renew(self) -> None:
        """Let the thread end, which belongs to the recording that is over."""
        self.over.set()
        super().renew()

    def after_fork_in_child(self) -> None:
        """Begin anew; the event is the parent's, and a lock of it may be held."""
        super().renew()


listening = Listening.keep("listening")


def _look_out(over: threading.Event) -> None:
    inbox = Inbox()
    messages: list[tuple[str, Message]] = []
    while not over.wait(LOOK_S):
        with guard("read messages of the sidecar"):
            if state.directory is not None and state.identity.known:
                messages += inbox.new(state.directory, state.identity.attempt_id)
        for listener in listening.listeners.copy():
            if not over.is_set():
                listener.hear(messages)


def _parsed(line: bytes) -> Message | None:
    with suppress(ValueError, RecursionError):
        message = json.loads(line)
        if isinstance(message, dict):
            kind, attempt, content = (message.get(key) for key in ("kind", "attempt", "content"))
            if isinstance(kind, str) and isinstance(attempt, str) and isinstance(content, dict):
                return message
    return None
