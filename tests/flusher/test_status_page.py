"""What the flusher shows on the status page of its process, and what it answers."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from signal import SIGINT
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.comm.collectives import Collective
from otel_rl.comm.groups import Group
from otel_rl.comm.memory import comm
from otel_rl.flusher.status_page import MOST_KINDS, StatusPage
from otel_rl.guard import errors
from otel_rl.journal import page as pages
from otel_rl.journal.page import SIZE, STALLED, PageView, find_pages
from otel_rl.process.state import state
from otel_rl.records import FinishedRequests
from otel_rl.requests.memory import generation
from otel_rl.trace.attempt import know_attempt
from tests.fixtures import ATTEMPT, MS, RUN, WALL_NS, Recording
from tests.programs.launch import start
from tests.trace.test_stage import proto_spans
from tests.waiting import patience

S = 1000.0
ME = os.getpid()


def look(recording: Recording, after_ms: float = 1 * S) -> PageView:
    """Let some time pass and the flusher work, and read the page."""
    recording.tick(after_ms)
    otel_rl.flush()
    (view,) = find_pages(recording.root / RUN).values()
    return view


def rows(view: PageView, *keys: str) -> list[Any]:
    """Return what is said of the open stages, times in ms of the fake clock's begin."""
    found = [{**row, "began": row["began"] / MS - 1_000, "touched": row["touched"] / MS - 1_000} for row in view.open]
    return [tuple(row[key] for key in keys) for row in found]


@pytest.fixture
def page(recording: Recording) -> StatusPage:
    """The page of a recording that has been made."""
    otel_rl.flush()
    return recording.flusher.dispatcher.page


def test_who_the_process_is(recording: Recording) -> None:
    """And in which trace it is."""
    with otel_rl.step(12):
        view = look(recording)
        container = recording.run().open_stages()
    assert (
        ("trainer", "driver", 0, 1, ATTEMPT, 12, WALL_NS, 2000.0, 0),
        {stage.trace_id.hex() for stage in container if stage.name == v.LOOP},
        os.getpid(),
    ) == (
        (view.role, view.process, view.rank, view.world_size, view.attempt, view.step, view.anchor_ns,
         view.heartbeat_ns / MS, view.requests),
        {view.trace_id},
        view.identity.pid,
    )  # fmt: skip


def test_stages_are_listed_once_they_are_open_for_a_second(recording: Recording) -> None:
    """The oldest first, with attributes and what is inside what; a value is cut, a list left out."""
    with otel_rl.step(1):
        recording.tick(1 * S)
        with otel_rl.stage("outer", text="x" * 500, number=3, many=[1, 2]):
            recording.tick(500)
            with otel_rl.stage("inner"):
                first = look(recording, 700)
                second = look(recording)
        third = look(recording)
    names = [v.LOOP, f"{v.RANK_SPAN} 0"]
    assert (
        [*names, "outer"],
        [(v.LOOP, 0), (names[1], 0), ("outer", 1 * S), ("inner", 1.5 * S)],
        names,
    ) == (
        [one for (one,) in rows(first, "name")],
        rows(second, "name", "began"),
        [one for (one,) in rows(third, "name")],
    )
    outer, inner = second.open[2:]
    assert (second.open[1]["id"], outer["id"]) == (outer["parent"], inner["parent"])
    assert {"rl.text": "x" * 120, "rl.number": 3} == outer["attributes"]


def test_it_is_written_once_a_second(recording: Recording) -> None:
    """The heartbeat each time."""
    with otel_rl.step(1):
        recording.tick(200)
        with otel_rl.stage("long"):
            seen = [look(recording, ms) for ms in (900, 500, 400, 100)]
    assert [(2, 2100.0), (2, 2600.0), (2, 3000.0), (3, 3100.0)] == [
        (len(one.open), one.heartbeat_ns / MS) for one in seen
    ]


def test_the_normal_duration_is_the_median_of_what_has_ended(recording: Recording) -> None:
    """By name and by the attributes that a duration's metric has; collectives by their operation."""
    group = Group("default_pg", "default_pg", 2, (0, 1))
    with otel_rl.step(1):
        for ms in (100, 300, 200):
            with otel_rl.stage("tool"):
                recording.tick(ms)
        for name, ms in (("slow", 5000), ("fast", 10)):
            with otel_rl.stage(v.REWARD, **{v.REWARD_FUNCTION: name}):
                recording.tick(ms)
        for ms in (2, 4, 60):
            one = Collective("gather", 0, group, 1)
            recording.tick(ms)
            one.close()
        view = look(recording)
    assert {
        "tool": (3, 0.2),
        "rl.reward{slow}": (1, 5.0),
        "rl.reward{fast}": (1, 0.01),
        "rl.train.comm{gather}": (3, 0.004),
    } == {key: value for key, value in view.normal.items() if not key.startswith(("rl.rank", v.LOOP, v.SETUP))}


