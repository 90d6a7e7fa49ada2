"""Draws the traces of a run as text: equal siblings are one line with their number.

Collectives, requests, and waits of ranks for the driver are left out: only some of them are spans.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.journal.views import SpanView

SAID = v.IDLE_REASON, v.LOGPROB_KIND, v.TRAIN_MODEL, v.SYNC_OPERATION, v.REWARD_FUNCTION
"""Attributes that are drawn."""


class Traces:
    """The spans of a run, by trace and parent."""

    def __init__(self, run: Run) -> None:
        self.spans = [span for span in run.closed_spans(None) if not _is_chosen(span)]
        self.roots: dict[str, list[SpanView]] = defaultdict(list)
        """By name and number of the step."""
        self._below: dict[bytes, list[SpanView]] = defaultdict(list)
        for span in sorted(self.spans, key=lambda span: span.start_ns):
            self._below[span.parent_id].append(span)
            if not span.parent_id:
                self.roots[f"{span.name} {span.attributes.get(v.ITERATION, '')}".strip()].append(span)

    @property
    def orphans(self) -> list[str]:
        """Names of the spans whose parent is not there."""
        known = {span.span_id for span in self.spans}
        return [span.name for span in self.spans if span.parent_id and span.parent_id not in known]

    @property
    def truncated(self) -> list[str]:
        """Names of the spans that did not end by themselves."""
        return [_label(span) for span in self.spans if v.TRUNCATED in span.attributes]

    def below(self, span: SpanView) -> list[SpanView]:
        """Return the children of a span, the earliest first."""
        return self._below[span.span_id]

    def draw(self, root: str) -> str:
        """Return the only trace of this name as text."""
        (span,) = self.roots[root]
        return "\n".join(self._lines([span]))

    def draw_each(self, root: str) -> Counter[str]:
        """Return all traces of this name as text, and how often each is there."""
        return Counter("\n".join(self._lines([span])) for span in self.roots[root])

    def _lines(self, spans: Iterable[SpanView]) -> list[str]:
        drawn = Counter("\n".join([_label(span), *self._lines(self._below[span.span_id])]) for span in spans)
        lines = []
        for text, number in drawn.items():
            first, *others = text.split("\n")
            lines += [f"{number} x {first}" if number > 1 else first, *(f"  {line}" for line in others)]
        return lines


def _is_chosen(span: SpanView) -> bool:
    is_request = span.attributes.get(v.OPERATION, "execute_tool") != "execute_tool"
    return is_request or span.name == v.COMM or span.attributes.get(v.IDLE_REASON) == "controller"


def _label(span: SpanView) -> str:
    said = (str(span.attributes[key]) for key in SAID if key in span.attributes)
    return " ".join((span.name, *said, f"[{span.resource[v.ROLE]}]"))
