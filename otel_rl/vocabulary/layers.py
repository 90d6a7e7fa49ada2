"""The four log layers: lines of the loop, the rollout and the update of a step, and records of single samples."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import counter, event, log_attribute

LOOP_LINE: Final = event("rl.log.loop", "one step of the loop: number, times, epoch, learning rate, a user's numbers")
ROLLOUT_LINE: Final = event("rl.log.rollout", "what a step generated: samples, rewards, KL, lengths, aborts")
UPDATE_LINE: Final = event("rl.log.update", "what a step trained: loss and its parts, clipping, gradient norm, updates")
SAMPLE_RECORD: Final = event(
    "rl.log.sample", "one sample of a step; all up to `OTEL_RL_SAMPLE_RECORDS`, beyond it those that matter"
)

ELAPSED: Final = log_attribute("rl.loop.elapsed", "double", "end of the step - begin of the loop in this process, s")
STEP_SECONDS: Final = log_attribute("rl.step.duration", "double", "end of the step - its begin, s")
RESPONSE_QUANTILES: Final = log_attribute(
    "rl.sample.response.quantiles",
    "int[]",
    "tokens of responses that 5, 25, 50, 75 and 95 % of this process's samples do not exceed",
)
UPDATES: Final = log_attribute("rl.train.updates", "int", "optimizer updates that were made in the step")
UPDATES_SKIPPED: Final = log_attribute("rl.train.updates.skipped", "int", "those that were skipped")

SAMPLE_TURNS: Final = log_attribute("rl.sample.turns", "int", "answers of the policy in the sample")
SAMPLE_TOOL_CALLS: Final = log_attribute("rl.sample.tool_count", "int", "calls of tools in the sample")
SAMPLE_REWARD: Final = log_attribute(
    "rl.sample.reward", "double", "reward of the sample; `rl.sample.reward.NAME` is that of one function"
)
SAMPLE_ADVANTAGE: Final = log_attribute("rl.sample.advantage", "double", "advantage; the mean where tokens have theirs")
SAMPLE_FINISH: Final = log_attribute(
    "rl.sample.finish", "string", "`stop`, `length`, `abort`, `timeout`, `error`, or another"
)
SAMPLE_USED: Final = log_attribute("rl.sample.used", "boolean", "whether it is trained on")
SAMPLE_DISCARDED: Final = log_attribute(
    "rl.sample.discard_reason", "string", "why not: `stale`, `filtered`, `failed`, `surplus`, `truncated`, or another"
)
SAMPLE_KEPT: Final = log_attribute(
    "rl.sample.kept",
    "string",
    "why it has a record, where not all have: `failed`, `best`, `worst`, `longest`, `sample`, comma-separated",
)
SAMPLE_PROMPT: Final = log_attribute(
    "rl.sample.prompt_text", "string", "only with `OTEL_RL_CAPTURE_CONTENT`, cut, after `OTEL_RL_REDACT`"
)
SAMPLE_RESPONSE: Final = log_attribute("rl.sample.response_text", "string", "likewise")

SAMPLES_OMITTED: Final = counter("rl.sample.records.omitted", "{sample}", "samples without a log record")
