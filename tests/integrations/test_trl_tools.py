"""TRL: what tools and environments write is told apart from what the policy generates, and their calls are stages."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.integrations.trl.hooks import _describe_rollout
from otel_rl.integrations.trl.tools import begin_tools
from otel_rl.report.build import build_report
from otel_rl.report.data.report import WorkRow
from tests.analysis.test_flops import forward_flops, train_flops
from tests.fixtures import Recording
from tests.programs.recorded import Node, Recorded, outside, overlapping

CONFIG = {
    "model_type": "qwen2", "vocab_size": 20, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "use_sliding_window": False, "tie_word_embeddings": True,
}  # fmt: skip
"""Of ``otel_rl.demo.task.model``."""
CHAT = """
{%- for m in messages -%}
{%- if m['role'] == 'assistant' -%}{{ m['content'] }}
{%- for c in m['tool_calls'] or [] -%}v{{ c['function']['name'] }}{{ c['function']['arguments'] | tojson }}e
{%- endfor -%}<eos>
{%- else -%}{{ m['content'] }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}o{%- endif -%}
"""
CALL = {"type": "function", "function": {"name": "search", "arguments": {"text": "{content}"}}}
PARSED = {
    "defaults": {"role": "assistant"},
    "start_anchor": "o",
    "fields": {
        "tool_calls": {"open": "v", "close": "e", "repeats": True, "content": "text", "transform": CALL},
        "content": {"close": "<eos>", "content": "text"},
    },
}
"""What stands between ``v`` and ``e`` is searched for; a random model writes that now and then."""
SHORT = {"generation_kwargs": {"max_new_tokens": 7}}


class Tools:
    """A tool, and what it was asked; it finds nothing for every third length."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def find(self, text: str) -> str:
        """Find a text."""
        self.asked.append(text)
        if len(text) % 3 == 0:
            raise LookupError("nothing")
        return "1234"

    def plain(self) -> Callable[..., Any]:
        """Make a function."""

        def search(text: str) -> str:
            """Search.

            Args:
                text: for this.
            """
            return self.find(text)

        return search

    def waiting(self) -> Callable[..., Any]:
        """Make a coroutine function."""

        async def search(text: str) -> str:
            """Search.

            Args:
                text: for this.
            """
            await asyncio.sleep(0)
            return self.find(text)

        return search

    def environment(self) -> type:
        """Make an environment whose method is the tool."""
        find = self.find

        class World:
            def reset(self, **_: Any) -> None:
                """Begin anew."""

            def search(self, text: str) -> str:
                """Search.

                Args:
                    text: for this.
                """
                return find(text)

        return World

    @property
    def failed(self) -> int:
        """How often it found nothing."""
        return sum(len(text) % 3 == 0 for text in self.asked)


