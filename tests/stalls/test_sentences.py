"""A stall in words, as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.stalls.finder import StallChange
from otel_rl.stalls.members import Process
from otel_rl.stalls.sentences import chain_of
from otel_rl.stalls.tell import ended_text, stall_id
from tests.stuck import GATHER, ago, collective, process, row, stalls

NORMAL = {v.REWARD: (100, 0.3), GATHER: (900, 0.1), "rl.rank 3": (11, 5.0)}
SAID = {v.REWARD_FUNCTION: "parse_answer", v.SAMPLE_ID: 17}
REWARD = row(v.REWARD, 214, said=SAID)


def gathering(*ranks: int, age_s: float = 213, **more: Any) -> list[Process]:
    """Make ranks that are in a gather."""
    return [process(rank, collective(age_s - rank, 215), normal=NORMAL, **more) for rank in ranks]


def words(*processes: Process) -> str:
    """Return the words of the only stall."""
    (stall,) = stalls(*processes)
    return chain_of(stall)


WAIT = " Ranks 0-2 wait in gather 215 of default_pg in step 12 for 3 min 33 s."
QUIET = {"stage": (v.REWARD, 214), "silent_s": 210, "normal": NORMAL}


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (
            process(3, REWARD, normal=NORMAL),
            "Rank 3 holds everybody up: rl.reward (function parse_answer, sample 17) in step 12, for 3 min 34 s "
            "(normally 300 ms)." + WAIT,
        ),
        (
            process(3, row("rl.rank 3", 214), normal=NORMAL),
            "Rank 3 holds everybody up: step 12, in no stage, for 3 min 34 s (normally 5.00 s)." + WAIT,
        ),
        (
            process(3, state="silent", **QUIET),
            "Rank 3 holds everybody up: rl.reward in step 12, for 3 min 34 s (normally 300 ms). The process has "
            "given no sign of life for 3 min 30 s: something holds its interpreter, or it does not run." + WAIT,
        ),
        (
            process(3, REWARD, state="silent", **QUIET),
            "Rank 3 holds everybody up: rl.reward (function parse_answer, sample 17) in step 12, for 3 min 34 s "
            "(normally 300 ms). The process has given no sign of life for 3 min 30 s: something holds its "
            "interpreter, or it does not run." + WAIT,
        ),
        (
            process(3, state="stopped", **QUIET),
            "Rank 3 holds everybody up: rl.reward in step 12, for 3 min 34 s (normally 300 ms). The process has "
            "been stopped (SIGSTOP) for at most 3 min 30 s." + WAIT,
        ),
        (
            process(3, state="dead", **QUIET),
            "Rank 3 holds everybody up: rl.reward in step 12, for 3 min 34 s (normally 300 ms). The process "
            "ended at most 3 min 30 s ago." + WAIT,
        ),
        (
            process(3, state="dead", stage=("", 220), silent_s=210),
            "Rank 3 holds everybody up: no stage in step 12, for 3 min 40 s. The process ended at most "
            "3 min 30 s ago." + WAIT,
        ),
    ],
)  # fmt: skip
def test_the_last_link_comes_first(last: Process, expected: str) -> None:
    """Which call it is, for how long, how long normally, and whether the process runs; then who waits."""
    assert expected == words(*gathering(0, 1, 2), last)


def test_a_stage_for_which_nobody_waits() -> None:
    """Without a history nothing is normal; outside of steps there is no step; a text is cut and shows no control."""
    expected = "Worker 2 is stuck: tool (tool \ufffd[31m" + "x" * 55 + "), for 1 h 00 min."
    said = {v.TOOL_NAME: "\x1b[31m" + "x" * 99}
    assert expected == words(process(2, row("tool", 3600, said=said), process="worker", role="worker", step=None))


def test_a_set_up_for_which_nobody_waits() -> None:
    """It is no step; after steps it is tear-down."""
    rows = row(v.SETUP, 2400, id="s"), row("rl.rank 0", 2400, parent="s")
    later = process(3, row("rl.rank 3", 2400), step=None, normal=NORMAL)
    assert "Rank 0 is stuck: set-up, in no stage, for 40 min 00 s." == words(process(0, *rows, step=None))
    assert "Rank 3 is stuck: tear-down, in no stage, for 40 min 00 s." == words(later)


def test_all_are_in_the_collective() -> None:
    """Nobody waits then."""
    assert (
        "Ranks 0-3 have all been inside gather 215 of default_pg in step 12 for 3 min 33 s (normally 100 ms). It does "
        "not end."
    ) == words(*gathering(0, 1, 2, 3))


def test_one_is_alone_in_its_collective() -> None:
    """A group of one."""
    (alone,) = gathering(0, world_size=1)
    assert (
        "Rank 0 has been inside gather 215 of default_pg in step 12 for 3 min 33 s (normally 100 ms). It does not end."
    ) == words(alone)


def test_a_rank_of_another_node_is_waited_for() -> None:
    """One says it, and the others follow."""
    assert (
        "Rank 0 waits in gather 215 of default_pg in step 12 for rank 1, for 11 min 40 s. That rank has no status page "
        "here: it runs on another node, or has ended. Ranks 2-3 wait in gather 215 of default_pg in step 12 for "
        "11 min 38 s."
    ) == words(*gathering(0, 2, 3, age_s=700))


def test_those_who_wait_in_different_stages_get_a_sentence_each() -> None:
    """Those first that wait longest; ranks in a row are named by the first and the last, and roles apart."""
    driver = process(
        0, row("update", 300, id="d"), process="driver", role="driver", normal={"update": (9, 1.0)}, step=12
    )
    inside = {**collective(200, 215), "parent": "w"}
    workers = [
        process(rank, row("update_actor", 299, id="w", parent="d"), inside, process="worker", role="actor",
                normal=NORMAL, world_size=5) for rank in (0, 2, 3)
    ]  # fmt: skip
    stuck = [
        process(1, row("update_actor", 299, id="w", parent="d"), row(v.REWARD, 250, parent="w"), process="worker",
                role="actor", normal=NORMAL, world_size=5),
        process(4, inside, process="worker", role="actor", normal=NORMAL, world_size=5),
    ]  # fmt: skip
    assert (
        "Actor 1 holds everybody up: rl.reward in step 12, for 4 min 10 s (normally 300 ms). "
        "Driver 0 waits in update in step 12 for 5 min 00 s. "
        "Actors 0, 2-4 wait in gather 215 of default_pg in step 12 for 3 min 20 s."
    ) == words(driver, *workers, *stuck)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (REWARD, "The stall of rank 3 in rl.reward is over: the stage has ended, after 4 min 00 s, 4 min 00 s more "
                 "than usual."),
        (row("tool", 700), "The stall of rank 3 in tool is over: the stage has ended, after 4 min 00 s."),
    ],
)  # fmt: skip
def test_an_end_says_what_the_stall_cost(last: dict[str, Any], expected: str) -> None:
    """As far as that is known."""
    (stall,) = stalls(process(3, last, normal=NORMAL))
    change = StallChange(stall, is_end=True, lasted_s=240.0, how="the stage has ended")
    assert (expected, f"trainer-3-{ago(last_age(last)):x}") == (ended_text(change), stall_id(stall.last))


def last_age(last: dict[str, Any]) -> float:
    """Return how long ago a stage began, s."""
    return 214 if last is REWARD else 700
