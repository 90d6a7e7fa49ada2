"""How the text of a setting is read; a ValueError says what is allowed."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from base64 import b64decode
from functools import partial
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import unquote, urlsplit

ProcessKind = Literal["driver", "rank", "worker", "engine"]
"""A driver holds the steps alone, or has workers; a rank holds them together with others. Workers, and engines that
generate, belong to the run of a process that they work for, and emit no step's root."""
MIB = 1 << 20
EXPONENTIAL = "base2_exponential_bucket_histogram"
SHORTEST_KEY = 16
LONGEST_SHOWN = 256
"""The most characters of a value that are printed or logged."""


def boolean(text: str) -> bool:
    values = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in values:
        raise ValueError("true or false")
    return values[text.lower()]


def standard_boolean(text: str) -> bool:
    """Read a switch as OpenTelemetry does, which knows only true and false.

    Raises:
        ValueError: it is neither; the message says what is allowed.
    """
    if text.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return text.lower() == "true"


def _whole(text: str, least: int, allowed: str) -> int:
    """Read a whole number; larger ones become ``sys.maxsize``."""
    is_number = text.isascii() and text.isdigit()
    number = min(int(text), sys.maxsize) if is_number and len(text) <= LONGEST_SHOWN else sys.maxsize
    if not is_number or number < least:
        raise ValueError(allowed)
    return number


count = partial(_whole, least=0, allowed="a whole number, 0 or above")
positive = partial(_whole, least=1, allowed="a whole number above 0")
cap = partial(_whole, least=8 * MIB, allowed=f"a whole number of bytes, at least {8 * MIB} (8 MiB)")
"""The cap of a journal: a segment, which is an eighth of it, has to hold a request of 1 MiB."""


def limit(text: str) -> int:
    """Check a limit that the SDK reads itself; it makes a list of this length."""
    if count(text) == sys.maxsize:
        raise ValueError(f"a whole number below {sys.maxsize}")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def ratio(text: str) -> float:
    if not 0.0 <= _number(text) <= 1.0:
        raise ValueError("a number from 0 to 1")
    return float(text)


def rate(text: str) -> float:
    if not 0.0 < _number(text) < math.inf:
        raise ValueError("a number of operations per second, above 0, such as 989e12")
    return float(text)


def sampler(text: str) -> str:
    base = text.lower().removeprefix("parentbased_")
    if base not in {"always_on", "always_off", "traceidratio"}:
        raise ValueError("always_on, always_off or traceidratio, also with parentbased_ before it")
    return base


def kind(text: str) -> str:
    if text.lower() not in get_args(ProcessKind):
        raise ValueError("driver, rank, worker or engine")
    return text.lower()


def histograms(text: str) -> str:
    if text.lower() not in {EXPONENTIAL, "explicit_bucket_histogram"}:
        raise ValueError(f"{EXPONENTIAL} or explicit_bucket_histogram")
    return text.lower()


def attempt(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:@+-]{0,127}", text):
        raise ValueError("at most 128 letters, digits and _.:@+-, the first a letter or digit")
    return text


def expanded(path: str) -> str:
    """Return a path with ``~`` and ``$NAME`` replaced, as a shell does; unknown names stay as they are."""
    return os.path.expanduser(os.path.expandvars(path))


def expanded_path(text: str) -> Path:
    """Return a user's path, expanded."""
    return Path(expanded(text))


def address(text: str) -> str:
    """Check the address of a web page, which may have the id of a trace in it."""
    if not re.fullmatch(r"https?://[^\s\"'<>]+", text):
        raise ValueError("an `http://` or `https://` address")
    return text


def function(text: str) -> str:
    if not re.fullmatch(r"[\w.]+:\w+", text):
        raise ValueError("the name of a function, as `package.module:function`")
    return text


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [item.partition("=") for item in text.split(",") if item.strip()]
    if not all(equals and key.strip() for key, equals, _ in pairs):
        raise ValueError("key=value pairs with commas between them")
    return tuple((key.strip(), unquote(value.strip())) for key, _, value in pairs)


def by_stage(text: str) -> tuple[tuple[str, float], ...]:
    """Read a number for all stages, under the name "", and numbers for single ones."""
    found = []
    for item in filter(None, map(str.strip, text.split(","))):
        name, _, number = item.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not value > 0:
            raise ValueError("a number above 0, and numbers of single stages, such as `30,rl.checkpoint=1800`")
        found.append((name.strip(), value))
    return tuple(found)


def is_address(text: str) -> bool:
    """Return whether a hook is an address; a command may have one among its arguments."""
    return "://" in text.split(maxsplit=1)[0]


def hook(text: str) -> str:
    """Read a command, or an address to which may be posted."""
    if is_address(text):
        parts = urlsplit(text)
        is_here = parts.scheme == "http" and parts.hostname in {"localhost", "127.0.0.1", "::1"}
        if not (parts.scheme == "https" or is_here) or not parts.hostname or " " in text:
            raise ValueError("a command, an https:// address, or an http:// address of this machine")
    else:
        try:
            shlex.split(text)
        except ValueError:
            raise ValueError("a command whose quotes are closed") from None
    return text


def severity(text: str) -> str:
    return _one_of(text, "alarm", "warning")


def body(text: str) -> str:
    return _one_of(text, "json", "slack")


def secret(text: str) -> str:
    """Check a key of base64, with the prefix that some tools give it."""
    try:
        is_long = len(b64decode(text.removeprefix("whsec_"), validate=True)) >= SHORTEST_KEY
    except ValueError:
        is_long = False
    if not is_long:
        raise ValueError(f"base64 of {SHORTEST_KEY} bytes or more, as `openssl rand -base64 32` prints it")
    return text


def _one_of(text: str, *allowed: str) -> str:
    if text.lower() not in allowed:
        raise ValueError(" or ".join(allowed))
    return text.lower()
