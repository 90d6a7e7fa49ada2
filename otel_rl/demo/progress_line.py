"""A callback of the demo that shows the step and how the reward goes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Final, TextIO

from transformers import TrainerCallback

LINE_EVERY: Final = 25
"""Steps between two lines if the output is no terminal."""
BARS: Final = "▁▂▃▄▅▆▇█"
ASCII_BARS: Final = "_.-:=+*#"
WIDTH: Final = 24


@dataclass(frozen=True)
class DemoResult:
    """Steps, duration and rewards of a run."""

    steps: int
    seconds: float
    first_reward: float | None
    last_reward: float | None
    eval_reward: float | None


class ProgressLine(TrainerCallback):
    """Shows step and reward: a line that rewrites itself in a terminal, else one line in 25 steps."""

    def __init__(self, steps: int, out: TextIO | None = None) -> None:
        self.steps = steps
        self.step = 0
        self.rewards: list[tuple[int, float]] = []
        self.eval_reward: float | None = None
        self._out = out or sys.stdout
        self._live = self._out.isatty()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        if "reward" in logs:
            self.rewards.append((state.global_step, float(logs["reward"])))
        if "eval_reward" in logs:
            self.eval_reward = float(logs["eval_reward"])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.step = state.global_step
        if self._live:
            print(f"\r{self.line()}\033[K", end="", file=self._out, flush=True)
        elif self.step % LINE_EVERY == 0 and self.step < self.steps:
            print(self.line(), file=self._out, flush=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        start, end = ("\r", "\033[K") if self._live else ("", "")
        print(f"{start}{self.line()}{end}", file=self._out, flush=True)

    def line(self) -> str:
        """Return a line with the step and the rewards so far."""
        text = f"step {self.step:>{len(str(self.steps))}}/{self.steps}"
        if self.rewards:
            bars = BARS if "utf" in (self._out.encoding or "").lower() else ASCII_BARS
            text += f"   reward {curve(self.rewards, self.steps, bars)} {self.rewards[-1][1]:.2f}"
        if self.eval_reward is not None:
            text += f"   evaluation {self.eval_reward:.2f}"
        return text

    def result(self, seconds: float) -> DemoResult:
        """Return the result of a run that took ``seconds``."""
        values = [reward for _, reward in self.rewards]
        first, last = (values[0], values[-1]) if values else (None, None)
        return DemoResult(self.step, round(seconds, 3), first, last, self.eval_reward)


def curve(points: list[tuple[int, float]], steps: int, bars: str = BARS) -> str:
    """Draw points (step, value from 0 to 1) as one bar for each 24th of all steps, blank for steps to come.

    A point also counts for the steps before it, since a trainer logs once in several steps.
    """
    bins: dict[int, list[float]] = {}
    for step, value in points:
        bins.setdefault((step - 1) * WIDTH // steps, []).append(value)
    text = ""
    for i in sorted(bins):
        height = int(sum(bins[i]) / len(bins[i]) * len(bars))
        text = text.ljust(i + 1, bars[min(max(height, 0), len(bars) - 1)])
    return text.ljust(WIDTH)
