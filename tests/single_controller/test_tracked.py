"""Numbers that a framework hands to its tracker."""

from __future__ import annotations

import math

import numpy as np
import pytest

from otel_rl import vocabulary as v
from otel_rl.process.state import state
from otel_rl.single_controller.tracked import EVALUATION, numbers_of, record_numbers
from tests.fixtures import WALL_NS, Recording


def test_only_numbers_are_kept(recording: Recording) -> None:
    """Of numpy and Python, NaN and infinity too."""
    values = {"a": 1, "b": np.float32(0.5), "c": math.inf, "d": True, "text": "x", "list": [1], "none": None}
    found = numbers_of(values, "System")
    assert {"a": 1, "b": 0.5, "c": math.inf, "d": 1} == found
    assert math.isnan(numbers_of({"x": math.nan}, "System")["x"])


def test_what_is_on_a_device_is_said_once(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """And counted each time."""
    torch = pytest.importorskip("torch")
    for _ in range(3):
        assert {} == numbers_of({"x": torch.empty((), device="meta")}, "System")
    assert 3 == state.dropped["metrics", "on_device"]
    assert ["System" in line for line in caplog.messages if "on a device" in line] == [True]


def test_numbers_are_of_all_ranks_and_stamped_now(recording: Recording) -> None:
    """With the labels that they are given."""
    recording.tick(10)
    record_numbers([((v.REWARD_SCORE, ()), 1.5), ((v.EVAL_REWARD, (EVALUATION,)), math.nan)])
    run = recording.stop()
    (score,), (mean,) = (list(run.points(name.__eq__)) for name in (v.REWARD_SCORE, v.EVAL_REWARD))
    assert (1.5, WALL_NS + 1_010_000_000, {v.SCOPE_KEY: "global"}) == (
        score.value,
        score.time_ns,
        dict(score.attributes),
    )
    assert math.isnan(mean.value) and {v.SCOPE_KEY: "global", v.MODE: "eval"} == dict(mean.attributes)
