"""TRL's lists of metrics: of each, what is new at the end of a step goes out once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from otel_rl import vocabulary
from otel_rl.integrations.trl.trainer_metrics import EVALUATION, GLOBAL, RANK, SYNCHRONOUS, Reader
from otel_rl.process.state import state
from otel_rl.records import Point
from tests.fixtures import Recording


def read(reader: Reader, lists: dict[str, list[Any]], time_ns: int) -> dict[str, float]:
    """Read the lists as they are now."""
    names, entries = tuple(lists), tuple(lists.values())
    points = reader.points(names, entries, tuple(map(len, entries)), time_ns)
    assert all(point.time_ns == time_ns for point in points)
    return {point.name.removeprefix("trl."): point.value for point in points}


def test_what_is_new_goes_out_once() -> None:
    """Whether TRL appends, replaces a list, or clears all of them; and whatever order its lists are in."""
    reader, lists = Reader((), SYNCHRONOUS), {"a": [1.0], "b": [2.0, 4.0], "c": []}
    assert {"a": 1.0, "b": 3.0} == read(reader, lists, 1)
    assert {} == read(reader, lists, 2)
    lists["a"].append(5.0)
    lists["c"] = [7.0]
    assert {"a": 5.0, "c": 7.0} == read(reader, lists, 3)
    turned = {"d": [9.0], **dict(reversed(lists.items()))}
    turned["b"].append(6.0)
    assert {"d": 9.0, "b": 6.0} == read(reader, turned, 4)
    assert {"a": 1.5} == read(reader, {"a": [1.5]}, 5)
    lists["a"] = [8.0]
    assert {"a": 8.0, "b": 4.0, "c": 7.0} == read(reader, {"a": lists["a"], "b": [4.0], "c": [7.0]}, 6)


def test_a_list_that_became_shorter_is_read_from_its_begin() -> None:
    """The entries that were read of it are gone."""
    reader, lists = Reader((), SYNCHRONOUS), {"a": [1.0, 2.0, 3.0]}
    assert {"a": 2.0} == read(reader, lists, 1)
    lists["a"][:] = [4.0, 6.0]
    assert {"a": 5.0} == read(reader, lists, 2)
    lists["a"].clear()
    assert {} == read(reader, lists, 3)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [([3], 3.0), ([np.float32(0.5)], 0.5), (["text"], None), (["text", 2.0], 2.0), ([True, False], 0.5)],
)
def test_only_numbers_count(entries: list[Any], expected: float | None) -> None:
    """Of any kind; what is none is left out."""
    assert ({} if expected is None else {"a": expected}) == read(Reader((), SYNCHRONOUS), {"a": entries}, 1)


def test_nan_goes_out() -> None:
    """TRL drops it; here it is what a step has measured."""
    assert math.isnan(read(Reader((), SYNCHRONOUS), {"a": [math.nan]}, 1)["a"])


def test_other_ranks_leave_what_is_reduced_to_rank_0(recording: Recording) -> None:
    """But for what each rank measures by itself."""
    state.identify(rank=1)
    reader = Reader((EVALUATION,), SYNCHRONOUS)
    points = reader.points(("reward", "step_time"), ([1.0], [2.0]), (1, 1), 5)
    assert [Point("trl.step_time", 2.0, 5, (EVALUATION, RANK))] == points


def test_names_that_prometheus_writes_alike_stay_apart(recording: Recording) -> None:
    """Also among what reward functions and tools log: each carries its name."""
    names = ("judge/score", "judge.score", "reward")
    points = Reader((), SYNCHRONOUS).points(names, ([1.0], [2.0], [3.0]), (1, 1, 1), 5)
    assert [
        Point("trl.judge/score", 1.0, 5, ((vocabulary.METRIC_NAME, "judge/score"), GLOBAL)),
        Point("trl.judge.score", 2.0, 5, ((vocabulary.METRIC_NAME, "judge.score"), GLOBAL)),
        Point(vocabulary.REWARD_SCORE, 3.0, 5, (GLOBAL,)),
    ] == points
