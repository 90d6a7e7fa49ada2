"""Makes what verl reads: a model of random weights, a tokenizer of single letters, prompts for training and testing."""

import random
import sys
from pathlib import Path

import pandas
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

PAD, BEGIN, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789?", "Ġ", "Ċ"]  # the last two: space and line feed
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_model(directory: Path) -> None:
    """Write 80,000 parameters and their tokenizer: so few letters that an answer ends early now and then."""
    words = [PAD, BEGIN, END, *LETTERS]
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[BEGIN],
        chat_template=TEMPLATE,
    )
    fast.save_pretrained(directory)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=numbers[PAD],
        eos_token_id=numbers[END],
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)


def make_prompts(path: Path, count: int) -> None:
    """Write sums of two digits to ask for."""
    draw = random.Random(path.name)
    rows = []
    for index in range(count):
        a, b = draw.randint(0, 9), draw.randint(0, 9)
        rows.append(
            {
                "data_source": "toy/add",
                "prompt": [{"role": "user", "content": f"what is {a} plus {b}?"}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                "extra_info": {"index": index},
            }
        )
    pandas.DataFrame(rows).to_parquet(path)


def main(directory: Path) -> None:
    make_model(directory / "model")
    make_prompts(directory / "train.parquet", 64)
    make_prompts(directory / "test.parquet", 8)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
