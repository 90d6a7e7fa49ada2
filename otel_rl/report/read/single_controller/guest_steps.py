"""Ranks that only get calls: in a step of their driver's each gets a container of its own, with the driver's bounds.

A single controller holds the steps. What its ranks record lies below its stages, without a container of theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.intervals import Interval, clip, merge
from otel_rl.journal.read import Journal, OpenView, Run, SpanView
from otel_rl.process.identity import TRAINER
from otel_rl.records import Value
from otel_rl.report.read.memory_readings import KINDS
from otel_rl.runs.spans import integer, is_container, nanoseconds, text

DRIVER: Final = "driver"
"""The role of a process that holds the steps and calls everybody else."""
SAYS_DRIVER: Final = b"\n%c%b\x12%c\n%c%b" % (
    len(v.ROLE),
    v.ROLE.encode(),
    len(DRIVER) + 2,
    len(DRIVER),
    DRIVER.encode(),
)
"""That role in a resource, as OTLP has it."""
FIRST_BYTES: Final = 1 << 20
"""So much of a journal is read to find it."""
TRAINING: Final = frozenset((v.TRAIN, v.LOGPROB, v.VALUE, v.FORWARD))
"""Who has one of these stages holds a device: it is a rank."""
CONTROLLER: Final = "controller"
LEAST_WAIT_NS: Final = 1_000_000
"""Calls that follow each other faster have no wait between them."""
MEMORY_ENDS: Final = frozenset(keys.ends[1] for keys in KINDS)
KEPT: Final = (v.ITERATION, v.LOOP_NAME, v.LOOP_RESTART_OF, v.TRUNCATED)


def drivers_first(run: Run) -> Run:
    """Let the journals of drivers be read first: what the others did in a step is folded by its bounds."""
    drivers = drivers_of(run)
    others = [journal for journal in run.journals if journal not in drivers]
    return Run(run.path, [*drivers, *others]) if drivers else run


def drivers_of(run: Run) -> list[Journal]:
    return [journal for journal in run.journals if _is_of_driver(journal)]


def _is_of_driver(journal: Journal) -> bool:
    """Return whether a driver writes a journal; its name says trainer if it was there before that was known."""
    writer = journal.identity.writer
    if not writer.startswith(f"{TRAINER}-0-"):
        return writer.startswith(f"{DRIVER}-")
    first = next((segment.path for segment in journal.segments if segment.signal == "traces"), None)
    with suppress(OSError):
        if first is not None:
            with first.open("rb") as file:
                return SAYS_DRIVER in file.read(FIRST_BYTES)
    return False


def is_driver(span: SpanView | OpenView) -> bool:
    return text(span.resource, v.ROLE) == DRIVER


def with_container(spans: Sequence[SpanView], driver: SpanView) -> list[SpanView]:
    """Put what a rank recorded in one trace into a container of its own, and the waits between its calls beside it."""
    container = _container(spans, driver)
    known = {span.span_id for span in spans}
    inside = [span if span.parent_id in known else span._replace(parent_id=container.span_id) for span in spans]
    inside = _without_mini_batches(inside)
    waits = _waits(container, inside) if v.ITERATION in container.attributes else ()
    return [*inside, *waits, container]


def _container(spans: Sequence[SpanView], driver: SpanView) -> SpanView:
    first, resource = spans[0], spans[0].resource
    begin_ns, end_ns = driver.start_ns, driver.end_ns
    if v.ITERATION not in driver.attributes:  # set-up: the process began later
        created_ns = first.journal.identity.created_ns or begin_ns
        begin_ns = max(begin_ns, min(created_ns, *(span.start_ns for span in spans), end_ns))
    if text(resource, v.HOST_NAME) != text(driver.resource, v.HOST_NAME):  # another clock: by how much is unknown
        early_ns = max(0, begin_ns - min(span.start_ns for span in spans))
        late_ns = max(0, max(span.end_ns for span in spans) - end_ns)
        begin_ns, end_ns = begin_ns - early_ns + late_ns, end_ns - early_ns + late_ns
    return driver._replace(
        name=f"{v.CONTAINER}{integer(resource, v.RANK)}",
        span_id=b"guest" + first.span_id,
        start_ns=begin_ns,
        end_ns=max(begin_ns, end_ns),
        attributes={key: driver.attributes[key] for key in KEPT if key in driver.attributes} | _memory(spans),
        status_code=0,
        resource=resource,
        journal=first.journal,
    )


def _memory(spans: Sequence[SpanView]) -> dict[str, Value]:
    """Return the last readings of memory, as a container has those at its end."""
    found: dict[str, Value] = {}
    for span in sorted(spans, key=lambda span: span.end_ns):
        found |= {key: span.attributes[key] for key in MEMORY_ENDS if key in span.attributes}
    return found


def _without_mini_batches(spans: Sequence[SpanView]) -> list[SpanView]:
    """Let what is in a mini-batch lie in the stage around it, as it does where these are no stages."""
    batches: defaultdict[bytes, list[SpanView]] = defaultdict(list)
    for span in spans:
        if span.name == v.MINI_BATCH:
            batches[span.parent_id].append(span)
    around = {batch.span_id: parent for parent, of_one in batches.items() for batch in of_one}
    kept = [span for span in spans if span.span_id not in around]
    for index, span in enumerate(kept):
        if span.parent_id in around:
            kept[index] = span._replace(parent_id=around[span.parent_id])
        if span.span_id in batches:
            comm = _comm([span, *batches[span.span_id]])
            kept[index] = span._replace(attributes={**span.attributes, **comm})
    return kept


def _comm(spans: Iterable[SpanView]) -> dict[str, Value]:
    """Return the sums of collectives that spans have directly inside; nothing if they were not summed up."""
    known = [span.attributes for span in spans if v.COMM_TIME in span.attributes]
    if not known:
        return {}
    times_ns = (nanoseconds(one[v.COMM_TIME]) or 0 for one in known)
    return {v.COMM_COUNT: sum(integer(one, v.COMM_COUNT) for one in known), v.COMM_TIME: sum(times_ns) / 1e9}


def _waits(container: SpanView, spans: Sequence[SpanView]) -> Iterator[SpanView]:
    """Return the time between two calls as waits for the driver, as far as the rank did not record it so."""
    for begin_ns, end_ns in _between(container, spans):
        if end_ns - begin_ns >= LEAST_WAIT_NS:
            yield container._replace(
                name=v.IDLE,
                span_id=b"wait%d" % begin_ns,
                parent_id=container.span_id,
                start_ns=begin_ns,
                end_ns=end_ns,
                attributes={v.IDLE_REASON: CONTROLLER},
            )


def _between(outer: SpanView, spans: Iterable[SpanView]) -> Iterator[Interval]:
    """Return the time of a span in none of those directly in it."""
    reached_ns = outer.start_ns
    inside = merge((span.start_ns, span.end_ns) for span in spans if span.parent_id == outer.span_id)
    for begin_ns, end_ns in [*clip(inside, outer.start_ns, outer.end_ns), (outer.end_ns, outer.end_ns)]:
        if begin_ns > reached_ns:
            yield reached_ns, begin_ns
        reached_ns = end_ns


def unwrapped(container: SpanView, inside: Sequence[SpanView]) -> tuple[SpanView, list[SpanView]]:
    """Return a container and its stages without the updates around some, so that ranks are compared in each.

    What an update does in none of these stays a stage of the update's name, in as many parts.
    """
    updates = [span for span in inside if span.name == v.TRAIN and span.parent_id == container.span_id]
    known = {span.span_id for span in updates}
    rest = [
        span._replace(parent_id=container.span_id) if span.parent_id in known else span
        for span in inside
        if span.span_id not in known
    ]
    parts = [
        span._replace(span_id=b"rest%d" % begin_ns, start_ns=begin_ns, end_ns=end_ns, attributes={})
        for span in updates
        for begin_ns, end_ns in _between(span, inside)
    ]
    return container._replace(attributes={**container.attributes, **_comm(updates)}), rest + parts


def waits_of(container: SpanView, inside: Sequence[SpanView]) -> tuple[Interval, ...]:
    """Return the waits directly in a step: those of a driver for rollouts, those of a rank for its driver."""
    reason = "queue" if is_driver(container) else CONTROLLER
    return tuple(
        merge(
            (span.start_ns, span.end_ns)
            for span in inside
            if span.parent_id == container.span_id
            and (span.attributes.get(v.IDLE_REASON) == reason if span.name == v.IDLE else span.name == v.SAMPLE)
        )
    )


def has_container(spans: Sequence[SpanView]) -> bool:
    return any(is_container(span.name) for span in spans)
