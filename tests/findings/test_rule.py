"""Sentences of rules."""

from __future__ import annotations

from otel_rl.report.findings.rule import LONGEST, say


def test_a_long_text_is_cut_in_its_middle() -> None:
    """A stage may have a prompt for its name; numbers are written whole."""
    text = say("{stage} takes {share:percent}.", {"stage": "a" * 9_000 + "z", "share": 0.5})
    assert (LONGEST + len(" takes 50 %."), "az takes 50 %.") == (len(text), text[-14:])
