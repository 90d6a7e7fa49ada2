"""The tables of points and log records, as they were journaled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.query.columns_as_arrays import Arrays, maps, numbers, objects
from otel_rl.records import Attributes
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import text


def points(run: Run) -> Arrays:
    """Return the points of a run. Cost: 4 us a point."""
    found = list(run.points())
    is_histogram = [point.kind == "histogram" for point in found]
    pairs = list(zip(found, is_histogram, strict=True))
    return {
        "metric": objects(point.name for point in found),
        "kind": objects(point.kind for point in found),
        "unit": objects(point.unit for point in found),
        "time": nanoseconds([point.time_ns for point in found]),
        "value": numbers(None if of_many else point.value for point, of_many in pairs),
        "count": numbers((point.count if of_many else None for point, of_many in pairs), int),
        "sum": numbers(point.sum if of_many else None for point, of_many in pairs),
        **maps("labels", [point.attributes for point in found]),
        **processes([point.resource for point in found]),
    }


def logs(run: Run) -> Arrays:
    """Return the log records of a run. Cost: 10 us a record."""
    found = list(run.logs())
    return {
        **processes([log.resource for log in found]),
        "time": nanoseconds([log.time_ns for log in found]),
        "event": objects(log.event_name for log in found),
        "severity": np.array([log.severity for log in found], np.int64),
        "body": objects(log.body for log in found),
        "trace_id": objects(log.trace_id.hex() for log in found),
        "span_id": objects(log.span_id.hex() for log in found),
        **maps("attributes", [log.attributes for log in found]),
    }


def processes(resources: Sequence[Attributes]) -> Arrays:
    """Return the columns that say of which process each record is."""
    known = {id(one): (text(one, v.ATTEMPT_ID), rank_of(one)) for one in resources}
    rows = [known[id(one)] for one in resources]
    return {
        "attempt": objects(attempt for attempt, _ in rows),
        "role": objects(rank.role for _, rank in rows),
        "rank": np.array([rank.rank for _, rank in rows], np.int64),
    }


def nanoseconds(times: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return times; one that is none, beyond the year 2262, wraps."""
    return np.array(times, np.uint64).astype(np.int64)
