"""Which histogram counts the duration of a stage, and with which labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from math import inf
from operator import itemgetter

from otel_rl import vocabulary
from otel_rl.clock import monotonic
from otel_rl.metrics.record import Fold, labels_of
from otel_rl.records import Exemplar, Labels
from otel_rl.trace.stage import Stage

STEP_DURATION = vocabulary.STAGES[vocabulary.LOOP].duration
LABELS = (
    vocabulary.LOGPROB_KIND, vocabulary.REWARD_FUNCTION, vocabulary.IDLE_REASON, vocabulary.MODE,
    vocabulary.CHECKPOINT_LOAD, vocabulary.TOOL_NAME, vocabulary.TRAIN_MODEL, vocabulary.SYNC_OPERATION,
    vocabulary.SYNC_STATES, vocabulary.ERROR_TYPE,
)  # fmt: skip
"""The span attributes that a stage's duration keeps: few values each, never a step or a sample."""
EXEMPLARS_S = 30.0
"""How often a histogram points at a span: Prometheus keeps 100,000 exemplars of all ranks together."""
Ended = tuple[int, Stage]
"""A stage and its duration, ns."""
MOST_NAMES = 20_000


def kind_of(name: str, labels: Labels = ()) -> str:
    """Return the kind of a stage: its calls are compared with others of that kind, by what is normal."""
    return f"{name}{{{','.join(str(value) for _, value in labels)}}}" if labels else name


class StageMetrics:
    """Counts the durations of stages: each of the vocabulary in a histogram of its own, a user's under a label."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Labels]] = {}
        self._ended: defaultdict[tuple[str, Labels], list[Ended]] = defaultdict(list)
        """Stages that have ended, by name and what attributes add to the labels."""
        self._plain: dict[str, list[Ended]] = {}
        """Likewise by name, of stages whose attributes add nothing."""
        self._steps_ns: list[int] = []
        """How long steps lasted that have no container here, ns."""
        self._longest: dict[tuple[str, Labels], Exemplar] = {}
        """The longest sampled stage since the last exemplar, by metric and labels."""
        self._exemplars_s = -inf
        """When the last exemplars were folded, s."""

    def add(self, stages: Iterator[Stage]) -> None:
        """Add stages that have ended.

        A step is counted by the containers of the ranks, not by its root, which only rank 0 has.
        """
        plain = self._plain
        for stage in stages:
            alike, attributes = plain.get(stage.name), stage.attributes
            if alike is None or (attributes and not attributes.keys().isdisjoint(LABELS)):
                alike = self._counted_with(stage)
            alike.append((stage.ended - stage.began, stage))

    def add_step(self, duration_ns: int) -> None:
        """Add a step that has ended and has no container here."""
        self._steps_ns.append(duration_ns)

    def _counted_with(self, stage: Stage) -> list[Ended]:
        name, attributes = stage.name, stage.attributes or {}
        metric, _ = self._known.get(name) or self._name(name)
        if metric == STEP_DURATION and vocabulary.ITERATION not in attributes:
            return []
        more = labels_of(attributes, LABELS)
        alike = self._ended[name, more]
        if not more and metric != STEP_DURATION:
            self._plain[name] = alike
        return alike

    def fold(self, fold: Fold, normal: Callable[[str, list[float]], object], *, is_last: bool = False) -> None:
        ended, self._ended, self._plain = self._ended, defaultdict(list), {}
        for (name, more), alike in ended.items():
            metric, labels = self._known.get(name) or self._name(name)
            durations = [duration / 1e9 for duration, _ in alike]
            normal(kind_of(name, more), durations)
            if metric and fold.durations(metric, durations, labels + more):
                self._keep((metric, labels + more), *max(alike, key=itemgetter(0)))
        steps_ns, self._steps_ns = self._steps_ns, []
        if steps_ns:
            fold.durations(STEP_DURATION, [one / 1e9 for one in steps_ns], ())
        if is_last or monotonic() - self._exemplars_s >= EXEMPLARS_S:
            for (metric, labels), exemplar in self._longest.items():
                fold.exemplar(metric, labels, exemplar)
            if self._longest:
                self._longest, self._exemplars_s = {}, monotonic()

    def _keep(self, key: tuple[str, Labels], duration: int, stage: Stage) -> None:
        trace, longest = stage.trace, self._longest.get(key)
        is_span = trace is not None and trace.sampled and trace.known
        if is_span and (longest is None or duration / 1e9 > longest.value):
            self._longest[key] = Exemplar(stage.end_ns, duration / 1e9, stage.trace_id, stage.span_id)

    def labels(self, stage: Stage) -> Labels:
        labels = (self._known.get(stage.name) or self._name(stage.name))[1]
        named = labels or ((vocabulary.STAGE, stage.name.partition(" ")[0]),)
        return named + labels_of(stage.attributes or {}, LABELS)

    def _name(self, name: str) -> tuple[str, Labels]:
        """Return metric and labels by the name; the metric is empty where the duration is not counted."""
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
