"""Two callbacks of the demo: a line of progress, and a record of what every step computed."""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np
import torch
from transformers import TrainerCallback

LINE_EVERY: Final = 25
"""Steps between two lines where the output is not a terminal."""
BARS: Final = "▁▂▃▄▅▆▇█"
ASCII_BARS: Final = "_.-:=+*#"
WIDTH: Final = 24
CLOCKS: Final = ("step_time", "runtime", "per_second")


@dataclass(frozen=True)
class Summary:
    """What came of a run."""

    steps: int
    seconds: float
    first_reward: float | None
    last_reward: float | None
    eval_reward: float | None


class Progress(TrainerCallback):
    """Shows the step and how the reward goes: a line that rewrites itself in a terminal, else one in 25 steps."""

    def __init__(self, steps: int, out: TextIO | None = None) -> None:
        self.steps = steps
        self.step = 0
        self.rewards: list[tuple[int, float]] = []
        self.eval_reward: float | None = None
        self._out = out or sys.stdout
        self._live = self._out.isatty()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        """Keep the rewards that the trainer reports."""
        if "reward" in logs:
            self.rewards.append((state.global_step, float(logs["reward"])))
        if "eval_reward" in logs:
            self.eval_reward = float(logs["eval_reward"])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Show the step, each in a terminal and one in 25 elsewhere."""
        self.step = state.global_step
        if self._live:
            print(f"\r{self.line()}\033[K", end="", file=self._out, flush=True)
        elif self.step % LINE_EVERY == 0 and self.step < self.steps:
            print(self.line(), file=self._out, flush=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the last line for good."""
        start, end = ("\r", "\033[K") if self._live else ("", "")
        print(f"{start}{self.line()}{end}", file=self._out, flush=True)

    def line(self) -> str:
        """Say how far the training is and what its reward does."""
        text = f"step {self.step:>{len(str(self.steps))}}/{self.steps}"
        if self.rewards:
            bars = BARS if "utf" in (self._out.encoding or "").lower() else ASCII_BARS
            text += f"   reward {curve(self.rewards, self.steps, bars)} {self.rewards[-1][1]:.2f}"
        if self.eval_reward is not None:
            text += f"   evaluation {self.eval_reward:.2f}"
        return text

    def summary(self, seconds: float) -> Summary:
        """Sum up a run that took ``seconds``."""
        values = [reward for _, reward in self.rewards]
        first, last = (values[0], values[-1]) if values else (None, None)
        return Summary(self.step, round(seconds, 3), first, last, self.eval_reward)


def curve(points: list[tuple[int, float]], steps: int, bars: str = BARS) -> str:
    """Draw points (step, value between 0 and 1) as a bar for each 24th of all steps, blank for steps to come.

    A point speaks for the steps before it as well, since a trainer logs once in several steps.
    """
    bins: dict[int, list[float]] = {}
    for step, value in points:
        bins.setdefault((step - 1) * WIDTH // steps, []).append(value)
    text = ""
    for i in sorted(bins):
        height = int(sum(bins[i]) / len(bins[i]) * len(bars))
        text = text.ljust(i + 1, bars[min(max(height, 0), len(bars) - 1)])
    return text.ljust(WIDTH)


class Recorder(TrainerCallback):
    """Keeps what a run computed, so that two runs can be compared bit by bit."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.tokens: list[list[int]] = []

    def watch(self, reward: Callable[..., list[float]]) -> Callable[..., list[float]]:
        """Give the reward function back as one that keeps the token ids that it is shown."""

        @functools.wraps(reward)
        def watched(*, completion_ids: list[list[int]], **rest: Any) -> list[float]:
            self.tokens += completion_ids
            return reward(completion_ids=completion_ids, **rest)

        return watched

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        """Keep what the trainer logs, but for times."""
        self.steps.append({key: value for key, value in logs.items() if not key.endswith(CLOCKS)})

    def write(self, file: Path, model: torch.nn.Module) -> None:
        """Write everything to ``file``, with digests of the random states and of the parameters."""
        states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state().tolist()}
        digests = {name: digest(pickle.dumps(state)) for name, state in states.items()}
        weights = digest(b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values()))
        record = {"steps": self.steps, "tokens": self.tokens, "random": digests, "parameters": weights}
        file.write_text(json.dumps(record, sort_keys=True))


def digest(data: bytes) -> str:
    """Hash ``data``."""
    return hashlib.sha256(data).hexdigest()
