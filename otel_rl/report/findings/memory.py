"""Whether the memory of a process grows from step to step until it does not fit: rules of HEALTH."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf, log10
from statistics import median
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.growth import LEAST, MUCH, Growth, growth
from otel_rl.analysis.stages import LOADING
from otel_rl.report.data.finding import Value
from otel_rl.report.data.health_rows import HealthRows, RankMemory
from otel_rl.report.data.report import MemoryKind
from otel_rl.report.findings.rule import Found, rank_name, rule, table, whole

LEAST_SHARE: Final = 0.05
"""Memory grows if it has risen by this share of what it was, and by LEAST_BYTES."""
LEAST_BYTES: Final = 64 << 20
"""An arena of the C library: a process takes and keeps some of them without a leak."""
HORIZON: Final = 10
"""It is an alarm if it will not fit before a run has made so many times its steps, if it does not say how many more."""
LEAST_STAGE: Final = 0.3
"""A stage is named if it has this share of the growth."""
NEAR: Final = 0.9
"""A device is nearly full from here on: the largest blocks find no room any more."""
APART: Final = 0.1
"""By so much of what the allocator holds less is live than at first: blocks that do not fit remain."""
SUBJECTS: Final[dict[MemoryKind, str]] = {
    "host rss": "memory of {}",
    "device allocated": "device memory of {}",
    "device reserved": "what the device allocator of {} holds",
}
STEADILY: Final = (
    f"memory of a process grew steadily, by {whole(LEAST_SHARE)} and {LEAST_BYTES >> 20} MiB at the least; "
    f"by {whole(MUCH)} in fewer than {LEAST} steps"
)
GROWS: Final[dict[str, Any]] = {
    "reads": (v.RSS_END, v.ALLOCATED_END, v.RESERVED_END, v.MEMORY_LIMIT),
    "window": "all steps but the first five; or their last half, or quarter",
    "sentence": "{what:Text}[, like {others} more,] grows by {per_step:size} per step ({first:size} to {last:size} in "
    "{steps:plural step})[, {share:percent} inside {inside}][; the {place} ({limit:size}) is full in about "
    "{left:count} steps].",
    "advice": "Find what {stage} keeps from call to call: lists, caches, tensors with their graph.",
}


@dataclass(frozen=True, slots=True)
class Growing:
    """Memory that grows."""

    memory: RankMemory
    growth: Growth
    left: float
    """Steps after which the memory of the place is full."""


@rule(
    "alarm",
    condition=f"{STEADILY}, and will be full within the planned steps, or {HORIZON} times the steps made so far",
    **GROWS,
)
def memory_full(rows: HealthRows) -> Found | None:
    return _grows(rows, [one for one in _growing(rows.memory) if _is_soon(one, rows)])


@rule("warning", condition=f"{STEADILY}, and will fit for longer", **GROWS)
def memory_grows(rows: HealthRows) -> Found | None:
    growing = _growing(rows.memory)
    return None if any(_is_soon(one, rows) for one in growing) else _grows(rows, growing)


@rule(
    "warning",
    reads=(v.RESERVED_END, v.ALLOCATED_END, v.GPU_MEMORY_LIMIT),
    condition=f"what device allocators hold fills {whole(NEAR)} of a device, and at the ends of steps {whole(APART)} "
    "less of it is live than at first",
    window=f"all steps but the first five, at least {LEAST}: first and last third",
    sentence="Device memory of {who} is fragmented: its allocator holds {held:size} of {limit:size}, of which "
    "{live:percent} is live ({before:percent} at first).",
    advice="Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or make micro-batches smaller or equal in length.",
)
def memory_fragmented(rows: HealthRows, *, full: float = NEAR, apart: float = APART) -> Found | None:
    """Find a device that its allocator fills with blocks that are not in use."""
    live = {row.rank: row for row in rows.memory if row.kind == "device allocated"}
    for row in rows.memory:
        if row.kind != "device reserved" or not row.limit or row.rank not in live:
            continue
        held = sum(one.bytes[-1] for one in rows.memory if (one.kind, one.place) == (row.kind, row.place))
        shares = [used / size for used, size in zip(live[row.rank].bytes, row.bytes, strict=False) if size]
        third = len(shares) // 3
        if len(shares) < LEAST or held < full * row.limit:
            continue
        before, after = median(shares[:third]), median(shares[-third:])
        if before - after >= apart:
            who = rank_name(row.rank, rows.ranks)
            values: dict[str, Value | None] = {"who": who, "held": row.bytes[-1], "limit": row.limit}
            return Found({**values, "live": after, "before": before}, before - after, rank=row.rank)
    return None


def _growing(memory: Sequence[RankMemory]) -> list[Growing]:
    """Return the processes whose memory grows, the soonest full first; what shares a place fills it together."""
    known = [(row, grown) for row in memory if (grown := growth(row.bytes, (LEAST_SHARE, LEAST_BYTES)))]
    live = {row.rank for row, _ in known if row.kind == "device allocated"}
    known = [(row, grown) for row, grown in known if row.kind != "device reserved" or row.rank not in live]
    growing = [Growing(row, grown, _left(row, memory, known)) for row, grown in known]
    return sorted(growing, key=lambda one: (one.left, -one.growth.per_step))


def _left(row: RankMemory, memory: Sequence[RankMemory], known: Sequence[tuple[RankMemory, Growth]]) -> float:
    if not row.limit:
        return inf
    used = sum(other.bytes[-1] for other in memory if (other.kind, other.place) == (row.kind, row.place))
    per_step = sum(grown.per_step for other, grown in known if (other.kind, other.place) == (row.kind, row.place))
    return max(0, row.limit - used) / per_step


def _is_soon(one: Growing, rows: HealthRows) -> bool:
    """Return whether memory is full within the steps that are still to come, as far as can be foreseen."""
    made, planned = rows.attempt.steps if rows.attempt is not None else 0, rows.planned
    return one.left <= (planned - made if planned > made else 0 if planned else HORIZON * made)


def _grows(rows: HealthRows, growing: Sequence[Growing]) -> Found | None:
    """Return the first that grows, and how many grow like it."""
    if not growing:
        return None
    memory, grown, left = growing[0].memory, growing[0].growth, growing[0].left
    is_in_stage, is_limited, since = memory.share >= LEAST_STAGE, left < inf, memory.steps[grown.begin]
    values: dict[str, Value | None] = {
        "what": SUBJECTS[memory.kind].format(rank_name(memory.rank, rows.ranks)),
        "others": len([one for one in growing if one.memory.kind == memory.kind]) - 1 or None,
        "per_step": grown.per_step,
        "first": grown.first,
        "last": grown.last,
        "steps": len(memory.steps) - grown.begin,
        "since": since,
        "share": memory.share,
        "inside": memory.stage if is_in_stage else None,
        "stage": "a step" if not is_in_stage else "the data loader" if memory.stage == LOADING else memory.stage,
        "place": "host" if memory.kind == "host rss" else "device",
        "limit": memory.limit if is_limited else None,
        "left": _rounded(left) if is_limited else None,
    }
    stage = memory.stage if is_in_stage else None
    return Found(values, weight=1 / (1 + left), since=since, rank=memory.rank, stage=stage)


def _rounded(steps: float) -> int:
    """Round to two digits: it is a forecast."""
    digits = floor(log10(steps)) - 1 if steps >= 1 else 0
    return round(steps / 10**digits) * 10**digits if digits > 0 else round(steps)


@rule(
    "note",
    reads=GROWS["reads"],
    condition="no other rule of health holds",
    window="all steps but the first five",
    sentence="No error, no hang, nothing lost[. Memory {bytes:size}{ranks:| a rank}][{is_rank:,|; {who}} "
    "{change:change} since step {since}].",
    is_fallback=True,
)
def healthy(rows: HealthRows) -> Found:
    """Tell what memory did: the median of the ranks, and the change of the process that grew most."""
    known = [row for row in rows.memory if row.kind == "host rss" and row.bytes]
    last = [row.bytes[-1] for row in known if row.is_rank]
    if not last:
        return Found({"bytes": None, "change": None})
    most = max(known, key=lambda row: (row.bytes[-1] - row.bytes[0], row.is_rank))
    return Found(
        {
            "bytes": median(last),
            "ranks": len(last),
            "is_rank": most.is_rank,
            "who": rank_name(most.rank, rows.ranks),
            "change": most.bytes[-1] - most.bytes[0] if len(most.bytes) > 1 else None,
            "since": most.steps[0],
        },
        since=most.steps[0],
        rank=most.rank,
    )


MEMORY: Final = table(
    memory_full,
    memory_grows,
    memory_fragmented,
    healthy,
)
