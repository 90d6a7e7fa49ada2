"""TRL: FLOPs of what it really computed, and the ledger of its rollouts, against what the program itself saw."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.analysis.trained import Trained
from otel_rl.integrations.trl import hooks, memory, models
from otel_rl.journal.read import Run
from otel_rl.observing.book import book
from tests.analysis.test_flops import forward_flops, train_flops
from tests.programs.launch import Trained as Program
from tests.programs.launch import Trainings
from tests.programs.recorded import Recorded

pytestmark = pytest.mark.slow

CONFIG = {
    "model_type": "qwen2", "vocab_size": 20, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "use_sliding_window": False, "tie_word_embeddings": True,
}  # fmt: skip
"""Of ``otel_rl.demo.task.model``."""


@pytest.fixture(scope="module", params=["grpo", "rloo"])
def trained(request: pytest.FixtureRequest, trainings: Trainings) -> tuple[Program, Run]:
    """Eight samples to a rollout, four to a micro-batch, two epochs over it, and an evaluation."""
    config = {
        "steps_per_generation": 2, "num_iterations": 2, "max_steps": 8, "eval_strategy": "steps", "eval_steps": 4,
    }  # fmt: skip
    result = trainings.train(f"model-{request.param}", trainer=request.param, config=config, look=True)
    return result, Recorded(result.runs).run


def rollouts(result: Program) -> list[tuple[list[int], list[list[int]]]]:
    """Give the lengths of the prompts and the responses of every rollout of training."""
    return [
        ([len(prompt) for prompt in one["prompts"]], one["completion_ids"])
        for one in result.truth["rollouts"]
        if one["mode"] == "train"
    ]


def batches(result: Program) -> list[tuple[list[int], int]]:
    """Give of every rollout of training the lengths of its sequences, and how many positions have logits."""
    return [
        ([prompt + len(response) for prompt, response in zip(*rollout, strict=True)], sum(map(len, rollout[1])))
        for rollout in rollouts(result)
    ]


def counted(run: Run) -> dict[Any, float]:
    """Give the operations that were counted of each stage and kind of log-probabilities."""
    return {(p.attributes[v.FLOPS_STAGE], p.attributes.get(v.LOGPROB_KIND)): p.value for p in run.points(v.FLOPS)}


def test_flops_are_those_of_the_tokens(trained: tuple[Program, Run]) -> None:
    """Forward and backward of every epoch, a forward each for the old policy and the reference; no evaluation."""
    result, run = trained
    expected: Counter[Any] = Counter()
    for lengths, logits in batches(result):
        forward = forward_flops(CONFIG, lengths, logits=logits)
        expected[v.LOGPROB, "old"] += forward
        expected[v.LOGPROB, "ref"] += forward
        expected[v.FORWARD, None] += 2 * train_flops(CONFIG, lengths, logits=logits)
    assert expected == counted(run)
    scopes = Counter(point.attributes[v.FLOPS_SCOPE] for point in run.points(v.FLOPS_RATE))
    assert {"update": 8, "logprob": 2, "step": 8} == scopes
    assert [] == list(run.points(v.MFU))


def test_a_reference_is_the_policy_without_its_adapter(trainings: Trainings) -> None:
    """LoRA on two matrices: the reference's forwards are told apart and lack the adapter, which alone is trained."""
    result = trainings.train(
        "lora",
        config={"steps_per_generation": 2, "num_iterations": 2, "max_steps": 4},
        lora={"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"},
        look=True,
    )
    run = Recorded(result.runs).run
    layers, adapters = 2, 4 * (48 + 48) + 4 * (48 + 24)
    into = 48 * (48 + 24 + 24) + 4 * (48 + 48)  # of the first layer queries, keys, values, and what reads with them
    none: dict[str, Any] = {"attention": False, "mlp": False, "logits": False}
    lora = Trained(**none, first_layer=0, adapters=layers * adapters, unreached=into)
    expected: Counter[Any] = Counter()
    for lengths, logits in batches(result):
        forward = forward_flops(CONFIG, lengths, logits=logits)
        expected[v.LOGPROB, "ref"] += forward
        expected[v.LOGPROB, "old"] += forward + 2 * sum(lengths) * layers * adapters
        expected[v.FORWARD, None] += 2 * train_flops(CONFIG, lengths, lora, logits=logits)
    assert expected == counted(run)
    stages = [span for span in run.spans([v.LOGPROB_KIND]) if span.name == v.LOGPROB]
    assert {"old": 1, "ref": 1} == Counter(span.attributes[v.LOGPROB_KIND] for span in stages)
    assert ([], []) == (list(run.logs(v.LEDGER_MISMATCH)), list(run.points(v.LEDGER_FAULTS)))


def test_every_epoch_over_a_rollout_is_compared_with_it(trained: tuple[Program, Run]) -> None:
    """A row for the rollout, one for each pass, with the tokens that the reward function saw; no fault."""
    result, run = trained
    rows = [(log.body, log.attributes[v.ITERATION], log.attributes[v.LEDGER_TOKENS][0]) for log in run.logs(v.LEDGER)]
    expected = []
    for number, (_, responses) in enumerate(rollouts(result)):
        tokens = sum(token for response in responses for token in response)
        passes = [(boundary, 1 + 4 * number, tokens) for boundary in (v.SAMPLE, v.FORWARD, v.FORWARD)]
        expected += passes
    assert sorted(expected) == sorted(rows)
    assert ([], []) == (list(run.logs(v.LEDGER_MISMATCH)), list(run.points(v.LEDGER_FAULTS)))