def test_the_last_calls_of_200_kinds_count(page: StatusPage, recording: Recording) -> None:
    """A program that names its stages by sample has no more."""
    page.normal("a", [1.0] * 300)
    page.normal("a", [9.0] * 60)
    for number in range(MOST_KINDS + 5):
        page.normal(f"kind {number}", [1.0])
    recording.tick(5_000)
    normal = look(recording).normal
    assert (9.0, MOST_KINDS, False) == (normal["a"][1], len(normal), "kind 204" in normal)


def test_a_listed_stage_is_touched_by_what_ends_in_it(recording: Recording) -> None:
    """A child, a collective, requests; not by what ends further inside, nor by what ended before."""
    seen = []
    with otel_rl.step(1), otel_rl.stage("outer"):
        seen.append(look(recording))
        with otel_rl.stage("child"):
            recording.tick(100)
        seen.append(look(recording))
        seen.append(look(recording))
        collective = Collective("gather", 0)
        recording.tick(100)
        collective.close()
        seen.append(look(recording))
        seen.append(look(recording))
        with otel_rl.stage("child"):
            seen.append(look(recording))
            with otel_rl.stage("grandchild"):
                recording.tick(100)
            seen.append(look(recording))
    expected = [
        [("outer", 0)],
        [("outer", 1100)],
        [("outer", 1100)],
        [("outer", 3200)],
        [("outer", 3200)],
        [("outer", 3200), ("child", 5200)],
        [("outer", 3200), ("child", 6300)],
    ]
    mine = ("outer", "child")
    assert expected == [[row for row in rows(one, "name", "touched") if row[0] in mine] for one in seen]


def test_requests_touch_the_rollouts_and_the_step(page: StatusPage, recording: Recording) -> None:
    """They end in an engine, wherever that is."""
    with otel_rl.step(1), otel_rl.stage(v.SAMPLE), otel_rl.stage("tool"):
        look(recording)
        recording.tick(500)
        page.touch([FinishedRequests.__new__(FinishedRequests)])
        view = look(recording)
    assert [
        (v.LOOP, 0), (f"{v.RANK_SPAN} 0", 1500), (v.SAMPLE, 1500), ("tool", 0),
    ] == rows(view, "name", "touched")  # fmt: skip


def test_a_collective_that_is_open_is_listed(recording: Recording) -> None:
    """Below its stage, with its group and number; groups say how many have begun, and who is in them."""
    group = Group("mesh_dp 1", "mesh_dp", 2, (1, 3))
    group.sequence = 7
    comm.groups[1] = (lambda: None, group)  # type: ignore[assignment]
    with otel_rl.step(1), otel_rl.stage("outer"):
        collective = Collective("gather", 64, group, 7)
        view = look(recording)
        collective.close()
    (row,) = [one for one in view.open if one["name"] == v.COMM]
    (outer,) = [one for one in view.open if one["name"] == "outer"]
    assert (outer["id"], "rl.train.comm{gather}", ("mesh_dp 1", 7), {"mesh_dp 1": (7, (1, 3))}) == (
        row["parent"],
        row["kind"],
        (row["attributes"][v.COMM_GROUP], row["attributes"][v.COMM_SEQUENCE]),
        view.groups,
    )


def test_many_open_stages_are_cut(recording: Recording) -> None:
    """The oldest are listed; fewer of them if they are large."""
    said = {f"key{number}": "x" * 120 for number in range(12)}
    with otel_rl.step(1):
        stages = [otel_rl.stage(f"stage {number}", **said) for number in range(100)]
        for one in stages:
            one.__enter__()
            recording.tick(1)
        view = look(recording)
        for one in reversed(stages):
            one.__exit__(None, None, None)
    assert [v.LOOP, f"{v.RANK_SPAN} 0", *(f"stage {number}" for number in range(22))] == [
        name for (name,) in rows(view, "name")
    ]


