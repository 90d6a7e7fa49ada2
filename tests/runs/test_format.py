"""Numbers as people read them."""

from __future__ import annotations

import math

from otel_rl.runs.format import count, listed, number, percent, plural, printable, seconds, significant, size, times


def test_durations_have_the_unit_that_fits() -> None:
    """Three digits, from microseconds to days."""
    values = (0.0, 0.00084, 0.0123, 0.9996, 4.56, 99.96, 3599.6, 7500.0, 529_200.0, math.inf)
    expected = ["0 us", "840 us", "12.3 ms", "1.00 s", "4.56 s", "1 min 40 s", "1 h 00 min", "2 h 05 min", "6 d 3 h"]
    assert [*expected, "-"] == [seconds(value) for value in values]


def test_sizes_have_the_unit_that_fits() -> None:
    """Powers of 1024."""
    assert ["512 B", "1.00 KiB", "1.50 GiB", "2048 TiB"] == [size(value) for value in (512, 1024, 1.5 * 2**30, 2**51)]


def test_shares_multiples_and_counts() -> None:
    """Short, and never a false zero digit."""
    assert ["0.4 %", "10 %", "61 %"] == [percent(value) for value in (0.004, 0.0996, 0.61)]
    assert ["1.4 times", "120 times"] == [times(value) for value in (1.41, 120.0)]
    assert ["12,345", "1 step", "2 steps"] == [count(12345), plural(1, "step"), plural(2, "step")]


def test_numbers_keep_their_sign_and_size() -> None:
    """Small and large ones are written with exponents, absent ones as a dash."""
    values = (-0.5833333, 0.0, 1e-6, 123456.0, None, math.nan)
    assert ["-0.5833", "0", "1e-06", "1.23e+05", "-", "-"] == [number(value) for value in values]


def test_texts_from_outside_cannot_order_a_terminal_about() -> None:
    """Control characters, marks of text direction, half characters and line ends are replaced, all else is kept."""
    odd = ["\x1b[2J", "\x9b1m", "a\u202eb", "a\nb\x7f", "\ud800", "\u2028"]
    assert ["\ufffd[2J", "\ufffd1m", "a\ufffdb", "a\ufffdb\ufffd", "\ufffd", "\ufffd"] == [
        printable(one) for one in odd
    ]
    plain = "rl.sample [/x] grüß 日本 \N{PARTY POPPER}\u00a0"
    assert plain == printable(plain)


def test_names_are_listed_up_to_a_number() -> None:
    """One more than three is named as well: to say `1 more` takes as much room."""
    names = ["a", "b", "c", "d", "e"]
    expected = ["", "a", "a and b", "a, b and c", "a, b, c and d", "a, b, c and 2 more"]
    assert expected == [listed(names[:length]) for length in range(6)]


def test_a_number_keeps_so_many_digits() -> None:
    """Whatever its size; what cannot be rounded stays."""
    values = [96_543.0, -0.012345, 0.0, 5e-324, 1.7976931348623157e308, -1.797e308, 9.999]
    expected = [96_500.0, -0.0123, 0.0, 5e-324, 1.7976931348623157e308, -1.797e308, 10.0]
    assert expected == [significant(value, 3) for value in values]
    assert math.isnan(significant(math.nan, 3))
    assert [math.inf, -math.inf] == [significant(value, 3) for value in (math.inf, -math.inf)]
