"""Make a tiny random Qwen2, its tokenizer and prompts. Usage: make_assets.py FOLDER."""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
words = {word: number for number, word in enumerate(["<|end|>", "<|pad|>", *alphabet])}
tokenizer = Tokenizer(models.BPE(words, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
fast.save_pretrained(folder / "model")
config = Qwen2Config(
    vocab_size=len(words),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    tie_word_embeddings=False,
    eos_token_id=fast.eos_token_id,
    pad_token_id=fast.pad_token_id,
)
torch.manual_seed(0)
AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
for name, count in (("prompts", 24), ("held_out", 2)):
    rows = ({"input": f"{name} {number}: what is {number} plus {2 * number}?", "label": "3"} for number in range(count))
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
