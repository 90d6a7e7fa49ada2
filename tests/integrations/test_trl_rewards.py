"""TRL: answers to which a reward function gave NaN or infinity, on the host and on a device."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from trl.extras.profiling import ProfilingContext

from otel_rl import vocabulary as v
from otel_rl.integrations.trl import rewards
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.probes import deferred
from otel_rl.process.state import state
from otel_rl.records import Point
from tests.fixtures import Recording

SCORES = [[1.0, math.nan], [math.inf, math.nan], [-math.inf, 0.0]]


def points(scored: list[rewards.Scores], count: Any) -> dict[str, float]:
    """Count the answers of some rollouts as the host or a device does."""
    known = [(one.functions, one.unanswered) for one in scored]
    counts = count([one.rewards for one in scored], lambda found: found)
    made = rewards._points(known, ((v.SCOPE_KEY, "rank"),), 5, counts)
    assert {(v.REWARD_NONFINITE, 5)} == {(point.name, point.time_ns) for point in made}
    assert all(point.labels[1:] == ((v.SCOPE_KEY, "rank"),) for point in made)
    return {str(point.labels[0][1]): point.value for point in made}


def on_device(found: list[Any], use: Any) -> Any:
    """Count as on a device, with its numbers as a list."""
    return use(rewards._count_on_device(found).tolist())


@pytest.mark.parametrize("count", [rewards._count_on_host, on_device])
def test_all_rollouts_of_a_step_are_counted(count: Any) -> None:
    """Of each function, less the answers that it left to others; two functions of one name count together."""
    first = rewards.Scores(torch.tensor(SCORES), ("a", "b"), {"b": 1})
    second = rewards.Scores(torch.tensor(SCORES)[:2], ("a", "b"), {})
    assert {"a": 3.0, "b": 3.0} == points([first, second], count)
    alike = rewards.Scores(torch.tensor(SCORES), ("a", "a"), {"a": 2})
    assert {"a": 2.0} == points([alike], count)
    assert {"a": 0.0} == points([rewards.Scores(torch.zeros(2, 1), ("a",), {})], count)
    unscored = torch.tensor([[math.nan, math.nan], [1.0, math.nan]])
    assert {"a": 1.0, "b": 1.0} == points([rewards.Scores(unscored, ("a", "b"), {"a": 1, "b": 2})], count)


def test_a_device_is_asked_and_not_waited_for(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it counted comes later, with the time of the step."""
    sent: list[tuple[str, Any, Any]] = []
    monkeypatch.setattr(deferred, "send", lambda *given: sent.append(given))
    rollouts.scored["train"] = [rewards.Scores(torch.zeros(2, 1, device="meta"), ("a",), {})]
    rewards.record_nonfinite("train", ())
    ((kind, _, use),) = sent
    assert "meta" == kind
    assert {} == rollouts.scored
    (point,) = use([[2, 0]])
    assert Point(v.REWARD_NONFINITE, 2.0, point.time_ns, ((v.REWARD_FUNCTION, "a"),)) == point
    rewards.record_nonfinite("train", ())
    assert 1 == len(sent)
    assert point.time_ns <= state.now()


def _calculate_rewards(given: Any) -> int:
    """End TRL's timer as TRL does: with the answers in a local variable."""
    with ProfilingContext("Trainer.judge", []):
        output_reward_func = [torch.nan if one is None else one for one in given]
        del given
        assert isinstance(output_reward_func, list)
        return rewards._unanswered()


async def _invoke_async(given: Any) -> int:
    """End it as TRL does in a task."""
    output = [torch.nan if one is None else one for one in given]
    assert isinstance(output, list)
    return rewards._unanswered()


def test_none_is_told_from_nan() -> None:
    """TRL makes one object of None; a NaN that was computed is another one. No answer is looked at."""
    given = [None, 1.0, math.inf - math.inf, float("nan"), torch.tensor(math.nan), None]
    assert 2 == _calculate_rewards(given) == asyncio.run(_invoke_async(given))
    assert 0 == rewards._unanswered()
