"""Calls of a step: what of a trace is compared between ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.views import SpanView
from otel_rl.records import Value
from otel_rl.runs.symmetric import is_met, is_symmetric
from otel_rl.tables.calls import Calls, calls_of, join, with_collectives_joined
from otel_rl.tables.peers import RankSteps, compare
from otel_rl.tables.span_table import table_of_steps
from tests.tables.made import MetRow, StageCall, compared, ints, listed_calls

STEP = b"step"
JOURNAL: Any = SimpleNamespace()
ids = itertools.count(1)


def span(
    name: str, begin: int, end: int, parent: bytes = STEP, key: bytes | None = None, **attributes: Value
) -> SpanView:
    """Make a span; attributes by their names in the vocabulary."""
    named = {getattr(v, name): value for name, value in attributes.items()}
    own = key or next(ids).to_bytes(8, "big")
    return SpanView(name, bytes(16), own, parent, begin, end, 0, named, {}, JOURNAL)


def calls_with(*spans: SpanView, **attributes: Value) -> list[StageCall]:
    """Read the calls of rank 0 in a step of 100 ns."""
    return listed_calls(calls_in(spans, **attributes))


def calls_in(spans: Sequence[SpanView], **attributes: Value) -> Calls:
    """Read the calls of one step."""
    container = span(f"{v.RANK_SPAN} 0", 0, 100, b"", STEP, **attributes)
    return calls_of(table_of_steps([(container, spans)]).within)


def test_calls_come_in_order_of_time_with_what_nests_in_them() -> None:
    """Collectives of nested stages are the outer one's; a broadcast is apart; the sum that the stage knows counts."""
    found = calls_with(
        span(v.FORWARD, 50, 90, COMM_COUNT=2, COMM_TIME=20e-9),
        span(v.REWARD, 0, 40, key=b"reward", COMM_TIME=0.0),
        span("judge", 10, 40, b"reward", b"judge", COMM_COUNT=2, COMM_TIME=9e-9),
        span(v.COMM, 20, 25, b"judge", COMM_OPERATION="broadcast"),
        span(v.COMM, 26, 30, b"judge", COMM_OPERATION="all_reduce"),
    )
    forward = StageCall(0, 0, v.FORWARD, 40, 20, count=2, omitted=2)
    assert [StageCall(0, 0, v.REWARD, 40, 9, apart_ns=5, count=2), forward] == found


def test_overlapping_calls_of_a_stage_follow_each_other() -> None:
    """As four tasks make them: together they take what the rank was in the stage. Other stages stay as they are."""
    found = calls_with(
        span(v.SAMPLE, 0, 50), span(v.SAMPLE, 0, 30), span(v.SAMPLE, 10, 70), span("mine", 20, 90), span(v.SAMPLE, 5, 6)
    )
    assert [(v.SAMPLE, 50), (v.SAMPLE, 0), (v.SAMPLE, 0), (v.SAMPLE, 20), ("mine", 70)] == [
        (call.stage, call.duration_ns) for call in found
    ]


def test_collectives_in_a_wait_inside_a_stage_are_neither_waited_in_nor_apart() -> None:
    """They are idle time already; what the stage does in other collectives stays."""
    told: dict[str, Value] = {"COMM_OPERATION": "all_reduce", "COMM_GROUP": "dp 1", "COMM_GROUP_SIZE": 2}
    found = calls_with(
        span(v.TRAIN, 0, 90, key=b"train", COMM_COUNT=1, COMM_TIME=10e-9),
        span(v.COMM, 0, 10, b"train", **told, COMM_SEQUENCE=1),
        span(v.IDLE, 20, 80, b"train", b"idle", COMM_COUNT=2, COMM_TIME=30e-9),
        span(v.COMM, 20, 25, b"idle", COMM_OPERATION="recv"),
        span(v.COMM, 30, 50, b"idle", **told, COMM_SEQUENCE=2),
        span(v.IDLE, 60, 80, b"idle", b"inner", COMM_COUNT=1, COMM_TIME=4e-9),
    )
    met = MetRow("dp 1", "all_reduce", 2, 1, 10)
    expected = StageCall(0, 0, v.TRAIN, 90, 44, count=4, omitted=1, rows=(met,), waiting_ns=34, idle_ns=26)
    assert [expected] == found
    assert (10, 20) == (found[0].met_ns, found[0].own_ns)


