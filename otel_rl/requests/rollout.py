"""One rollout while its requests come in: what becomes spans, and what only the whole of them can say."""

from __future__ import annotations

from collections import Counter
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from otel_rl import vocabulary as v
from otel_rl.analysis.bubbles import PERCENTS, bubble, tail
from otel_rl.process.state import Trace
from otel_rl.records import Labels
from otel_rl.requests.fields import WHOLE, indices
from otel_rl.requests.sampling import Candidates, Kept, Policy

if TYPE_CHECKING:
    from otel_rl.requests.columns import Derived, RequestBatch

LOW_64_BITS: Final = (1 << 64) - 1
MOST_ENDS: Final = 1_000_000
"""Requests of one rollout whose ends are kept for the tail, 8 bytes each."""
MOST_KEYS: Final = 1_000_000
"""Requests of one rollout among which a repeated id is found, about 150 bytes each."""
KEY: Final = indices("id", "engine", "replica")
"""What distinguishes requests of one rollout, beside the turn."""
TIMES_AND_TURN: Final = [WHOLE.index(name) for name in ("submitted", "ended", "turn")]
TAILS: Final = {1: v.TAIL_1, 5: v.TAIL_5, 10: v.TAIL_10}


class RolloutRequests:
    """The requests of one rollout stage, of other stages of a step, or of what only silence ends."""

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
        self.is_reported = has_end and not is_judging
        """Whether its time, tail and bubble are reported: what lies between two silences has none."""
        self.candidates = Candidates(policy)
        self.count = 0
        self.outcomes: Counter[str] = Counter()
        self.is_end_known = True
        """Whether of each request that did not fail it is known why it ended."""
        self.touched = 0
        """When the last request came in (monotonic, ns)."""
        self.begun = 0
        """When the first one did."""
        self._seed = crc32(trace.step.encode()) if trace.step else trace.trace_id & LOW_64_BITS
        """Seed of the sample: the step's, so that every run of a training chooses the same."""
        self._ends: list[Any] = []
        self._num_ends = 0
        self._first_submit = 0
        self._last_end = 0
        self._last_start = 0
        self._is_start_known = True
        self._attempts: dict[int, int] = {}
        """The last attempt of each request: by the hash of its key, when it was submitted."""

    def fresh(self, batch: RequestBatch, problems: Counter[str]) -> RequestBatch | None:
        """Leave out what was reported before: the same id and the same submission; another attempt counts.

        Where submissions are not known the ends distinguish attempts.
        """
        known = self._attempts
        scopes = repeat(0) if self.trace.step else [parent.trace.trace_id for parent in batch.parents]
        submitted, ended, turns = batch.numbers[TIMES_AND_TURN].tolist()
        keys = list(map(hash, zip(*(batch.fields[field] for field in KEY), turns, scopes, strict=False)))
        attempts = [begin or -end for begin, end in zip(submitted, ended, strict=True)]
        new = dict(zip(keys, attempts, strict=True))
        if len(new) == len(keys) and all(batch.ids) and new.keys().isdisjoint(known.keys()):  # nearly always
            if len(known) < MOST_KEYS:
                known.update(new)
            return batch
        kept = []
        for place, (key, name, attempt) in enumerate(zip(keys, batch.ids, attempts, strict=True)):
            before = known.get(key) if name else None
            if before == attempt:
                problems["repeated_id"] += 1
                continue
            problems["another_attempt"] += before is not None
            kept.append(place)
            if name and (before is not None or len(known) < MOST_KEYS):
                known[key] = attempt
        if len(kept) == len(keys):
            return batch
        return batch.only(kept) if kept else None

    def add(self, batch: RequestBatch, derived: Derived, labels: Labels) -> None:
        """Add further requests.

        Args:
            batch: the requests.
            derived: their times.
            labels: of their metrics.
        """
        self.candidates.add(batch, derived, batch.scores(self._seed, self.count), self.count, labels)
        self.count += len(batch.values)
        duration, ended, started = derived.columns.duration, derived.columns.ended, derived.columns.started
        is_known = duration >= 0
        if self._num_ends >= MOST_ENDS or not is_known.any():
            return
        ends, starts = ended[is_known], started[is_known]
        self._ends.append(ends)
        self._num_ends += len(ends)
        submitted = int((ends - duration[is_known]).min())
        self._first_submit = min(self._first_submit or submitted, submitted)
        self._last_end = max(self._last_end, int(ends.max()))
        self._is_start_known = self._is_start_known and int(starts.min()) > 0
        self._last_start = max(self._last_start, int(starts.max()))

    def chosen(self, room: int) -> list[Kept]:
        """Choose what becomes spans."""
        return self.candidates.chosen(room)

    def wall(self) -> int:
        """Return how long it took from the first submission to the last finish, ns."""
        return self._last_end - self._first_submit

    def numbers(self, wall: int) -> dict[str, float]:
        """Return what the rollout's tail and bubble are, by their attributes.

        Args:
            wall: how long the rollout lasted, ns.
        """
        if not self._ends:
            return {}
        import numpy as np

        ends = np.sort(np.concatenate(self._ends)).tolist()
        found = {TAILS[percent]: tail(ends, percent, wall) for percent in PERCENTS}
        if self._is_start_known:
            found[v.BUBBLE] = bubble(ends, self._last_start, wall)
        return {key: value for key, value in found.items() if value is not None}
