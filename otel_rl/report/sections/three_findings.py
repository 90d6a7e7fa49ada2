"""The findings at the head of the report: TIME, LEARN and HEALTH."""

from __future__ import annotations

from typing import Final

from otel_rl.report.data.finding import Finding
from otel_rl.report.data.report import Report
from otel_rl.report.section import Block, Line, Paragraph, Section, Severity
from otel_rl.runs.format import clock

SHOWN_NOTES: Final = ("long_step", "starting_agents")
"""Notes that follow the first finding, on the screen, too: what its numbers leave out, or have only once."""
SEVERITIES: Final[dict[str, Severity]] = {"alarm": "alarm", "warning": "warning", "note": ""}


def _blocks(report: Report) -> list[Block]:
    return [
        Paragraph(label, _lines(found[0]), [_lines(one)[0] for one in found[1:] if _is_shown(one)])
        for label, found in _by_label(report).items()
        if found
    ]


def _is_shown(finding: Finding) -> bool:
    return finding.severity != "note" or finding.rule in SHOWN_NOTES


def _lines(finding: Finding) -> list[Line]:
    advice = [Line(f"Next: {finding.advice}")] if finding.advice else []
    return [Line(finding.sentence + _since(finding), SEVERITIES[finding.severity]), *advice]


def _since(finding: Finding) -> str:
    if finding.told_ns is None:
        return ""
    step = "" if finding.told_step is None else f"step {finding.told_step}, "
    return f" (told since {step}{clock(finding.told_ns)})"


def _by_label(report: Report) -> dict[str, list[Finding]]:
    return {"TIME": report.findings.time, "LEARN": report.findings.learn, "HEALTH": report.findings.health}


def _all_blocks(report: Report) -> list[Block]:
    return [
        Paragraph(label if place == 0 else "", [*_lines(one), Line(f"({one.severity}: {one.rule})", "note")])
        for label, found in _by_label(report).items()
        for place, one in enumerate(found)
    ]


FINDINGS: Final = Section(name="findings", blocks=_blocks)
ALL_FINDINGS: Final = Section(title="All findings", blocks=_all_blocks)