def test_a_wait_inside_a_stage_is_its_own_time_only_where_it_is_for_data() -> None:
    """Its own loader may be slow; in a queue it waits for others. Waits of several threads fit into the stage."""
    queue: dict[str, Value] = {"IDLE_REASON": "queue"}
    found = calls_with(
        span(v.TRAIN, 0, 50, key=b"train"),
        span(v.IDLE, 10, 30, b"train", **queue),
        span(v.IDLE, 30, 40, b"train", IDLE_REASON="data"),
        span(v.REWARD, 50, 80, key=b"reward"),
        span(v.IDLE, 50, 75, b"reward", **queue),
        span(v.IDLE, 52, 80, b"reward", **queue),
        span(v.IDLE, 80, 100, **queue),
    )
    expected = [
        StageCall(0, 0, v.TRAIN, 50, idle_ns=30, loading_ns=10),
        StageCall(0, 0, v.REWARD, 30, idle_ns=30),
        StageCall(0, 0, f"{v.IDLE} queue", 20),
    ]
    assert expected == found
    assert [30, 0, 20] == [call.own_ns for call in found]
    assert [20, 0, 20] == [call.active_ns for call in found]


def test_what_cannot_be_separated_is_none() -> None:
    """Hidden collectives, and launches; where a device timed the launched work alone, that is its own time."""
    found = calls_with(
        span(v.BACKWARD, 0, 10, key=b"hidden"),
        span("inner", 0, 9, b"hidden", COMM_HIDDEN=True),
        span(v.FORWARD, 10, 12, CLOCK="host"),
        span(v.FORWARD, 12, 15, CLOCK="host", DEVICE_TIME=50e-9),
        span(v.CLIP, 15, 18, CLOCK="host", DEVICE_TIME=50e-9, COMM_COUNT=1, COMM_TIME=1e-9),
    )
    expected = [
        StageCall(0, 0, v.BACKWARD, 10, hidden_ns=None),
        StageCall(0, 0, v.FORWARD, 2, hidden_ns=None),
        StageCall(0, 0, v.FORWARD, 3, hidden_ns=None, device_ns=50),
        StageCall(0, 0, v.CLIP, 3, 1, hidden_ns=None, count=1, omitted=1),
    ]
    assert expected == found
    assert [None, None, 50, None] == [call.own_ns for call in found]


def test_collectives_under_no_stage_are_calls() -> None:
    """Each by itself where all are spans; else one behind the others, since nobody knows when the others were."""
    comm = [span(v.COMM, 10, 14, COMM_OPERATION="barrier"), span(v.COMM, 30, 31, COMM_OPERATION="send")]
    stage = span(v.REWARD, 14, 30)
    one, two = StageCall(0, 0, v.COMM, 4, 4, count=1), StageCall(0, 0, v.COMM, 1, 1, apart_ns=1, count=1)
    assert [one, StageCall(0, 0, v.REWARD, 16), two] == calls_with(*comm, stage)
    many = calls_with(*comm, stage, COMM_COUNT=40, COMM_TIME=20e-9)
    assert [StageCall(0, 0, v.REWARD, 16), StageCall(0, 0, v.COMM, 20, 20, apart_ns=1, count=40, omitted=38)] == many


