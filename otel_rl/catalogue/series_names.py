"""The names that Prometheus gives to metrics received by OTLP, with ``UnderscoreEscapingWithSuffixes``."""

from __future__ import annotations

import re
from typing import Final

from otel_rl.vocabulary import LOOP, METRICS, STAGES, Metric

UNITS: Final = {"s": "seconds", "By": "bytes", "J": "joules", "W": "watts", "Cel": "celsius", "Hz": "hertz", "1": ""}
"""Units of UCUM; other units stay as they are, and those in braces count as none."""
PER: Final = {"s": "second"}
CLASSIC: Final = ("bucket", "sum", "count")
STEPS: Final = "a step as each rank has it; only rank 0's becomes the root span"


def series_name(row: Metric) -> str:
    """Return the name of a metric's series; an exponential histogram becomes a native one, which is one series."""
    words = [word for word in re.split(r"[^a-zA-Z0-9:]+", row.name) if word]
    unit, _, per = row.unit.partition("/")
    unit = "" if "{" in unit else UNITS.get(unit, unit)
    words += [word for word in (unit, f"per_{PER.get(per, per)}" if per else "") if word and word not in words]
    if row.kind == "counter":
        words = [*(word for word in words if word != "total"), "total"]
    if row.kind == "gauge" and row.unit == "1":
        words = [*(word for word in words if word != "ratio"), "ratio"]
    return "_".join(words)


def label_name(key: str) -> str:
    return key.replace(".", "_")


def emitted() -> dict[str, Metric]:
    """Return every metric of the vocabulary by name, with the histograms of the stages."""
    durations = [
        Metric(row.duration, "histogram", "s", STEPS if row.name == LOOP else row.meaning, row.source)
        for row in STAGES.values()
        if row.duration
    ]
    return {**METRICS, **{row.name: row for row in durations}}


def series_of(row: Metric) -> tuple[str, ...]:
    """Return the names of all series of a metric: a histogram of values that may be negative is a classic one."""
    name = series_name(row)
    return tuple(f"{name}_{part}" for part in CLASSIC) if row.is_signed else (name,)


def all_series() -> set[str]:
    return {name for row in emitted().values() for name in series_of(row)}
