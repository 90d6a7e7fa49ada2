"""Colours that people tell apart who see no red or green, and that print (Okabe and Ito)."""

from __future__ import annotations

import hashlib
from itertools import cycle, islice
from typing import Final

from otel_rl import vocabulary as v

BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#e69f00", "#009e73", "#cc79a7"
SKY, VERMILLION, YELLOW, GREY = "#56b4e9", "#d55e00", "#f0e442", "#999999"
CHOSEN: Final = "#e6007e"
"""The mark of what is chosen, which no data has."""
LINES: Final = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)
OTHERS: Final = ("#44aa99", "#882255", "#ddcc77", "#332288", "#aa4499", "#88ccee", "#117733")
"""For stages of no known kind (Tol's muted colours)."""
CIVIDIS: Final = (
    "#00204c", "#00306f", "#2a406c", "#48526b", "#5e626e", "#727374", "#878479", "#9e9677", "#b6a971", "#d0be67",
    "#ead357", "#ffe945",
)  # fmt: skip
"""From low to high (cividis)."""
STAGES: Final = {
    v.SAMPLE: BLUE,
    v.REWARD: GREEN,
    v.LOGPROB: SKY,
    f"{v.LOGPROB} old": "#332288",
    v.FORWARD: ORANGE,
    v.BACKWARD: VERMILLION,
    v.CLIP: "#999933",
    v.OPTIMIZER: PURPLE,
    v.TRAIN: ORANGE,
    v.SYNC: YELLOW,
    v.EVALUATE: "#ddcc77",
    v.LOG: "#882255",
    v.CHECKPOINT: "#44aa99",
    v.COMM: "#666666",
    v.IDLE: "#8f979e",
    v.OTHER: GREY,
    "more stages": "#777777",
    "productive": GREEN,
    "overhead": ORANGE,
    "idle": GREY,
    "wasted": VERMILLION,
    "other": "#bbbbbb",
    "request": SKY,
    "request queue": "#8f979e",
    "request prefill": ORANGE,
    "request decode": SKY,
}


def colours(count: int) -> list[str]:
    """Return colours for some lines."""
    return list(islice(cycle(LINES), count))


def colour_of(stage: str) -> str:
    """Return the colour of a stage, always the same; one inside another of a kind has that of its kind."""
    name = stage if stage in STAGES else stage.partition(" ")[0]
    while name and name not in STAGES:
        name = name.rpartition(".")[0]
    if name in STAGES:
        return STAGES[name]
    return OTHERS[hashlib.blake2b(stage.encode("utf-8", "replace"), digest_size=2).digest()[0] % len(OTHERS)]
