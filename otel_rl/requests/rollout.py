"""One rollout while its requests come in: what becomes spans, and what only the whole of them can say."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Final
from zlib import crc32

from otel_rl import vocabulary as v
from otel_rl.analysis.bubbles import PERCENTS, bubble, tail
from otel_rl.process.state import Trace
from otel_rl.records import Labels
from otel_rl.requests.bulk import bulk
from otel_rl.requests.columns import Derived, Table
from otel_rl.requests.sampling import Candidates, Kept, Policy
from otel_rl.requests.seen import ANOTHER, SAME, Seen

LOW_64_BITS: Final = (1 << 64) - 1
MOST_ENDS: Final = 1_000_000
"""Requests of one rollout whose ends are kept for the tail, 8 bytes each."""
TAILS: Final = {1: v.TAIL_1, 5: v.TAIL_5, 10: v.TAIL_10}


class Rollout:
    """The requests of one rollout stage, of other stages of a step, or of what has no end that somebody tells."""

    def __init__(
        self, trace: Trace, policy: Policy, labels: Labels, *, is_stage: bool, has_end: bool, is_judging: bool
    ) -> None:
        """Begin without requests.

        Args:
            trace: the first request's.
            policy: which requests become spans.
            labels: of its points: whether it belongs to an evaluation.
            is_stage: it is a rollout stage.
            has_end: a stage or a step says when it is over, rather than silence.
            is_judging: its requests judge what others made.
        """
        self.trace = trace
        self.labels = labels
        self.is_stage = is_stage
        self.has_end = has_end
        self.is_told = has_end and not is_judging
        """Whether its time, tail and bubble are told: a slice between two silences has none."""
        self.candidates = Candidates(policy)
        self.count = 0
        self.outcomes: Counter[str] = Counter()
        self.touched = 0
        """When the last request came in (monotonic, ns)."""
        self.begun = 0
        """When the first one did."""
        self._seed = crc32(trace.step.encode()) if trace.step else trace.trace_id & LOW_64_BITS
        """Of the sample: the step's, so that every run of a training chooses the same."""
        self._ends: array[int] = array("q")
        self._first_submit = 0
        self._last_end = 0
        self._last_start = 0
        self._is_start_known = True
        self._seen = Seen()

    def fresh(self, table: Table, problems: Counter[str]) -> Table | None:
        """Leave out what was reported before: the same id and the same submission; another attempt counts."""
        verdicts = self._seen.look(table, is_one_trace=bool(self.trace.step))
        problems["repeated_id"] += verdicts.count(SAME)
        problems["another_attempt"] += verdicts.count(ANOTHER)
        if SAME not in verdicts:
            return table
        kept = [place for place, verdict in enumerate(verdicts) if verdict != SAME]
        return table.only(kept) if kept else None

    def add(self, table: Table, derived: Derived, labels: Labels) -> None:
        """Take further requests in; one without an id is chosen by its number.

        Args:
            table: the requests.
            derived: their times.
            labels: of their metrics.
        """
        ids = table.ids
        if not all(ids):
            ids = [one or str(self.count + place) for place, one in enumerate(ids)]
        self.candidates.add(table, derived, bulk.scores(ids, self._seed), self.count, labels)
        self.count += len(table.rows)
        finished = bulk.finished(derived)
        if finished is None or len(self._ends) >= MOST_ENDS:
            return
        self._ends.frombytes(finished.ends)
        self._first_submit = min(self._first_submit or finished.submitted, finished.submitted)
        self._last_end = max(self._last_end, finished.ended)
        self._is_start_known = self._is_start_known and finished.started > 0
        self._last_start = max(self._last_start, finished.last_started)

    def chosen(self, room: int) -> list[Kept]:
        """Choose what becomes spans."""
        return self.candidates.chosen(room)

    def wall(self) -> int:
        """Say how long it took from the first submission to the last finish, ns."""
        return self._last_end - self._first_submit

    def numbers(self, wall: int) -> dict[str, float]:
        """Say what the rollout's tail and bubble are, by the attribute that tells them.

        Args:
            wall: how long the rollout lasted, ns.
        """
        ends = bulk.ordered(self._ends)
        if not ends:
            return {}
        found = {TAILS[percent]: tail(ends, percent, wall) for percent in PERCENTS}
        if self._is_start_known:
            found[v.BUBBLE] = bubble(ends, self._last_start, wall)
        return {key: value for key, value in found.items() if value is not None}
