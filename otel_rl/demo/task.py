"""What the demo trains: a tiny model, a tokenizer of single characters, and a task with two reward functions.

The prompt asks for ``even`` or ``odd`` digits. An untrained model writes any of its twenty characters, so a quarter of
them are right; after 150 steps nearly all are. Everything is made on the spot, nothing is downloaded.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL: Final = ("<pad>", "<eos>", "<unk>")
EOS: Final = 1
ALPHABET: Final = "0123456789" + "vendo" + "? "
MAX_RESPONSE: Final = 12
MIN_RESPONSE: Final = 6
DIGITS: Final = {"even": "02468", "odd": "13579"}
REWARD_WEIGHTS: Final = (0.6, 0.4)
"""Weights of the two reward functions; the reward lies between 0 and 1."""


def parity(completions: list[str], wanted: list[str], **_: Any) -> list[float]:
    """Return the share of characters that are digits of the wanted parity; missing characters count as wrong."""
    return [
        sum(character in DIGITS[kind] for character in text) / max(len(text), MIN_RESPONSE)
        for text, kind in zip(completions, wanted, strict=True)
    ]


async def judge(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Return 1 for answers that are long enough and end by themselves; wait first, like a judge in a network."""
    await asyncio.sleep(0.002)
    return [float(len(ids) > MIN_RESPONSE and ids[-1] == EOS) for ids in completion_ids]


def prompts(num: int) -> Dataset:
    """Make ``num`` prompts that ask for even and odd digits in turn."""
    kinds = [("even", "odd")[i % 2] for i in range(num)]
    return Dataset.from_dict({"prompt": [f"{kind} {i // 2 % 10}?" for i, kind in enumerate(kinds)], "wanted": kinds})


def tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token per character."""
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *ALPHABET))}
    characters = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=characters,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )


def model(directory: Path, seed: int, layers: int = 2) -> Qwen2ForCausalLM:
    """Make a random model of 43,000 parameters (with two layers) on disk, where TRL finds the reference model, too."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(SPECIAL) + len(ALPHABET),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=EOS,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return Qwen2ForCausalLM.from_pretrained(directory)
