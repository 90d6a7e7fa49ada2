"""Numbers of a comparison as people read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_rl.compare.data import ComparedNumber, Group
from otel_rl.runs.format import brief, percent, seconds, size

WRITE: Final[dict[str, Callable[[float], str]]] = {"s": seconds, "By": size, "1": percent}
WORDS: Final[dict[Group, tuple[str, str]]] = {
    "step": ("slower", "faster"),
    "stage": ("slower", "faster"),
    "rank": ("slower", "faster"),
    "throughput": ("slower", "faster"),
    "request": ("slower", "faster"),
    "memory": ("larger", "smaller"),
    "learning": ("worse", "better"),
    "trouble": ("worse", "better"),
}
STABILITY: Final = ("less stable", "more stable")


def word(number: ComparedNumber) -> str:
    """Return what became of a number: `slower`; empty if nothing."""
    if number.verdict not in ("worse", "better"):
        return ""
    is_stability = number.name.endswith(".jitter")
    return (STABILITY if is_stability else WORDS[number.group])[number.verdict == "better"]


def write(number: ComparedNumber, value: float | None) -> str:
    if value is None:
        return "-"
    text = WRITE.get(number.unit, brief)(abs(value))
    return f"-{text}" if value < 0 else text


def signed(share: float) -> str:
    """Write a change: `+5.2 %`; of many times `x 12`."""
    if share >= 9.995:
        return f"x {1 + share:.0f}"
    return f"{'+' if share >= 0 else '-'}{percent(abs(share))}"


def write_change(number: ComparedNumber, difference: float | None) -> str:
    """Write a difference as a share of the first run's level, or as it is if that is 0."""
    if difference is None:
        return "-"
    if number.a:
        return signed(difference / abs(number.a))
    return f"{'+' if difference >= 0 else ''}{write(number, difference)}"


def write_limits(number: ComparedNumber) -> str:
    if number.low is None or number.high is None:
        return ""
    return f"{write_change(number, number.low)} to {write_change(number, number.high)}"


def write_difference(number: ComparedNumber) -> str:
    """Write all of a number: `13.0 ms to 15.7 ms, +21 % (+18 % to +24 %)`."""
    limits = write_limits(number)
    levels = f"{write(number, number.a)} to {write(number, number.b)}"
    return f"{levels}, {write_change(number, number.difference)}{f' ({limits})' if limits else ''}"
