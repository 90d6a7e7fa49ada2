"""Spans of a run without their parent: it was open when the run died, is still open, or was not journaled."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.journal.read import OpenView, Run, SpanView
from otel_rl.runs.format import plural
from otel_rl.runs.made_spans import closed_requests
from otel_rl.runs.otlp_json import to_json
from otel_rl.runs.spans import is_container, text


class Orphans:
    """The orphans of a run and the spans that give them parents; read when they are asked for.

    Cost: 4 us a span to count, 7 us to close as well (writing them takes 40 us); memory grows with the parents.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    @cached_property
    def opened(self) -> list[OpenView]:
        """Return the stages that have no end.

        Those that never learnt their trace are left out: no finished span is below them.
        """
        return [stage for stage in self._run.open_stages(with_waits=True) if stage.trace_id]

    @cached_property
    def below(self) -> Counter[bytes]:
        """Return each parent that is no span, with the number of spans below it; 0 if there are only open stages."""
        below = Counter(span.parent_id for span in self._run.spans() if span.parent_id)
        below.update({stage.parent_id: 0 for stage in self.opened if stage.parent_id})
        for span in self._run.spans():
            below.pop(span.span_id, None)
        return below

    @cached_property
    def closed(self) -> list[SpanView]:
        """Return a span for each stage in which its process died, and for each root that was not journaled."""
        dead = [stage.closed() for stage in self.opened if not stage.alive]
        return dead + ([] if self._run.alive() else self._roots(dead))

    def lines(self) -> Iterator[tuple[str, int]]:
        """Return the closed spans as lines, and no bytes of the journal."""
        for request in closed_requests(self.closed):
            yield to_json("traces", request.payload), 0

    def remarks(self, are_closed: bool) -> list[str]:
        """Return sentences on what was added, and on how many spans hang below what is not there."""
        dead = {stage.span_id for stage in self.opened if not stage.alive}
        alive = {stage.span_id for stage in self.opened if stage.alive}
        added = self.closed if are_closed else []
        below = self.below + Counter(span.parent_id for span in added if span.parent_id in self.below)
        for span in added:
            del below[span.span_id]
        return [
            *([f"added {plural(len(added), 'span')} for stages that never ended ({v.TRUNCATED})"] if added else []),
            *_hanging(below, dead, "stage", "left open when the run died; --close-open adds them as spans"),
            *_hanging(below, alive, "stage", "still open, as the run goes on"),
            *_hanging(below, below.keys() - dead - alive, "parent", "missing from the journal"),
        ]

    def _roots(self, dead: Iterable[SpanView]) -> list[SpanView]:
        """Make the roots that rank 0 had not journaled when it was killed, while others had journaled their spans."""
        missing = self.below.keys() - {span.span_id for span in dead}
        containers: defaultdict[bytes, list[SpanView]] = defaultdict(list)
        for span in (*self._run.spans((v.ITERATION, v.LOOP_NAME)), *dead):
            if span.parent_id in missing and is_container(span.name):
                containers[span.parent_id].append(span)
        return [_root(group) for group in containers.values()]


def _root(containers: list[SpanView]) -> SpanView:
    """Make the root of a trace from what the ranks journaled below it."""
    one = containers[0]
    known = {key: one.attributes[key] for key in (v.ITERATION, v.LOOP_NAME) if key in one.attributes}
    setup = ids.root_id(text(one.resource, v.ATTEMPT_ID), v.SETUP, 0).to_bytes(8, "big")
    return one._replace(
        name=v.LOOP if known else v.SETUP if one.parent_id == setup else v.TEARDOWN,
        span_id=one.parent_id,
        parent_id=b"",
        start_ns=min(span.start_ns for span in containers),
        end_ns=max(span.end_ns for span in containers),
        status_code=0,
        attributes={**known, v.TRUNCATED: True},
    )


def _hanging(below: Mapping[bytes, int], parents: Iterable[bytes], noun: str, state: str) -> list[str]:
    numbers = [below[parent] for parent in parents if below.get(parent)]
    verb = "hangs" if sum(numbers) == 1 else "hang"
    return [f"{plural(sum(numbers), 'span')} {verb} below {plural(len(numbers), noun)} {state}"] if numbers else []