def train(work: Path, *, prompts: Any = None, **given: Any) -> tuple[Any, list[dict[str, Any]], Recorded]:
    """Train four steps of GRPO; give the trainer, the masks of each loss and what was recorded."""
    import transformers
    import trl
    from datasets import Dataset

    from otel_rl.demo import task

    transformers.utils.logging.disable_progress_bar()
    seen: list[dict[str, Any]] = []

    class Trainer(trl.GRPOTrainer):  # type: ignore[misc]  # TRL tells no types
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            seen.append({key: inputs[key] for key in ("prompt_mask", "completion_mask", "tool_mask")})
            return super()._compute_loss(model, inputs)

    config = {
        "output_dir": str(work / "out"), "max_steps": 4, "per_device_train_batch_size": 4, "num_generations": 4,
        "max_completion_length": 32, "logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True,
        "use_cpu": True, "bf16": False, "dataloader_pin_memory": False, "seed": 3,
    }  # fmt: skip
    tokenizer = task.tokenizer()
    tokenizer.chat_template, tokenizer.response_template = CHAT, PARSED
    otel_rl.instrument(["torch", "accelerate", "transformers", "transformers_generate", "trl"])
    try:
        trainer = Trainer(
            model=task.model(work / "tiny", 0),
            reward_funcs=lambda completion_ids, **_: [float(len(ids)) for ids in completion_ids],
            args=trl.GRPOConfig(**config, **given.pop("config", {})),
            train_dataset=prompts or Dataset.from_dict({"prompt": [[{"role": "user", "content": "even"}]] * 32}),
            processing_class=tokenizer,
            **given,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    finally:
        otel_rl.uninstrument()
    return trainer, seen, Recorded(work / "runs")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a place for a training and its journal."""
    pytest.importorskip("trl")
    monkeypatch.setenv("OTEL_RL_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    return tmp_path


def tokens_of(node: Node) -> dict[str, int]:
    """Give a stage's tokens by kind."""
    return {key: value for key, value in node.attributes.items() if key.startswith(v.TOKENS)}


def of_loss(masks: dict[str, Any]) -> dict[str, int]:
    """Count the tokens of a micro-batch by the masks that its loss was given."""
    prompt, written = int(masks["prompt_mask"].sum()), int(masks["completion_mask"].sum())
    response = int((masks["completion_mask"] * masks["tool_mask"]).sum())
    return {
        v.TOKENS: prompt + written,
        v.TOKENS_PROMPT: prompt,
        v.TOKENS_RESPONSE: response,
        v.TOKENS_ENVIRONMENT: written - response,
        v.TOKENS_PADDING: masks["prompt_mask"].numel() + masks["completion_mask"].numel() - prompt - written,
    }


def generated(trainer: Any) -> list[int]:
    """Give the tokens that the policy generated in each step, by TRL's own log."""
    return [round(4 * log["completions/mean_length"]) for log in trainer.state.log_history if "num_tokens" in log]


def rollouts(steps: list[Node]) -> list[Node]:
    """Give the rollouts of steps."""
    return [found for step in steps for found in step.find(v.SAMPLE)]


def counted(recorded: Recorded, name: str) -> dict[str, float]:
    """Give a counter of tokens by kind."""
    return {str(point.attributes[v.TOKEN_KIND]): point.value for point in recorded.last(name)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "waiting", "environment"])
def test_tokens_of_tools_are_counted_apart_and_their_calls_are_stages(work: Path, kind: str) -> None:
    """Responses are what TRL counts as generated, the loss uses the same, and FLOPs count everything computed."""
    tools = Tools()
    tool = getattr(tools, kind)()
    given = {"environment_factory": tool} if kind == "environment" else {"tools": [tool]}
    trainer, seen, recorded = train(work, config=SHORT, **given)
    steps = list(recorded.steps().values())
    expected = [of_loss(masks) for masks in seen]
    assert expected == [tokens_of(step.find(v.FORWARD)[0]) for step in steps]
    sampled = [tokens_of(step.find(v.SAMPLE)[0]) for step in steps]
    padding = [found.pop(v.TOKENS_PADDING) for found in sampled]
    assert [{key: found[key] for key in found if key != v.TOKENS_PADDING} for found in expected] == sampled
    assert min(padding) >= 0 and sum(padding) == recorded.total(v.SAMPLE_PADDING) > 0
    assert generated(trainer) == [found[v.TOKENS_RESPONSE] for found in sampled]
    assert 0 < sum(found[v.TOKENS_ENVIRONMENT] for found in sampled)
    totals = Counter[str]()
    for found in expected:
        totals.update(found)
    kinds = {"prompt": v.TOKENS_PROMPT, "response": v.TOKENS_RESPONSE, "environment": v.TOKENS_ENVIRONMENT}
    assert {kind: totals[key] for kind, key in kinds.items()} == counted(recorded, v.SAMPLE_TOKENS)
    kinds["padding"] = v.TOKENS_PADDING
    assert {kind: totals[key] for kind, key in kinds.items()} == counted(recorded, v.TRAIN_TOKENS)
    calls = [node for node in recorded.nodes if node.name == f"{v.EXECUTE_TOOL} search"]
    assert Counter({"LookupError": tools.failed, None: len(tools.asked) - tools.failed}) == Counter(
        node.attributes.get(v.ERROR_TYPE) for node in calls
    )
    said = {
        v.OPERATION: "execute_tool", v.TOOL_NAME: "search", v.TOOL_TYPE: "function", v.MODE: "train",
    }  # fmt: skip
    assert all(said.items() <= node.attributes.items() for node in calls)
    assert {v.SAMPLE} == {recorded.by_id[node.span.parent_id].name for node in calls}
    whole = re.compile(r"tokenize generate decode( (search )+(tokenize )?(generate decode)?)* ?")
    turns = [" ".join(part.name.rpartition(".")[2].split()[-1] for part in found.children) for found in rollouts(steps)]
    assert [] == [turn for turn in turns if not whole.fullmatch(turn)]
    assert any("search tokenize generate decode" in turn for turn in turns)
    assert [] == [names for found in rollouts(steps) for names in (*overlapping(found), *outside(found))]
    labels = {v.TOOL_NAME: "search", v.MODE: "train"}
    durations = {p.attributes.get(v.ERROR_TYPE): p for p in recorded.last("gen_ai.execute_tool.duration")}
    assert [labels, {**labels, v.ERROR_TYPE: "LookupError"}] == [
        durations[key].attributes for key in (None, "LookupError")
    ]
    assert {None: len(calls) - tools.failed, "LookupError": tools.failed} == {k: p.count for k, p in durations.items()}
    resets = [len(step.find(v.ENVIRONMENT_RESET)) for step in steps]
    assert [int(kind == "environment")] * 4 == resets
    assert {} == recorded.errors()


