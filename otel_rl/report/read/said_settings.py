"""The settings of a run, as its training said them in set-up."""

from __future__ import annotations

from otel_rl import vocabulary as v
from otel_rl.report.fold.folded_spans import FoldedSpans
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import number


def settings(found: FoldedSpans) -> dict[str, float]:
    """Return the settings that the first training rank of the newest attempt said in its set-up."""
    spans = found.phases.get(next(reversed(found.attempts), ""), [])
    for span in sorted(spans, key=lambda span: rank_of(span.resource)):
        known = {key.removeprefix(v.SETTINGS): number(span.attributes, key) for key in v.ALL_SETTINGS}
        said = {key: value for key, value in known.items() if value is not None}
        if said:
            return said
    return {}
