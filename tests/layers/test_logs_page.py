"""The page on log records names every attribute that a line or a record may have."""

from __future__ import annotations

import re
from pathlib import Path

from otel_rl import vocabulary as v
from otel_rl.layers import sample_records, step_lines

PAGE = Path(__file__).parent.parent.parent / "docs" / "logs.md"
OF_LINES = (
    *step_lines.WANTED, *step_lines.COUNTED, v.LOOP_NAME, v.ITERATION, v.LOOP_RESTART_OF, v.STEP_SECONDS, v.ELAPSED,
    v.ERROR_TYPE, v.RESPONSE_QUANTILES, v.UPDATES, v.UPDATES_SKIPPED,
)  # fmt: skip
OF_SAMPLES = (
    *sample_records.FIELDS.values(), *sample_records.TEXTS.values(), v.SAMPLE_USED, v.SAMPLE_DISCARDED, v.SAMPLE_KEPT,
)  # fmt: skip


def test_the_page_names_every_attribute() -> None:
    """A name that begins with a dot goes on from the one before it."""
    named: set[str] = set()
    for line in PAGE.read_text("utf-8").splitlines():
        before = ""
        for name in re.findall(r"`([a-z_.]+[a-z])(?:\.[A-Z]+)?`", line):
            before = f"{before.rpartition('.')[0]}{name}" if name.startswith(".") else name
            named.add(before)
    assert set() == {*OF_LINES, *OF_SAMPLES} - named
