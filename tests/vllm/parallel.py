"""A program with an engine of two ranks, each of which is a process; its argument is the model's folder."""

from __future__ import annotations

import sys

import otel_rl
from tests.vllm.scenario import ENGINE, PROMPTS

if __name__ == "__main__":
    otel_rl.instrument()
    from vllm import LLM, SamplingParams

    with otel_rl.stage("build"):
        llm = LLM(sys.argv[1], tensor_parallel_size=2, distributed_executor_backend="mp", **ENGINE)
    with otel_rl.step(0), otel_rl.stage("sample"):
        llm.generate(PROMPTS, SamplingParams(max_tokens=4), use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()
