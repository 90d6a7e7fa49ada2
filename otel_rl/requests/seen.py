"""Which requests of a rollout were reported before."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from operator import itemgetter
from typing import Final

from otel_rl.requests.columns import TIMES, Table, places
from otel_rl.requests.queue import native

KEY: Final = places("id", "turn", "engine", "replica")
"""What tells requests of one rollout apart."""
MOST_KEYS: Final = 1_000_000
"""Requests of one rollout among which a repeated id is found; 32 to 64 bytes each, without C about 150."""
NEW, ANOTHER, SAME = range(3)
"""A request may be new, or another attempt of one that was seen, or that one once more."""
_key_of: Final = itemgetter(*KEY)


class Seen:
    """Requests by their ids, and of each the last attempt."""

    def __init__(self) -> None:
        """Begin without requests."""
        self._attempts: dict[int, int] = {}
        self._slots = bytearray()
        """The same in C."""
        self._taken = 0

    def look(self, table: Table, *, is_one_trace: bool) -> bytes:
        """Say of each request whether it was seen, and remember it; one without an id is new. Cost: 0.1 us a row.

        An id that comes again with another submission is another attempt; where submissions are not known the ends tell
        attempts apart.

        Args:
            table: the requests.
            is_one_trace: their ids are of one trace; otherwise each trace has ids of its own.
        """
        scopes = [] if is_one_trace else [hash(place.trace.trace_id) for place in table.parents]
        if native is None:
            return bytes(self._look(table, scopes))
        times = table.numbers[:2] if table.numbers is not None else map(_column, map(table.column, TIMES[:2]))
        verdicts: bytes
        self._slots, self._taken, verdicts = native.see(
            self._slots, self._taken, MOST_KEYS, table.rows, KEY, *times, _column(scopes)
        )
        return verdicts

    def _look(self, table: Table, scopes: list[int]) -> Iterable[int]:
        seen = self._attempts
        keys = list(map(hash, map(_key_of, table.rows)))
        if scopes:
            keys = list(map(hash, zip(keys, scopes, strict=True)))
        rows = zip(keys, table.ids, *map(table.column, TIMES[:2]), strict=True)
        for key, name, submitted, ended in rows:
            attempt = submitted or -ended
            before = seen.get(key) if name else None
            yield NEW if before is None else SAME if before == attempt else ANOTHER
            if name and (before is not None or len(seen) < MOST_KEYS):
                seen[key] = attempt


def _column(values: Iterable[int]) -> bytes:
    """Make a column of numbers of which some may not fit into 64 bits: of those it is their hash."""
    return array("q", map(hash, values)).tobytes()
