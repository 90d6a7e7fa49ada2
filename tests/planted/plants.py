"""Plants the problems of ``problems.py``: each function changes a clean training."""

from __future__ import annotations

import atexit
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from otel_rl.demo import task

LR = 1e-3
RANK = int(os.environ.get("RANK", "0"))
KEPT: list[bytes] = []
MEGABYTE = 1_000_000
NAN = float("nan")
"""As computed: ``math.nan`` is the object that TRL puts in the place of None."""
Rewards = Sequence[float]


@dataclass
class Training:
    """What makes a training: without changes, a clean one."""

    config: dict[str, Any]
    rewards: list[Callable[..., Rewards]]
    data: Any
    evaluation: Any
    tokenizer: Any
    changes: list[Callable[[Any], None]] = field(default_factory=list)
    """What to do to the trainer before it trains."""


def parity(completions: list[str], wanted: list[str], **_: Any) -> Rewards:
    """Return the share of characters that are digits of the wanted parity."""
    return task.parity(completions, wanted)


def replaced(make: Callable[..., Rewards]) -> list[Callable[..., Rewards]]:
    """Give a reward function the name of the clean one."""
    make.__name__ = parity.__name__
    return [make]


def keep(megabytes: int) -> None:
    KEPT.append(b"x" * (megabytes * MEGABYTE))


def generating(training: Training, wait: Callable[[Any], None]) -> None:
    """Do something with the trainer before each generation."""

    def change(trainer: Any) -> None:
        model = trainer.accelerator.unwrap_model(trainer.model)
        generate = model.generate

        def late(*args: Any, **kwargs: Any) -> Any:
            wait(trainer)
            return generate(*args, **kwargs)

        model.generate = late

    training.changes.append(change)


# --- the problems -----------------------------------------------------------------------------------------------------


def clean(training: Training) -> None:
    pass


def length(training: Training) -> None:
    def pay(completion_ids: list[list[int]], **_: Any) -> Rewards:
        return [float(len(ids)) for ids in completion_ids]

    pay.__name__ = "helpfulness"
    training.rewards = [pay]


def lr_high(training: Training) -> None:
    training.config["learning_rate"] = 1000 * LR


def lr_zero(training: Training) -> None:
    training.config["learning_rate"] = 0.0


def nan_reward(training: Training) -> None:
    def pay(trainer_state: Any, **given: Any) -> Rewards:
        given_back = parity(**given)
        return given_back if trainer_state.global_step < 20 else [NAN] * len(given_back)

    training.rewards = replaced(pay)


def one_nan(training: Training) -> None:
    training.rewards = replaced(lambda completions, **_: [NAN] + [1.0] * (len(completions) - 1))


def nan_rank(training: Training) -> None:
    if RANK == 1:
        training.rewards = replaced(lambda completions, **_: [NAN] * len(completions))


def equal_rewards(training: Training) -> None:
    def pay(trainer_state: Any, **given: Any) -> Rewards:
        given_back = parity(**given)
        return given_back if trainer_state.global_step < 10 else [0.5] * len(given_back)

    training.rewards = replaced(pay)


def constant_function(training: Training) -> None:
    def polite(completions: list[str], **_: Any) -> Rewards:
        return [1.0] * len(completions)

    training.rewards.append(polite)


def limit(training: Training) -> None:
    training.config["max_completion_length"] = 3


