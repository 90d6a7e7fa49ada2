"""Samples of TRL's rollouts as the flusher makes them: turns of conversations, what is not trained on, devices."""

from __future__ import annotations

from math import isnan, nan
from types import SimpleNamespace
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.integrations.trl import scored
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.integrations.trl.rewards import Scores
from otel_rl.integrations.trl.rollouts import TRAIN, Sampling
from otel_rl.probes import deferred
from otel_rl.process.state import state
from otel_rl.records import Deferred
from otel_rl.trace.stage import current_stage
from tests.fixtures import Recording
from tests.layers.records import records

torch: Any = pytest.importorskip("torch")
STOP, PAD = 1, 0
MESSAGES = [{"role": "assistant"}, {"role": "tool"}, {"role": "tool"}, {"role": "assistant"}]


def trainer(**changes: Any) -> Any:
    """Make what is read of a trainer."""
    accelerator = SimpleNamespace(process_index=1)
    known: dict[str, Any] = {
        "reward_weights": torch.tensor([1.0, 0.5]), "eos_token_ids": [STOP], "mask_truncated_completions": True,
        "_tokenizer": SimpleNamespace(pad_token_id=PAD), "accelerator": accelerator, "rollout_func": None,
    }  # fmt: skip
    return SimpleNamespace(**(known | changes))


def record(trained: Any, rewards: Any, advantages: Any, unanswered: dict[str, int]) -> None:
    """Let a rollout of three samples pass through the hooks: one with tools, one that was cut, one without rewards."""
    responses, masks = [[5, 6, 7, 8, STOP], [5] * 4, [5, STOP]], [[1, 1, 0, 0, 1], [1] * 4, [1, 1]]
    sampling = Sampling(trained, ["p"] * 3, mode=TRAIN, policy=4, size=3)
    with otel_rl.step(7):
        with otel_rl.stage("sample"):
            scored.keep_generated(current_stage(), sampling, ([[5]] * 3, responses, masks, None))
        scored.keep_texts((trained, None, ["p"] * 3, [MESSAGES, MESSAGES[:1], MESSAGES[:1]]))
        rollouts.scored[TRAIN] = [Scores(rewards, 3, None, ("right", "short"), unanswered)]
        scored.record_samples(trained, {"advantages": advantages})


REWARDS = [[1.0, 0.5], [nan, 0.25], [nan, nan]]


def check(run: Any) -> None:
    """Compare every attribute of every record."""
    of_all = {v.LOOP_NAME: "train", v.ITERATION: 7, v.GROUP_ID: "train-1.1", v.POLICY_VERSION: 4, v.TOKENS_PROMPT: 1}
    right, short = f"{v.SAMPLE_REWARD}.right", f"{v.SAMPLE_REWARD}.short"
    expected: list[dict[str, Any]] = [
        {
            v.SAMPLE_ID: "train-1.3", v.TOKENS_RESPONSE: 3, v.TOKENS_ENVIRONMENT: 2, v.SAMPLE_TURNS: 2,
            v.SAMPLE_TOOL_CALLS: 2, v.SAMPLE_REWARD: 1.25, v.SAMPLE_ADVANTAGE: 1.0, v.SAMPLE_FINISH: "stop",
            v.SAMPLE_USED: True, right: 1.0, short: 0.5,
        },
        {
            v.SAMPLE_ID: "train-1.4", v.TOKENS_RESPONSE: 4, v.TOKENS_ENVIRONMENT: 0, v.SAMPLE_TURNS: 1,
            v.SAMPLE_TOOL_CALLS: 0, v.SAMPLE_REWARD: 0.125, v.SAMPLE_ADVANTAGE: -1.0, v.SAMPLE_FINISH: "length",
            v.SAMPLE_USED: False, v.SAMPLE_DISCARDED: "truncated", short: 0.25,
        },
        {
            v.SAMPLE_ID: "train-1.5", v.TOKENS_RESPONSE: 2, v.TOKENS_ENVIRONMENT: 0, v.SAMPLE_TURNS: 1,
            v.SAMPLE_TOOL_CALLS: 0, v.SAMPLE_REWARD: "NaN", v.SAMPLE_ADVANTAGE: 0.0, v.SAMPLE_FINISH: "stop",
            v.SAMPLE_USED: False, v.SAMPLE_DISCARDED: "unscored", short: "NaN",
        },
    ]  # fmt: skip
    found = records(run, v.SAMPLE_RECORD)
    assert [of_all | one for one in expected] == [
        {key: "NaN" if isinstance(value, float) and isnan(value) else value for key, value in one.attributes.items()}
        for one in found
    ]
    assert {v.SAMPLE} == {one.span for one in found}


def test_a_rollout_with_tools(recording: Recording) -> None:
    """A NaN that stands for None is no reward; one that was computed is. The third sample failed."""
    record(trainer(), torch.tensor(REWARDS), torch.tensor([1.0, -1.0, 0.0]), {"right": 2, "short": 0})
    check(recording.stop())


class OnDevice:
    """A tensor of a device, which nobody may read."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, values: Any) -> None:
        self.values = torch.tensor(values)

    def detach(self) -> OnDevice:
        """Return itself."""
        return self


def test_on_a_device_copies_are_read(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rewards and advantages, as soon as they have come; nothing else is touched."""
    copied: list[Any] = []
    monkeypatch.setattr(deferred, "copy", lambda kind, tensors, use: copied.append((kind, tensors, use)) or True)
    record(trainer(), OnDevice(REWARDS), OnDevice([1.0, -1.0, 0.0]), {"right": 2, "short": 0})
    ((kind, tensors, use),) = copied
    assert "cuda" == kind
    state.add(Deferred(use, ([tensor.values for tensor in tensors],)))
    check(recording.stop())


def test_without_records_nothing_is_kept(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor referred to any longer than the rollout."""
    monkeypatch.setenv("OTEL_RL_SAMPLE_RECORDS", "0")
    stubbed.start()
    record(trainer(), torch.tensor(REWARDS), torch.tensor([1.0, -1.0, 0.0]), {})
    assert rollouts.generated is None
    assert [] == records(stubbed.stop(), v.SAMPLE_RECORD)
