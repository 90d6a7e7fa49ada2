"""Where the time of a rank went: goodput, activity, bubbles, and who makes others wait."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import attribute, metric

GOODPUT_KIND: Final = attribute(
    "rl.goodput.kind", "string", "metric", "`productive`, `overhead`, `idle`, `wasted` or `other`"
)
ACTIVITY: Final = attribute(
    "rl.activity",
    "string",
    "metric",
    "`active`: own time of stages; `comm`: in collectives; `inseparable`: in stages that hide collectives; `idle`: in "
    "`rl.idle`; `other`: under no stage",
)
BUBBLE_DENOMINATOR: Final = attribute("rl.bubble.denominator", "string", "metric", "what the bubble was divided by")
SKEW_RANK: Final = attribute(
    "rl.skew.rank",
    "int",
    "span",
    "the rank that was waited for: of all ranks of the collective it was in it for the shortest time",
)
GOODPUT_TIME: Final = metric(
    "rl.goodput.time", "counter", "s", "wall time of this rank by `rl.goodput.kind`; the kinds add up to it"
)
ACTIVITY_TIME: Final = metric(
    "rl.step.activity", "gauge", "s", "one step of this rank by `rl.activity`; one point per step and activity"
)
BUBBLE_RATIO: Final = metric(
    "rl.bubble.ratio", "gauge", "1", "share of the step that this rank waited, by `rl.idle.reason`; one point per step"
)
SKEW_WAIT: Final = metric(
    "rl.skew.wait",
    "counter",
    "s",
    "time in collectives in which a rank waited for slower peers, by `rl.rank`; at least that where not all of them "
    "are spans; `rl.scope` says whose were compared",
)
STRAGGLER_COST: Final = metric(
    "rl.straggler.cost",
    "gauge",
    "s",
    "own time of a slow rank in a stage beyond the median of its peers, by `rl.rank` and `rl.stage`; a point per step",
)
