"""Who waits for whom, in situations with fixed times."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl import vocabulary as v
from otel_rl.stalls.bounds import StallBounds
from otel_rl.stalls.chain import Situation
from otel_rl.stalls.members import Process
from tests.stuck import GATHER, collective, process, row, stalls, told

NORMAL = {v.REWARD: (100, 0.3), GATHER: (900, 0.1), "rl.rank 3": (11, 5.0)}


def gathering(*ranks: int, age_s: float = 214, **more: Any) -> list[Process]:
    """Make ranks that are in a gather."""
    inside = {**collective(age_s), "parent": "c"}
    return [process(rank, row(f"rl.rank {rank}", 300, id="c"), inside, normal=NORMAL, **more) for rank in ranks]


def rewarding(rank: int, age_s: float = 214, **more: Any) -> Process:
    """Make a rank that is in a reward."""
    rows = row(f"rl.rank {rank}", 300, id="c"), row(v.REWARD, age_s, id="r", parent="c")
    return process(rank, *rows, normal=NORMAL, **more)


def test_a_reward_holds_up_all_who_gather() -> None:
    """Once, however many wait."""
    assert [("stage", "trainer", 3, v.REWARD, ["trainer 0", "trainer 1", "trainer 2"])] == told(
        *gathering(0, 1, 2), rewarding(3)
    )


def test_nothing_is_late() -> None:
    """Neither within the bound, nor where the late one has had a sign of life, nor without any process."""
    assert [] == told()
    assert [] == told(*gathering(0, 1, 2, age_s=29), rewarding(3, 29))
    assert [] == told(*gathering(0, 1, 2), rewarding(3, 29))


def test_a_stage_in_which_something_ends_goes_on() -> None:
    """What it is compared with is the time since then."""
    going = process(3, row(v.REWARD, 500, touched_s=20), normal=NORMAL)
    stuck = process(3, row(v.REWARD, 500, touched_s=31), normal=NORMAL)
    assert ([], [("stage", "trainer", 3, v.REWARD, [])]) == (told(going), told(stuck))


def test_only_the_innermost_stages_count() -> None:
    """A step may take as long as what is in it."""
    rows = row("rl.rank 3", 900, id="c"), row(v.REWARD, 800, id="r", parent="c"), row("tool", 10, parent="r")
    assert [] == told(process(3, *rows, normal=NORMAL))


def test_each_subgroup_waits_for_its_own() -> None:
    """Ranks 0 and 1 for rank 1's reward, rank 2 for rank 3's."""
    groups = {"left": (7, (0, 1)), "right": (4, (2, 3))}
    left = process(0, collective(100, 7, "left"), normal=NORMAL, groups=groups)
    right = process(2, collective(90, 4, "right"), normal=NORMAL, groups=groups)
    assert [
        ("stage", "trainer", 1, v.REWARD, ["trainer 0"]),
        ("stage", "trainer", 3, v.REWARD, ["trainer 2"]),
    ] == told(left, rewarding(1), right, rewarding(3))


def test_a_rank_of_a_subgroup_waits_through_another_one() -> None:
    """Rank 0 for rank 1, which is in another group's collective, for rank 2."""
    groups = {"left": (7, (0, 1)), "right": (4, (1, 2))}
    first = process(0, collective(100, 7, "left"), normal=NORMAL, groups=groups)
    second = process(1, collective(90, 4, "right"), normal=NORMAL, groups=groups)
    assert [("stage", "trainer", 2, v.REWARD, ["trainer 0", "trainer 1"])] == told(first, second, rewarding(2))


def synchronizing(rank: int, number: int = 8, age_s: float = 40) -> Process:
    """Make a rank whose device is in a collective, so that the host waits where it reads a result."""
    normal, groups = {"clip": (9, 0.1)}, {"default_pg": (number, (0, 1, 2, 3))}
    return process(rank, row("clip", age_s), normal=normal, groups=groups)


def test_devices_wait_for_the_rank_that_has_begun_fewer_collectives() -> None:
    """Once it has had its time; nothing says so but the numbers of the group."""
    groups = {"default_pg": (7, (0, 1, 2, 3))}
    late = process(3, row(v.REWARD, 41), normal=NORMAL, groups=groups)
    slow = process(3, row(v.REWARD, 41), normal={v.REWARD: (9, 30.0)}, groups=groups)
    others = [synchronizing(rank) for rank in range(3)]
    assert [("stage", "trainer", 3, v.REWARD, ["trainer 0", "trainer 1", "trainer 2"])] == told(*others, late)
    assert [] == told(*others, slow)


