"""vLLM's KV cache in bytes, where its worker is in this process: the memory that it was given, and what was in use."""

from __future__ import annotations

from pathlib import Path

import pytest

import otel_rl
from otel_rl import vocabulary as v
from tests.vllm.scenario import ENGINE, PROMPTS, recorded

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def test_a_worker_in_this_process_tells_its_bytes(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks times their bytes, in at most the space it may take; at most a block of each request more than tokens."""
    from vllm import LLM, SamplingParams

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    with recorded(tmp_path) as seen:
        llm = LLM(str(model), disable_log_stats=False, **ENGINE)
        with otel_rl.step(1), otel_rl.stage("sample"):
            llm.generate(PROMPTS, SamplingParams(max_tokens=32, temperature=0, ignore_eos=True), use_tqdm=False)
    cache = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config
    block = cache.kv_cache_groups[0].kv_cache_spec.block_size
    position = 2 * 2 * 2 * 32 * 2  # keys and values, layers, heads, their size, bfloat16
    (rollout,) = [span for span in seen.run.spans(None) if span.name == v.SAMPLE]
    size, peak = rollout.attributes[v.KV_BYTES_SPAN], rollout.attributes[v.KV_BYTES_PEAK_SPAN]
    llm.llm_engine.engine_core.shutdown()
    assert cache.num_blocks * block * position == size <= 1 << 30
    tokens = [len(prompt["prompt_token_ids"]) + 31 for prompt in PROMPTS]
    blocks = sum(-(-number // block) for number in tokens)
    assert 0 < peak <= (blocks + 1) * block * position
    assert {peak} == {point.value for point in seen.run.points(v.KV_BYTES_PEAK)}
