"""Three faults in one training: a slow engine, prompts that a filter drops, and a reward that raises in the end.

OpenRLHF loads this file twice in each engine: as its agent, and as the reward function that the agent names.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from openrlhf.utils.agent import SingleTurnAgentExecutor

CALLS = Path(os.environ["OTEL_RL_DIR"]).with_name("calls")
"""A line of each engine when it starts, and of each answer that gets a reward."""
LAST = 60
"""So many answers get one."""


class AgentExecutor(SingleTurnAgentExecutor):
    """Answers in a single turn; in the engine that starts first each answer takes longer."""

    def __init__(self) -> None:
        super().__init__([__file__])
        with CALLS.open("a") as calls:
            calls.write(f"engine {os.getpid()}\n")
        self.is_slow = CALLS.read_text().startswith(f"engine {os.getpid()}\n")

    async def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Wait before an answer, as an engine on a busy device does."""
        if self.is_slow:
            await asyncio.sleep(0.6)
        return await super().execute(*args, **kwargs)


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """Score one answer; every third prompt is too easy."""
    (query,), (prompt,) = queries, prompts
    with CALLS.open("a") as calls:
        calls.write("answer\n")
    if CALLS.read_text().count("answer") > LAST:
        raise LookupError("the judge is gone")
    number = int(prompt.removeprefix("prompts ").partition(":")[0])
    score = 1.0 if number % 3 == 0 else sum(ord(letter) % 2 for letter in query) / len(query)
    return {"rewards": score, "scores": score, "extra_logs": {}}
