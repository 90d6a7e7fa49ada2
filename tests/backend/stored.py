"""Spans as the journal, Jaeger and Tempo have them, each as OTLP JSON, in a form that can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.runs.otlp_json import lines


def journaled(run: Run) -> dict[str, dict[str, dict[str, Any]]]:
    """What the journal holds, by trace and span id."""
    return by_trace(spans_of(json.loads(line) for line, _ in lines(run)))


def spans_of(documents: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The spans of OTLP JSON documents, each with its resource."""
    for document in documents:
        for part in document.get("resourceSpans", []):
            for scope in part["scopeSpans"]:
                for span in scope["spans"]:
                    yield {**span, "resource": part["resource"]}


def by_trace(spans: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Group spans by trace and id."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for span in spans:
        found.setdefault(span["traceId"], {})[span["spanId"]] = span
    return found


def facts(span: dict[str, Any]) -> dict[str, Any]:
    """What of a span must be the same everywhere, however a server orders or abbreviates it."""
    resource = attributes(span["resource"].get("attributes", []))
    return {
        "parent": span.get("parentSpanId", ""),
        "name": span["name"],
        "times": (int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])),
        "attributes": attributes(span.get("attributes", [])),
        "events": sorted(
            (event["name"], int(event["timeUnixNano"]), ordered(event)) for event in span.get("events", [])
        ),
        "links": sorted((link["traceId"], link["spanId"], ordered(link)) for link in span.get("links", [])),
        "status": span.get("status", {}).get("code", 0) or 0,
        "rank": (resource.get(v.RANK), resource.get(v.RUN_ID), resource.get(v.SERVICE_INSTANCE_ID)),
    }


def ordered(holder: dict[str, Any]) -> str:
    """The attributes of an event or a link, as text that can be sorted."""
    return str(sorted(attributes(holder.get("attributes", [])).items()))


def attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Attributes as a mapping; JSON writes 64-bit integers as text."""
    return {pair["key"]: value(pair["value"]) for pair in pairs}


def value(given: dict[str, Any]) -> Any:
    """One attribute's value."""
    ((kind, inner),) = given.items() if given else (("none", None),)
    if kind == "intValue":
        return int(inner)
    if kind == "arrayValue":
        return tuple(value(item) for item in inner.get("values", []))
    return inner
