"""Rollout requests and the engines that serve them: attributes of their spans, labels and metrics."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import SEMCONV, attribute, counter, gauge, histogram, label

REQUEST_BOUNDARIES: Final = (
    0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 10000.0,
)  # fmt: skip
"""From a token in a tenth of a millisecond to a request that waited for hours for a whole batch."""
TOKEN_BOUNDARIES: Final = (0.0, *(float(1 << power) for power in range(4, 21, 2)))
"""Powers of four up to a million tokens."""

OPERATION: Final = attribute(
    "gen_ai.operation.name",
    "string",
    "`generate_content`, `chat`, `text_completion`, `execute_tool` for a tool, or `invoke_agent`; also of metrics",
    SEMCONV,
)
INVOKE_AGENT: Final = "invoke_agent"
"""The operation of a trajectory."""
AGENT_NAME: Final = attribute("gen_ai.agent.name", "string", "name of the agent of a trajectory", SEMCONV)
TOOL_NAME: Final = attribute("gen_ai.tool.name", "string", "name of the tool; also of metrics", SEMCONV)
TOOL_CALL_ID: Final = attribute("gen_ai.tool.call.id", "string", "id of the call of a tool", SEMCONV)
TOOL_TYPE: Final = attribute("gen_ai.tool.type", "string", "`function`", SEMCONV)
PROVIDER: Final = attribute("gen_ai.provider.name", "string", "the engine; also of metrics", SEMCONV)
REQUEST_MODEL: Final = attribute("gen_ai.request.model", "string", "the model; also of metrics", SEMCONV)
MAX_TOKENS: Final = attribute("gen_ai.request.max_tokens", "int", "output tokens that were allowed", SEMCONV)
RESPONSE_ID: Final = attribute("gen_ai.response.id", "string", "id of the request", SEMCONV)
FINISH_REASONS: Final = attribute(
    "gen_ai.response.finish_reasons", "string[]", "`stop`, `length`, `abort`, `timeout`, `error`, or another", SEMCONV
)
INPUT_TOKENS: Final = attribute("gen_ai.usage.input_tokens", "int", "tokens of the prompt", SEMCONV)
OUTPUT_TOKENS: Final = attribute("gen_ai.usage.output_tokens", "int", "tokens of the response", SEMCONV)
CACHED_TOKENS: Final = attribute(
    "gen_ai.usage.cache_read.input_tokens", "int", "of the prompt, read from the prefix cache", SEMCONV
)
SUBMISSION: Final = attribute(
    "rl.submission", "string", "`bulk` (all at once: TTFT is the place in the queue) or `streamed`; also of metrics"
)
REPLICA: Final = attribute("rl.replica", "string", "which of several equal engines; also of metrics")
SAMPLE_ID: Final = attribute("rl.sample.id", "string", "shared by the n sequences of one prompt")
GROUP_ID: Final = attribute("rl.group.id", "string", "the group of samples that rewards are compared in")
TURN: Final = attribute("rl.turn", "int", "turn of the conversation that the request is")
REQUEST_TTFT: Final = attribute("rl.request.ttft", "double", "first token - submit, s")
REQUEST_QUEUE: Final = attribute("rl.request.queue", "double", "scheduled - submit, s")
REQUEST_PREFILL: Final = attribute("rl.request.prefill", "double", "first token - scheduled, s")
REQUEST_DECODE: Final = attribute("rl.request.decode", "double", "last token - first token, s")
REQUEST_TPOT: Final = attribute("rl.request.tpot", "double", "(last - first token) / (n - 1), s; not below two tokens")
REQUEST_PREEMPTED: Final = attribute("rl.request.preempted", "int", "times that the engine preempted it")
REQUEST_ABORTED: Final = attribute("rl.request.is_aborted", "boolean", "true if it was aborted")
REQUEST_TIMED_OUT: Final = attribute("rl.request.is_timed_out", "boolean", "true if it timed out")
REQUEST_KEPT: Final = attribute(
    "rl.request.kept", "string", "why it is a span: `failed`, `slowest`, `ttft`, `longest`, `sample`, comma-separated"
)
POLICY_VERSION_END: Final = attribute("rl.policy.version.end", "int", "likewise of the last token's weights")
POLICY_LAG: Final = attribute(
    "rl.policy.lag", "int", "updates between the weights of the first and the last token; at least that when consumed"
)

LAG_MAX: Final = attribute("rl.policy.lag.max", "int", "highest lag of the samples that a stage takes for training")
STALE_COUNT: Final = attribute("rl.sample.stale_count", "int", "of these samples those with a lag")
ATTEMPTS: Final = attribute(
    "rl.request.attempts", "int", "calls of rollout servers that a turn took: one more after each abort"
)
SUBMITTED_STEP: Final = attribute(
    "rl.submitted.step", "string", "on the root of a rollout: the step that submitted it, such as `train 7`"
)
LINKS_OMITTED: Final = attribute("rl.links.omitted", "int", "rollouts that the step trains on, beyond its 128 links")

REQUEST_COUNT: Final = attribute("rl.request.count", "int", "on rollouts: their requests on this process")
REQUESTS_OMITTED: Final = attribute("rl.request.omitted_spans", "int", "of them those that are no spans")
REQUESTS_ABORTED: Final = attribute("rl.request.aborted_count", "int", "of them aborted")
REQUESTS_TIMED_OUT: Final = attribute("rl.request.timed_out_count", "int", "of them timed out")
REQUESTS_CLIPPED: Final = attribute("rl.request.clipped_count", "int", "of them ended at the length limit")
REQUESTS_FAILED: Final = attribute("rl.request.error_count", "int", "of them failed with an error")
TAIL_1: Final = attribute("rl.rollout.tail.p1", "double", "share of the rollout's time after 99 % of its requests")
TAIL_5: Final = attribute("rl.rollout.tail.p5", "double", "likewise after 95 %")
TAIL_10: Final = attribute("rl.rollout.tail.p10", "double", "likewise after 90 %")
BUBBLE: Final = attribute(
    "rl.rollout.bubble.share",
    "double",
    "idle slots x time of the engine from the start of the last request to the last finish, over slots x rollout "
    "time; the slots are those in use at that start",
)
KV_PEAK_SPAN: Final = attribute("rl.engine.kv_cache.peak_usage", "double", "on rollouts: highest usage of the step")
KV_BYTES_SPAN: Final = attribute(
    "rl.memory.kv_cache.size", "int", "on rollouts: bytes reserved for the KV cache of the engine; absent if it grows"
)
KV_BYTES_PEAK_SPAN: Final = attribute(
    "rl.memory.kv_cache.peak", "int", "on rollouts: most bytes of keys and values of an engine in the step so far"
)

FINISH: Final = label("rl.request.finish", "finish reason")
FAILURE: Final = label("rl.request.failure", "class of the exception")
OUTCOME_KIND: Final = label("rl.request.outcome", "`aborted`, `timed_out`, `clipped` or `error`")
GROUP_STATE: Final = label("rl.rollout.state", "`pending`, `running`, `finished` or `failed`")
DROPPED_BECAUSE: Final = label(
    "rl.rollout.drop.reason", "`stale`, `filtered` (rewards without a difference), `failed` or `surplus`"
)
SLOWEST: Final = label("rl.rollout.slowest", "`0.01`, `0.05` or `0.1` of the requests")

TTFT: Final = histogram(
    "gen_ai.server.time_to_first_token",
    "s",
    "first token - submit; under bulk submission the position in the queue",
    REQUEST_BOUNDARIES,
    SEMCONV,
)
TPOT: Final = histogram(
    "gen_ai.server.time_per_output_token", "s", "(last token - first token) / (n - 1)", REQUEST_BOUNDARIES, SEMCONV
)
REQUEST_DURATION: Final = histogram("gen_ai.server.request.duration", "s", "end - submit", REQUEST_BOUNDARIES, SEMCONV)
QUEUE_TIME: Final = histogram("rl.request.queue_time", "s", "scheduled - submit", REQUEST_BOUNDARIES)
PREFILL_TIME: Final = histogram("rl.request.prefill_time", "s", "first token - scheduled", REQUEST_BOUNDARIES)
PROMPT_LENGTH: Final = histogram("rl.request.prompt_length", "{token}", "tokens of the prompt", TOKEN_BOUNDARIES)
OUTPUT_LENGTH: Final = histogram("rl.request.response_length", "{token}", "tokens of the response", TOKEN_BOUNDARIES)
CACHED_LENGTH: Final = histogram(
    "rl.request.cached_length", "{token}", "prompt tokens from the prefix cache", TOKEN_BOUNDARIES
)
REQUESTS: Final = counter("rl.request.finished", "{request}", "finished requests, by `rl.request.finish`")
ABORTED: Final = counter("rl.request.aborted", "{request}", "aborted requests")
TIMED_OUT: Final = counter("rl.request.timed_out", "{request}", "requests that timed out")
CLIPPED: Final = counter("rl.request.clipped", "{request}", "responses that ended at the length limit")
REQUEST_ERRORS: Final = counter("rl.request.errors", "{request}", "failed requests, by `rl.request.failure`")
PREEMPTIONS: Final = counter("rl.request.preemptions", "{preemption}", "preemptions, by what requests report")
OMITTED: Final = counter("rl.request.omitted", "{request}", "requests that did not become spans")
BAD_REQUESTS: Final = counter("rl.request.bad", "{request}", "requests with an impossible value, by `otel_rl.reason`")
REQUEST_RATIO: Final = gauge("rl.request.ratio", "1", "share of a rollout's requests by `rl.request.outcome`")
TAIL: Final = gauge(
    "rl.rollout.tail",
    "1",
    "share of a rollout's time that its slowest requests take alone, by `rl.rollout.slowest`; one point per rollout",
)
ROLLOUT_BUBBLE: Final = gauge("rl.rollout.bubble", "1", "share of slots times time that idles at the end of a rollout")
ROLLOUT_WALL: Final = gauge("rl.rollout.time", "s", "time of a rollout with requests; one point per rollout")
GROUPS: Final = gauge(
    "rl.rollout.groups", "{group}", "prompts whose samples no step has taken yet, by `rl.rollout.state`"
)
GROUPS_DROPPED: Final = counter(
    "rl.rollout.groups.dropped", "{group}", "prompts whose samples no step will take, by `rl.rollout.drop.reason`"
)
SAMPLE_LAG: Final = gauge(
    "rl.sample.lag", "{update}", "mean lag of the samples of a batch: newest weights less those of the first token"
)
SAMPLE_LAG_MAX: Final = gauge("rl.sample.lag.max", "{update}", "highest lag of a batch")
SAMPLE_STALE: Final = gauge("rl.sample.stale", "1", "share of a batch's samples with a lag")
IN_FLIGHT: Final = gauge(
    "rl.engine.requests.in_flight", "{request}", "requests that this process waits for, by `rl.replica`"
)
RUNNING: Final = gauge("rl.engine.requests.running", "{request}", "requests that the engine works on")
WAITING: Final = gauge("rl.engine.requests.waiting", "{request}", "requests that wait in the engine")
KV_USAGE: Final = gauge("rl.engine.kv_cache.usage", "1", "share of the KV cache in use")
KV_PEAK: Final = gauge("rl.engine.kv_cache.peak", "1", "highest share of the KV cache in use in a step")
KV_BYTES: Final = gauge(
    "rl.memory.kv_cache.size", "By", "bytes that this process reserved for an engine's KV cache: pool or static cache"
)
KV_BYTES_PEAK: Final = gauge(
    "rl.memory.kv_cache.peak",
    "By",
    "most bytes of keys and values in a step: size x highest usage of a pool, or tensors of a growing cache at the "
    "end of `generate`",
)
ENGINE_PREEMPTIONS: Final = counter("rl.engine.preemptions", "{preemption}", "preemptions, by what the engine reports")
SAMPLE_PADDING: Final = counter(
    "rl.sample.padding", "{token}", "positions that static batches computed for ended sequences, by `rl.mode`"
)
