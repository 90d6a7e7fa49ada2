"""PromQL of metrics of the vocabulary: each function takes the kinds of metrics that it fits.

`$run`, `$role`, `$rank` and `$window` are variables of a board. `$window` has to be at least as long as a step, since a
gauge has one point per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.catalogue.series_names import emitted, label_name, series_name

ROWS: Final = emitted()
RUN, ROLE, RANK, HOST = map(label_name, (v.RUN_ID, v.ROLE, v.RANK, v.HOST_NAME))
PROVIDER, REPLICA, STAGE = map(label_name, (v.PROVIDER, v.REPLICA, v.STAGE))
OF_RANK: Final = (RUN, ROLE, RANK)
OF_ENGINE: Final = (RUN, PROVIDER, REPLICA)
OF_DEVICE: Final = (HOST, label_name(v.HW_ID))
LE: Final = "le"


@dataclass(frozen=True)
class Scope:
    """Whose series a query takes, and how long ago."""

    matchers: tuple[str, ...]
    offset: str = ""


ANY: Final = Scope((f'{RUN}=~"$run"',))
"""Everything of the chosen runs: of sidecars, too, which have no rank."""
CHOSEN: Final = Scope((*ANY.matchers, f'{ROLE}=~"$role"', f'{RANK}=~"$rank"'))
"""The chosen ranks."""


def series(metric: str, *kinds: str) -> str:
    """Return the series of a metric, or of a stage's durations.

    Raises:
        ValueError: the metric is of another kind than the query fits.
    """
    stage = v.STAGES.get(metric)
    row = ROWS[stage.duration if stage and stage.duration else metric]
    if kinds and row.kind not in kinds:
        raise ValueError(f"{row.name} is a {row.kind}, none of {kinds}")
    return series_name(row)


def is_(key: str, *values: str) -> str:
    """Return the matcher of an attribute that has one of some values."""
    return f'{label_name(key)}="{values[0]}"' if len(values) == 1 else f'{label_name(key)}=~"{"|".join(values)}"'


def is_not(key: str, value: str) -> str:
    return f'{label_name(key)}!="{value}"'


TRAINING: Final = is_not(v.MODE, "eval")


def select(name: str, *where: str, of: Scope = CHOSEN) -> str:
    return f"{name}{{{', '.join((*of.matchers, *where))}}}"


def window(name: str, *where: str, of: Scope = CHOSEN, span: str = "$window") -> str:
    """Return the points of some series within the window, or within another span."""
    return f"{select(name, *where, of=of)}[{span}]{of.offset and ' ' + of.offset}"


def last(metric: str, *where: str, of: Scope = CHOSEN) -> str:
    return f"last_over_time({window(series(metric, 'gauge'), *where, of=of)})"


def mean(metric: str, *where: str, of: Scope = CHOSEN) -> str:
    return f"avg_over_time({window(series(metric, 'gauge'), *where, of=of)})"


def highest(metric: str, *where: str, of: Scope = CHOSEN) -> str:
    return f"max_over_time({window(series(metric, 'gauge'), *where, of=of)})"


def median(metric: str, *where: str, of: Scope = CHOSEN, span: str = "$window") -> str:
    return f"quantile_over_time(0.5, {window(series(metric, 'gauge'), *where, of=of, span=span)})"


def total(metric: str, *where: str, of: Scope = CHOSEN) -> str:
    """Return what a counter has counted so far: `rate()` does not see the first of rare events."""
    return f"last_over_time({window(series(metric, 'counter'), *where, of=of)})"


def rate(metric: str, *where: str, of: Scope = CHOSEN) -> str:
    return f"rate({window(series(metric, 'counter'), *where, of=of)})"


def by(labels: tuple[str, ...], expression: str, aggregation: str = "sum") -> str:
    return f"{aggregation} by ({', '.join(labels)}) ({expression})"


def forms(metric: str, labels: tuple[str, ...], *where: str, of: Scope = CHOSEN) -> tuple[str, str]:
    """Return a histogram over the window, native and classic: a store has one of them."""
    name = series(metric, "histogram")
    native, classic = (f"rate({window(each, *where, of=of)})" for each in (name, f"{name}_bucket"))
    return by(labels, native), by((*labels, LE), classic)


def spread(metric: str, labels: tuple[str, ...], *where: str, of: Scope = CHOSEN) -> str:
    """Return how often each value was measured, for a heatmap."""
    return " or ".join(forms(metric, labels, *where, of=of))


def quantile(share: float, metric: str, labels: tuple[str, ...], *where: str, of: Scope = CHOSEN) -> str:
    return " or ".join(f"histogram_quantile({share}, {form})" for form in forms(metric, labels, *where, of=of))


def time_in(metric: str, labels: tuple[str, ...], *where: str, of: Scope = CHOSEN) -> str:
    """Return the seconds per second that were spent in what a histogram measures."""
    name = series(metric, "histogram")
    native, classic = (f"rate({window(each, *where, of=of)})" for each in (name, f"{name}_sum"))
    return f"{by(labels, f'histogram_sum({native})')} or {by(labels, classic)}"


def ruled(level: str, name: str, operation: str, *where: str, of: Scope = CHOSEN) -> str:
    """Return what a recording rule of `collector/rules` makes of a metric, or of what it calls a stage."""
    recorded = f"{level}:{series(name) if name in ROWS else name}:{operation}"
    return f"{select(recorded, *where, of=of)}{of.offset and ' ' + of.offset}"


def shown(labels: tuple[str, ...], *words: str) -> str:
    """Return the legend that shows labels, behind some words."""
    return " ".join((*words, *(f"{{{{{label}}}}}" for label in labels)))


def each(metric: str, labels: tuple[str, ...], *words: str, of: Scope = CHOSEN) -> tuple[str, str]:
    """Return the last point of a gauge by labels, with its legend."""
    return by(labels, last(metric, of=of), "max"), shown(labels, *words)


def counted(metric: str, labels: tuple[str, ...], *words: str, of: Scope = CHOSEN, how: str = "sum") -> tuple[str, str]:
    """Return what a counter has counted so far by labels, with its legend."""
    return by(labels, total(metric, of=of), how), shown(labels, *words)


def growth(metric: str, labels: tuple[str, ...], *words: str, of: Scope = CHOSEN, how: str = "sum") -> tuple[str, str]:
    """Return how much a counter counts per second by labels, with its legend.

    What several sidecars of a node see is counted once: `how` is `max`.
    """
    return by(labels, rate(metric, of=of), how), shown(labels, *words)


def learnt(metric: str, *words: str, more: tuple[str, ...] = (), of: Scope = CHOSEN) -> tuple[str, str]:
    """Return what a framework reports about training, the mean of the ranks that report it, with its legend."""
    return by((RUN, *more), last(metric, TRAINING, of=of), "avg"), shown((RUN, *more), *words)


def quantiles(metric: str, labels: tuple[str, ...], *where: str) -> tuple[tuple[str, str], ...]:
    """Return the median, the 90th and the 99th percentile of a histogram, with their legends."""
    shares = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
    return tuple((quantile(share, metric, labels, *where), shown(labels, name)) for share, name in shares)
