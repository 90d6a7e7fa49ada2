"""Numbers that rise from step to step, and those that do not."""

from __future__ import annotations

import pytest

from otel_rl.analysis.series.rising import Rise, rise


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], None),
        ([1.0, 2.0, 3.0, 4.0, 5.0], Rise(1.0, 5.0)),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], Rise(1.5, 5.5)),
        ([1.0, 2.0, 4.0, 3.0, 5.0, 6.0], Rise(1.5, 5.5)),
        ([1.0, 4.0, 3.0, 2.0, 5.0, 6.0], None),
        ([1.0] * 9, None),
        ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], None),
        ([float(one) for one in range(64)], Rise(9.5, 53.5)),
    ],
    ids=["few", "five", "six", "one_out_of_order", "disordered", "constant", "falling", "many"],
)
def test_a_rise_is_in_order(values: list[float], expected: Rise | None) -> None:
    """Its ends are medians."""
    assert expected == rise(values)