def test_devices_that_all_wait_are_one_stall() -> None:
    """None is behind: the collective does not end, or what else they do together."""
    (stall,) = stalls(*[synchronizing(rank) for rank in range(4)])
    assert ("collective", 0, [0, 1, 2, 3], ()) == (
        stall.cause, stall.last.process.page.rank, [one.process.page.rank for one in stall.together], stall.waiting,
    )  # fmt: skip


@pytest.mark.parametrize("state", ["dead", "silent", "stopped"])
def test_a_rank_that_does_not_run_is_the_last_link(state: Any) -> None:
    """In the stage that its threads showed last, which the flusher may not have listed."""
    quiet = process(3, row("rl.rank 3", 300), state=state, stage=(v.REWARD, 200), silent_s=199, normal=NORMAL)
    assert [(state, "trainer", 3, v.REWARD, ["trainer 0", "trainer 1", "trainer 2"])] == told(
        *gathering(0, 1, 2), quiet
    )


def test_a_rank_that_died_is_the_last_link_at_once() -> None:
    """Its stage will not end, so its bound is no matter; a process that is silent may go on within it."""

    def quiet(state: Any) -> Process:
        return process(3, state=state, stage=(v.REWARD, 20), silent_s=19, normal=NORMAL)

    assert ["dead"] == [one[0] for one in told(*gathering(0, 1, 2), quiet("dead"))]
    assert [] == told(*gathering(0, 1, 2), quiet("silent"))


def test_a_silent_rank_has_the_history_of_its_peers() -> None:
    """Its own page may lack the calls that ended last, since nobody writes it; a rank that works has its own."""

    def held(state: Any, silent_s: float) -> Process:
        return process(3, row(v.REWARD, 50), state=state, stage=(v.REWARD, 50), silent_s=silent_s)

    peers = [process(rank, collective(50), normal=NORMAL) for rank in (0, 1, 2)]
    assert ["silent"] == [one[0] for one in told(*peers, held("silent", 49))]
    assert [] == told(*peers, held("working", 0))


def test_a_dead_rank_in_no_stage_is_the_last_link() -> None:
    """It may have died between two stages, before its step was open for a second."""
    assert [("dead", "trainer", 3, "", ["trainer 0", "trainer 1", "trainer 2"])] == told(
        *gathering(0, 1, 2), process(3, state="dead", stage=("", 150), silent_s=150)
    )


def test_nobody_waits_for_a_dead_process_alone() -> None:
    """A program may end a worker; that is no stall."""
    assert [] == told(process(3, row(v.REWARD, 999), state="dead", stage=(v.REWARD, 999), normal=NORMAL))


def test_what_a_debugger_holds_does_not_stall() -> None:
    """Neither do they who wait for it."""
    assert [] == told(*gathering(0, 1, 2), rewarding(3, state="traced"))
    assert [] == told(rewarding(3, state="traced"))
    assert [] == told(*gathering(0, 1, 2), *gathering(3, state="traced"))


def test_a_rank_without_a_page_is_waited_for_for_ten_minutes() -> None:
    """It runs on another node whose disk is not ours; all who wait are one stall."""
    late = stalls(*gathering(0, 1, age_s=601, world_size=3))
    assert [] == told(*gathering(0, 1, age_s=599, world_size=3))
    assert [("unseen", 0, 2, [1])] == [
        (one.cause, one.last.process.page.rank, one.unseen, [link.process.page.rank for link in one.waiting])
        for one in late
    ]


def test_a_collective_that_all_are_in_is_one_stall() -> None:
    """The network hangs, or one rank's device."""
    (stall,) = stalls(*gathering(0, 1, 2, 3))
    assert ("collective", 0, [0, 1, 2, 3], ()) == (
        stall.cause,
        stall.last.process.page.rank,
        [link.process.page.rank for link in stall.together],
        stall.waiting,
    )


def test_a_collective_of_which_nothing_is_known_does_not_wait_for_itself() -> None:
    """Neither its group nor its number: any other of that kind may be the same."""
    ranks = [process(rank, collective(100, None, None), normal=NORMAL, world_size=2) for rank in range(2)]
    assert [("collective", "trainer", 0, v.COMM, [])] == told(*ranks)
    assert [("stage", "trainer", 1, v.REWARD, ["trainer 0"])] == told(ranks[0], rewarding(1))


def test_ranks_in_different_collectives_of_one_group_wait_for_each_other() -> None:
    """This is one stall, and none while both are within their bounds."""
    one, other = (process(rank, collective(100 - rank, 7 + rank), normal=NORMAL, world_size=2) for rank in range(2))
    assert [("stage", "trainer", 0, v.COMM, ["trainer 1"])] == told(one, other) == told(other, one)
    fresh = process(1, collective(3, 8), normal=NORMAL, world_size=2)
    assert [("stage", "trainer", 0, v.COMM, ["trainer 1"])] == told(one, fresh)