def test_collectives_that_tell_waits_stay_with_their_call() -> None:
    """With group and number, nested or under no stage; no others: rooted, launched, asynchronous, without a number."""
    told: dict[str, Value] = {"COMM_OPERATION": "all_reduce", "COMM_GROUP": "dp 1", "COMM_GROUP_SIZE": 4}
    found = calls_with(
        span(v.REWARD, 0, 50, key=b"reward"),
        span("judge", 10, 40, b"reward", b"judge"),
        span(v.COMM, 12, 15, b"judge", **told, COMM_SEQUENCE=7),
        span(v.COMM, 15, 16, b"judge", **told),
        span(v.COMM, 16, 17, b"judge", **told, COMM_SEQUENCE=8, CLOCK="host"),
        span(v.COMM, 17, 18, b"judge", **told, COMM_SEQUENCE=9, COMM_ASYNC=True),
        span(v.COMM, 18, 19, b"judge", **{**told, "COMM_OPERATION": "broadcast"}, COMM_SEQUENCE=10),
        span(v.COMM, 41, 45, b"reward", COMM_OPERATION=v.DDP_ALL_REDUCE, COMM_ASYNC=True, COMM_GROUP="dp 1"),
        span(v.COMM, 60, 62, **told, COMM_SEQUENCE=11),
        span(v.COMM, 70, 71, **told, COMM_SEQUENCE=12),
        COMM_COUNT=9,
        COMM_TIME=20e-9,
    )
    reward = (MetRow("dp 1", "all_reduce", 4, 7, 3), MetRow("dp 1", v.DDP_ALL_REDUCE, 0, 0, 4))
    direct = (MetRow("dp 1", "all_reduce", 4, 11, 2), MetRow("dp 1", "all_reduce", 4, 12, 1))
    assert [(v.REWARD, 6, {*reward}), (v.COMM, 9, {*direct})] == [
        (call.stage, call.count, {*call.rows}) for call in found
    ]


@pytest.mark.parametrize(
    ("operation", "is_async", "expected"),
    [
        ("all_reduce", False, True),
        ("all_reduce", True, False),
        (v.DDP_ALL_REDUCE, True, True),
        ("gather_for_metrics", False, True),
        ("new_group", False, True),
        ("broadcast", False, False),
        ("recv", False, False),
        ("", False, False),
    ],
)
def test_what_ranks_leave_together(operation: str, is_async: bool, expected: bool) -> None:
    """Accelerate's names count, and a group's making; of asynchronous ones only DDP's end, which all ranks wait for."""
    assert expected == is_met({v.COMM_OPERATION: operation, v.COMM_ASYNC: is_async})


@pytest.mark.parametrize(
    "name",
    ["all_gather_single", "gloo:all_reduce", "c10d::allreduce_", "_reduce_scatter_base", "nccl:all_to_all", "barrier"],
)
def test_operations_that_all_ranks_leave_together(name: str) -> None:
    """By the names of torch, of its backends and of the flight recorder."""
    assert is_symmetric(name)


@pytest.mark.parametrize("name", ["broadcast", "nccl:send", "reduce", "gather", "gather_object", "my_exchange", ""])
def test_operations_that_say_nothing_of_waits(name: str) -> None:
    """A root leaves early, and what is unknown is not guessed."""
    assert not is_symmetric(name)


def test_ranks_with_unequal_collectives_are_still_matched() -> None:
    """Rank 1 has one more under no stage, so all of each rank's are one call at its end."""
    of_rank = {
        0: [span(v.COMM, 0, 5, COMM_OPERATION="barrier"), span("a", 5, 9)],
        1: [
            span(v.COMM, 0, 2, COMM_OPERATION="barrier"),
            span("a", 5, 9),
            span(v.COMM, 9, 12, COMM_OPERATION="broadcast"),
        ],
    }
    listed = [replace(calls_in(spans), rank_step=calls_in(spans).rank_step + rank) for rank, spans in of_rank.items()]
    calls = join(listed)
    table = compare(calls, RankSteps(ints([0, 0]), ints([0, 0]), ints([0, 1]))).table
    stages = table.stages
    assert [(0, "a", 4, 0), (0, v.COMM, 5, 1), (1, "a", 4, 0), (1, v.COMM, 5, 2)] == [
        (rank, stages[stage], duration_ns, count)
        for rank, stage, duration_ns, count in zip(
            *(column.tolist() for column in (table.rank, table.stage, table.duration, table.count)), strict=True
        )
    ]
    joined = with_collectives_joined(calls, np.array([False, True]))
    of_rank_1 = joined.take(joined.rank_step == 1, joined.rank_step - 1)
    assert [StageCall(0, 1, "a", 4), StageCall(0, 1, v.COMM, 5, 5, apart_ns=3, count=2)] == listed_calls(of_rank_1, 1)


def test_a_rank_is_never_slow_in_waiting_for_others() -> None:
    """But in waiting for its own data."""
    stages = [f"{v.IDLE} data", f"{v.IDLE} queue", v.IDLE, v.REWARD, "mine"]
    found = compared([StageCall(0, 0, stage, 1) for stage in stages])
    assert [True, False, False, True, True] == found.is_work.tolist()
