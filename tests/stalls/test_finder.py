"""From one look to the next: when a stall is told, when it is not, and how it ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.stalls import finder
from otel_rl.stalls.bounds import StallBounds
from otel_rl.stalls.finder import PAUSE_S, StallFinder
from otel_rl.stalls.members import Process
from tests.stuck import GATHER, NOW_NS, collective, process, row

NORMAL = {v.REWARD: (100, 0.3), GATHER: (900, 0.1)}
Told = list[tuple[str, str, float]]


class Looks:
    """A finder, its clock, and the processes that it sees; time passes for all of them alike."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.finder = StallFinder(Path("run"), lambda identity: True, StallBounds(), clock=lambda: self.now_s)
        self.processes: list[Process] = []
        monkeypatch.setattr(finder, "find_processes", lambda directory, is_mine: self.processes)

    def look(self, *processes: Process, after_s: float = 2.0) -> Told:
        """Look at processes some time later; return state, cause or end, and how long it lasted."""
        self.now_s += after_s
        self.processes = [self._later(one) for one in processes]
        return [
            ("ended", one.how, one.lasted_s) if one.is_end else ("found", one.stall.cause, one.stall.last.age_s)
            for one in self.finder.look()
        ]

    def _later(self, one: Process) -> Process:
        """Let the time that has passed since the first moment pass for a process; its flusher works if it runs."""
        passed_ns = round((self.now_s - 1000.0) * 1e9)
        heartbeat_ns = one.page.heartbeat_ns + (0 if one.is_quiet else passed_ns)
        return replace(one, page=replace(one.page, heartbeat_ns=heartbeat_ns), now_ns=NOW_NS + passed_ns)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """The first look is still to come."""
    return Looks(monkeypatch)


def rewarding(age_s: float = 40, **more: Any) -> Process:
    """Make a rank that is in a reward."""
    return process(3, row(v.REWARD, age_s, **more), normal=NORMAL)


def test_a_stall_is_told_once_at_the_second_look(looks: Looks) -> None:
    """One look may have met a page between two writes."""
    assert ([], [("found", "stage", 44.0)], [], []) == tuple(looks.look(rewarding()) for _ in range(4))
    assert [(v.REWARD, 48.0)] == [(one.last.leaf.name, one.last.age_s) for one in looks.finder.active]


def test_what_is_seen_once_is_not_told(looks: Looks) -> None:
    """Nor is its end, and the looks are counted anew."""
    idle = process(3, normal=NORMAL)
    assert [[], [], [], []] == [looks.look(one) for one in (rewarding(), idle, rewarding(), idle)]


def test_a_look_is_due_every_two_seconds(looks: Looks) -> None:
    """However often the sidecar comes by."""
    assert looks.finder.is_due
    looks.look()
    due = []
    for _ in range(4):
        looks.now_s += 0.5
        due.append(looks.finder.is_due)
    assert [False, False, False, True] == due


def test_after_a_pause_of_the_machine_nothing_new_is_told_for_a_while(looks: Looks) -> None:
    """A suspended laptop has held up everything; what stalls for good is told 30 s later."""
    looks.look(rewarding(1))
    found = [looks.look(rewarding(1), after_s=PAUSE_S + 600)]
    found += [looks.look(rewarding(1)) for _ in range(16)]
    assert [[]] * 15 == found[:15]
    assert [("found", "stage", 639.0)] == found[15]


def test_a_sidecar_that_is_always_late_finds_stalls_all_the_same(looks: Looks) -> None:
    """It has much to do; no machine pauses between all of its looks."""
    looks.look(rewarding(1))
    found = [looks.look(rewarding(1), after_s=PAUSE_S + 4) for _ in range(5)]
    assert [[], [], [], [("found", "stage", 43.0)], []] == found


def test_a_stall_that_was_told_goes_on_after_a_pause(looks: Looks) -> None:
    """It is neither told again nor ended."""
    assert [[], [("found", "stage", 44.0)]] == [looks.look(rewarding()), looks.look(rewarding())]
    assert [[], []] == [looks.look(rewarding(), after_s=60), looks.look(rewarding())]


