"""TRL: what rewards and advantages are, and answers to which a reward function gave NaN or infinity."""

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


def scores(values: Any, *functions: str, rows: int = -1, weights: Any = None, **unanswered: int) -> rewards.Scores:
    """Make the scores of a rollout, whose rows are this rank's."""
    tensor = torch.as_tensor(values)
    return rewards.Scores(tensor, len(tensor) if rows < 0 else rows, weights, functions, unanswered)


def counted(*scored: rewards.Scores) -> dict[str, float]:
    """Return the answers of some rollouts that are no number."""
    made = list(rewards._records(list(scored), (), 5, [one.rewards for one in scored]))
    assert {(v.REWARD_NONFINITE, 5)} == {(point.name, point.time_ns) for point in made}
    assert all(point.labels[1:] == ((v.SCOPE_KEY, "rank"),) for point in made)
    return {str(point.labels[0][1]): point.value for point in made}


def test_all_rollouts_of_a_step_are_counted() -> None:
    """Of each function, less the answers that it left to others; two functions of one name count together."""
    assert {"a": 3.0, "b": 3.0} == counted(scores(SCORES, "a", "b", b=1), scores(SCORES[:2], "a", "b"))
    assert {"a": 2.0} == counted(scores(SCORES, "a", "a", a=2))
    assert {"a": 0.0} == counted(scores([[0.0], [0.0]], "a"))
    unscored = [[math.nan, math.nan], [1.0, math.nan]]
    assert {"a": 1.0, "b": 1.0} == counted(scores(unscored, "a", "b", a=1, b=2))
    assert {"a": 1.0, "b": 2.0} == counted(scores(SCORES, "a", "b", rows=2)), "others count their own"


def test_the_first_rank_records_what_all_rewards_are() -> None:
    """Weighted sums; an answer without any reward is none, an infinite one is an extreme and in no bucket."""
    values = [[1.0, 2.0], [math.nan, -1.0], [math.nan, math.nan], [3.0, math.inf]]
    made = rewards._records(
        [scores(values, "a", "b", rows=1, weights=torch.tensor([1.0, 0.5]))], (), 5, [torch.tensor(values)]
    )
    found = {record.name: record for record in made if record.name != v.REWARD_NONFINITE}
    assert {(v.SCOPE_KEY, "global")} == {label for record in found.values() for label in record.labels}
    assert (math.inf, -0.5) == (found[v.REWARD_MAX].value, found[v.REWARD_MIN].value)
    assert [2.0, -0.5] == found[v.REWARD_DISTRIBUTION].values
    tenths = [[tenth / 10] for tenth in range(11)]
    *_, whole = rewards._records([scores(tenths, "a", weights=torch.ones(1))], (), 5, [torch.tensor(tenths)])
    assert [value for (value,) in tenths] == whole.values, "the bounds of buckets are those of 64 bits"
    nothing = [[math.nan]]
    made = rewards._records([scores(nothing, "a", weights=torch.ones(1))], (), 5, [torch.tensor(nothing)])
    assert [v.REWARD_NONFINITE] == [record.name for record in made]


def test_a_device_is_asked_and_not_waited_for(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it copies comes later, with the time of the step."""
    sent: list[tuple[str, Any, Any]] = []
    monkeypatch.setattr(deferred, "copy", lambda *given: sent.append(given))
    rollouts.scored["train"] = [scores(torch.zeros(2, 1, device="meta"), "a")]
    rewards.record_scored("train", ())
    ((kind, _, use),) = sent
    assert "meta" == kind
    assert {} == rollouts.scored
    (point,) = use([torch.tensor([[math.nan], [math.inf]])])
    labels = ((v.REWARD_FUNCTION, "a"), (v.SCOPE_KEY, "rank"))
    assert Point(v.REWARD_NONFINITE, 2.0, point.time_ns, labels) == point
    rewards.record_scored("train", ())
    assert 1 == len(sent)
    assert point.time_ns <= state.now()


def test_advantages_are_those_of_the_tokens_that_count(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tool wrote, and what is masked, is none of them; a device counts the tokens itself."""
    scored = {
        "advantages": torch.tensor([2.0, -1.0, 9.0]),
        "completion_mask": torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0]]),
        "tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1], [1, 1, 1]]),
    }
    rewards.record_advantages(scored)
    run = recording.stop()
    expected = {v.ADVANTAGE_MEAN: -0.25, v.ADVANTAGE_MAX: 2.0, v.ADVANTAGE_MIN: -1.0}
    assert expected == {name: point.value for name in expected for point in run.points(name)}
    copied: list[Any] = []
    monkeypatch.setattr(deferred, "copy", lambda *given: copied.append(given))
    rewards.record_advantages({name: tensor.to("meta") for name, tensor in scored.items()})
    ((kind, tensors, use),) = copied
    assert ("meta", [(3,), (3,)]) == (kind, [tuple(tensor.shape) for tensor in tensors])
    found = use([scored["advantages"], torch.tensor([1, 3, 0])])
    assert expected == {point.name: point.value for point in found}


@pytest.mark.parametrize("scored", [{}, {"advantages": torch.zeros(2, 3)}, {"advantages": torch.zeros(2)}])
def test_unknown_advantages_are_not_recorded(recording: Recording, scored: dict[str, Any]) -> None:
    """A derived trainer may have none, one by token, or none that counts."""
    rewards.record_advantages({"completion_mask": torch.zeros(2, 3), **scored})
    assert [] == list(recording.stop().points(v.ADVANTAGE_MEAN))


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
