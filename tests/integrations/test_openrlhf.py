"""OpenRLHF without OpenRLHF: where a training begins, what is planned, and batches that are left of a generation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from otel_rl import vocabulary as v
from otel_rl.hooks.hook import wrap
from otel_rl.integrations.openrlhf.hooks import INTEGRATION
from otel_rl.journal.read import links_of
from tests.fixtures import Recording
from tests.layers.records import records

HOOKS: Any = {hook.target.rpartition(":")[2]: hook for hook in (*INTEGRATION.hooks, *INTEGRATION.arriving)}
PROMPTS = 9


class Trainer(SimpleNamespace):
    """Stands for one of OpenRLHF's: what is followed can be referred to weakly."""


def trainer(*, is_filtered: bool = False, **changes: Any) -> Any:
    """Make what is read of a synchronous trainer: batches of 4 prompts, in two episodes, an update for each prompt."""
    config = SimpleNamespace(
        actor=SimpleNamespace(
            num_nodes=1, num_gpus_per_node=2, optim="adam", adam=SimpleNamespace(lr=1e-6), max_norm=1.0
        ),
        rollout=SimpleNamespace(n_samples_per_prompt=8, batch_size=4, max_new_tokens=64, temperature=1.0),
        train=SimpleNamespace(batch_size=8, max_epochs=1, num_episodes=2),
        algo=SimpleNamespace(kl=SimpleNamespace(init_coef=0.01), dynamic_filtering_enable=is_filtered),
        ckpt=SimpleNamespace(output_dir="output"),
    )
    made = {"prompts_dataloader": range(PROMPTS), "max_steps": 2 * PROMPTS, "reference_model_group": None}
    return Trainer(**{**made, "args": config, **changes})


@pytest.mark.parametrize(
    ("made", "planned"),
    [(trainer(), {v.SETTINGS_STEPS: 6}), (trainer(is_filtered=True), {}), (trainer(prompts_dataloader=None), {})],
)
def test_planned_steps_are_no_updates(recording: Recording, made: Any, planned: dict[str, int]) -> None:
    """A step is a batch of prompts, the last of an episode a smaller one. Who filters needs more of them."""
    HOOKS["PPOTrainer.fit"].before((made, 0), {})
    (said,) = (span.attributes for span in recording.stop().spans(None) if v.SETTINGS_GROUP in span.attributes)
    expected = {
        v.SETTINGS_LEARNING_RATE: 1e-6, v.SETTINGS_SAMPLES: 16, v.SETTINGS_GROUP: 8, v.SETTINGS_LIMIT: 64,
        v.SETTINGS_UPDATES: 4, v.SETTINGS_TEMPERATURE: 1.0, v.SETTINGS_GRADIENT: 1.0,
    }  # fmt: skip
    assert expected | planned == {key: value for key, value in said.items() if key.startswith("rl.settings")}


@pytest.mark.parametrize(("saved", "begun"), [(6, 7), (0, 1)])
def test_a_training_that_goes_on_from_a_checkpoint(recording: Recording, saved: int, begun: int) -> None:
    """It begins with the step after those of its checkpoint, once there are prompts."""
    made = trainer()
    HOOKS["PPOTrainer.fit"].before((made,), {})
    HOOKS["BasePPOTrainer.init_checkpoint_states"].after((made,), {}, {"global_step": saved})
    HOOKS["_collect_prompt_batch"].after((), {}, ([], [], [], True))
    HOOKS["_collect_prompt_batch"].after((), {}, collect())
    recording.tick(1)
    HOOKS["SamplesGenerator._generate_vllm"].after((), {}, ([], 0, False))
    HOOKS["PPOTrainer.fit"].after((made,), {}, None)
    assert [begun] == [span.attributes[v.ITERATION] for span in recording.stop().spans(None) if span.name == v.LOOP]


def test_samples_of_several_turns(recording: Recording) -> None:
    """What an environment wrote after the last turn is no prompt. A sample is cut if its last answer is."""
    made = trainer()
    HOOKS["PPOTrainer.fit"].before((made,), {})
    HOOKS["_collect_prompt_batch"].after((), {}, collect())
    scored = SimpleNamespace(
        index=[0, 1, 2],
        action_mask=torch.tensor([[0, 1, 1, 0, 1, 0, 0], [0, 0, 1, 1, 0, 0, 0], [0] * 7]),
        info={"reward": torch.tensor([1.0, 0.5, 0.0])},
        advantages=torch.ones(3, 7),
        truncated=torch.tensor([False, True, False]),
        response_length=torch.tensor([4, 2, 0]),
        total_length=torch.tensor([8, 5, 3]),
    )
    HOOKS["RemoteExperienceMaker.compute_advantages_and_returns"].after((None, []), {}, [scored])
    HOOKS["SamplesGenerator._generate_vllm"].after((), {}, ([], 0, False))
    HOOKS["PPOTrainer.fit"].after((made,), {}, None)
    keys = v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.TOKENS_ENVIRONMENT, v.SAMPLE_TURNS, v.SAMPLE_FINISH
    found = records(recording.stop(), v.SAMPLE_RECORD)
    assert [(2, 3, 3, 2, None), (3, 2, 0, 1, "length"), (3, 0, 0, 0, "abort")] == [
        tuple(one.attributes.get(key) for key in keys) for one in found
    ]


class Generator:
    """Gives batches as ``SamplesGenerator`` does: two of each generation."""

    def __init__(self) -> None:
        self.left: list[Any] = []

    def _generate_vllm(self, **kwargs: Any) -> tuple[list[Any], int, bool]:
        collect()
        mask = torch.tensor([[0, 1, 1]])
        return [SimpleNamespace(action_mask=mask, attention_mask=torch.ones(1, 4))] * 2, 2, False

    def generate_samples(self) -> tuple[list[Any], None, int, bool]:
        made = 0
        if not self.left:
            self.left, made, _ = self._generate_vllm(dynamic_filtering=False)
        return [self.left.pop()], None, made, False


def collect() -> tuple[list[str], list[str], list[None], bool]:
    """Draw prompts."""
    return ["a", "b"], ["", ""], [None, None], False


def test_a_batch_that_is_left_of_a_generation_leads_to_it(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that trains on it links to a trace of its own; without one that link would lead nowhere."""
    monkeypatch.setitem(globals(), "collect", wrap(HOOKS["_collect_prompt_batch"], collect))
    for name in ("_generate_vllm", "generate_samples"):
        monkeypatch.setattr(Generator, name, wrap(HOOKS[f"SamplesGenerator.{name}"], vars(Generator)[name]))
    queue, generator = object(), Generator()
    HOOKS["GenerateSamplesActor.fit"].before((SimpleNamespace(rollout_queue=queue),), {})
    for _ in range(4):
        HOOKS["Queue.put"].after((queue, (generator.generate_samples()[0], {}, None, 0.1)), {}, None)
        recording.tick(1)
    run = recording.stop()
    spans = sorted((span for span in run.spans(None) if span.name == v.SAMPLE), key=lambda span: span.start_ns)
    assert 4 == len({span.trace_id for span in spans})
    ids = {span.span_id: number for number, span in enumerate(spans)}
    links = [link for journal in run.journals for link in links_of(journal)]
    assert {(1, 0), (3, 2)} == {(ids[link.span_id], ids[link.linked_span]) for link in links}
