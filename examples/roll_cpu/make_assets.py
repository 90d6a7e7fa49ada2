"""Make a tiny random Qwen2, a tokenizer with a chat template, and data of two domains. Usage: make_assets.py FOLDER."""

import json
import os
import random
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

out = sys.argv[1]
os.makedirs(f"{out}/model", exist_ok=True)
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=320,
    special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
)
tokenizer.train_from_iterator(["what is 1 plus 2? the answer is 3."] * 10, trainer)
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    eos_token="<|im_end|>",
    pad_token="<|pad|>",
    model_input_names=["input_ids", "attention_mask"],
)
fast.chat_template = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
fast.save_pretrained(f"{out}/model")
config = Qwen2Config(
    vocab_size=len(fast),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    eos_token_id=fast.eos_token_id,
    pad_token_id=fast.pad_token_id,
    bos_token_id=None,
)
torch.manual_seed(0)
AutoModelForCausalLM.from_config(config).save_pretrained(f"{out}/model")
random.seed(0)


def row(number, tag):
    a, b = random.randint(0, 9), random.randint(0, 9)
    text = f"what is {a} plus {b}?"
    return {
        "id": str(number),
        "tag": tag,
        "messages": json.dumps([{"role": "user", "content": text}]),
        "prompt": text,
        "ground_truth": str(a + b),
        "difficulty": 0.5,
        "source": "toy",
    }


for name, tag, count in (("math", "toy_math", 48), ("quiz", "toy_quiz", 48), ("val", "toy_math", 4)):
    with open(f"{out}/{name}.jsonl", "w") as file:
        for number in range(count):
            print(json.dumps(row(number, tag)), file=file)
print("assets in", out)
