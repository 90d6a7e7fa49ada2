"""What a dead process left open, as spans that end at its last sign of life.

What was closed stays closed: if the process was only stopped, the real end of such a span is not sent, since nothing
may arrive twice under one id with different content.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from otel_rl import vocabulary
from otel_rl.journal.files import Journal, SegmentFile
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.otlp.wire import OtlpRequest
from otel_rl.journal.read import Run
from otel_rl.journal.views import SpanView
from otel_rl.process import directories
from otel_rl.sidecar.made_span import MadeSpan
from otel_rl.sidecar.streams import JournalStream, find_streams
from otel_rl.version import __version__


def close_left_open(
    directory: Path, identity: WriterIdentity, streams: Iterable[JournalStream], closed: Collection[bytes] = ()
) -> list[OtlpRequest]:
    """Make the spans of the stages that a dead writer left open; the same bytes each time.

    Args:
        directory: of the run.
        identity: of the writer.
        streams: of the writer, all signals.
        closed: ids of the spans that were closed before.

    Cost: reads the writer's journal, without its metrics if it left nothing open.
    """
    everywhere = [*streams, *_redirected(directory, identity.writer)]
    segments = [
        SegmentFile(path, stream.signal, number) for stream in everywhere for number, path in stream.files.items()
    ]
    found: dict[int, list[SpanView]] = defaultdict(list)
    for stage in Run(directory, [Journal(identity, segments)]).open_stages():
        if stage.trace_id and stage.span_id not in closed:
            found[id(stage.resource)].append(stage.closed())
    requests = []
    for spans in found.values():
        resource = spans[0].resource
        encoder = SpanEncoder(resource, str(resource.get(vocabulary.DISTRO_VERSION, __version__)))
        requests += encoder.encode(map(_as_record, spans))
    return requests


def _redirected(directory: Path, writer: str) -> list[JournalStream]:
    """Return what the writer wrote elsewhere when its disk was full: stages that are open here may have ended there."""
    folder = directories.redirected(directory)
    with suppress(OSError):
        if folder is not None:
            return [stream for (name, _), stream in find_streams(folder).items() if name == writer]
    return []


def _as_record(span: SpanView) -> MadeSpan:
    ids = [int.from_bytes(value, "big") for value in (span.trace_id, span.span_id, span.parent_id)]
    return MadeSpan(span.name, ids[0], ids[1], ids[2], span.start_ns, span.end_ns, dict(span.attributes))