def test_requests_inside_engines_are_counted(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has the sum of all engines."""

    class Engine:
        unfinished = 3

    monkeypatch.setattr(generation, "engines", {Engine(): 1, Engine(): 2})
    with otel_rl.step(1):
        assert 6 == look(recording).requests
        monkeypatch.setattr(generation, "engines", {})


def test_a_stall_is_an_event_of_the_step(recording: Recording, page: StatusPage) -> None:
    """Once, by the id that its log record has; a further stall is another event."""
    assert page._page is not None
    words = page._page.words
    with otel_rl.step(1):
        recording.tick(40 * S)
        for began_ms in (1_010, 1_010, 30_000):
            words[STALLED] = began_ms * MS
            view = look(recording)
    writer = view.identity.writer
    (events,) = [list(one.events) for one in proto_spans(recording).values() if one.events]
    assert [
        (v.STALL, {v.STALL_ID: f"{writer}-{1_010 * MS:x}", v.STALL_AGE: 40.99}),
        (v.STALL, {v.STALL_ID: f"{writer}-{30_000 * MS:x}", v.STALL_AGE: 14.0}),
    ] == [
        (one.name, {item.key: item.value.string_value or item.value.double_value for item in one.attributes})
        for one in events
    ]


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_page_follows_its_journal(rank_1: Recording) -> None:
    """Into the folder of the run that is known later; nothing is left behind."""
    with otel_rl.stage("load"):
        otel_rl.flush()
        pending = list((rank_1.root / ".pending").glob("*/*.page"))
        know_attempt("abc", "job")
        otel_rl.flush()
        moved = list((rank_1.root / "job").glob("*.page"))
        assert ([pending[0].name], []) == ([one.name for one in moved], list((rank_1.root / ".pending").iterdir()))
    otel_rl.uninstrument()
    assert [] == list(rank_1.root.rglob("*.page"))


def test_a_page_that_cannot_follow_stays_and_goes_on(
    recording: Recording, page: StatusPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal went to another disk; the processes that it is compared with are here."""

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    writer = recording.flusher._writer
    assert writer is not None
    writer.redirect(tmp_path / "elsewhere")
    monkeypatch.setattr(pages.os, "replace", refuse)
    with otel_rl.step(1), otel_rl.stage("long"):
        view = look(recording)
    assert (recording.root / RUN, True) == (view.path.parent, "long" in {row["name"] for row in view.open})
    recording.stop()
    assert [] == list(recording.root.rglob("*.page"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EMFILE])
def test_a_machine_without_room_for_a_page_costs_the_page_only(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """It is tried once and said in one line, which is no error of ours; what is recorded is journaled."""
    tries: list[int] = []

    def full(descriptor: int, offset: int, size: int) -> None:
        tries.append(size)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(pages.os, "posix_fallocate", full)
    with otel_rl.step(1):
        for _ in range(3):
            with otel_rl.stage("tool"):
                recording.tick(2 * S)
                otel_rl.flush()
    names = [span.name for span in recording.stop().spans(None)]
    assert ([SIZE], {}, 3) == (tries, dict(errors), names.count("tool"))
    (record,) = caplog.records
    said = f"otel_rl: stalls of this process are not found: /dev/shm cannot be written ({os.strerror(number)})"
    assert (said, None) == (record.getMessage(), record.exc_info)


def test_a_page_that_somebody_removed_harms_nothing(recording: Recording, page: StatusPage) -> None:
    """It is not made again: whoever removed it wants none."""
    view = look(recording)
    view.path.unlink()
    with otel_rl.step(1), otel_rl.stage("long"):
        recording.tick(2 * S)
        page.heartbeat()
        otel_rl.flush()
    recording.stop()
    assert {} == dict(errors)


def test_without_a_record_there_is_no_page(recording: Recording) -> None:
    """A program that imports us and records nothing leaves nothing."""
    made = StatusPage()

    class NoFrames:
        frames = 0

    made.update(NoFrames(), ())  # type: ignore[arg-type]
    made.heartbeat()
    made.abandon()
    made.close(is_whole=True)
    assert (None, True) == (made._page, state.on)


HANGING = """
import sys, time
import otel_rl
print("ready", flush=True)
with otel_rl.stage("reward"):
    time.sleep(60)
"""


@pytest.mark.medium
def test_a_process_that_hangs_in_its_first_stage_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where ``otel-rl run`` starts the recording, and nothing has been journaled yet."""
    monkeypatch.setattr(pages, "MEMORY", Path("/dev/shm"))
    command = ("-m", "otel_rl", "run", "--quiet", "--", sys.executable, "-c", HANGING)
    process = start(tmp_path, *command, OTEL_RL_SIDECAR="false")
    open_stages: list[str] = []
    try:
        for _ in patience():
            views = [view for run in (tmp_path / "runs").glob("*") for view in find_pages(run).values()]
            open_stages = [row["name"] for view in views for row in view.open]
            if v.REWARD in open_stages:
                break
    finally:
        process.send_signal(SIGINT)
        process.communicate()
    assert {v.SETUP, f"{v.RANK_SPAN} 0", v.REWARD} == set(open_stages)
