"""Whether the memory of a process grows from step to step until it does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf, log10
from typing import Final, Literal

from otel_rl.analysis.series.growth import Growth, growth
from otel_rl.analysis.stages import LOADING
from otel_rl.report.data.finding import Value
from otel_rl.report.findings.rule import Found
from otel_rl.runs.format import count, percent, size

LEAST_SHARE: Final = 0.05
"""Memory grows if it has risen by this share of what it was, and by LEAST_BYTES."""
LEAST_BYTES: Final = 64 << 20
"""An arena of the C library: a process takes and keeps some of them without a leak."""
HORIZON: Final = 10
"""It is an alarm if it will not fit before a run has made so many times its steps, if it does not say how many more."""
LEAST_STAGE: Final = 0.3
"""A stage is named if it has this share of the growth."""
Of = Literal["host", "device", "reserved"]
SUBJECTS: Final[dict[Of, str]] = {
    "host": "memory of {who}",
    "device": "device memory of {who}",
    "reserved": "what the device allocator of {who} holds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """The memory of one process at the ends of its steps."""

    who: str
    of: Of
    """`device` is what is live there, `reserved` what its allocator holds."""
    place: str
    """The host, whose processes share the limit; the rank for its device."""
    limit: int
    """Bytes of all that share the place; 0 if unknown."""
    steps: Sequence[int]
    """Without the first ones, in which every process grows."""
    bytes: Sequence[int]
    """One or more."""
    stage: str
    """In which most of the growth was; empty if in none."""
    share: float
    """Share of the growth."""
    is_rank: bool = True
    """Other processes of a run are watched as ranks are, and told apart from them."""


@dataclass(frozen=True, slots=True)
class Growing:
    """Memory that grows."""

    memory: RankMemory
    growth: Growth
    left: float
    """Steps after which the memory of the place is full."""


def growing(memory: Sequence[RankMemory]) -> list[Growing]:
    """Return the processes whose memory grows, the soonest full first; what shares a place fills it together."""
    known = [(one, grown) for one in memory if (grown := growth(one.bytes, (LEAST_SHARE, LEAST_BYTES)))]
    live = {one.who for one, _ in known if one.of == "device"}
    known = [(one, grown) for one, grown in known if one.of != "reserved" or one.who not in live]
    rows = [Growing(one, grown, _left(one, memory, known)) for one, grown in known]
    return sorted(rows, key=lambda row: (row.left, -row.growth.per_step))


def _left(one: RankMemory, memory: Sequence[RankMemory], known: Sequence[tuple[RankMemory, Growth]]) -> float:
    if not one.limit:
        return inf
    used = sum(other.bytes[-1] for other in memory if (other.of, other.place) == (one.of, one.place))
    per_step = sum(grown.per_step for other, grown in known if (other.of, other.place) == (one.of, one.place))
    return max(0, one.limit - used) / per_step


def is_soon(row: Growing, made: int, planned: int) -> bool:
    """Whether memory is full within the steps that are still to come, as far as can be foreseen."""
    return row.left <= (planned - made if planned > made else 0 if planned else HORIZON * made)


def found(rows: Sequence[Growing]) -> Found | None:
    """Tell of the first row, and of how many grow like it."""
    if not rows:
        return None
    row, others = rows[0], len([one for one in rows if one.memory.of == rows[0].memory.of]) - 1
    memory, grown = row.memory, row.growth
    values: dict[str, Value] = {
        "grows": _grows(memory, others),
        "per_step": grown.per_step,
        "first": grown.first,
        "last": grown.last,
        "steps": len(memory.steps) - grown.begin,
        "since": memory.steps[grown.begin],
        "where": f", {percent(memory.share)} inside {memory.stage}" if memory.share >= LEAST_STAGE else "",
        "full": "",
        "stage": _who_keeps(memory),
    }
    if row.left < inf:
        left = _rounded(row.left)
        values |= {"limit": memory.limit, "left": left}
        where = "host" if memory.of == "host" else "device"
        values["full"] = f"; the {where} ({size(memory.limit)}) is full in about {count(left)} steps"
    return Found(values, weight=1 / (1 + row.left))


def _who_keeps(memory: RankMemory) -> str:
    if memory.share < LEAST_STAGE:
        return "a step"
    return "the data loader" if memory.stage == LOADING else memory.stage


def _grows(memory: RankMemory, others: int) -> str:
    subject = SUBJECTS[memory.of].format(who=memory.who)
    return f"{subject[:1].upper()}{subject[1:]}{f', like {others} more,' if others else ''} grows"


def _rounded(steps: float) -> int:
    """Round to two digits: it is a forecast."""
    digits = floor(log10(steps)) - 1 if steps >= 1 else 0
    return round(steps / 10**digits) * 10**digits if digits > 0 else round(steps)
