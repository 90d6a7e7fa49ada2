"""Numbers as people read them."""

from __future__ import annotations

import math
import sys
import unicodedata
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from rich.cells import cell_len

UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that order a terminal about: control characters, text direction, half characters, line ends."""
ELLIPSIS: Final = "…"
TWO_DIGITS: Final = 0.1
"""Two digits say no more than that of a number."""
RECORDS: Final = {"traces": "span", "metrics": "metric point", "logs": "log record"}
"""What a record is called, by its signal."""
BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def printable(text: str) -> str:
    """Replace the characters with which a text from outside could order a terminal about."""
    if text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(one) in UNPRINTABLE else one for one in text)


def shorten(text: str, width: int) -> str:
    """Cut a text in its middle to a number of cells: of many long names the end distinguishes them."""
    if cell_len(text) <= width:
        return text
    tail_width = (width - 1) // 2
    head, tail = text[: width - 1 - tail_width], text[len(text) - tail_width :]
    while cell_len(head) > width - 1 - tail_width:
        head = head[:-1]
    while cell_len(tail) > tail_width:
        tail = tail[1:]
    return f"{head}{ELLIPSIS}{tail}"


def seconds(value: float) -> str:
    """Write a duration with three digits and the unit that fits: `840 us`, `12.3 ms`, `2 h 05 min`, `6 d 3 h`."""
    if not math.isfinite(value):
        return "-"
    if value < 0.9995e-3:
        return f"{value * 1e6:.0f} us"
    if value < 0.9995:
        return f"{_three_digits(value * 1e3)} ms"
    if value < 99.95:
        return f"{_three_digits(value)} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 100:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def size(value: float) -> str:
    power = 0
    while abs(value) >= 999.5 and power < len(BYTE_UNITS) - 1:
        value /= 1024
        power += 1
    return f"{value:.0f} {BYTE_UNITS[0]}" if power == 0 else f"{_three_digits(value)} {BYTE_UNITS[power]}"


def percent(share: float) -> str:
    value = share * 100
    return f"{value:.1f} %" if 0 < value < 9.95 else f"{value:.0f} %"


def times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 99.95 else f"{ratio:.0f} times"


def number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}"
    return f"{value:.3g}"


def brief(value: float) -> str:
    """Write three digits, thousands in full: `0.0123`, `7,150`, `1.2e+06`."""
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e6 else f"{value + 0.0:.3g}"


def significant(value: float, digits: int) -> float:
    """Round a number to so many digits; zero, infinite and the very largest ones stay as they are."""
    exponent = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else sys.float_info.max_10_exp
    return round(value, digits - 1 - exponent) if exponent < sys.float_info.max_10_exp else value


def count(value: float) -> str:
    return f"{value:,.0f}"


def plural(value: int, noun: str) -> str:
    return f"{count(value)} {noun}" if value == 1 else f"{count(value)} {noun}s"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Write names one after the other: `a`, `a and b`, `a, b, c and 2 more`."""
    shown = [*names[:most], f"{len(names) - most} more"] if len(names) > most + 1 else list(names)
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def about(value: float, error: float | None, write: Callable[[float], str], most: float = math.inf) -> str:
    """Write an estimate with the digits that its relative error leaves: `~12 ms`; with one if the error is unknown.

    Args:
        value: the estimate.
        error: relative.
        write: writes a number with its unit.
        most: the largest that it can be.
    """
    digits = 2 if error is not None and error < TWO_DIGITS else 1
    rounded = min(significant(value, digits), most)
    number, space, unit = write(rounded).partition(" ")
    return f"~{number.rstrip('0').rstrip('.') if '.' in number else number}{space}{unit}"


def clock(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9).strftime("%Y-%m-%d %H:%M:%S")


def _three_digits(value: float) -> str:
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}"
