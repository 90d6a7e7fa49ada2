"""Numbers that are asked for of rollouts and rewards."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.catalogue.demand import Canonical, Demanded, Topic, kept, measured, missing, number, seam, stage

DEVICE: Final = "a device"
ENGINE: Final = measured("by the integration of transformers, vLLM or SGLang")
SERVED: Final = measured("by the integration of vLLM or SGLang; with another server by the call of it")
IN_ENGINE: Final = measured("by vLLM's or SGLang's integration; your own server does not tell it")
LOAD: Final = measured("by vLLM's integration, with vLLM's statistics on; SGLang's does not read it")
LOAD_OF_OWN: Final = measured("`otel_rl.requests.queue.record_load`")
REQUEST: Final = measured("`otel_rl.request`")
ATTRIBUTE: Final = measured("`span.set_attribute`")
NO_LEDGER: Final = missing("ROLL's batches are not shown to the ledger")
RECORD: Final = measured("`otel_rl.record`, below `user.`")
SHOWN: Final = measured("`otel_rl.observe`")
SAMPLED: Final = measured("`otel_rl.sample`, or `otel_rl.record`")


def of_requests(name: str, *ours: str | Canonical) -> Demanded:
    """Return a number that every engine tells of its requests."""
    return number(name, *ours, trl=ENGINE, verl=SERVED, roll=SERVED, own=REQUEST)


def ended(how: str) -> Canonical:
    return Canonical(v.REQUEST_RATIO, ((v.OUTCOME_KIND, how),))


ROLLOUT: Final = Topic(
    "Rollout, the stage and each request",
    (
        of_requests("prefill (input) tokens", v.PROMPT_LENGTH, v.INPUT_TOKENS, v.TOKENS_PROMPT),
        of_requests("decode (output) tokens", v.OUTPUT_LENGTH, v.OUTPUT_TOKENS, v.TOKENS_RESPONSE),
        number("cached tokens", v.CACHED_LENGTH, v.CACHED_TOKENS, every=IN_ENGINE, own=REQUEST),
        of_requests("request latency", v.REQUEST_DURATION),
        number(
            "TTFT",
            v.TTFT,
            v.REQUEST_TTFT,
            trl=measured("by the engine's integration; a vLLM server tells it, its client does not"),
            verl=IN_ENGINE,
            roll=IN_ENGINE,
            own=REQUEST,
        ),
        number(
            "TPOT",
            v.TPOT,
            v.REQUEST_TPOT,
            trl=measured("by the engine's integration; a vLLM server tells it, its client does not"),
            verl=IN_ENGINE,
            roll=IN_ENGINE,
            own=REQUEST,
        ),
        number(
            "queue time",
            v.QUEUE_TIME,
            v.REQUEST_QUEUE,
            trl=measured("with continuous batching, vLLM or SGLang; a plain `generate` has no queue"),
            verl=measured("of the engine; `rl.idle` `queue` of a turn is the wait for a server"),
            roll=measured("of the engine; `rl.idle` `queue` is the wait for a server"),
            own=REQUEST,
        ),
        number(
            "KV-cache utilisation",
            v.KV_USAGE,
            trl=measured("by vLLM, or transformers' continuous batching"),
            verl=LOAD,
            roll=LOAD,
            own=LOAD_OF_OWN,
        ),
        number(
            "KV-cache peak",
            v.KV_PEAK,
            v.KV_BYTES_PEAK,
            trl=measured("by vLLM or transformers, whose growing caches have bytes only"),
            verl=LOAD,
            roll=kept("vllm/kv_cache_usage_perc_max", note="agentic; beside what vLLM's integration reads"),
            own=LOAD_OF_OWN,
        ),
        number(
            "running requests",
            v.RUNNING,
            trl=measured("by vLLM, or transformers' continuous batching"),
            verl=measured("by vLLM's integration; open calls, by server: `rl.engine.requests.in_flight`"),
            roll=measured("by vLLM's integration; open calls, by server: `rl.engine.requests.in_flight`"),
            own=LOAD_OF_OWN,
        ),
        number(
            "waiting requests",
            v.WAITING,
            trl=measured("by vLLM, or transformers' continuous batching"),
            verl=LOAD,
            roll=kept("vllm/num_requests_waiting_max", note="agentic; beside what vLLM's integration reads"),
            own=LOAD_OF_OWN,
        ),
        number(
            "preemptions",
            v.PREEMPTIONS,
            v.ENGINE_PREEMPTIONS,
            trl=measured("by vLLM's integration"),
            verl=seam("*.generate", note="what the server's answer says; else vLLM's integration"),
            roll=kept("vllm/num_preemptions_max", note="agentic; beside what vLLM's integration reads"),
            own=REQUEST,
        ),
        number(
            "abort ratio",
            ended("aborted"),
            trl=ENGINE,
            verl=kept("response/aborted_ratio", note="beside the share of requests"),
            roll=SERVED,
            own=REQUEST,
        ),
        of_requests("timeout ratio", ended("timed_out")),
        number(
            "response clip ratio",
            v.RESPONSE_CLIPPED,
            ended("clipped"),
            verl=measured("made of `response_length/clip_ratio` and `response_length/max`"),
            roll=measured("of requests; `token/total_response_length/clip` is a count"),
        ),
    ),
)

REWARD: Final = Topic(
    "Reward",
    (
        number("reward latency", v.REWARD, every=stage()),
        number(
            "reward batch tokens",
            v.TOKENS,
            unit="{token}",
            means="`rl.tokens` of `rl.reward`",
            trl=seam("GRPOTrainer._calculate_rewards", note="of its rollout"),
            verl=seam("RewardLoopWorker.compute_score", note="of its sample"),
            roll=seam("Worker.compute_rewards", note="if the batch has both masks, on the host"),
            own=ATTRIBUTE,
        ),
        number(
            "exceptions of reward functions",
            v.ERROR_TYPE,
            v.REWARD_FUNCTION,
            unit="",
            means="`rl.reward` of a function with `error.type`, on spans and in the count of `rl.reward.duration`",
            trl=seam("ProfilingContext.__exit__", note="by function"),
            verl=seam("RewardLoopWorker.compute_score"),
            roll=seam("Worker.compute_rewards"),
            own=measured("`otel_rl.stage`, if it raises"),
        ),
        number(
            "reward model samples/s",
            v.BATCH_SIZE,
            v.REWARD,
            unit="{sample}/s",
            means="`rl.batch_size` of `rl.reward` by its duration; spans only, no metric divides them",
            trl=seam("GRPOTrainer._calculate_rewards"),
            verl=seam("RewardLoopWorker.compute_score", note="one sample a call"),
            roll=seam("Worker.compute_rewards"),
            own=ATTRIBUTE,
        ),
        number(
            "reward model tokens/s",
            v.TOKENS,
            v.REWARD,
            unit="{token}/s",
            means="`rl.tokens` of `rl.reward` by its duration; spans only",
            trl=seam("GRPOTrainer._calculate_rewards"),
            verl=seam("RewardLoopWorker.compute_score"),
            roll=seam("Worker.compute_rewards", note="if the batch has both masks, on the host"),
            own=ATTRIBUTE,
        ),
        number(
            "one span per reward function",
            v.REWARD,
            v.REWARD_FUNCTION,
            means="a span `rl.reward`, which names its function",
            trl=seam("ProfilingContext.__enter__", note="a child for each function"),
            verl=seam("RewardLoopWorker.compute_score", note="one for each call"),
            roll=seam("Worker.compute_rewards", note="one for each worker, by its class"),
            own=measured("`otel_rl.stage` in a stage `reward`"),
        ),
    ),
)