def test_tokens_that_change_behind_a_rollout_are_named(trainings: Trainings) -> None:
    """With the step that made the rollout."""
    result = trainings.train("model-corrupted", play="corrupted", config={"steps_per_generation": 2})
    found = [log.body for log in Recorded(result.runs).run.logs(v.LEDGER_MISMATCH)]
    assert 1 == len(found)
    assert found[0].startswith("step 1, rank 0, rl.sample -> rl.train.forward: ")


def scored(**changes: Any) -> dict[str, Any]:
    """Make what TRL knows of a rollout with vLLM: of one token there was no logprob."""
    import torch

    rolled = -torch.rand(4, 12, generator=torch.Generator().manual_seed(0)) - 0.5
    old = rolled + 0.01
    rolled[2, 3] = torch.nan
    ones = torch.ones(4, 12, dtype=torch.long)
    found = {"completion_ids": ones, "completion_mask": ones, "advantages": torch.zeros(4)}
    return {**found, "old_per_token_logps": old, "sampling_per_token_logps": rolled, **changes}


def test_rollouts_that_follow_at_once_are_not_all_ledger_rollout(recording: Any) -> None:
    """Two within half a second, then one behind it."""
    with otel_rl.step(1):
        for name, wait_ms in (("a", 0), ("b", 400), ("c", 200)):
            recording.tick(wait_ms)
            memory.rollouts.open["train"] = SimpleNamespace(id=name)
            models.observe_rollout(scored())
            assert ("" if name == "b" else name) == book.ledger_rollout
    rows = [log.attributes for log in recording.stop().logs(v.LEDGER)]
    tokens = [row[v.LEDGER_LOGPROBS][0] for row in rows if v.LEDGER_LOGPROBS in row]
    assert [2 * (4 * 12 - 1)] == tokens


@pytest.mark.parametrize("fault", ["", "zeros", "tools", "nan"])
def test_logprobs_of_vllm_are_compared_with_the_old_ones(recording: Any, fault: str) -> None:
    """NaN is what TRL makes of none; with tools their tokens have none at all; a NaN advantage is one."""
    import torch

    made = scored()
    if fault in ("zeros", "tools"):
        made["sampling_per_token_logps"][:, 6:] = 0.0
    if fault == "tools":
        made["tool_mask"] = torch.ones(4, 12)
    if fault == "nan":
        made["advantages"][1] = torch.nan
    with otel_rl.step(1):
        memory.rollouts.open["train"] = SimpleNamespace(id="a")
        models.observe_rollout(made)
    expected = {"zeros": "logprobs padded with zeros", "nan": "values that are NaN or infinite"}
    found = [log.attributes[v.LEDGER_FAULT] for log in recording.stop().logs(v.LEDGER_MISMATCH)]
    assert ([expected[fault]] if fault in expected else []) == found


class Trainer:
    """As TRL's, with continuous batching: after a rollout the model trains, also in an evaluation."""

    num_generations = num_generations_eval = 2
    tools = ref_model = None

    def __init__(self) -> None:
        import torch

        self.model = torch.nn.Linear(1, 1)
        self.state, self.accelerator = SimpleNamespace(global_step=0), SimpleNamespace(process_index=0)

    def roll(self, ids: Any, *, is_training: bool) -> None:
        """Make a rollout."""
        import torch

        self.model.train(is_training)
        hooks._begin_rollout((self, ["a"] * 4), {})
        with otel_rl.stage("sample"):
            self.model.train()
            described = hooks._describe_rollout((self,), {}, ([[1]] * 4, ids.tolist()))
        assert ("train" if is_training else "eval") == described[v.MODE]
        hooks._end_rollout((self,), {}, None)
        hooks._scored((self,), {}, {"completion_ids": ids, "completion_mask": torch.ones(4, 6)})

    def update(self, ids: Any) -> None:
        """Train on it, micro-batch by micro-batch."""
        import torch

        for rows in (slice(0, 2), slice(2, 4)):
            inputs = {
                "prompt_mask": torch.ones(2, 3), "completion_ids": ids[rows], "completion_mask": torch.ones(2, 6),
            }  # fmt: skip
            with otel_rl.stage("train.forward") as stage:
                stage.attributes = hooks._say_forward((self, None, inputs), {})
                hooks._forward_made((self, None, inputs), {}, torch.tensor(0.1))


def test_an_evaluation_between_two_passes_is_no_rollout_of_training(recording: Any) -> None:
    """Not even where the model says that it trains: the second pass is compared with the first."""
    import torch

    trainer, ids = Trainer(), torch.arange(1, 25).reshape(4, 6)
    with otel_rl.step(1):
        trainer.roll(ids, is_training=True)
        trainer.update(ids)
        recording.tick(600)
        trainer.roll(ids + 24, is_training=False)
    with otel_rl.step(2):
        trainer.update(ids)
    run = recording.stop()
    assert [] == list(run.logs(v.LEDGER_MISMATCH))
    assert [(v.SAMPLE, 300), (v.FORWARD, 300), (v.FORWARD, 300)] == [
        (log.body, log.attributes[v.LEDGER_TOKENS][0]) for log in run.logs(v.LEDGER)
    ]