def test_a_restarted_rank_counts_instead_of_the_old_one() -> None:
    """The process that was made later counts if two have the same number."""
    old = process(3, row(v.REWARD, 900), state="dead", stage=(v.REWARD, 900))
    new = rewarding(3, created_ns=2)
    assert [("stage", 3)] == [(one[0], one[2]) for one in told(*gathering(0, 1, 2), new, old)]


# --- drivers and those who work for them ------------------------------------------------------------------------------


def driver(*rows: dict[str, Any], **more: Any) -> Process:
    """Make a driver."""
    return process(0, *rows, process="driver", role="driver", normal={"update": (9, 1.0), v.IDLE: (9, 1.0)}, **more)


def worker(rank: int, *rows: dict[str, Any], **more: Any) -> Process:
    """Make a worker."""
    return process(rank, *rows, process="worker", role="actor", normal={"update_actor": (9, 1.0), **NORMAL}, **more)


CALLING = row("update", 100, id="d")


def called(age_s: float, touched_s: float | None = None, name: str = "update_actor") -> dict[str, Any]:
    """Make the method that the driver waits for."""
    return row(name, age_s, touched_s=touched_s, id="w", parent="d")


def test_a_driver_waits_for_the_method_that_it_called() -> None:
    """Whose innermost stage is stuck."""
    inside = row(v.REWARD, 90, parent="w")
    assert [("stage", "actor", 1, v.REWARD, ["driver 0"])] == told(
        driver(CALLING), worker(0), worker(1, called(100), inside)
    )


def test_a_driver_whose_workers_go_on_does_not_stall() -> None:
    """Within their bounds, or because something in them ends."""
    assert [] == told(driver(CALLING), worker(0, called(29)))
    assert [] == told(driver(CALLING), worker(0, called(100, touched_s=2)))
    assert [] == told(driver(CALLING), worker(0, called(100), row("fit", 99, parent="w")))


def test_of_several_workers_the_late_one_is_the_last_link() -> None:
    """The others are done, or go on."""
    assert [("stage", "actor", 2, "update_actor", ["driver 0"])] == told(
        driver(CALLING), worker(0), worker(1, called(100, touched_s=1)), worker(2, called(100))
    )


def test_workers_in_a_collective_are_followed_to_the_one_that_is_missing() -> None:
    """The driver waits through them."""
    inside = {**collective(80), "parent": "w"}
    some = [worker(rank, called(100), inside, world_size=2) for rank in (0,)]
    stuck = worker(1, called(100), row(v.REWARD, 95, parent="w"), world_size=2)
    assert [("stage", "actor", 1, v.REWARD, ["driver 0", "actor 0"])] == told(driver(CALLING), *some, stuck)


def test_a_dead_actor_holds_its_caller_up() -> None:
    """Whatever the bound of its method."""
    dead = worker(1, called(99), state="dead", stage=("update_actor", 99), silent_s=98)
    assert [("dead", "actor", 1, "update_actor", ["driver 0"])] == told(driver(CALLING), worker(0), dead)


def test_a_driver_that_waits_for_work_stalls_only_if_all_is_quiet() -> None:
    """Rollouts may take long; what moves shows that they go on."""
    idle = driver(row(v.IDLE, 100))
    moving = worker(0, stage=("", 3))
    quiet = worker(0, stage=("", 300))
    assert ([], [("stage", "driver", 0, v.IDLE, [])]) == (told(idle, moving), told(idle, quiet))


def test_what_waits_for_work_waits_for_the_stall_that_is_there() -> None:
    """Also where no call leads from one to the other."""
    idle = driver(row(v.IDLE, 100), stage=("", 100))
    stuck = worker(1, row(v.REWARD, 90), stage=("", 90))
    assert [("stage", "actor", 1, v.REWARD, ["driver 0"])] == told(idle, worker(0, stage=("", 80)), stuck)


def test_if_all_only_wait_it_is_one_stall() -> None:
    """Of the one that has waited longest."""
    some = [process(rank, row(v.IDLE, 100 + rank), normal={v.IDLE: (9, 1.0)}, stage=("", 200)) for rank in range(3)]
    assert [("stage", "trainer", 2, v.IDLE, ["trainer 0", "trainer 1"])] == told(*some)


