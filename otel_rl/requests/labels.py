"""Labels of the metrics of requests: few values each, so that no request can make a series of its own."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.records import Labels
from otel_rl.requests.columns import kind_of
from otel_rl.requests.queue import Request

MOST: Final = 64
"""Engines, models, replicas, finish reasons, errors: so many of each are told apart in one process."""
OTHER: Final = "other"


class Words:
    """Remembers the values that a label has had; what comes after the first 64 is ``other``."""

    def __init__(self) -> None:
        self._known: defaultdict[str, set[str]] = defaultdict(set)
        self._last: tuple[Any, Labels] | None = None
        """What came last, and its labels: most often the same comes again."""
        self._labels: Labels = ()

    def word(self, key: str, text: str) -> str:
        """Give the value of a label."""
        known = self._known[key]
        if text not in known:
            if len(known) >= MOST:
                return OTHER
            known.add(text)
        return text

    def labels(self, row: Request, more: Labels) -> Labels:
        """Label the series that a request counts in; what is not known is left out."""
        last = kind_of(row), more
        if last == self._last:
            return self._labels
        told = (
            (v.OPERATION, row.operation),
            (v.PROVIDER, row.engine),
            (v.REQUEST_MODEL, row.model),
            (v.REPLICA, row.replica),
        )
        known = tuple((key, self.word(key, text)) for key, text in told if text)
        self._last, self._labels = last, (*known, (v.SUBMISSION, submission(row)), *more)
        return self._labels


def submission(row: Request) -> str:
    """Say how a request was submitted."""
    return "streamed" if row.streamed else "bulk"
