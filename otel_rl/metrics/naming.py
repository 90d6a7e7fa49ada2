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

MOST_NAMES: Final = 5_000
"""Names that a process takes: one of each layer's weights and gradients in the largest networks. A name for each prompt
or sample has no end."""
LABEL: Final = vocabulary.METRIC_NAME.replace(".", "_")
LONGEST: Final = 255
"""Characters of a metric's name, as OpenTelemetry limits them; the end of a longer one becomes a checksum."""
KEPT: Final = re.compile("[a-zA-Z0-9:]+")

Series = tuple[str, Labels]


@dataclass(eq=False)
class Names(Memory):
    """Names that users and frameworks have given to numbers."""

    series: dict[str, Series] = field(default_factory=dict)
    alike: dict[str, str] = field(default_factory=dict)
    """The first name that Prometheus writes in this way; empty once it was logged that there is another."""
    refused: set[str] = field(default_factory=set)

    def after_fork_in_child(self) -> None:
        """Keep them: none belongs to the parent alone."""


names = Names.keep("names")


def series_of(name: str, prefix: str) -> Series | None:
    """Return the metric of a number that has this name; None, which is counted, if there are too many names.

    Args:
        name: as the user or the framework wrote it.
        prefix: whose name it is: ``user.``, ``trl.``.

    Cost: 0.15 us from the second call on.
    """
    whole = prefix + name
    return names.series.get(whole) or _choose(name, prefix, whole)


def _choose(name: str, prefix: str, whole: str) -> Series | None:
    if len(names.series) >= MOST_NAMES:
        refuse(
            "too_many_names",
            "otel_rl: the number %r and others are not recorded: this process has %s names already. Record an average "
            "or a maximum of what has a name for each prompt, sample or step",
            *(name, f"{MOST_NAMES:,}"),
        )
        return None
    # A surrogate of its own is no text.
    written = whole if whole.isascii() else whole.encode(errors="backslashreplace").decode()
    if len(written) > LONGEST:
        written = f"{written[: LONGEST - 17]}.{blake2b(written.encode(), digest_size=8).hexdigest()}"
    shown = written.removeprefix(prefix)
    in_prometheus = "_".join(KEPT.findall(written))
    is_kept = in_prometheus.removeprefix(prefix.replace(".", "_")) == shown
    series = names.series[whole] = written, () if is_kept else ((vocabulary.METRIC_NAME, shown),)
    first = names.alike.setdefault(in_prometheus, shown)
    if first is not shown:
        _report_clash(in_prometheus, first, shown)
    return series


def refuse(reason: str, message: str, *values: object, signal: str = "metrics") -> None:
    """Count a number, a batch or a sample that is not recorded, and say so the first time."""
    if not state.dropped[signal, reason]:
        say(message, *values)
    state.drop(signal, reason)


def _report_clash(in_prometheus: str, first: str, name: str) -> None:
    """Count a name that Prometheus writes like another one, and say so the first time."""
    state.add(Count(vocabulary.SELF_CHANGED, 1, ((vocabulary.REASON, "name_clash"),)))
    if first:
        names.alike[in_prometheus] = ""
        say("otel_rl: Prometheus writes %r and %r alike; the label %s distinguishes them", first, name, LABEL)
