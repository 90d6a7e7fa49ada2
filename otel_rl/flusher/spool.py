"""The spool: spans wait here until the attempt of the process is known, metrics until its resource is final.

They wait in memory, to be journaled with what becomes known, and on disk as well: a process that is killed in its
set-up loses the last second only. The file is written as a whole, so the journal never has a record of ours with a
provisional identity, and what ships needs no correction.
"""

from __future__ import annotations

from typing import Final

from otel_rl.clock import monotonic
from otel_rl.guard import guard
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.otlp.wire import OtlpRequest
from otel_rl.journal.write import Writer
from otel_rl.metrics.record import Fold
from otel_rl.process.state import state
from otel_rl.records import Attributes, Span
from otel_rl.trace.stage import Stage
from otel_rl.version import __version__

LONG_S: Final = 0.05
PAUSE: Final = 20
"""After a write that took longer than LONG_S the next one waits PAUSE times as long as it took."""


class Spool:
    """What waits for the identity of the process; used by the flusher only."""

    def __init__(self, fold: Fold) -> None:
        """Begin with nothing that waits.

        Args:
            fold: it has the metrics that wait.
        """
        self.spans: list[Span] = []
        """Spans that wait, in the order in which they ended."""
        self._fold = fold
        self._encoder: SpanEncoder | None = None
        """Not the journal's encoder, which counts what it changes and drops."""
        self._spooled_spans: tuple[int, Attributes] = 0, {}
        """The number of spans on disk, and their resource."""
        self._spooled_metrics: list[OtlpRequest] = []
        self._metrics_ns = 0
        """The time of the points on disk."""
        self._next = 0.0

    def update(self, writer: Writer, resource: Attributes) -> None:
        """Put on disk what waits, if it has changed; remove what has been journaled.

        Cost: all that waits is encoded, and written if it has changed.
        """
        began = monotonic()
        is_due = began >= self._next
        with guard("spool spans"):
            if not self.spans:
                writer.unspool("traces")
                self._spooled_spans = 0, {}
            elif is_due:
                self._write_spans(writer, resource)
        with guard("spool metrics"):
            if not self._fold.is_pending:
                writer.unspool("metrics")
                self._spooled_metrics = []
            elif is_due:
                self._write_metrics(writer, resource)
        took_s = monotonic() - began
        if took_s > LONG_S:
            self._next = began + PAUSE * took_s

    def _write_spans(self, writer: Writer, resource: Attributes) -> None:
        pending = len(self.spans), resource
        if pending != self._spooled_spans:
            requests = self._encoder_of(resource).encode(reversed(self.spans))
            if writer.spool("traces", requests):
                self._spooled_spans = pending

    def _write_metrics(self, writer: Writer, resource: Attributes) -> None:
        encoder = self._encoder_of(resource)
        if encoder.encode_metrics(self._fold.peek(self._metrics_ns)) != self._spooled_metrics:
            self._metrics_ns = state.now()
            requests = encoder.encode_metrics(self._fold.peek(self._metrics_ns))
            if writer.spool("metrics", requests):
                self._spooled_metrics = requests

    def _encoder_of(self, resource: Attributes) -> SpanEncoder:
        if self._encoder is None:
            self._encoder = SpanEncoder(resource, __version__, max_text=state.config.attribute_length, stage=Stage)
        self._encoder.set_resource(resource)
        return self._encoder
