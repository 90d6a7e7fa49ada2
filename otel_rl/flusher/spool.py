"""What is held: spans until the attempt of the process is known, metrics until its resource is final.

It waits in memory, to be journaled with what becomes known, and meanwhile on disk as well, so that a process that is
killed loses the last second only, in its set-up too (``journal/held.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_rl.guard import guard
from otel_rl.journal.frame import Signal
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.write import Writer
from otel_rl.metrics.record import Fold
from otel_rl.process.state import state
from otel_rl.records import Attributes, Span
from otel_rl.trace.stage import Stage
from otel_rl.version import __version__

GROWTH: Final = 2
SMALL: Final = 1 << 20
"""Metrics are appended as they change, until their file is so many times as large as when it was written as a whole,
and so many bytes more: then it is again, with the last point of each series only."""


class Held:
    """Holds what cannot be journaled yet; used by the flusher only."""

    def __init__(self, fold: Fold) -> None:
        """Begin without any.

        Args:
            fold: has the metrics; while any waits there, it is held.
        """
        self.spans: list[Span] = []
        """Those that wait, the first that ended first."""
        self._fold = fold
        self._encoder: SpanEncoder | None = None
        """Another one than the journal's: what it changes and drops is counted when that is journaled."""
        self._resources: dict[Signal, Attributes] = {}
        """With what the records on disk were written."""
        self._num_spans = 0
        """How many spans are on disk."""
        self._whole_bytes = 0
        """How large the file of the metrics was when it was written as a whole."""

    def settle(self, writer: Writer, resource: Attributes) -> None:
        """Put on disk what waits, with what is known of the process; let go of what does no more.

        Cost: what was recorded since the last cycle is encoded once more.
        """
        with guard("hold spans"):
            if self.spans:
                self._hold_spans(writer, resource)
            else:
                self._num_spans = 0
                writer.release("traces")
        with guard("hold metrics"):
            if self._fold.is_pending:
                self._hold_metrics(writer, resource)
            else:
                writer.release("metrics")

    def _hold_spans(self, writer: Writer, resource: Attributes) -> None:
        is_all = self._is_to_begin("traces", writer, resource)
        new: Sequence[Span] = self.spans if is_all else self.spans[self._num_spans :]
        if new and writer.hold("traces", self._encoder_of(resource).encode(reversed(new)), is_all=is_all):
            self._num_spans = len(self.spans)
            self._resources["traces"] = resource

    def _hold_metrics(self, writer: Writer, resource: Attributes) -> None:
        is_large = writer.held_bytes("metrics") > GROWTH * self._whole_bytes + SMALL
        is_all = is_large or self._is_to_begin("metrics", writer, resource)
        new = self._fold.peek(state.now(), is_all=is_all)
        if new and writer.hold("metrics", self._encoder_of(resource).encode_metrics(new), is_all=is_all):
            self._fold.mark_spooled()
            self._resources["metrics"] = resource
            if is_all:
                self._whole_bytes = writer.held_bytes("metrics")

    def _is_to_begin(self, signal: Signal, writer: Writer, resource: Attributes) -> bool:
        """Whether all has to be written: there is nothing to append to, or what is there says another resource."""
        return not writer.held_bytes(signal) or self._resources.get(signal) is not resource

    def _encoder_of(self, resource: Attributes) -> SpanEncoder:
        if self._encoder is None:
            self._encoder = SpanEncoder(resource, __version__, max_text=state.config.attribute_length, stage=Stage)
        self._encoder.set_resource(resource)
        return self._encoder
