"""Which histogram counts the duration of a stage, and with which labels."""

from __future__ import annotations

from otel_rl import vocabulary
from otel_rl.metrics import labels_of
from otel_rl.records import Labels
from otel_rl.spans import Stage

STEP_DURATION = vocabulary.STAGES[vocabulary.LOOP].duration
LABELS = (vocabulary.LOGPROB_KIND, vocabulary.REWARD_FUNCTION, vocabulary.IDLE_REASON, vocabulary.MODE)
"""The span attributes that a stage's duration keeps: few values each, never a step or a sample."""
NOT_COUNTED: tuple[str, Labels] = ("", ())
MOST_NAMES = 20_000
"""Names of stages that are remembered."""


class StageMetrics:
    """Names the histogram of a stage: one of the vocabulary has its own, a user's is told by a label."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Labels]] = {}

    def of(self, stage: Stage) -> tuple[str, Labels]:
        """Give name and labels; the name is empty where the duration is not counted.

        A step is counted by the containers of the ranks, not by its root, which only rank 0 has.
        """
        known = self._known.get(stage.name) or self._name(stage.name)
        attributes = stage.attributes
        if not attributes:
            return known if known[0] != STEP_DURATION else NOT_COUNTED
        metric, labels = known
        if metric == STEP_DURATION and vocabulary.ITERATION not in attributes:
            return NOT_COUNTED
        return metric, labels + labels_of(attributes, LABELS)

    def _name(self, name: str) -> tuple[str, Labels]:
        word = name.partition(" ")[0]
        row = vocabulary.STAGES.get(word)
        found: tuple[str, Labels] = (
            (row.duration, ()) if row else (vocabulary.STAGE_DURATION, ((vocabulary.STAGE, name),))
        )
        if word in (vocabulary.RANK_SPAN, vocabulary.LOOP):
            found = (STEP_DURATION if word == vocabulary.RANK_SPAN else "", ())
        if len(self._known) < MOST_NAMES:
            self._known[name] = found
        return found
