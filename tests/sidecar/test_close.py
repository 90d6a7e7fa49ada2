"""What the dead left open: closed once, with the same bytes each time, and nothing of what they finished."""

from __future__ import annotations

from pathlib import Path

from otel_rl import vocabulary as v
from otel_rl.journal.otlp.encode import OtlpRequest
from otel_rl.records import Log
from otel_rl.sidecar.close import close_left_open
from otel_rl.sidecar.streams import find_streams
from tests.made_runs import FakeSpan
from tests.sink import Rank, records_of

NS = 1_700_000_000_000_000_000


def open_log(name: str, span_id: int, parent_id: int = 0, trace_id: int = 7) -> Log:
    """The record of an open stage, as the flusher writes it."""
    attributes = {v.STAGE: name, v.START_TIME: NS + span_id, v.PARENT_ID: f"{parent_id:016x}", "n": span_id}
    return Log(v.OPEN, NS + 100, attributes, name, trace_id=trace_id, span_id=span_id)


def closed(rank: Rank) -> list[OtlpRequest]:
    """Close what a rank left open."""
    streams = [stream for (writer, _), stream in find_streams(rank.directory).items() if writer == rank.identity.writer]
    return close_left_open(rank.directory, rank.identity, streams)


def test_open_stages_end_at_the_last_sign_of_life(tmp_path: Path) -> None:
    """With parents, attributes and the mark; what ended, and what has no trace yet, is not closed."""
    rank = Rank(tmp_path)
    stages = [
        open_log("rl.loop 1", 1),
        open_log("rl.rollout", 2, 1),
        open_log("ended", 3, 1),
        open_log("early", 4, 0, 0),
    ]
    rank.append(rank.encoder.encode_logs([*stages, open_log("rl.rollout", 2, 1)]))
    rank.append(rank.encoder.encode([FakeSpan("ended", 7, 3, 1, NS + 3, NS + 500)]))
    other = Rank(tmp_path)
    other.append(other.encoder.encode_logs([open_log("of another", 9)]))
    (request,) = closed(rank)
    assert 2 == request.count
    found = records_of("traces", request.payload)
    assert ["rl.loop 1", "rl.rollout"] == [span.name for span in found]
    assert [(1, 0), (2, 1)] == [
        (int.from_bytes(span.span_id, "big"), int.from_bytes(span.parent_span_id, "big")) for span in found
    ]
    assert [(NS + 1, NS + 500), (NS + 2, NS + 500)] == [
        (span.start_time_unix_nano, span.end_time_unix_nano) for span in found
    ]
    assert [{"n", v.TRUNCATED}] * 2 == [{item.key for item in span.attributes} for span in found]
    assert [request] == closed(rank), "other bytes the second time"


def test_nothing_was_left_open(tmp_path: Path) -> None:
    """A clean end, and a writer of which nothing is left."""
    rank = Rank(tmp_path)
    assert [] == closed(rank)
    rank.write(3)
    assert [] == closed(rank)
