"""What a Collector that records are sent to lost, and what waits in it, by its own metrics."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from otel_rl.cli.checks import Check
from otel_rl.config import ConfigurationError
from otel_rl.runs.format import count
from otel_rl.sidecar.settings import targets

PORT_VARIABLE: Final = "OTEL_RL_OWN"
"""The configurations in ``collector/`` read it, too."""
PORT: Final = 8888
ANSWER_S: Final = 1.0
MOST_BYTES: Final = 16 << 20
LINE: Final = re.compile(r"(otelcol_\w+?)(?:_total)?(?:\{(.*)\})? (\S+)")
LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
RECORDS: Final = {"spans": "spans", "metric_points": "points", "log_records": "log records"}
OURS: Final = {
    "filter/too_old": "older than 23 h or more than 9 min ahead; check the clocks",
    "filter/not_storable": "delta, or without a name in ASCII; check the SDK that wrote them",
}
"""What drops points that Prometheus refuses, and why."""


class CollectorSeries(NamedTuple):
    """One series of the Collector."""

    name: str
    labels: dict[str, str]
    value: int


def collectors(environ: Mapping[str, str] = os.environ) -> list[Check]:
    """Ask every Collector that records are sent to for its own metrics; one that cannot be asked is no fault.

    They are at port 8888 of the endpoint's host, or at that of ``OTEL_RL_OWN``.
    """
    hosts: list[str] = []
    with suppress(ConfigurationError, ValueError):  # the check of the endpoints says it
        parts = [urlsplit(one.endpoint if "//" in one.endpoint else f"//{one.endpoint}") for one in targets(environ)]
        hosts += [f"[{part.hostname}]" if ":" in (part.hostname or "") else part.hostname or "" for part in parts]
    port = environ.get(PORT_VARIABLE) or str(PORT)
    return [finding for host in dict.fromkeys(hosts) for finding in _asked(f"{host}:{port}")]


def _asked(address: str) -> list[Check]:
    from http.client import HTTPConnection, HTTPException  # the other commands start faster without it

    series: list[CollectorSeries] = []
    with suppress(OSError, ValueError, HTTPException):
        connection = HTTPConnection(address, timeout=ANSWER_S)
        connection.request("GET", "/metrics")
        series += _series(connection.getresponse().read(MOST_BYTES).decode(errors="replace"))
        connection.close()
    if not series:
        why = f"its own metrics are not at {address}; {PORT_VARIABLE} names another port"
        return [Check("note", "own metrics", f"the Collector was not asked: {why}")]
    found = [*_lost(series), *_queued(series)]
    if not any(finding.state == "wrong" for finding in found):
        found.insert(0, Check("ok", "own metrics", f"the Collector at {address} has lost nothing since it started"))
    return found


def _series(text: str) -> Iterator[CollectorSeries]:
    for line in text.splitlines():
        if match := LINE.fullmatch(line):
            with suppress(ValueError, OverflowError):
                yield CollectorSeries(match[1], dict(LABEL.findall(match[2] or "")), int(float(match[3])))


def _lost(series: list[CollectorSeries]) -> Iterator[Check]:
    """Return what exporters failed to send and what our filters dropped.

    A failure that is not permanent is tried again; older Collectors do not report which it is.
    """
    for name, labels, value in sorted(series, key=str):
        kind = RECORDS.get(name.removeprefix("otelcol_exporter_send_failed_"), "")
        if kind and value:
            reason, permanent = labels.get("error_type", ""), labels.get("error_permanent", "")
            by = f"by {labels.get('exporter', '')}" + (f": {reason}" if reason not in ("", "_OTHER") else "")
            if permanent == "false":
                yield Check("note", f"{kind} put off", f"{count(value)} times {by}; they are sent again")
            else:
                unsure = "" if permanent else "; its metrics do not say whether they were sent again"
                yield Check("wrong", f"{kind} lost", f"{count(value)} {by}{unsure}; its log says more")
        elif name == "otelcol_processor_filter_datapoints_filtered" and labels.get("filter") in OURS and value:
            filtered = labels["filter"]
            yield Check("wrong", "points dropped", f"{count(value)} by {filtered}: {OURS[filtered]}")


def _queued(series: list[CollectorSeries]) -> Iterator[Check]:
    """Return what waits in queues, in the unit of each: bytes in the configurations of ``collector/``."""
    sizes = {
        (labels.get("exporter", ""), labels.get("data_type", ""), name.rpartition("_")[2]): value
        for name, labels, value in series
        if name in ("otelcol_exporter_queue_size", "otelcol_exporter_queue_capacity")
    }
    for (exporter, signal, kind), value in sorted(sizes.items()):
        if kind == "size" and value:
            of = sizes.get((exporter, signal, "capacity"), 0)
            share = f" of {count(of)}, {value / of:.0%}" if of else ""
            yield Check("note", f"{signal} in its queue", f"{count(value)}{share}, for {exporter}")