@pytest.mark.slow
def test_truncated_responses_are_not_trained(work: Path) -> None:
    """TRL masks them everywhere: the loss uses none of their tokens, and a forward computes padding there."""
    changes = {**SHORT, "mask_truncated_completions": True, "beta": 0.1}
    _, seen, recorded = train(work, config=changes, tools=[Tools().plain()])
    steps = list(recorded.steps().values())
    expected = [of_loss(masks) for masks in seen]
    assert expected == [tokens_of(step.find(v.FORWARD)[0]) for step in steps]
    both = [{key: found[key] for key in (v.TOKENS, v.TOKENS_PADDING)} for found in expected]
    assert both == [tokens_of(step.find(f"{v.LOGPROB} ref")[0]) for step in steps]
    rollouts = sum(tokens_of(step.find(v.SAMPLE)[0])[v.TOKENS_RESPONSE] for step in steps)
    assert (
        rollouts > sum(found[v.TOKENS_RESPONSE] for found in expected) == counted(recorded, v.TRAIN_TOKENS)["response"]
    )
    flops = Counter[str]()
    for masks in seen:
        lengths = (masks["prompt_mask"].sum(1) + masks["completion_mask"].sum(1)).tolist()
        logits = int(masks["completion_mask"].sum())
        flops[v.FORWARD] += train_flops(CONFIG, lengths, logits=logits)
        flops[v.LOGPROB] += forward_flops(CONFIG, lengths, logits=logits)
    assert flops == {str(point.attributes[v.FLOPS_STAGE]): point.value for point in recorded.last(v.FLOPS)}


@pytest.mark.slow
def test_a_rollout_function_marks_what_the_environment_wrote(work: Path) -> None:
    """Two tokens of each response are the policy's and ten are not; of the rest of the batch nothing is guessed."""
    import torch

    from otel_rl.demo import task

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        ids = [trainer.processing_class(text)["input_ids"] for text in prompts]
        model = trainer.accelerator.unwrap_model(trainer.model)
        own = [model.generate(torch.tensor([row]), max_new_tokens=2, min_new_tokens=2)[0, len(row) :] for row in ids]
        return {
            "prompt_ids": ids,
            "completion_ids": [[*row.tolist(), *[5] * 10] for row in own],
            "logprobs": None,
            "env_mask": [[1] * 2 + [0] * 10 for _ in own],
        }

    trainer, seen, recorded = train(work, prompts=task.prompts(32), rollout_func=rollout)
    steps = list(recorded.steps().values())
    expected = [{**of_loss(masks), v.TOKENS_PADDING: 0} for masks in seen]
    assert expected == [tokens_of(step.find(v.SAMPLE)[0]) for step in steps]
    assert [8] * 4 == generated(trainer) == [found[v.TOKENS_RESPONSE] for found in expected]
    assert [40] * 4 == [found[v.TOKENS_ENVIRONMENT] for found in expected]
    prompt = sum(found[v.TOKENS_PROMPT] for found in expected)
    assert prompt + 32 == trainer.state.log_history[-2]["num_tokens"]
    lengths = [(masks["prompt_mask"].sum(1) + masks["completion_mask"].sum(1)).tolist() for masks in seen]
    assert sum(train_flops(CONFIG, row, logits=48) for row in lengths) == recorded.total(v.FLOPS)
    report = build_report(recorded.run, 0)
    work_row = WorkRow(
        role="trainer",
        rank=0,
        samples=16,
        prompt_tokens=prompt,
        response_tokens=32,
        environment_tokens=160,
        padding_tokens=sum(of_loss(masks)[v.TOKENS_PADDING] for masks in seen),
        train_tokens=32,
    )
    assert [work_row] == report.work
    rollout_s, train_s = (recorded.values(v.TOKENS_RATE, rl_work=kind, rl_wall="step") for kind in ("rollout", "train"))
    assert [found[v.TOKENS_PROMPT] + 8 for found in expected] == [
        round(8 * rate / train_s[number][0]) for number, (rate,) in rollout_s.items()
    ]


