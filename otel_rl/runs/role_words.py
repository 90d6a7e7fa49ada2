"""The roles of processes in plain words, the same wherever a person reads them."""

from __future__ import annotations

from typing import Final

ROLE_WORDS: Final = {
    "agent_loop": "agent loop",
    "reward": "reward worker",
    "rollout": "rollout server",
    "rollout_weights": "weight receiver",
}


def role_in_words(role: str) -> str:
    """Return a role in plain words; another one is its own name."""
    return ROLE_WORDS.get(role, role)