def test_what_a_debugger_has_held_has_its_time_again(looks: Looks) -> None:
    """The stage is as old as before, and a person looked at it."""
    held = replace(rewarding(), state="traced")
    assert [[], [], []] == [looks.look(held) for _ in range(3)]
    assert [[]] * 14 == [looks.look(rewarding()) for _ in range(14)]
    assert [("found", "stage", 76.0)] == looks.look(rewarding())


def test_the_node_of_the_last_link_tells(looks: Looks) -> None:
    """Its sidecar can read the stacks."""
    elsewhere = replace(rewarding(), is_local=False)
    waiting = process(0, collective(40), normal=NORMAL)
    assert [[], [], []] == [looks.look(waiting, elsewhere) for _ in range(3)]


def test_the_attempt_that_lives_counts(looks: Looks) -> None:
    """Pages of one that was killed lie beside it."""
    old = process(0, collective(900), state="dead", attempt="before", created_ns=1)
    ended = process(1, collective(900), attempt="before", created_ns=1)
    new = process(0, row("tool", 1), attempt="now", created_ns=2)
    assert [[], [], []] == [looks.look(old, ended, new) for _ in range(3)]
    assert [[], []] == [looks.look(old), looks.look()]


def found(looks: Looks, *processes: Process) -> None:
    """Let a stall be found; its last link has had no sign of life for 44 s then."""
    looks.look(*processes)
    ((kind, _, age_s),) = looks.look(*processes)
    assert ("found", 44.0) == (kind, age_s)


STUCK = process(3, row(v.REWARD, 40), stage=(v.REWARD, 40), normal=NORMAL)
GONE = process(3, normal=NORMAL, stage=("", -5.0))
"""Its last stage ended 5 s after the first moment."""


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ((GONE,), ("the stage has ended", 45.0)),
        ((rewarding(touched_s=-3.0),), ("the stage goes on", 44.0)),
        (
            (process(3, row(v.REWARD, 40, id="r"), row("tool", -4, parent="r"), stage=("tool", -4), normal=NORMAL),),
            ("the stage goes on", 44.0),
        ),
        ((), ("its process has ended, or records no more", 44.0)),
        ((replace(rewarding(), state="dead"), process(0)), ("its process was killed in it", 44.0)),
        ((replace(STUCK, state="traced"),), ("it holds nobody up any more", 46.0)),
    ],
)
def test_a_stall_ends(looks: Looks, after: tuple[Process, ...], expected: tuple[str, float]) -> None:
    """It is said how, and for how long nothing happened, as far as that is known; then it is forgotten."""
    found(looks, STUCK)
    assert [("ended", *expected)] == looks.look(*after)
    assert ([], []) == (looks.look(*after), looks.finder.active)


def test_a_dead_process_for_which_nobody_waits_any_more(looks: Looks) -> None:
    """Those who waited have gone on without it."""
    dead = process(3, state="dead", stage=(v.REWARD, 40), silent_s=40, normal=NORMAL)
    found(looks, process(0, collective(40), normal=NORMAL), dead)
    assert [("ended", "it holds nobody up any more", 46.0)] == looks.look(process(0), dead)


def test_a_silent_process_that_goes_on(looks: Looks) -> None:
    """The regular expression came to its end, and the stage with it."""
    silent = process(3, row("rl.rank 3", 41, id="c"), state="silent", stage=(v.REWARD, 40), silent_s=39, normal=NORMAL)
    found(looks, silent)
    again = process(3, row("rl.rank 3", 41, id="c"), stage=("", -6), normal=NORMAL)
    assert [("ended", "the stage has ended", 46.0)] == looks.look(again)


def test_a_stall_that_becomes_another_one(looks: Looks) -> None:
    """A driver's stage was first; when its worker's has had its time, that is what is told."""
    driver = process(0, row(v.IDLE, 40), process="driver", role="driver", normal={v.IDLE: (9, 1.0)}, stage=("", 100))
    worker = process(1, row("tool", 595), process="worker", role="worker", stage=("", 595))
    both = [looks.look(driver, worker) for _ in range(5)]
    assert [
        [],
        [("found", "stage", 44.0)],
        [("ended", "it waits for another", 46.0)],
        [("found", "stage", 603.0)],
        [],
    ] == both
