"""Trains in the shape of SkyRL, in this process, and draws what was recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.process.hooked import hooking
from tests.fixtures import Clock, Recording

SHAPE = Path(__file__).parent / "shape"
BACKEND = "skyrl.backends.skyrl_train"
SHOWN = (
    v.MODE, v.GROUP_ID, v.SAMPLE_ID, v.LOGPROB_KIND, v.TRAIN_MODEL, v.REWARD_FUNCTION, v.SYNC_OPERATION, v.IDLE_REASON,
    v.CHECKPOINT_FORMAT, v.BATCH_SIZE, v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.TOKENS_ENVIRONMENT, v.TOKENS_PADDING,
    v.FINISH_REASONS, v.POLICY_VERSION, v.POLICY_VERSION_END, v.LAG_MAX, v.STALE_COUNT, v.ERROR_TYPE,
)  # fmt: skip


class Calculator:
    """An environment: its first step answers, its second ends with the reward."""

    turns = 2

    def __init__(self) -> None:
        self.steps = 0

    def init(self, prompt: list[int]) -> None:
        """Begin."""

    def step(self, action: list[int]) -> dict[str, Any]:
        """Answer, or give the reward."""
        self.steps += 1
        return {"observations": [9], "reward": float(self.steps), "done": self.steps == self.turns}

    def close(self) -> None:
        """End."""


def config(**changes: Any) -> Any:
    """Make what is read of a configuration of SkyRL."""
    algorithm = {
        "advantage_estimator": "grpo", "use_kl_loss": True, "use_kl_in_reward": False, "kl_loss_coef": 0.001,
        "kl_estimator_type": "k3", "zero_variance_filter": False, "policy_loss_type": "regular",
    }  # fmt: skip
    generator = {"n_samples_per_prompt": 2, "max_turns": 1, "apply_overlong_filtering": False,
                 "step_wise_trajectories": False}  # fmt: skip
    training = {
        "strategy": "fsdp", "max_tokens_per_microbatch": -1, "train_batch_size": 4, "policy_mini_batch_size": 2,
        "update_epochs_per_batch": 3, "ckpt_path": "checkpoints",
    }  # fmt: skip
    asynchronous = {"enabled": False, "sample_full_batch": False}
    dynamic = {"type": None}
    for group in (algorithm, generator, training, asynchronous, dynamic):
        group.update({key: value for key, value in changes.items() if key in group})
    return SimpleNamespace(
        trainer=SimpleNamespace(
            algorithm=SimpleNamespace(dynamic_sampling=SimpleNamespace(**dynamic), **algorithm),
            placement=SimpleNamespace(policy_num_nodes=1, policy_num_gpus_per_node=2),
            policy=SimpleNamespace(
                model=SimpleNamespace(path="/models/Tiny-1B/"),
                optimizer_config=SimpleNamespace(lr=1e-6, max_grad_norm=1.0),
            ),
            fully_async=SimpleNamespace(**asynchronous),
            **training,
        ),
        generator=SimpleNamespace(sampling_params=SimpleNamespace(temperature=0.9, max_generate_length=2), **generator),
    )


def _count(clock: Clock) -> int:
    """Let a nanosecond pass with each look at the clock, so that spans have an order."""
    clock.ns += 1
    return clock.ns


@pytest.fixture
def skyrl(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """Record the program of SkyRL's shape, and forget it afterwards."""
    monkeypatch.syspath_prepend(SHAPE)
    monkeypatch.setattr(Clock, "__call__", _count)
    yield stubbed.start("skyrl")
    for name in [name for name in sys.modules if name.partition(".")[0] == "skyrl"]:
        del sys.modules[name]


def make(
    dataset: list[Any],
    environment: Any = Calculator,
    *,
    is_asynchronous: bool = False,
    workers: Any = None,
    **changes: Any,
) -> Any:
    """Make a trainer and its ranks, in this process if no others are given."""
    base = import_module("skyrl.train.trainer").RayPPOTrainer
    kind = import_module("skyrl.train.fully_async_trainer").FullyAsyncRayPPOTrainer if is_asynchronous else base
    client = import_module(f"{BACKEND}.inference_servers.remote_inference_client").RemoteInferenceClient()
    gym = import_module("skyrl.train.generators.skyrl_gym_generator").SkyRLGymGenerator
    ranks = import_module(f"{BACKEND}.workers.worker")
    made = kind(
        cfg=config(**{"max_turns": environment.turns, **changes}),
        tracker=import_module("skyrl.train.utils.tracking").Tracking(),
        tokenizer=None,
        train_dataset=dataset,
        inference_engine_client=client,
        generator=gym(environment.turns, environment, client),
    )
    if workers is not None:
        made.build_models(workers)
        return made
    kinds = {
        "policy": ranks.FSDPPolicyWorkerBase, "ref": ranks.FSDPRefWorkerBase, "critic": ranks.FSDPCriticWorkerBase,
    }  # fmt: skip
    for one in kinds.values():
        hooking.arrived(one)
    made.build_models({name: one() for name, one in kinds.items()})
    return made


def drawn(run: Run, root: str) -> list[list[str]]:
    """Draw the traces whose root has a name: spans in the order of their begin, with what they say."""
    spans = sorted(run.spans(None), key=lambda span: (span.start_ns, -span.end_ns, span.span_id))

    def lines(span: Any, depth: int) -> Iterator[str]:
        said = [str(span.attributes[key]) for key in SHOWN if key in span.attributes]
        yield "  " * depth + " | ".join((span.name, *said))
        for other in spans:
            if other.parent_id == span.span_id:
                yield from lines(other, depth + 1)

    return [list(lines(span, 0)) for span in spans if span.name == root]
