"""The model that all of them train: tiny, and taught to write short answers that end."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2ForCausalLM

from otel_rl.demo import task

STEPS = 150
BATCH = 32
SHORTEST, LONGEST = 4, 14
"""Characters of an answer."""


def model(directory: Path, seed: int) -> Qwen2ForCausalLM:
    """Make the model on disk, where TRL finds the reference model, too."""
    made: Any = task.model(directory, seed)
    tokenizer, chance = task.tokenizer(), random.Random(seed)
    optimizer = torch.optim.AdamW(made.parameters(), 3e-3)
    asked = task.prompts(20)["prompt"]
    for _ in range(STEPS):
        texts = [chance.choice(asked) + answer(chance) + "<eos>" for _ in range(BATCH)]
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        made(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    made.save_pretrained(directory)
    return Qwen2ForCausalLM.from_pretrained(directory)


def answer(chance: random.Random) -> str:
    return "".join(chance.choices(task.ALPHABET, k=chance.randint(SHORTEST, LONGEST)))
