"""The settings of a run, as its training said them in set-up."""

from __future__ import annotations

from math import isfinite

from otel_rl import vocabulary as v
from otel_rl.report.read.collect import FoldedSpans
from otel_rl.report.read.span_attributes import rank_of


def settings(found: FoldedSpans) -> dict[str, float]:
    """Return the settings that the first training rank of the newest attempt said in its set-up."""
    spans = found.phases.get(next(reversed(found.attempts), ""), [])
    for span in sorted(spans, key=lambda span: rank_of(span.resource)):
        known = {key: span.attributes.get(key) for key in v.ALL_SETTINGS}
        said = {
            key.removeprefix(v.SETTINGS): float(value)
            for key, value in known.items()
            if isinstance(value, (int, float)) and isfinite(value)
        }
        if said:
            return said
    return {}
