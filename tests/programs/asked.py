"""Trains without a framework, with planted facts that the twenty questions of docs/prometheus.md ask for.

    python asked.py STEPS

Rank 1 is slow in its rewards. Numbers that a framework or an engine reports are noted as their integrations do it.
"""

from __future__ import annotations

import math
import os
import sys
import time

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.metrics.record import gauge
from otel_rl.requests import queue

TTFT_S, TPOT_S = 0.02, 0.001
REQUESTS = ("abort", "length", "length", *["stop"] * 7)
SLOW_S = 0.05
REWARD, LOSS, MFU, TOKENS_RATE, RESERVED = 0.75, 0.25, 0.4, 1000.0, 1 << 30
GRAD_NORM, LAST_GRAD_NORM = 1.0, 5.0
NAN_STEP, SAVE_EVERY = 3, 5
QUEUED, KV_USAGE = 5, 0.75
LEARNING = {
    **{v.REWARD_STD: 0.2, v.REWARD_ZERO_STD: 0.1, v.EVAL_REWARD: 0.5, v.LEARNING_RATE: 1e-5},
    **{v.KL_REFERENCE: 0.02, v.KL_POLICY: 0.01, v.ENTROPY: 1.5, v.CLIP_FRACTION: 0.1},
    **{v.RESPONSE_MIN: 10, v.RESPONSE_LENGTH: 30, v.RESPONSE_MAX: 60, v.RESPONSE_CLIPPED: 0.2},
}
"""What a loop without a framework may record itself."""
ENGINE = "my-engine"


def rollout() -> None:
    """Ten requests that are submitted together; the last one takes twice as long."""
    submitted = time.monotonic()
    queue.record_load(ENGINE, "", time.monotonic_ns(), len(REQUESTS), QUEUED, KV_USAGE)
    time.sleep(0.06)
    for number, finish in enumerate(REQUESTS):
        last = submitted + (0.06 if number + 1 == len(REQUESTS) else 0.03)
        first = submitted + TTFT_S
        otel_rl.request(
            ENGINE, submitted=submitted, scheduled=submitted, first_token=first, last_token=last, ended=last,
            output_tokens=1 + round((last - first) / TPOT_S), finish=finish,
        )  # fmt: skip


def report(number: int, steps: int, rank: int) -> None:
    """Note what a framework would."""
    own = (v.SCOPE_KEY, "rank")
    gauge(v.LOSS, math.nan if number == NAN_STEP else LOSS, own)
    gauge(v.GRAD_NORM, LAST_GRAD_NORM if number == steps else GRAD_NORM, own)
    gauge(v.MFU, MFU, (v.FLOPS_SCOPE, "update"))
    gauge(v.TOKENS_RATE, TOKENS_RATE, (v.WORK, "train"), (v.WALL, "cycle"))
    gauge(v.RESERVED, RESERVED * (rank + 1))
    if rank == 0:
        gauge(v.REWARD_SCORE, REWARD, (v.SCOPE_KEY, "global"))
        gauge(v.REWARD_SCORE, 0.0, (v.MODE, "eval"), (v.SCOPE_KEY, "global"))


def main() -> None:
    """Train and end."""
    steps, rank, is_alone = int(sys.argv[1]), int(os.environ.get("RANK", "0")), "RANK" not in os.environ
    otel_rl.instrument()
    if not is_alone:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
    for number in range(1, steps + 1):
        with otel_rl.step(number):
            with otel_rl.stage("idle") as idle:
                idle.set_attribute(v.IDLE_REASON, "queue")
                time.sleep(0.02)
            with otel_rl.stage("sample"):
                rollout()
            with otel_rl.stage("reward"):
                time.sleep(0.01 + SLOW_S * rank)
            with otel_rl.stage("train.forward"):
                time.sleep(0.02)
                if not is_alone:
                    dist.all_reduce(torch.ones(4))
            with otel_rl.stage("train.optimizer"):
                time.sleep(0.01)
            with otel_rl.stage("sync"):
                time.sleep(0.02)
            if number % SAVE_EVERY == 0:
                with otel_rl.stage("checkpoint"):
                    time.sleep(0.1)
            otel_rl.record("my.text", "no number")
            for name, value in LEARNING.items():
                otel_rl.record(name, value)
            report(number, steps, rank)


if __name__ == "__main__":
    main()
