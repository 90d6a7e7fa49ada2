"""Which histogram counts the duration of a stage, and with which labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from otel_rl import vocabulary
from otel_rl.metrics import Fold, labels_of
from otel_rl.records import Labels
from otel_rl.spans import Stage

STEP_DURATION = vocabulary.STAGES[vocabulary.LOOP].duration
LABELS = (
    vocabulary.LOGPROB_KIND, vocabulary.REWARD_FUNCTION, vocabulary.IDLE_REASON, vocabulary.MODE,
    vocabulary.CHECKPOINT_LOAD, vocabulary.TOOL_NAME,
)  # fmt: skip
"""The span attributes that a stage's duration keeps: few values each, never a step or a sample."""
MOST_NAMES = 20_000
"""Names of stages that are remembered."""


class StageMetrics:
    """Counts the durations of stages: one of the vocabulary has a histogram of its own, a user's is told by a label."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Labels]] = {}
        self._waiting: defaultdict[tuple[str, Labels], list[float]] = defaultdict(list)
        """Durations by name and what attributes add to the labels, s."""
        self._plain: dict[str, list[float]] = {}
        """Likewise by name, of stages whose attributes add nothing."""

    def take(self, stages: Iterator[Stage]) -> None:
        """Take in stages that have ended.

        A step is counted by the containers of the ranks, not by its root, which only rank 0 has.
        """
        plain = self._plain
        for stage in stages:
            seconds, attributes = plain.get(stage.name), stage.attributes
            if seconds is None or (attributes and not attributes.keys().isdisjoint(LABELS)):
                seconds = self._durations(stage)
            seconds.append((stage.ended - stage.began) / 1e9)

    def _durations(self, stage: Stage) -> list[float]:
        """Give those that this one's duration belongs to."""
        name, attributes = stage.name, stage.attributes or {}
        metric, _ = self._known.get(name) or self._name(name)
        if metric == STEP_DURATION and vocabulary.ITERATION not in attributes:
            return []
        more = labels_of(attributes, LABELS)
        seconds = self._waiting[name, more]
        if not more and metric != STEP_DURATION:
            self._plain[name] = seconds
        return seconds

    def fold(self, fold: Fold) -> None:
        """Hand their durations over to the metrics, and begin anew."""
        waiting, self._waiting, self._plain = self._waiting, defaultdict(list), {}
        for (name, more), seconds in waiting.items():
            metric, labels = self._known.get(name) or self._name(name)
            if metric:
                fold.durations(metric, seconds, labels + more)

    def labels(self, stage: Stage) -> Labels:
        """Give the labels of a stage where one histogram counts them all: its name, and those of its duration."""
        labels = (self._known.get(stage.name) or self._name(stage.name))[1]
        named = labels or ((vocabulary.STAGE, stage.name.partition(" ")[0]),)
        return named + labels_of(stage.attributes or {}, LABELS)

    def _name(self, name: str) -> tuple[str, Labels]:
        """Give metric and labels by the name; the metric is empty where the duration is not counted."""
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
