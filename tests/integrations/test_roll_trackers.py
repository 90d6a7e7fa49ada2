"""What ROLL tracks: canonical where the meaning is the same, else under ROLL's name, once a step."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from otel_rl import vocabulary as v
from otel_rl.integrations.roll.trackers import ATTACHMENTS, CANONICAL, log_metrics
from otel_rl.process.state import state
from tests.fixtures import WALL_NS, Recording

EVAL = {v.MODE: "eval"}


def logged(recording: Recording, *calls: dict[str, Any]) -> dict[str, list[tuple[float, dict[str, Any]]]]:
    """Log as ROLL does; return values and what else is said of each, by name."""
    for step, values in enumerate(calls):
        log_metrics((object(), values, step), {})
    found: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for point in recording.stop().points(lambda name: name.startswith((v.ROLL, "rl."))):
        said = dict(point.attributes)
        if said.pop(v.SCOPE_KEY, None) == "global":
            found.setdefault(point.name, []).append((point.value, said))
    return found


def test_canonical_names(recording: Recording) -> None:
    """Every one, with the labels that it has."""
    values = {key: float(place) for place, key in enumerate(CANONICAL)}
    found = logged(recording, values)
    assert {name for name, _ in CANONICAL.values()} == found.keys()
    for key, (name, labels) in CANONICAL.items():
        said = {**dict(labels), **(EVAL if key.startswith("val") else {})}
        assert (values[key], said) in found[name], key


def test_how_a_number_was_reduced_is_no_part_of_its_name(recording: Recording) -> None:
    """RLVR and the agentic pipeline spell lengths apart."""
    found = logged(recording, {"actor/pg_loss@sum": 1.5, "tokens/response_length/mean": 3, "x@mean": 2, "@": 1})
    assert [(1.5, {v.LOSS_TYPE: "policy"})] == found[v.LOSS_TERM]
    assert [(3, {})] == found[v.RESPONSE_LENGTH]
    assert [(2, {})] == found["roll.x"]


def test_other_numbers_keep_their_names(recording: Recording) -> None:
    """With what Prometheus writes differently as a label; evaluations say so."""
    found = logged(recording, {"time/step_train": 1.0, "val_correct/math/mean": 0.5, "math_rule/critic/score/mean": 1})
    name = "time/step_train"
    assert {
        f"roll.{name}": [(1.0, {v.METRIC_NAME: name})],
        "roll.val_correct/math/mean": [(0.5, {v.METRIC_NAME: "val_correct/math/mean", **EVAL})],
        "roll.math_rule/critic/score/mean": [(1, {v.METRIC_NAME: "math_rule/critic/score/mean"})],
    } == found


def test_a_number_of_another_domain_is_left_out(recording: Recording) -> None:
    """ROLL writes it below the name of a domain that it is not of."""
    nested = "math/scheduler/math/scheduler/collect_query_count/mean"
    assert ["roll.math/scheduler/collect_query_count"] == [
        *logged(recording, {nested: 1, "math/scheduler/collect_query_count": 2})
    ]


def test_numbers_of_every_kind(recording: Recording) -> None:
    """Those of numpy, NaN and infinity; what is no number is left out, and nothing of the values changes."""
    values = {"a": np.float32(0.5), "b": np.int64(2), "c": -math.inf, "text": "x", "list": [1.0], "table": {"x": 1}}
    before = dict(values)
    found = logged(recording, values, {"a": math.nan})
    assert before == values
    assert {"roll.a", "roll.b", "roll.c"} == found.keys()
    assert [0.5, 2, -math.inf] == [found[name][0][0] for name in sorted(found)]
    assert math.isnan(found["roll.a"][1][0])


def test_values_may_come_by_name(recording: Recording) -> None:
    """ROLL's pipelines pass them so; each call has a point of its own."""
    for value in (1, 2):
        recording.tick(10)
        log_metrics((object(),), {"values": {"critic/score/mean": value}, "step": 0})
    points = recording.stop().points(v.REWARD_SCORE.__eq__)
    assert [(1, WALL_NS + 1_010_000_000), (2, WALL_NS + 1_020_000_000)] == [(one.value, one.time_ns) for one in points]


def test_a_tensor_on_a_device_is_counted(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """It is not read, since that waits for the device."""
    torch = pytest.importorskip("torch")
    for step in range(2):
        log_metrics((object(), {"x": torch.empty((), device="meta"), "y": 1.0}, step), {})
    assert 2 == state.dropped["metrics", "on_device"]
    assert {"roll.y": [(1.0, {})] * 2} == logged(recording)
    assert ["ROLL" in line for line in caplog.messages if "on a device" in line] == [True]


def test_a_tracker_that_does_nothing_itself() -> None:
    """It can be chosen until the recording ends; one of the program's own with its name stays."""

    class BaseTracker:
        def log(self, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
            raise AssertionError

    module = ModuleType("tracking")
    module.BaseTracker, module.tracker_registry = BaseTracker, {}  # type: ignore[attr-defined]
    (attachment,) = ATTACHMENTS
    detach = attachment.attach(module)
    kind = module.tracker_registry["otel"]
    assert isinstance(kind({"a": 1}, project="p"), BaseTracker)
    detach()
    assert {} == module.tracker_registry
    module.tracker_registry["otel"] = BaseTracker
    attachment.attach(module)()
    assert {"otel": BaseTracker} == module.tracker_registry