# --- without TRL ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([[1, 1, 0, 0, 1], [0, 0]], {v.TOKENS_RESPONSE: 3, v.TOKENS_ENVIRONMENT: 4}),
        (
            [np.array([True, True, False, False, True]), np.array([1, 1])],
            {v.TOKENS_RESPONSE: 5, v.TOKENS_ENVIRONMENT: 2},
        ),
        (None, {v.TOKENS_RESPONSE: 7}),
    ],
    ids=["lists", "arrays", "no mask"],
)
def test_responses_are_the_sum_of_the_mask(recording: Recording, mask: Any, expected: dict[str, int]) -> None:
    """GRPO's rollout ends with one where something else than the policy may have written; all of it is handled."""
    trainer = SimpleNamespace(model=SimpleNamespace(training=True))
    result = [[4, 4], [4]], [[5] * 5, [5] * 2], mask, [], None, {}, None, []
    described = _describe_rollout((trainer,), {}, result)
    assert {v.TOKENS: 10, v.TOKENS_PROMPT: 3, **expected} == {
        key: value for key, value in described.items() if key.startswith(v.TOKENS)
    }


def offered(**tools: Callable[..., Any]) -> tuple[Any, Any]:
    """Offer tools to one sample as TRL does, and record its loop; give both dictionaries."""
    split = [asyncio.iscoroutinefunction(tool) for tool in tools.values()]
    names = list(zip(tools.items(), split, strict=True))
    trainer = SimpleNamespace(
        _sync_tool_dicts=[{name: tool for (name, tool), waits in names if not waits}],
        _async_tool_dicts=[{name: tool for (name, tool), waits in names if waits}],
    )
    begin_tools((trainer,), {})
    return trainer._sync_tool_dicts[0], trainer._async_tool_dicts[0]


async def later(text: str) -> str:
    """Answer in a task."""
    await asyncio.sleep(0)
    warnings.warn("of the caller", stacklevel=2)
    if not text:
        raise KeyError("no text")
    return text.upper()


def test_tools_behave_as_without_us(recording: Recording) -> None:
    """Results, exceptions and warnings are theirs; arguments that do not fit are refused when a coroutine is made."""
    plain, waiting = offered(upper=str.upper, later=later)
    assert ("upper" in plain, "later" in plain, "later" in waiting) == (True, False, True)
    assert "AB" == plain["upper"]("ab")
    with pytest.raises(TypeError):
        plain["upper"](no=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'no'"):
        waiting["later"](no=1)

    async def both(tool: Callable[..., Any]) -> list[Any]:
        return await asyncio.gather(tool(text="a"), tool(text=""), return_exceptions=True)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        (found, error), _ = asyncio.run(both(waiting["later"])), asyncio.run(both(later))
    assert ("A", "'no text'") == (found, str(error))
    places = [(one.filename, one.lineno) for one in warned]
    assert (4, places[2:]) == (len(places), places[:2])
    stages = sorted((span.name, str(span.attributes.get(v.ERROR_TYPE, ""))) for span in recording.stop().spans(None))
    upper, later_ = (f"{v.EXECUTE_TOOL} {name}" for name in ("upper", "later"))
    assert [
        (later_, ""), (later_, "KeyError"), (later_, "TypeError"), (upper, ""), (upper, "TypeError"),
    ] == [one for one in stages if one[0].startswith(v.EXECUTE_TOOL)]  # fmt: skip
