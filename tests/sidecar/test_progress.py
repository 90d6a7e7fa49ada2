"""What was acknowledged: kept whole or not at all, and only ever a step forward."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_rl.sidecar.ship import progress as module
from otel_rl.sidecar.ship.progress import Range, ShipProgress, load, save
from otel_rl.sidecar.streams import Position, find_streams
from tests.sink import ALIVE, Rank

WRITER = "trainer-0-1-ab"
FILE = f"{WRITER}.shipped"


def rows(progress: dict[str, ShipProgress]) -> dict[str, object]:
    """What would be kept."""
    return {signal: row.row() for signal, row in progress.items()}


def advanced() -> dict[str, ShipProgress]:
    """Progress of which nothing is as it was at the begin."""
    found = load(Path("nowhere"), WRITER)
    traces = found["traces"]
    traces.advance(
        traces.live, Position(1, 100), {"shipped": 10, "rejected": 1, "left_out": 2, "refused": 3, "fetched": 1}
    )
    traces.split(Position(3, 50))
    traces.advance(traces.live, Position(4, 0), {"shipped": 5, "damaged": 1})
    traces.close_some([b"12345678", b"abcdefgh"], {"shipped": 2})
    traces.close()
    for kind, reason in (("later", "HTTP 503"), ("blocked", "HTTP 401"), ("later", "HTTP 503")):
        traces.put_off(kind, reason)
    found["logs"].advance(found["logs"].live, Position(0, 7), {"shipped": 1})
    return found


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """Ranges, counts and whether the writer's open stages were closed; for its owner only."""
    progress = advanced()
    save(tmp_path, WRITER, rows(progress))
    found = load(tmp_path, WRITER)
    assert rows(progress) == rows(found)
    assert [Range(Position(1, 100), Position(3, 50)), Range(Position(4, 0))] == found["traces"].ranges
    expected = {"shipped": 17, "rejected": 1, "left_out": 2, "fetched": 1, "refused": 3, "damaged": 1}
    assert expected == found["traces"].counts
    assert (True, {b"12345678", b"abcdefgh"}) == (found["traces"].closed, found["traces"].closed_ids)
    retries = {("later", "HTTP 503"): 2, ("blocked", "HTTP 401"): 1}
    assert (retries, "HTTP 503") == (found["traces"].retries, found["traces"].failure)
    assert (0o600, [FILE]) == ((tmp_path / FILE).stat().st_mode & 0o777, os.listdir(tmp_path))


def test_a_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    """It knows of no retries."""
    (tmp_path / FILE).write_text('{"traces": {"ranges": [[[0, 7], null]], "counts": {"shipped": 3}, "closed": true}}')
    found = load(tmp_path, WRITER)["traces"]
    assert ([Range(Position(0, 7))], {"shipped": 3}, {}, "") == (
        found.ranges,
        found.counts,
        found.retries,
        found.failure,
    )


def test_what_is_put_off_is_over_once_something_is_taken() -> None:
    """The count stays; what only differs in what a page says of itself is counted together."""
    progress = ShipProgress()
    progress.put_off("later", "HTTP 200, text/html")
    progress.put_off("later", "HTTP 200, text/x")
    assert ({("later", "HTTP 200"): 2}, "HTTP 200, text/x") == (progress.retries, progress.failure)
    progress.advance(progress.live, Position(0, 7), {"shipped": 1})
    assert ({("later", "HTTP 200"): 2}, "") == (progress.retries, progress.failure)
    progress.put_off("blocked", "HTTP 401")
    progress.close_some([b"12345678"], {"shipped": 1})
    assert ({("later", "HTTP 200"): 2, ("blocked", "HTTP 401"): 1}, "") == (progress.retries, progress.failure)
    progress.put_off("later", "HTTP 503")
    progress.accepted()  # a piece of a request
    assert "" == progress.failure