def limit_halved(training: Training) -> None:
    """Let answers have half the tokens from step 31 on: the longest fitted just so before."""
    from transformers import TrainerCallback

    def change(trainer: Any) -> None:
        class Halved(TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step == 30:
                    trainer.generation_config.max_new_tokens = 8

        trainer.add_callback(Halved())

    training.config["max_completion_length"] = 16
    training.changes.append(change)


def kl_explosion(training: Training) -> None:
    """Sample no more from step 31 on: what got less than its group becomes ever less likely."""
    from transformers import TrainerCallback

    def change(trainer: Any) -> None:
        class Stuck(TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step == 30:
                    trainer.num_iterations = 1_000_000

        trainer.add_callback(Stuck())

    training.config.update(learning_rate=2 * LR, lr_scheduler_type="constant", beta=1e-6)
    training.changes.append(change)


def entropy_collapse(training: Training) -> None:
    """Pay for distance from the reference model: a KL coefficient of the wrong sign."""
    training.config["beta"] = -1.0


def solved(training: Training) -> None:
    """Pay for sevens, in answers that end: in 200 steps the model learns to write nothing else."""

    def pay(completions: list[str], completion_ids: list[list[int]], **_: Any) -> Rewards:
        shares = [text.count("7") / max(len(text), 6) for text in completions]
        return [share * (ids[-1] == task.EOS) for share, ids in zip(shares, completion_ids, strict=True)]

    training.rewards = replaced(pay)
    training.config.update(beta=0.0, max_steps=200, lr_scheduler_type="constant")


def eval_falls(training: Training) -> None:
    """Evaluate on a task that wants letters, which the training's does not."""

    def pay(completions: list[str], wanted: list[str], **_: Any) -> Rewards:
        if wanted[0] == "letters":
            return [sum(map(str.isalpha, text)) / max(len(text), 6) for text in completions]
        return parity(completions, wanted)

    training.rewards = replaced(pay)
    training.evaluation = training.evaluation.map(lambda _: {"wanted": "letters"})
    training.config.update(eval_strategy="steps", eval_steps=10)


def leak(training: Training) -> None:
    def pay(**given: Any) -> Rewards:
        keep(40)  # longer than 10 ms, for which a reading of the memory serves again
        return parity(**given)

    training.rewards = replaced(pay)


def leak_loader(training: Training) -> None:
    def change(trainer: Any) -> None:
        collate = trainer.data_collator
        trainer.data_collator = lambda rows: (keep(20), collate(rows))[1]

    training.changes.append(change)


def slow_data(training: Training) -> None:
    def read(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        time.sleep(0.02 * len(rows["prompt"]))
        return rows

    training.data = training.data.with_transform(read)


def slow_tokenizer(training: Training) -> None:
    kind = type(training.tokenizer)

    class Slow(kind):  # type: ignore[misc,valid-type]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(0.08)
            return super().__call__(*args, **kwargs)

    Slow.__name__ = kind.__name__
    training.tokenizer.__class__ = Slow


def slow_rank(training: Training) -> None:
    def busy() -> None:
        while True:
            pass

    if RANK == 1:
        training.changes.append(lambda _: threading.Thread(target=busy, daemon=True).start())


def slow_core(training: Training) -> None:
    """Give each rank a core of its own, and rank 1's to 4 other processes, too."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[RANK % len(cores)]})
    program = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    if RANK == 1:
        others = [subprocess.Popen([sys.executable, "-ISc", program]) for _ in range(4)]
        atexit.register(lambda: [other.kill() for other in others])


def two_slow_of_four(training: Training) -> None:
    if RANK in (1, 3):
        generating(training, lambda _: time.sleep(0.1))


def slower_middle(training: Training) -> None:
    """Wait as long as a step took before."""
    times: list[float] = []

    def wait(trainer: Any) -> None:
        if trainer.state.global_step < 30:
            times.append(time.perf_counter())
        else:
            time.sleep((times[-1] - times[4]) / (len(times) - 5))

    generating(training, wait)


def policy_loss_positive(training: Training) -> None:
    """Give every answer a negative advantage: the sign of the baseline is wrong; rewards are chance, so none rises."""

    def change(trainer: Any) -> None:
        make = trainer._generate_and_score_completions

        def wrong(inputs: Any) -> Any:
            made = make(inputs)
            made["advantages"] = -made["advantages"].abs() - 0.1
            return made

        trainer._generate_and_score_completions = wrong

    training.config["entropy_coef"] = 1e-4
    training.rewards = replaced(lambda completions, **_: [random.random() for _ in completions])
    training.changes.append(change)


def answers_far_below_limit(training: Training) -> None:
    """Allow 1024 tokens; answers have up to 14."""
    training.config["max_completion_length"] = 1024
