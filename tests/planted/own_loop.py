"""A training loop of one's own: a tiny policy that is really sampled and trained, recorded by otel_rl's own functions.

By hand, from the root of the repository::

    otel-rl run -- python -m tests.planted.own_loop rollout_drifts --seed 1
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import otel_rl
from otel_rl import vocabulary as v

TOKENS, EOS, PROMPT = 32, 0, 2
PLANTED = 30
"""Most problems begin after this step."""


class Policy(nn.Module):
    """A recurrent network over a few tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(TOKENS, 24), nn.GRU(24, 48, batch_first=True)
        self.head = nn.Linear(48, TOKENS)
        with torch.no_grad():
            self.head.bias[EOS] = 1.0

    def forward(self, ids: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the logits of each next token, and the state after the last."""
        out, hidden = self.gru(self.embed(ids), hidden)
        return self.head(out), hidden


@dataclass
class Rollout:
    """What was sampled in one step."""

    ids: Tensor
    mask: Tensor
    """Of the response, without the prompt: true up to the end."""
    logprobs: Tensor
    lengths: list[int]
    began: float
    ended: float


@dataclass
class Loop:
    """The settings of a training, and what a problem changes of it."""

    seed: int = 0
    steps: int = 60
    prompts: int = 8
    group: int = 4
    limit: int = 12
    rate: float = 1e-3
    beta: float = 0.02
    bonus: float = 0.0
    updates: int = 1
    temperature: float = 1.0
    counts_groups: bool = True
    engine_lag: int = 0
    """Steps by which the weights of the engine are behind those of the trainer."""
    frozen_since: int | None = None
    """The engine gets no weights from this step on."""
    reward: Callable[[int, Tensor, Tensor], Tensor] | None = None
    advantages: Callable[[int, Tensor], Tensor] | None = None
    before: Callable[[Loop, int], None] | None = None
    finish: Callable[[int, int], str] | None = None
    preemptions: Callable[[int, int], int] | None = None
    repeats: Callable[[int], int] | None = None
    """How many times as many samples a step trains."""
    after: Callable[[Loop, int], None] | None = None
    policy: Policy = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)

    def run(self) -> None:
        """Train."""
        torch.manual_seed(self.seed)
        self.policy = Policy()
        self.reference, engines = copy.deepcopy(self.policy), [copy.deepcopy(self.policy)]
        self.optimizer = torch.optim.Adam(self.policy.parameters(), self.rate)
        for number in range(1, self.steps + 1):
            if self.before is not None:
                self.before(self, number)
            with otel_rl.step(number):
                self.step(number, engines[0])
            if self.after is not None:
                self.after(self, number)
            if self.frozen_since is None or number < self.frozen_since:
                engines = [*engines, copy.deepcopy(self.policy)][-1 - self.engine_lag :]

    def step(self, number: int, engine: Policy) -> None:
        """Sample, score, and update."""
        with otel_rl.stage("sample") as stage:
            rollout = self.sample(number, engine)
            stage.set_attribute(v.SAMPLE_BATCH_SIZE, len(rollout.ids))
            stage.set_attribute(v.TOKENS_RESPONSE, sum(rollout.lengths))
            otel_rl.observe(batch=self.batch(rollout, rollout_logprobs=rollout.logprobs))
        with otel_rl.stage("logprob", **{v.LOGPROB_KIND: "old"}), torch.no_grad():
            old = logprobs_of(self.policy, rollout)[0]
            otel_rl.observe(batch=self.batch(rollout, rollout_logprobs=rollout.logprobs, old_logprobs=old))
        with otel_rl.stage("reward"):
            rewards = (
                even(rollout.ids, rollout.mask)
                if self.reward is None
                else self.reward(number, rollout.ids, rollout.mask)
            )
        groups = rewards.view(-1, self.group)
        spread = groups.std(1, keepdim=True)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (spread + 1e-4)).view(-1)
        if self.advantages is not None:
            advantages = self.advantages(number, advantages)
        for _ in range(self.updates):
            numbers = self.update(number, rollout, old, advantages)
        record(v.REWARD_SCORE, rewards.mean())
        record(v.REWARD_STD, rewards.std())
        if self.counts_groups:
            record(v.REWARD_ZERO_STD, (spread < 1e-6).float().mean())
        record(v.RESPONSE_LENGTH, sum(rollout.lengths) / len(rollout.lengths))
        record(v.RESPONSE_MAX, max(rollout.lengths))
        record(v.RESPONSE_CLIPPED, (~(rollout.ids[:, PROMPT:] == EOS).any(1)).float().mean())
        for name, value in numbers.items():
            record(name, value)

    def sample(self, number: int, engine: Policy) -> Rollout:
        """Sample from the engine's weights, and tell of each request."""
        began = time.monotonic()
        ids = torch.randint(1, TOKENS, (self.prompts, PROMPT)).repeat_interleave(self.group, 0)
        given, hidden, found = ids, None, []
        with torch.no_grad():
            for _ in range(self.limit):
                logits, hidden = engine(given, hidden)
                scaled = logits[:, -1] / self.temperature
                given = torch.distributions.Categorical(logits=scaled).sample()[:, None]
                found.append((given, scaled.log_softmax(-1).gather(1, given)))
        tokens, logprobs = (torch.cat(part, 1) for part in zip(*found, strict=True))
        mask = (tokens == EOS).cumsum(1) - (tokens == EOS).long() == 0
        lengths, ended = mask.sum(1).tolist(), time.monotonic()
        for place, length in enumerate(lengths):
            otel_rl.request(
                "tiny",
                submitted=began,
                ended=ended,
                input_tokens=PROMPT,
                output_tokens=length,
                limit=self.limit,
                finish=self.finish(number, place)
                if self.finish
                else "stop"
                if tokens[place, length - 1] == EOS
                else "length",
                preemptions=self.preemptions(number, place) if self.preemptions else 0,
            )
        return Rollout(torch.cat((ids, tokens), 1), mask, logprobs * mask, lengths, began, ended)

    def update(self, number: int, rollout: Rollout, old: Tensor, advantages: Tensor) -> dict[str, Any]:
        """Make one update; return what it measured."""
        times = 1 if self.repeats is None else self.repeats(number)
        tokens = times * (sum(rollout.lengths) + PROMPT * len(rollout.ids))
        with otel_rl.stage("train.forward", **{v.TOKENS: tokens, v.TOKENS_RESPONSE: times * sum(rollout.lengths)}):
            logprobs, entropy = logprobs_of(self.policy, rollout)
            with torch.no_grad():
                reference = logprobs_of(self.reference, rollout)[0]
            ratio = (logprobs - old).exp()
            gain = advantages[:, None] * ratio
            gain = torch.minimum(gain, advantages[:, None] * ratio.clamp(0.8, 1.2))
            kl = (reference - logprobs).exp() - (reference - logprobs) - 1
            count = rollout.mask.sum()
            loss = (((self.beta * kl - gain) * rollout.mask).sum() - self.bonus * entropy.sum()) / count
        with otel_rl.stage("train.backward"):
            self.optimizer.zero_grad()
            loss.backward()
        with otel_rl.stage("train.clip"):
            norm = nn.utils.clip_grad_norm_(self.policy.parameters(), 1e9)
        with otel_rl.stage("train.optimizer"):
            self.optimizer.step()
        return {
            v.LOSS: loss, v.GRAD_NORM: norm, v.LEARNING_RATE: self.optimizer.param_groups[0]["lr"],
            v.KL_REFERENCE: (kl * rollout.mask).sum() / count, v.ENTROPY: entropy.sum() / count,
            v.KL_POLICY: ((old - logprobs) * rollout.mask).sum() / count,
        }  # fmt: skip

    @staticmethod
    def batch(rollout: Rollout, **more: Tensor) -> dict[str, Tensor]:
        """Return what a stage has of the batch."""
        attention = torch.cat((torch.ones(len(rollout.ids), PROMPT, dtype=torch.bool), rollout.mask), 1)
        return {"input_ids": rollout.ids, "attention_mask": attention, "completion_mask": rollout.mask, **more}


def logprobs_of(policy: Policy, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each token of the responses, and the entropy there."""
    logits = policy(rollout.ids[:, :-1])[0][:, PROMPT - 1 :].log_softmax(-1)
    chosen = logits.gather(2, rollout.ids[:, PROMPT:, None])[:, :, 0]
    return chosen * rollout.mask, -(logits.exp() * logits).sum(-1) * rollout.mask


def even(ids: Tensor, mask: Tensor) -> Tensor:
    """Reward: the share of tokens that are even."""
    return ((ids[:, PROMPT:] % 2 == 0) * mask).sum(1) / mask.sum(1)


def record(name: str, value: Any) -> None:
    otel_rl.record(name, float(value.detach() if isinstance(value, Tensor) else value))


def main() -> None:
    """Train as the command line says."""
    from tests.planted import own_plants

    parser = argparse.ArgumentParser(prog="python -m tests.planted.own_loop", description=__doc__.splitlines()[0])
    parser.add_argument("problem", nargs="?", default="clean")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER", help="settings of a clean training")
    options = parser.parse_args()
    torch.set_num_threads(1)
    changes = {
        name: float(value) if "." in value else int(value)
        for name, _, value in (one.partition("=") for one in options.set)
    }
    loop = Loop(seed=options.seed, **changes)
    if options.problem != "clean":
        getattr(own_plants, options.problem)(loop)
    otel_rl.instrument()
    loop.run()


if __name__ == "__main__":
    main()