def test_every_step_forward_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken, given up, left out or closed; not what was put off."""
    now = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    progress, seen = ShipProgress(), []
    steps: list[Callable[[], None]] = [
        lambda: progress.put_off("later", "HTTP 503"),
        progress.accepted,
        lambda: progress.advance(progress.live, Position(0, 7)),
        lambda: progress.put_off("later", "HTTP 503"),
        lambda: progress.close_some([b"12345678"], {"shipped": 1}),
        progress.close,
    ]
    for step in steps:
        now += 1
        step()
        seen.append(progress.moved_at)
    assert [0.0, 1002.0, 1003.0, 1003.0, 1005.0, 1006.0] == seen


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"traces": 1}', b'{"traces": {"ranges": []}}',
        b'{"traces": {"ranges": [[[0,1],[0,2]]], "counts": {}, "closed": false}}',
        b'{"traces": {"ranges": [[[0,1],null],[[0,3],null]], "counts": {}, "closed": false}}',
        b'{"traces": {"ranges": [[["a",1],null]], "counts": {}, "closed": false}}',
        b'{"traces": {"ranges": [[[0,-1],null]], "counts": {}, "closed": false}}',
        b'{"traces": {"ranges": [[[0,1],null]], "counts": {"shipped": "x"}, "closed": false}}',
        b'{"traces": {"ranges": [[[0,1],null]], "counts": {"shipped": Infinity}, "closed": false}}',
        b'{"traces": {"ranges": [[[0,1],null]], "counts": {}, "closed": true, "closed_ids": ["x"]}}',
        b'{"traces": {"ranges": [[[0,1],null]], "counts": {}, "closed": true, "closed_ids": 7}}',
        b'{"traces": {"ranges": [[[0,1],null]], "counts": {}, "closed": true, "retries": 7}}',
        b'{"traces": {"ranges": [[[0,1],null]], "counts": {}, "closed": true, "retries": [["later", "x"]]}}',
    ],
)  # fmt: skip
def test_a_damaged_file_begins_anew(tmp_path: Path, content: bytes) -> None:
    """What cannot be read is sent again; what can be, is not."""
    (tmp_path / FILE).write_bytes(content)
    assert rows(load(tmp_path / "none", WRITER)) == rows(load(tmp_path, WRITER))


def test_one_damaged_signal_leaves_the_others(tmp_path: Path) -> None:
    """Each is read for itself."""
    progress = advanced()
    kept = json.loads(json.dumps(rows(progress)))
    kept["traces"]["ranges"] = 1
    (tmp_path / FILE).write_text(json.dumps(kept))
    found = load(tmp_path, WRITER)
    assert (ShipProgress().row(), progress["logs"].row()) == (found["traces"].row(), found["logs"].row())


def test_an_interrupted_save_leaves_the_former(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk and a kill between writing and renaming."""
    progress = advanced()
    save(tmp_path, WRITER, rows(progress))
    before = (tmp_path / FILE).read_bytes()
    (tmp_path / f"{FILE}.new").write_bytes(before[:20])  # killed while it wrote
    assert rows(progress) == rows(load(tmp_path, WRITER))

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, WRITER, {})
    assert before == (tmp_path / FILE).read_bytes()
    monkeypatch.undo()
    save(tmp_path, WRITER, {})
    assert [FILE] == os.listdir(tmp_path)


def test_ranges_split_and_go() -> None:
    """What is there becomes a backlog; while nothing new was sent, one backlog grows; a done one is gone."""
    progress = ShipProgress()
    progress.split(Position())
    assert [Range(Position())] == progress.ranges, "nothing is there"
    progress.split(Position(0, 10))
    progress.split(Position(0, 20))
    assert [Range(Position(), Position(0, 20)), Range(Position(0, 20))] == progress.ranges
    progress.advance(progress.live, Position(0, 30))
    progress.split(Position(2, 0))
    expected = [Range(Position(), Position(0, 20)), Range(Position(0, 30), Position(2, 0)), Range(Position(2, 0))]
    assert expected == progress.ranges
    progress.advance(progress.ranges[1], Position(1, 5))
    progress.advance(progress.ranges[0], Position(0, 20))
    assert [Range(Position(1, 5), Position(2, 0)), Range(Position(2, 0))] == progress.ranges
    progress.advance(progress.ranges[0], Position(2, 0))
    assert [Range(Position(2, 0))] == progress.ranges


def test_what_waits_is_counted_in_bytes(tmp_path: Path) -> None:
    """Over segments, backlogs and live parts, also where segments are gone."""
    rank = Rank(tmp_path, ALIVE, segment_bytes=4096)
    rank.write(10, frames=20)
    stream = find_streams(tmp_path)[rank.identity.writer, "traces"]
    sizes = {number: path.stat().st_size for number, path in stream.files.items()}
    progress = ShipProgress()
    assert sum(sizes.values()) == progress.waiting(stream)
    progress.split(Position(2, 100))
    assert sum(sizes.values()) == progress.waiting(stream)
    progress.advance(progress.live, Position(3, 10))
    behind = sum(size for number, size in sizes.items() if number > 3) + sizes[3] - 10
    assert behind + sizes[0] + sizes[1] + 100 == progress.waiting(stream)
    stream.files = {number: path for number, path in stream.files.items() if number > 2}
    assert behind == progress.waiting(stream)
    stream.files = {}
    assert 0 == progress.waiting(stream)


def test_a_look_from_another_thread_sees_whole_steps() -> None:
    """However often the shipping thread changes it meanwhile."""
    progress = ShipProgress()

    def ship() -> None:
        for number in range(1, 3000):
            progress.split(Position(0, 2 * number))
            progress.advance(progress.live, Position(0, 2 * number + 1), {"shipped": 1, f"other{number}": 1})
            progress.advance(progress.ranges[0], Position(0, 2 * number))

    thread = threading.Thread(target=ship)
    thread.start()
    while thread.is_alive():
        row = progress.row()
        *backlog, live = row["ranges"]
        assert live[1] is None
        assert all(start < end for start, end in backlog)
    thread.join()
    assert (2999, 3000) == (progress.counts["shipped"], len(progress.counts))
