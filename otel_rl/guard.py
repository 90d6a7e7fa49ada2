"""The one place where an error of ours is caught: logged once per kind, counted, never raised into the host."""

from __future__ import annotations

import errno
import logging
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from traceback import walk_tb
from types import TracebackType
from typing import Any, Final, TypeVar

T = TypeVar("T")

logger = logging.getLogger("otel_rl")

errors: defaultdict[str, int] = defaultdict(int)  # no Counter: one thread's first count would undo another's
"""How often each guarded action failed in this process; the flusher makes ``otel_rl.errors`` of it."""

shortages: defaultdict[str, int] = defaultdict(int)
"""The same where the machine had no room, descriptors or threads left, which is no error of ours."""
SHORT: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
)

_guarding = threading.local()


class guard:
    """Keep an error of ours away from the host.

    ``with guard("read memory"): ...`` logs the first error of each kind with its traceback, counts every one in
    ``errors`` and goes on after the block. KeyboardInterrupt, SystemExit and other non-``Exception`` pass through, and
    so does an error that a signal handler raises meanwhile. Cost: 0.16 us (``benchmarks/hotpath.py``).
    """

    __slots__ = ("error", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.error: BaseException | None = None
        """What it kept away."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is None or not issubclass(kind, Exception) or is_of_signal(trace):
            return False
        self.error = error
        report(self.what, error)
        return True


def attempt(doing: str, what: str, function: Callable[..., T], *arguments: Any) -> T | None:
    """Call a function of ours and keep its error away from the host, like ``guard``; return None if it failed.

    This is for the hot path: it makes no object, and the error's name only if there is one.
    """
    try:
        return function(*arguments)
    except Exception as error:
        if is_of_signal(error.__traceback__):
            raise
        report(f"{doing} {what}", error)
        return None


def error_of(function: Callable[..., object], *arguments: Any) -> Exception | None:
    """Call a function of the program's; return its error, which is no error of ours."""
    try:
        function(*arguments)
    except Exception as error:
        return error
    return None


def is_of_signal(trace: TracebackType | None) -> bool:
    """Return whether a signal handler raised it; a timeout (``signal.alarm``) arrives anywhere and is the host's."""
    if threading.current_thread() is not threading.main_thread():
        return False
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    return any(frame.f_code in codes for frame, _ in walk_tb(trace))


def _code_of(handler: Any) -> object:
    """Return the code that a handler's frame runs; None if it is not Python code."""
    while isinstance(handler, partial):
        handler = handler.func
    called = handler if hasattr(handler, "__code__") else type(handler).__call__
    return getattr(called, "__code__", None)


def report(what: str, error: BaseException | None) -> None:
    """Count an error of ours and log it the first time that ``what`` fails; a shortage is one line.

    While an error is being logged on a thread, further ones are only counted, since a logging handler of the host may
    open a stage of ours.
    """
    shortage = _shortage(error)
    counts = shortages if shortage else errors
    counts[what] += 1
    if counts[what] > 1 or getattr(_guarding, "busy", False):
        return
    _guarding.busy = True
    try:
        if shortage:
            logger.warning("otel_rl could not %s (%s); training is not affected", what, shortage)
        else:
            logger.warning(
                "otel_rl could not %s; training is not affected (further errors of this kind are counted)",
                what,
                exc_info=error,
            )
    except Exception:  # the host's logging handlers may fail too
        errors["log"] += 1
    finally:
        _guarding.busy = False


def _shortage(error: BaseException | None) -> str:
    """Return what the machine has too little of, in the system's words; empty if the error is another."""
    if isinstance(error, OSError) and error.errno in SHORT:
        return error.strerror or str(error)
    text = str(error)
    return text if isinstance(error, RuntimeError) and text.endswith("start new thread") else ""


def say(message: str, *values: object) -> None:
    """Log a warning for the user; a failing log handler of the host is only counted."""
    try:
        logger.warning(message, *values)
    except Exception:
        errors["log"] += 1
