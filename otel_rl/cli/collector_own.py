"""What a Collector that records are sent to lost, and what waits in it, by its own metrics."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from otel_rl.cli.checks import Finding
from otel_rl.config import ConfigurationError
from otel_rl.report.format import count
from otel_rl.sidecar.settings import targets

PORT_VARIABLE: Final = "OTEL_RL_OWN"
"""What the configurations in ``collector/`` read, too."""
PORT: Final = 8888
ANSWER_S: Final = 1.0
MOST_BYTES: Final = 16 << 20
LINE: Final = re.compile(r"(otelcol_\w+?)(?:_total)?(?:\{(.*)\})? (\S+)")
LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
RECORDS: Final = {"spans": "spans", "metric_points": "points", "log_records": "log records"}
OURS: Final = {
    "filter/too_old": "older than 23 h or more than 9 min ahead; look at the clocks",
    "filter/not_storable": "delta, or without a name in ASCII; look at the SDK that wrote them",
}
"""What drops points that Prometheus does not take, and why; other filters drop what somebody wants to be dropped."""


class Sample(NamedTuple):
    """One series of the Collector."""

    name: str
    labels: dict[str, str]
    value: int


def collectors(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Ask every Collector that records are sent to for its own metrics; one that cannot be asked is no fault.

    They are at port 8888 of the endpoint's host, or at that of ``OTEL_RL_OWN``.
    """
    with suppress(ConfigurationError):  # that is said where the endpoints are looked at
        hosts = dict.fromkeys(_host(target.endpoint) for target in targets(environ))
        return [finding for host in hosts if host for finding in _asked(host, environ.get(PORT_VARIABLE) or str(PORT))]
    return []


def _host(endpoint: str) -> str:
    """Return the host of an endpoint, an IPv6 address in brackets; empty where it has none."""
    with suppress(ValueError):
        host = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").hostname or ""
        return f"[{host}]" if ":" in host else host
    return ""


def _asked(host: str, port: str) -> list[Finding]:
    from http.client import HTTPConnection, HTTPException  # the other commands do without it and start faster

    place = f"{host}:{port}"
    samples: list[Sample] = []
    with suppress(OSError, ValueError, HTTPException):
        connection = HTTPConnection(place, timeout=ANSWER_S)
        with closing(connection):
            connection.request("GET", "/metrics")
            samples += _samples(connection.getresponse().read(MOST_BYTES).decode(errors="replace"))
    if not samples:
        why = f"its own metrics are not at {place}; {PORT_VARIABLE} names another port"
        return [Finding("note", "own metrics", f"the Collector was not asked: {why}")]
    found = [*_lost(samples), *_waiting(samples)]
    if not any(finding.state == "wrong" for finding in found):
        found.insert(0, Finding("ok", "own metrics", f"the Collector at {place} has lost nothing since it started"))
    return found


def _samples(text: str) -> Iterator[Sample]:
    for line in text.splitlines():
        if match := LINE.fullmatch(line):
            with suppress(ValueError, OverflowError):
                yield Sample(match[1], dict(LABEL.findall(match[2] or "")), int(float(match[3])))


def _lost(samples: list[Sample]) -> Iterator[Finding]:
    """Return what exporters failed to send, by exporter and reason, and what our filter dropped.

    A failure that is not permanent is tried again, by the exporter or by who sent to the Collector. A Collector that
    does not say of its failures whether they are has no such label.
    """
    failed: Counter[tuple[str, str, str, str]] = Counter()
    dropped: Counter[str] = Counter()
    for name, labels, value in samples:
        kind = RECORDS.get(name.removeprefix("otelcol_exporter_send_failed_"), "")
        if kind and value:
            exporter, reason = labels.get("exporter", ""), labels.get("error_type", "")
            failed[kind, exporter, reason, labels.get("error_permanent", "")] += value
        elif name == "otelcol_processor_filter_datapoints_filtered" and labels.get("filter") in OURS:
            dropped[labels["filter"]] += value
    for (kind, exporter, reason, permanent), number in sorted(failed.items()):
        why = f": {reason}" if reason not in ("", "_OTHER") else ""
        if permanent == "false":
            yield Finding("note", f"{kind} put off", f"{count(number)} times by {exporter}{why}; they are sent again")
        else:
            unsure = "" if permanent else "; its metrics do not say whether they were sent again"
            yield Finding("wrong", f"{kind} lost", f"{count(number)} by {exporter}{why}{unsure}; its log says more")
    for name, number in sorted((+dropped).items()):
        yield Finding("wrong", "points dropped", f"{count(number)} by {name}: {OURS[name]}")


def _waiting(samples: list[Sample]) -> Iterator[Finding]:
    """Return what waits in queues, in the unit of each: bytes in the configurations of ``collector/``."""
    sizes = {
        (labels.get("exporter", ""), labels.get("data_type", ""), name.rpartition("_")[2]): value
        for name, labels, value in samples
        if name in ("otelcol_exporter_queue_size", "otelcol_exporter_queue_capacity")
    }
    for (exporter, signal, kind), value in sorted(sizes.items()):
        if kind == "size" and value:
            of = sizes.get((exporter, signal, "capacity"), 0)
            share = f" of {count(of)}, {value / of:.0%}" if of else ""
            yield Finding("note", f"{signal} in its queue", f"{count(value)}{share}, for {exporter}")
