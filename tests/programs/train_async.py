"""Trains a tiny model with TRL's AsyncGRPO, whose own worker asks a small HTTP server that answers as vLLM does.

Usage: ``train_async.py JSON`` with the keys ``work`` (a directory), ``truth`` (where to write what happened,
``{rank}`` becomes the rank), ``config`` (arguments of TRL's config), ``tools`` (true: with a tool), ``failing`` (the
reward raises) and ``otel`` (false: without otel_rl). Three parts of TRL need a GPU and have a stand-in: the attention
kernel, the table of peak FLOPs, and the transfer of weights.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"})
RANK = int(os.environ.get("RANK", "0"))
TRUTH: dict[str, Any] = {"rank": RANK, "logs": [], "sent": [], "groups": [], "losses": []}


CHAT = """
{%- for m in messages -%}
{%- if m['role'] == 'assistant' -%}{{ m['content'] }}
{%- for c in m['tool_calls'] or [] -%}v{{ c['function']['arguments']['text'] }}e{%- endfor -%}<eos>
{%- else -%}{{ m['content'] }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}o{%- endif -%}
"""
CALL = {"type": "function", "function": {"name": "look", "arguments": {"text": "{content}"}}}
PARSED = {
    "defaults": {"role": "assistant"},
    "start_anchor": "o",
    "fields": {
        "tool_calls": {"open": "v", "close": "e", "repeats": True, "content": "text", "transform": CALL},
        "content": {"close": "<eos>", "content": "text"},
    },
}
"""What stands between ``v`` and ``e`` is the argument of a call."""


def digits(completions: list[Any], **_: Any) -> list[float]:
    """Give the share of digits."""
    texts = [completion[-1]["content"] or "" for completion in completions]
    return [sum(letter.isdigit() for letter in text) / max(len(text), 1) for text in texts]


def failing(completions: list[Any], **_: Any) -> list[float]:
    """Fail."""
    raise LookupError("the judge is away")


def look(text: str) -> str:
    """Look something up.

    Args:
        text: what to look for.
    """
    if text == "4":
        raise LookupError("nothing has this name")
    return "5"


class Server(BaseHTTPRequestHandler):
    """Answers ``/v1/completions`` with a few tokens after a while, the same for the same seed; first by a call."""

    protocol_version = "HTTP/1.1"
    call: ClassVar[list[int]] = []
    """Tokens of a call of a tool, without its argument; empty without tools."""

    def do_POST(self) -> None:
        """Write as many tokens as the seed says."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        draw = random.Random(asked["seed"])
        tokens = [draw.randrange(4, 14) for _ in range(draw.randrange(2, asked["max_tokens"] + 1))]
        if self.call and self.call[0] not in asked["prompt"]:
            tokens = [self.call[0], tokens[0], *self.call[1:]]
        time.sleep(0.005 * len(tokens))
        logprobs = {"token_logprobs": [-2.0] * len(tokens)}
        answer = json.dumps({"choices": [{"token_ids": tokens, "logprobs": logprobs, "finish_reason": "length"}]})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def attention(q: Any, k: Any, v: Any, ends_q: Any, ends_k: Any, *_: Any, softmax_scale: Any = None, **__: Any) -> Any:
    """Attend within each packed sequence, as the kernel of FlashAttention does on a GPU."""
    import torch

    out = torch.empty_like(q)
    for i in range(len(ends_q) - 1):
        rows, keys = slice(*ends_q[i : i + 2].tolist()), slice(*ends_k[i : i + 2].tolist())
        repeat = q.shape[1] // k.shape[1]
        wide = [one[keys].repeat_interleave(repeat, 1).transpose(0, 1) for one in (k, v)]
        size = q[rows].shape[0], wide[0].shape[1]
        mask = torch.ones(size, dtype=torch.bool).tril(size[1] - size[0])
        out[rows] = torch.nn.functional.scaled_dot_product_attention(
            q[rows].transpose(0, 1), *wide, attn_mask=mask, scale=softmax_scale
        ).transpose(0, 1)
    return out


class Kernel:
    """Stands for the package of the kernel."""

    flash_attn_varlen_func = staticmethod(attention)


class Transfer:
    """Stands for the transfer of weights over NCCL: reads them, and counts what it would send."""

    def init_weight_transfer(self) -> None:
        """Do nothing."""

    def pause(self) -> None:
        """Do nothing."""

    def send_weights(self, weights: Any) -> None:
        """Count the parameters."""
        TRUTH["sent"].append(sum(tensor.numel() for _, tensor in weights))

    def resume(self) -> None:
        """Do nothing."""

    def destroy(self) -> None:
        """Do nothing."""


def make(job: dict[str, Any], url: str) -> Any:
    """Make the trainer."""
    import torch
    import transformers
    from transformers import TrainerCallback
    from trl.experimental.async_grpo import (
        AsyncGRPOConfig,
        AsyncGRPOTrainer,
        async_grpo_trainer,
        async_rollout_worker,
        packing,
    )

    from otel_rl.demo import task

    class Logs(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            TRUTH["logs"].append({"step": state.global_step, **logs})

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    packing._flash_attn = lambda: Kernel
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: 1e12
    async_rollout_worker.is_vllm_available = lambda: True
    config = {
        "output_dir": str(Path(job["work"]) / "checkpoints"), "max_steps": 4, "learning_rate": 1e-3,
        "per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 8, "logging_steps": 1,
        "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True, "bf16": False,
        "dataloader_pin_memory": False, "dtype": "float32", "token_budget": 256, "max_staleness": 2,
        "vllm_server_base_url": url, "max_inflight_tasks": 8, "queue_maxsize": 16, **job.get("config", {}),
    }  # fmt: skip
    tokenizer, model = task.tokenizer(), Path(job["work"]) / f"rank-{RANK}" / "tiny-qwen2"
    tokenizer.chat_template, tokenizer.response_template = CHAT, PARSED
    if job.get("tools"):
        Server.call = tokenizer.encode("ve<eos>")
    task.model(model, 0)
    trainer = AsyncGRPOTrainer(
        model=str(model),
        reward_funcs=failing if job.get("failing") else digits,
        args=AsyncGRPOConfig(**config),
        train_dataset=task.prompts(64).map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]}),
        processing_class=tokenizer,
        weight_transfer=Transfer(),
        tools=[look] if job.get("tools") else None,
        callbacks=[Logs()],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def main() -> None:
    """Serve, train, write what happened."""
    job = json.loads(sys.argv[1])
    if job.get("otel", True):
        import otel_rl

        otel_rl.instrument()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    trainer = make(job, f"http://127.0.0.1:{server.server_address[1]}")
    try:
        trainer.train()
    finally:
        TRUTH["weights"] = float(sum(parameter.detach().double().sum() for parameter in trainer.model.parameters()))
        Path(job["truth"].format(rank=RANK)).write_text(json.dumps(TRUTH))
        server.shutdown()


if __name__ == "__main__":
    main()
