"""Under which metric a number goes out whose name a user or a framework gave.

The prefix keeps such a name apart from every other one: from ours, from those of the backend (``up``, ``ALERTS``). What
is left are names that Prometheus writes alike (``loss/policy``, ``loss.policy``, ``loss_policy``). So a name that
Prometheus does not write as it is has the attribute ``rl.metric.name``, on every rank, in whatever order names come.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from otel_rl import vocabulary
from otel_rl.guard import say
from otel_rl.process.memory import Memory
from otel_rl.process.state import state
from otel_rl.records import Count, Labels

MOST_NAMES: Final = 10_000
"""Names that are known again; clashes of further ones are not logged."""
LABEL: Final = vocabulary.METRIC_NAME.replace(".", "_")
LONGEST: Final = 255
"""Characters of a metric's name, as OpenTelemetry limits them; the end of a longer one becomes a checksum."""
KEPT: Final = re.compile("[a-zA-Z0-9:]+")

Series = tuple[str, Labels]


@dataclass(eq=False)
class Names(Memory):
    """Names that users and frameworks have given to numbers."""

    series: dict[str, Series] = field(default_factory=dict)
    alike: dict[str, list[str]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def after_fork_in_child(self) -> None:
        """Keep them: none belongs to the parent alone."""


names = Names.keep("names")


def series_of(name: str, prefix: str) -> Series:
    """Return the metric of a number that has this name.

    Args:
        name: as the user or the framework wrote it.
        prefix: whose name it is: ``user.``, ``trl.``.

    Cost: 0.15 us from the second call on.
    """
    whole = prefix + name
    return names.series.get(whole) or _choose(name, prefix, whole)


def _choose(name: str, prefix: str, whole: str) -> Series:
    written = whole.encode(errors="backslashreplace").decode()  # a surrogate of its own is no text
    if len(written) > LONGEST:
        written = f"{written[: LONGEST - 17]}.{blake2b(written.encode(), digest_size=8).hexdigest()}"
    shown = written.removeprefix(prefix)
    in_prometheus = "_".join(KEPT.findall(written))
    is_kept = in_prometheus.removeprefix(prefix.replace(".", "_")) == shown
    series = written, () if is_kept else ((vocabulary.METRIC_NAME, shown),)
    if len(names.series) < MOST_NAMES:
        names.series[whole] = series
        _report_clash(names.alike.setdefault(in_prometheus, []), shown)
    return series


def _report_clash(alike: list[str], name: str) -> None:
    """Count a name that Prometheus writes like another one, and say so the first time."""
    alike.append(name)
    if len(alike) > 1:
        state.add(Count(vocabulary.SELF_CHANGED, 1, ((vocabulary.REASON, "name_clash"),)))
    if len(alike) == 2:
        say("otel_rl: Prometheus writes %r and %r alike; the label %s distinguishes them", *alike, LABEL)
