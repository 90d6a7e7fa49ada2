"""Labels of the metrics of requests: few values each, so that no request can make a series of its own."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.records import Labels
from otel_rl.requests.queue import Request

MOST_SETS: Final = 64
"""Engines, models, replicas, finish reasons, errors: so many of each are distinguished in one process."""
OTHER: Final = "other"


class Words:
    """Remembers the values that a label has had; what comes after the first 64 is ``other``."""

    def __init__(self) -> None:
        self._known: defaultdict[str, set[str]] = defaultdict(set)
        self._last: tuple[Any, ...] = ()
        """What came last, and its labels: most often the same comes again."""
        self._labels: Labels = ()

    def word(self, key: str, text: str) -> str:
        """Return the value of a label."""
        known = self._known[key]
        if text not in known:
            if len(known) >= MOST_SETS:
                return OTHER
            known.add(text)
        return text

    def labels(self, request: Request, more: Labels) -> Labels:
        """Label the series that a request counts in; what is not known is left out."""
        named = (
            (v.OPERATION, request.operation),
            (v.PROVIDER, request.engine),
            (v.REQUEST_MODEL, request.model),
            (v.REPLICA, request.replica),
        )
        last = named, request.streamed, more
        if last != self._last:
            known = tuple((key, self.word(key, text)) for key, text in named if text)
            self._last, self._labels = last, (*known, (v.SUBMISSION, submission(request)), *more)
        return self._labels


def submission(request: Request) -> str:
    """Return how a request was submitted."""
    return "streamed" if request.streamed else "bulk"