def test_ranks_that_all_wait_for_work_wait_for_who_makes_it() -> None:
    """They wait for another program, not in a collective; while that goes on they do not stall."""
    groups = {"default_pg": (7, (0, 1))}
    ranks = [
        process(rank, row(v.IDLE, 100), normal={v.IDLE: (9, 1.0)}, groups=groups, world_size=2, stage=("", 100))
        for rank in range(2)
    ]
    role = {"role": "orchestrator", "process": "worker", "normal": {v.TRAJECTORY: (9, 10.0)}}
    stuck, busy = (process(0, row(v.TRAJECTORY, age_s), stage=("", age_s), **role) for age_s in (90, 5))
    waiting = ["trainer 0", "trainer 1"]
    assert [("stage", "orchestrator", 0, v.TRAJECTORY, waiting)] == told(*ranks, stuck)
    assert [] == told(*ranks, busy)


def test_two_processes_that_call_each_other_are_one_stall() -> None:
    """The chain ends, at the one that was to answer first."""
    one = worker(0, row("ask", 700, id="a", parent="b"))
    other = worker(1, row("answer", 690, id="b", parent="a"))
    assert [("stage", "actor", 0, "ask", ["actor 1"])] == told(one, other) == told(other, one)


# --- before there is a history ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age_s", "step", "expected"), [(599, 12, 0), (601, 12, 1), (1799, None, 0), (1801, None, 1)])
def test_first_calls_and_the_set_up_have_a_fixed_time(age_s: float, step: int | None, expected: int) -> None:
    """Compilation takes long, and so does loading."""
    assert expected == len(stalls(process(0, row("compile", age_s), step=step)))


def test_never_is_never() -> None:
    """A user who sets no bound gets no stall of a stage; a dead rank is one that is waited for."""
    bounds = StallBounds(after_s=inf)
    assert [] == told(*gathering(0, 1, 2), rewarding(3), bounds=bounds)


# --- whatever the situation -------------------------------------------------------------------------------------------

ROWS = st.builds(
    row,
    st.sampled_from([v.REWARD, v.IDLE, "update", "rl.rank 0", v.SETUP]),
    st.sampled_from([1.0, 20.0, 40.0, 90.0, 700.0, 2000.0]),
    touched_s=st.sampled_from([None, 0.5, 35.0]),
    id=st.sampled_from("abcdef"),
    parent=st.sampled_from(["", *"abcdef"]),
)
GATHERS = st.builds(
    collective,
    st.sampled_from([1.0, 40.0, 90.0, 700.0]),
    st.sampled_from([None, 6, 7]),
    st.sampled_from([None, "g", "h"]),
)
SHORT = {v.REWARD: (9, 1.0), "update": (9, 10.0), v.IDLE: (9, 1.0), GATHER: (9, 1.0)}
PROCESSES = st.builds(
    lambda rank, rows, more: process(rank, *rows, **more),
    st.integers(0, 4),
    st.lists(ROWS | GATHERS, max_size=4, unique_by=lambda made: made["began"]),
    st.fixed_dictionaries(
        {
            "state": st.sampled_from(["working", "working", "silent", "stopped", "traced", "dead"]),
            "stage": st.tuples(st.sampled_from(["", v.REWARD, "update"]), st.sampled_from([0.5, 40.0, 700.0])),
            "silent_s": st.sampled_from([0.0, 15.0, 100.0]),
            "process": st.sampled_from(["driver", "rank", "worker"]),
            "role": st.sampled_from(["trainer", "actor"]),
            "step": st.sampled_from([None, 3]),
            "normal": st.sampled_from([{}, SHORT]),
            "groups": st.sampled_from([{}, {"g": (7, (0, 1, 2)), "h": (6, (1, 3))}, {"g": (6, (0, 1, 2))}]),
            "is_local": st.booleans(),
        }
    ),
)  # fmt: skip


@given(st.lists(PROCESSES, max_size=6, unique_by=lambda one: one.writer))
def test_nothing_stalls_within_its_bound(processes: list[Process]) -> None:
    """The search ends; each stall is said once; its last link is over or dead, and waits for nothing itself."""
    found = Situation(processes, StallBounds()).stalls()
    keys = [one.last.key for one in found]
    assert len(keys) == len(set(keys))
    for stall in found:
        assert any(link.is_over for link in (stall.last, *stall.waiting))
        assert stall.last.process.state != "traced"
        assert stall.last.key not in {link.key for link in stall.waiting}
        assert (stall.cause == "unseen") == (stall.unseen is not None)
        assert (stall.cause == "collective") == bool(stall.together)


@given(st.lists(PROCESSES, max_size=6, unique_by=lambda one: one.writer), st.randoms())
def test_the_order_of_the_processes_is_no_matter(processes: list[Process], random: Any) -> None:
    """A look reads them in the order of a directory, and a stall is known by its last link."""
    mixed = random.sample(processes, len(processes))
    both = [Situation(some, StallBounds()).stalls() for some in (processes, mixed)]
    assert sorted(one.last.key for one in both[0]) == sorted(one.last.key for one in both[1])
