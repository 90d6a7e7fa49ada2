"""Problems that a training can have, and what a report must say of them in the first sentence of one finding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["time", "learn", "health"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem that ``plants.py`` plants under the same name."""

    name: str
    what: str
    """In one sentence."""
    kind: Kind
    """The finding that must name it."""
    says: tuple[str, ...]
    """Patterns that its first sentence must match."""
    ranks: int = 1

    def is_named_by(self, sentence: str) -> bool:
        """Whether a sentence has all words of the cause."""
        return all(re.search(pattern, sentence, re.IGNORECASE) for pattern in self.says)


PROBLEMS: Final = (
    Problem("length", "the reward pays for length", "learn", (r"length|longer",)),
    Problem("lr_high", "the learning rate is 1,000 times too high", "learn", (r"entropy|collaps|learning rate",)),
    Problem("nan_reward", "the reward is NaN from step 21 on", "learn", (r"NaN", r"step 21")),
    Problem("one_nan", "one of 8 answers gets NaN, the others 1", "learn", (r"NaN", r"parity")),
    Problem("equal_rewards", "all rewards are equal from step 11 on", "learn", (r"same|equal", r"step 1[0-9]")),
    Problem("limit", "answers may have 3 tokens", "learn", (r"cut|limit", r"\b3\b")),
    Problem("limit_halved", "from step 31 on answers may have half as many tokens", "learn", (r"cut",)),
    Problem("leak", "every call of the reward keeps 40 MB", "health", (r"grow|grew", r"reward")),
    Problem("leak_loader", "every batch of the data loader keeps 20 MB", "health", (r"grow|grew", r"data|load|idle")),
    Problem("slow_data", "the data set sleeps 20 ms for every sample", "time", (r"data|batch",)),
    Problem("slow_tokenizer", "the tokenizer sleeps 80 ms in every call", "time", (r"token|prepar|around",)),
    Problem("slow_rank", "rank 1 has a busy thread", "time", (r"rank 1\b",), ranks=2),
    Problem("slow_core", "rank 1 shares its core with 4 busy processes", "time", (r"rank 1\b",), ranks=2),
    Problem(
        "two_slow_of_four",
        "ranks 1 and 3 sleep 100 ms a rollout",
        "time",
        (r"ranks (1 and 3|3 and 1)",),
        ranks=4,
    ),
    Problem("slower_middle", "from step 31 on steps take twice as long", "time", (r"slow|long|half|twice",)),
    Problem("kl_explosion", "from step 31 on all updates use one rollout", "learn", (r"\bKL\b|reference",)),
    Problem("entropy_collapse", "the KL coefficient has the wrong sign", "learn", (r"entropy|collaps",)),
    Problem("constant_function", "one of two reward functions is constant", "learn", (r"polite",)),
    Problem("nan_rank", "all rewards of rank 1 are NaN", "learn", (r"NaN",), ranks=2),
    Problem("eval_falls", "the evaluation's reward falls while the training's rises", "learn", (r"evaluation",)),
    Problem("lr_zero", "the learning rate is 0", "learn", (r"learning rate|not learn|gradient",)),
)
BY_NAME: Final = {problem.name: problem for problem in PROBLEMS}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a training without a problem looks like."""

    task: Literal["clean", "solved"] = "clean"
    trainer: Literal["grpo", "rloo"] = "grpo"
    ranks: int = 1
    steps: int = 60
    eval_every: int = 0
    iterations: int = 1
    seed: int = 0

    @property
    def name(self) -> str:
        evaluates = f"-eval{self.eval_every}" if self.eval_every else ""
        return f"{self.task}-{self.trainer}-ranks{self.ranks}-steps{self.steps}{evaluates}-iterations{self.iterations}"

    @property
    def options(self) -> list[str]:
        """For the command line of ``train.py``."""
        return [
            self.task, f"--trainer={self.trainer}", f"--steps={self.steps}", f"--eval-every={self.eval_every}",
            f"--iterations={self.iterations}",
        ]  # fmt: skip


CLEAN: Final = (
    Shape(), Shape(seed=1), Shape(seed=2), Shape(ranks=2), Shape(ranks=2, seed=1),
    Shape(eval_every=10), Shape(eval_every=10, seed=1), Shape(ranks=2, eval_every=20),
    Shape(iterations=2), Shape(iterations=2, seed=1), Shape(ranks=2, iterations=2),
    Shape(steps=30), Shape(steps=30, seed=1), Shape(steps=120, eval_every=30), Shape(steps=300),
    Shape(trainer="rloo"), Shape(trainer="rloo", seed=1), Shape(trainer="rloo", ranks=2),
    Shape(trainer="rloo", steps=120, eval_every=20), Shape(trainer="rloo", steps=300, iterations=2, seed=2),
    Shape("solved", steps=200), Shape("solved", steps=200, seed=1),
)  # fmt: skip
"""Those that must raise no alarm and no warning; ``solved`` has learned all that there is."""
