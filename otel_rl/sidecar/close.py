"""What a dead process left open, as spans that end at its last sign of life.

What was closed stays closed: if the process was only stopped, the real end of such a span is not sent, since nothing
may arrive twice under one id with different content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from otel_rl.journal.files import Journal, SegmentFile
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.wire import OtlpRequest
from otel_rl.journal.read import Run
from otel_rl.process import directories
from otel_rl.runs.made_spans import closed_requests
from otel_rl.sidecar.streams import JournalStream, find_streams


def close_left_open(
    directory: Path, identity: WriterIdentity, streams: Iterable[JournalStream], closed: Collection[bytes] = ()
) -> list[OtlpRequest]:
    """Make the spans of the stages that a dead writer left open; the same bytes each time.

    Cost: reads the writer's journal, without its metrics if it left nothing open.
    """
    everywhere = [*streams, *_redirected(directory, identity.writer)]
    segments = [
        SegmentFile(path, stream.signal, number) for stream in everywhere for number, path in stream.files.items()
    ]
    stages = Run(directory, [Journal(identity, segments)]).open_stages(with_waits=True)
    return closed_requests(stage.closed() for stage in stages if stage.trace_id and stage.span_id not in closed)


def _redirected(directory: Path, writer: str) -> list[JournalStream]:
    """Return what the writer wrote elsewhere when its disk was full: stages that are open here may have ended there."""
    folder = directories.redirected(directory)
    with suppress(OSError):
        if folder is not None:
            return [stream for (name, _), stream in find_streams(folder).items() if name == writer]
    return []
