"""GRPO in plain PyTorch, sharded by FSDP2, without any framework: what a loop of one's own needs to be seen.

    torchrun --standalone --nproc_per_node=4 examples/fsdp2_grpo.py
    otel-rl report

Look for ``otel_rl``; all else is what any such loop does. ``step`` holds one step, on every rank. ``stage`` names what
only the loop's author knows: rollout, reward, log-probabilities, advantage, forward, clipping. ``observe`` shows the
model and what goes through it: FLOPs are counted from that, and tokens, masks and log-probabilities are compared from
stage to stage. Waiting for the data loader, backward, optimizer and every collective of FSDP2 are found without help,
and so is the rank that is slow in any of them.

The policy is a random Llama of 21,000 parameters. A prompt asks for even or odd digits; an answer ends with its first
``EOS``, and its reward is the share of its ANSWER tokens that are digits of the wanted kind: 0.3 is chance.

Shapes: P prompts of a rank, B = P * GROUP answers, T tokens of prompt and answer, R of the answer, V of the vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import otel_rl

EVEN, ODD, EOS = 10, 11, 12
"""Tokens behind the ten digits."""
PROMPTS, GROUP, ANSWER = 4, 8, 8
STEPS, UPDATES, CLIP, LEARNING_RATE = 25, 2, 0.2, 1e-2


def make_policy() -> torch.nn.Module:
    """Make the same random model on every rank and shard it layer by layer."""
    torch.manual_seed(0)
    policy = LlamaForCausalLM(
        LlamaConfig(vocab_size=13, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    )
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in policy.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(policy, mesh=mesh)
    return policy


def prompts(rank: int) -> Iterator[torch.Tensor]:
    """Give this rank's prompts without end, two tokens each: a digit, and what kind of digits is asked for."""
    draw = torch.Generator().manual_seed(rank)
    asked = [torch.tensor([int(torch.randint(10, (), generator=draw)), (EVEN, ODD)[n % 2]]) for n in range(256)]
    while True:
        yield from DataLoader(asked, batch_size=PROMPTS, shuffle=True, generator=draw)


@torch.no_grad()
def sample(policy: torch.nn.Module, prompt_P2: torch.Tensor) -> dict[str, torch.Tensor]:
    """Answer each prompt GROUP times; the keys are those that ``otel_rl.observe`` knows.

    Every rank does as many forwards, because all of them gather each layer in each forward.
    """
    tokens_BT = prompt_P2.repeat_interleave(GROUP, dim=0)
    logprobs = []
    for _ in range(ANSWER):
        logprob_BV = policy(tokens_BT).logits[:, -1].log_softmax(-1)
        token_B1 = logprob_BV.exp().multinomial(1)
        logprobs.append(logprob_BV.gather(1, token_B1))
        tokens_BT = torch.cat([tokens_BT, token_B1], dim=1)
    is_end_BR = tokens_BT[:, -ANSWER:] == EOS
    mask_BR = (is_end_BR.cumsum(1) - is_end_BR.long() == 0).long()  # all up to the first end, that included
    return {
        "input_ids": tokens_BT,
        "attention_mask": torch.cat([torch.ones_like(tokens_BT[:, :-ANSWER]), mask_BR], dim=1),
        "completion_mask": mask_BR,
        "rollout_logprobs": torch.cat(logprobs, dim=1),
    }


@otel_rl.stage("reward")
def reward(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Give the share of ANSWER tokens that are digits of the wanted kind, shape B."""
    answer_BR, is_odd_B1 = batch["input_ids"][:, -ANSWER:], batch["input_ids"][:, 1:2] == ODD
    is_right_BR = (answer_BR < 10) & ((answer_BR % 2 == 1) == is_odd_B1)
    return (is_right_BR * batch["completion_mask"]).float().mean(1)


@otel_rl.stage("advantage")
def advantage(reward_B: torch.Tensor) -> torch.Tensor:
    """Compare each answer with the others to its prompt, shape B."""
    reward_PG = reward_B.view(-1, GROUP)
    return ((reward_PG - reward_PG.mean(1, keepdim=True)) / (reward_PG.std(1, keepdim=True) + 1e-4)).flatten()


def logprobs(policy: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Give the log-probability of each token of the answers, shape BR; runs in the stages logprob and train.forward."""
    logits_BTV = policy(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    answer_BR = batch["input_ids"][:, -ANSWER:]
    logprob_BR = logits_BTV[:, -ANSWER - 1 : -1].log_softmax(-1).gather(2, answer_BR[:, :, None]).squeeze(2)
    otel_rl.observe(model=policy, batch={**batch, "logprobs": logprob_BR})
    return logprob_BR


def clipped(ratio_BR: torch.Tensor, gain_B: torch.Tensor, mask_BR: torch.Tensor) -> torch.Tensor:
    """Give the loss of PPO and GRPO, a mean over the tokens of the answers."""
    gain_B1 = gain_B[:, None]
    gain_BR = torch.min(ratio_BR * gain_B1, ratio_BR.clamp(1 - CLIP, 1 + CLIP) * gain_B1)
    return -(gain_BR * mask_BR).sum() / mask_BR.sum()


def train(policy: torch.nn.Module, prompt: Iterator[torch.Tensor]) -> float:
    """Train, and return the mean reward of the last step on this rank."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE)
    mean = 0.0
    for number in range(1, STEPS + 1):
        with otel_rl.step(number):
            prompt_P2 = next(prompt)
            with otel_rl.stage("sample") as span:
                batch = sample(policy, prompt_P2)
                span.set_attribute("rl.sample.batch_size", len(batch["input_ids"]))
                span.set_attribute("rl.tokens.prompt", 2 * len(batch["input_ids"]))
                span.set_attribute("rl.tokens.response", int(batch["completion_mask"].sum()))
            reward_B = reward(batch)
            mean = float(reward_B.mean())
            otel_rl.record("rl.reward.score", mean)
            gain_B = advantage(reward_B)
            with otel_rl.stage("logprob", **{"logprob.kind": "old"}), torch.no_grad():
                old_BR = logprobs(policy, batch)
            tokens = int(batch["attention_mask"].sum())
            padding = batch["attention_mask"].numel() - tokens
            counts = {"tokens": tokens, "tokens.prompt": 2 * len(batch["input_ids"]), "tokens.padding": padding}
            for _ in range(UPDATES):
                with otel_rl.stage("train.forward", **counts):
                    ratio_BR = (logprobs(policy, batch) - old_BR).exp()
                    loss = clipped(ratio_BR, gain_B, batch["completion_mask"])
                loss.backward()
                with otel_rl.stage("train.clip"):
                    clip_grad_norm_(policy.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return mean


def main() -> None:
    """Train on the ranks that torchrun started, and say where the run is."""
    otel_rl.instrument()  # before the process group, so that all ranks know at once which attempt they belong to
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    policy = make_policy()
    torch.manual_seed(dist.get_rank())  # each rank draws answers of its own
    mean = train(policy, prompts(dist.get_rank()))
    otel_rl.uninstrument()
    if dist.get_rank() == 0:
        runs = Path(os.environ.get("OTEL_RL_DIR", "otel_rl_runs"))
        newest = max(runs.glob("[!.]*"), key=lambda run: run.stat().st_mtime)
        print(
            f"reward {mean:.2f} after {STEPS} steps; recorded in {newest}: `otel-rl report {newest}` says how it went"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
