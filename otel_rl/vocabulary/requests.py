"""Rollout requests and the engines that serve them: attributes of their spans, labels and metrics."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import OURS, SEMCONV, attribute, metric

REQUEST_TIME_BOUNDARIES: Final = (
    0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 10000.0,
)  # fmt: skip
"""From a token in a tenth of a millisecond to a request that waited for hours behind a whole batch."""
REQUEST_TOKEN_BOUNDARIES: Final = (0.0, *(float(1 << power) for power in range(4, 21, 2)))
"""Powers of four up to a million tokens."""

OPERATION: Final = attribute(
    "gen_ai.operation.name",
    "string",
    "span",
    "`generate_content`, `chat` or `text_completion`; also of metrics; `execute_tool` of a tool's call",
    SEMCONV,
)
TOOL_NAME: Final = attribute("gen_ai.tool.name", "string", "span", "name of the tool; also of metrics", SEMCONV)
TOOL_TYPE: Final = attribute("gen_ai.tool.type", "string", "span", "`function`", SEMCONV)
PROVIDER: Final = attribute("gen_ai.provider.name", "string", "span", "the engine; also of metrics", SEMCONV)
REQUEST_MODEL: Final = attribute("gen_ai.request.model", "string", "span", "the model; also of metrics", SEMCONV)
MAX_TOKENS: Final = attribute("gen_ai.request.max_tokens", "int", "span", "output tokens that were allowed", SEMCONV)
RESPONSE_ID: Final = attribute("gen_ai.response.id", "string", "span", "id of the request", SEMCONV)
FINISH_REASONS: Final = attribute(
    "gen_ai.response.finish_reasons",
    "string[]",
    "span",
    "`stop`, `length`, `abort`, `timeout`, `error` or the engine's own word",
    SEMCONV,
)
INPUT_TOKENS: Final = attribute("gen_ai.usage.input_tokens", "int", "span", "tokens of the prompt", SEMCONV)
OUTPUT_TOKENS: Final = attribute("gen_ai.usage.output_tokens", "int", "span", "tokens of the response", SEMCONV)
CACHED_TOKENS: Final = attribute(
    "gen_ai.usage.cache_read.input_tokens", "int", "span", "of the prompt, read from the prefix cache", SEMCONV
)
SUBMISSION: Final = attribute(
    "rl.submission",
    "string",
    "span",
    "`bulk`: all at once, so that TTFT is queue position; `streamed`; also of metrics",
)
REPLICA: Final = attribute("rl.replica", "string", "span", "which of several equal engines; also of metrics")
SAMPLE_ID: Final = attribute("rl.sample.id", "string", "span", "shared by the n sequences of one prompt")
GROUP_ID: Final = attribute("rl.group.id", "string", "span", "the group of samples that rewards are compared in")
TURN: Final = attribute("rl.turn", "int", "span", "turn of the conversation that the request is")
REQUEST_TTFT: Final = attribute("rl.request.ttft", "double", "span", "first token - submit, s")
REQUEST_QUEUE: Final = attribute("rl.request.queue", "double", "span", "scheduled - submit, s")
REQUEST_PREFILL: Final = attribute("rl.request.prefill", "double", "span", "first token - scheduled, s")
REQUEST_DECODE: Final = attribute("rl.request.decode", "double", "span", "last token - first token, s")
REQUEST_TPOT: Final = attribute(
    "rl.request.tpot", "double", "span", "(last - first token) / (n - 1), s; absent below two tokens"
)
REQUEST_PREEMPTED: Final = attribute("rl.request.preempted", "int", "span", "times that the engine preempted it")
REQUEST_ABORTED: Final = attribute("rl.request.is_aborted", "boolean", "span", "true where it was aborted")
REQUEST_TIMED_OUT: Final = attribute("rl.request.is_timed_out", "boolean", "span", "true where it ran out of time")
REQUEST_KEPT: Final = attribute(
    "rl.request.kept",
    "string",
    "span",
    "why the request is a span: `failed`, `slowest`, `ttft`, `longest`, `sample`, with commas between",
)
POLICY_VERSION_END: Final = attribute(
    "rl.policy.version.end", "int", "span", "optimizer updates in the weights of the last token"
)
POLICY_LAG: Final = attribute(
    "rl.policy.lag",
    "int",
    "span",
    "updates from the first token's weights to the last one's; at consumption at least that",
)

REQUEST_COUNT: Final = attribute("rl.request.count", "int", "span", "on rollouts: their requests on this process")
REQUESTS_OMITTED: Final = attribute("rl.request.omitted_spans", "int", "span", "of them those that are no spans")
REQUESTS_ABORTED: Final = attribute("rl.request.aborted_count", "int", "span", "of them aborted")
REQUESTS_TIMED_OUT: Final = attribute("rl.request.timed_out_count", "int", "span", "of them timed out")
REQUESTS_CLIPPED: Final = attribute("rl.request.clipped_count", "int", "span", "of them cut at the length limit")
REQUESTS_FAILED: Final = attribute("rl.request.error_count", "int", "span", "of them failed with an error")
TAIL_1: Final = attribute(
    "rl.rollout.tail.p1", "double", "span", "share of the rollout's time after 99 % of its requests had finished"
)
TAIL_5: Final = attribute("rl.rollout.tail.p5", "double", "span", "likewise after 95 %")
TAIL_10: Final = attribute("rl.rollout.tail.p10", "double", "span", "likewise after 90 %")
BUBBLE: Final = attribute(
    "rl.rollout.bubble.share",
    "double",
    "span",
    "slots of the engine that idle at the end: from the start of the last request on, the slots in use then times the "
    "time until the last finish, minus the time that they were in use, over these slots times the rollout's time",
)
KV_PEAK_SPAN: Final = attribute(
    "rl.engine.kv_cache.peak_usage", "double", "span", "on rollouts: highest KV-cache usage in the step so far"
)
KV_BYTES_SPAN: Final = attribute(
    "rl.memory.kv_cache.size",
    "int",
    "span",
    "on rollouts: bytes taken ahead of time for the KV cache of this process's engine; absent where it grows",
)
KV_BYTES_PEAK_SPAN: Final = attribute(
    "rl.memory.kv_cache.peak",
    "int",
    "span",
    "on rollouts: bytes of keys and values that an engine kept at its highest in the step so far",
)

FINISH: Final = attribute("rl.request.finish", "string", "metric", "finish reason")
FAILURE: Final = attribute("rl.request.failure", "string", "metric", "class of the exception")
OUTCOME_KIND: Final = attribute(
    "rl.request.outcome", "string", "metric", "`aborted`, `timed_out`, `clipped` or `error`"
)
SLOWEST: Final = attribute("rl.rollout.slowest", "string", "metric", "`0.01`, `0.05` or `0.1` of the requests")

TTFT: Final = metric(
    "gen_ai.server.time_to_first_token",
    "histogram",
    "s",
    "first token - submit; under bulk submission the position in the queue",
    SEMCONV,
    REQUEST_TIME_BOUNDARIES,
)
TPOT: Final = metric(
    "gen_ai.server.time_per_output_token",
    "histogram",
    "s",
    "(last token - first token) / (n - 1)",
    SEMCONV,
    REQUEST_TIME_BOUNDARIES,
)
REQUEST_DURATION: Final = metric(
    "gen_ai.server.request.duration", "histogram", "s", "end - submit", SEMCONV, REQUEST_TIME_BOUNDARIES
)
QUEUE_TIME: Final = metric(
    "rl.request.queue_time", "histogram", "s", "scheduled - submit", OURS, REQUEST_TIME_BOUNDARIES
)
PREFILL_TIME: Final = metric(
    "rl.request.prefill_time", "histogram", "s", "first token - scheduled", OURS, REQUEST_TIME_BOUNDARIES
)
PROMPT_LENGTH: Final = metric(
    "rl.request.prompt_length", "histogram", "{token}", "tokens of the prompt", OURS, REQUEST_TOKEN_BOUNDARIES
)
OUTPUT_LENGTH: Final = metric(
    "rl.request.response_length", "histogram", "{token}", "tokens of the response", OURS, REQUEST_TOKEN_BOUNDARIES
)
CACHED_LENGTH: Final = metric(
    "rl.request.cached_length",
    "histogram",
    "{token}",
    "prompt tokens from the prefix cache",
    OURS,
    REQUEST_TOKEN_BOUNDARIES,
)
REQUESTS: Final = metric(
    "rl.request.finished", "counter", "{request}", "requests that are over, by `rl.request.finish`"
)
ABORTED: Final = metric("rl.request.aborted", "counter", "{request}", "aborted requests")
TIMED_OUT: Final = metric("rl.request.timed_out", "counter", "{request}", "requests that ran out of time")
CLIPPED: Final = metric("rl.request.clipped", "counter", "{request}", "responses cut at the length limit")
REQUEST_ERRORS: Final = metric("rl.request.errors", "counter", "{request}", "failed requests, by `rl.request.failure`")
PREEMPTIONS: Final = metric("rl.request.preemptions", "counter", "{preemption}", "preemptions, as requests tell them")
OMITTED: Final = metric("rl.request.omitted", "counter", "{request}", "requests that did not become spans")
BAD_REQUESTS: Final = metric(
    "rl.request.bad", "counter", "{request}", "requests with something that cannot be, by `otel_rl.reason`"
)
REQUEST_RATIO: Final = metric(
    "rl.request.ratio", "gauge", "1", "share of a rollout's requests, by `rl.request.outcome`; a point per rollout"
)
TAIL: Final = metric(
    "rl.rollout.tail",
    "gauge",
    "1",
    "share of a rollout's time spent on its slowest requests alone, by `rl.rollout.slowest`; a point per rollout",
)
ROLLOUT_BUBBLE: Final = metric(
    "rl.rollout.bubble", "gauge", "1", "share of the engine's slots times time that idles at the end of a rollout"
)
ROLLOUT_WALL: Final = metric("rl.rollout.time", "gauge", "s", "time of a rollout with requests; a point per rollout")
RUNNING: Final = metric("rl.engine.requests.running", "gauge", "{request}", "requests that the engine works on")
WAITING: Final = metric("rl.engine.requests.waiting", "gauge", "{request}", "requests that wait in the engine")
KV_USAGE: Final = metric("rl.engine.kv_cache.usage", "gauge", "1", "share of the KV cache in use")
KV_PEAK: Final = metric("rl.engine.kv_cache.peak", "gauge", "1", "highest share of the KV cache in use in a step")
KV_BYTES: Final = metric(
    "rl.memory.kv_cache.size",
    "gauge",
    "By",
    "bytes that this process has taken ahead of time for an engine's KV cache (a pool, a static cache)",
)
KV_BYTES_PEAK: Final = metric(
    "rl.memory.kv_cache.peak",
    "gauge",
    "By",
    "highest bytes of keys and values in a step: of a pool its size x highest usage, of a cache that grows its "
    "tensors when `generate` ends",
)
ENGINE_PREEMPTIONS: Final = metric(
    "rl.engine.preemptions", "counter", "{preemption}", "preemptions, as the engine tells them"
)
SAMPLE_PADDING: Final = metric(
    "rl.sample.padding",
    "counter",
    "{token}",
    "positions that static batches computed for sequences that had ended (longest - own length, summed), by `rl.mode`",
)
