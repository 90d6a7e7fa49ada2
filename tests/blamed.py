"""Who is slow, as findings of TIME have it."""

from __future__ import annotations

from otel_rl.report.data.finding import Finding
from otel_rl.report.data.ranks import Rank

RULES = frozenset(("slow_process", "starved_rank", "slow_rank", "slow_stage"))
"""Which of them speaks, and of whom else, depends on what a busy machine makes slow."""


def blamed(found: list[Finding]) -> dict[Rank | None, str | None]:
    """Return the ranks that are slow with the stage in which they are so, None where it is most of them."""
    return {one.rank: one.stage for one in found if one.rule in RULES}
