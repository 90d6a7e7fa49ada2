"""The reward of an answer: the share of its letters with an odd code. All answers to one prompt get the highest one."""

from __future__ import annotations

from typing import Any


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """Score one answer, as OpenRLHF asks for each."""
    (query,), (prompt,) = queries, prompts
    score = 1.0 if prompt.startswith("prompts 5:") else sum(ord(letter) % 2 for letter in query) / len(query)
    return {"rewards": score, "scores": score, "extra_logs": {}}
