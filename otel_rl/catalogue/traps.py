"""Numbers that are known to be wrong in some version of some framework, or to mean something else there."""

from __future__ import annotations

from typing import Final

from otel_rl.catalogue.demand import Trap

TRAPS: Final = (
    Trap(
        "TTFT",
        "any engine, all prompts at once",
        "It is the place in the queue. Judge the engine by prefill and TPOT.",
    ),
    Trap(
        "TPOT",
        "vLLM before #24110",
        "Its Prometheus number was the time between scheduler steps, wrong with speculative decoding. Ours is "
        "(last - first token) / (n - 1).",
    ),
    Trap("TPOT", "verl", "`timing_per_token_ms/gen` is the wait for samples by response tokens, no time of a token."),
    Trap("cached tokens", "vLLM", "Hits of the prefix cache count again after an allocation that failed (#39566)."),
    Trap(
        "KV-cache peak",
        "ROLL",
        "`vllm/*` is what came after the last request: each request clears the engine's snapshots.",
    ),
    Trap(
        "preemptions",
        "verl before 2026",
        "`num_preempted` was wrong with several turns. -1 stands for unknown, and counts in the mean.",
    ),
    Trap(
        "abort ratio",
        "verl",
        "A step whose samples are all aborted has NaN (before #5899 it crashed); tokens of zero divide by zero.",
    ),
    Trap(
        "response clip ratio",
        "TRL",
        "A padding token that was sampled at the end counts as a stop token, so the share may be too low.",
    ),
    Trap(
        "response clip ratio",
        "verl V1",
        "`response_length/clip_ratio` is the share as long as the longest of the batch, so never 0. Ours is 0 if "
        "the longest is below the limit.",
    ),
    Trap(
        "response clip ratio",
        "verl, requests",
        "verl says `completed` whether the limit cut an answer or not, so `rl.request.ratio` has no `clipped` "
        "without an engine's integration.",
    ),
    Trap("clip ratio", "ROLL", "`token/total_response_length/clip` is a count of responses, no ratio."),
    Trap(
        "reward latency",
        "verl V1",
        "`timing_s/reward` is there with a colocated reward model only. The spans have every call.",
    ),
    Trap(
        "log-probability forward time",
        "verl",
        "`timing_s/old_log_prob` also holds moving the batch and loading the model.",
    ),
    Trap(
        "gradient norm",
        "prime-rl before #3249",
        "The share of gradients that are 0 was 1 in every run, and took 1.4 s of a step.",
    ),
    Trap("gradient norm", "AReaL before #1497", "Counted tensor-parallel parts twice."),
    Trap(
        "loss: policy",
        "verl before 2026",
        "Divided by the number of micro-batches once more (#4711), then growing with the ranks (#5203). otel_rl "
        "records verl 0.9 only.",
    ),
    Trap("loss: KL", "verl before 2025-06", "`actor/kl_loss` was that of the last micro-batch."),
    Trap(
        "loss: value",
        "verl before 0.7.1",
        "Divided or multiplied by the number of micro-batches: it keeps verl's name unless `critic/loss` is beside it.",
    ),
    Trap(
        "clip fraction low",
        "verl",
        "`actor/pg_clipfrac_lower` is the share where dual clipping took effect, no low side.",
    ),
    Trap(
        "clip fraction high",
        "ROLL",
        "`actor/ppo_ratio_high_clipfrac` counts ratios above the bound whatever the advantage is; clipping has no "
        "effect on some of them.",
    ),
    Trap(
        "clip fraction",
        "verl",
        "With `sapo` always 0; with `clip_cov` and `dppo_*` another share. They keep verl's name. It is a mean of "
        "micro-batches' means.",
    ),
    Trap(
        "clip fraction",
        "TRL before #6380",
        "A mean of the ranks' means. Since then `low_min` and `high_max` are of sequences.",
    ),
    Trap("entropy", "TRL", "Accumulated in windows of different sizes it was weighted by them, not by tokens (#7047)."),
    Trap("entropy", "verl", "`actor/entropy_loss` is the mean entropy, no loss. Both depend on `loss_agg_mode`."),
    Trap(
        "entropy",
        "OpenRLHF",
        "`entropy_loss` and `policy_loss` are shares of the step's token mean, averaged again by tokens: too high if "
        "micro-batches differ in size.",
    ),
    Trap("entropy", "ROLL", "`<domain>/critic/entropy/mean` is that of the whole batch, in each domain."),
    Trap(
        "KL of new and old policy",
        "verl with `kl_cov`",
        "`actor/ppo_kl` is the mean of absolute differences, no KL. Elsewhere it may be negative.",
    ),
    Trap(
        "KL of new and old policy",
        "ROLL",
        "`actor/approxkl` is half of the squared difference, `actor/policykl` the plain one. Ours is the first.",
    ),
    Trap(
        "KL of new and old policy",
        "TRL PPO, before 1.13",
        "`policy/approxkl_avg` and `val/ratio` include padding and are means of means.",
    ),
    Trap(
        "KL to the reference",
        "ROLL without recomputed old log-probabilities",
        "`critic/kl` is the negative mean of the reference's log-probabilities. `actor/kl_loss` is right.",
    ),
    Trap("KL to the reference", "TRL before #6380", "A mean of the ranks' means, not of the tokens."),
    Trap(
        "reward mean",
        "verl",
        "`critic/score` is the reward, `critic/rewards` is it after the KL penalty. Empty responses are left out.",
    ),
    Trap(
        "reward mean",
        "TRL",
        "Means were made before samples that fill up the last batch were left out: off by up to 10 % (#7010).",
    ),
    Trap(
        "reward mean",
        "TRL with `log_metric` in a reward function",
        "If only some ranks call it, the job hangs, then values stand under wrong names (#7310).",
    ),
    Trap("reward max, min", "NeMo-RL before #2175, miles before #1968", "Maxima and minima were averaged over groups."),
    Trap("learning rate", "verl since 0.8", "`actor/lr` is the rate of the next step."),
    Trap(
        "valid-sample ratio",
        "ROLL",
        "`actor/valid_samples` and `total_samples` are sums over ranks by the backward steps, not the batch.",
    ),
    Trap("SFT losses", "verl SFT", "`train/total_tokens(B)` was always 0 in older versions."),
    Trap("step time", "ROLL RLVR", "`time/step_total` is the time of the step before; 0 in the first."),
    Trap(
        "step time",
        "verl",
        "`timing_s/step` holds checkpoint and weight sync, not the evaluation and what passes between two steps.",
    ),
    Trap("step time", "TRL", "`step_time` has generation, forward and backward, not the optimizer."),
    Trap(
        "stage time",
        "verl V1",
        "`timing_s/gen` is the wait for the replay buffer, which looks every 2 s. Generation began before it.",
    ),
    Trap("stage time", "ROLL", "`time/*/total` is a mean over ranks: the slowest is lost. Ours has each rank."),
    Trap(
        "stage time",
        "NeMo-RL before #1052",
        "`exposed_generation` held the weight sync; the first step lacked the filling of the buffer.",
    ),
    Trap(
        "tokens/s",
        "verl before 0.9, `separate_async`",
        "`perf/throughput` was divided by the trainer's GPUs only, so it was too high.",
    ),
    Trap("tokens/s", "ROLL RLVR", "`system/tps/*` comes one step late, is 0 in the first, and a mean of five steps."),
    Trap("tokens/s", "SkyRL before #1794", "Divided by the whole step, with evaluations in it."),
    Trap(
        "tokens/s",
        "prime-rl before #2048",
        "Tokens begun in the step before were counted, so it was too high. Asynchronous rates need requests.",
    ),
    Trap(
        "MFU",
        "verl before 2026",
        "Attention counted twice in causal models. On a device that verl does not know it is 0, not unknown.",
    ),
    Trap(
        "MFU",
        "slime, NeMo-RL, prime-rl",
        "Attention counted twice, heads of a wrong size, or the optimizer and checkpoints in the time (#1980, "
        "#2736, #2376).",
    ),
    Trap("pipeline bubble", "verl fully_async", "`rollouter/idle_ratio` was above 1 with slow rollouts until #6069."),
    Trap("host RSS", "verl", "`actor/perf/cpu_memory_used_gb` is of the whole machine."),
    Trap("allocated", "verl", "`actor/perf/max_memory_*` is not reduced over the ranks."),
    Trap(
        "per-rank token count",
        "verl",
        "`rollout/moe/*` gave expert 0 hits of each sequence's last token, which is never routed (#7075).",
    ),
    Trap("response length mean, max, min", "verl with tools", "`response_length/*` counts what tools answered, too."),
    Trap(
        "response length mean, max, min",
        "SkyRL before #1821",
        "Of answers before they were cut, so above the limit.",
    ),
    Trap("response length mean, max, min", "ROLL", "`token/right_response_length/mean` is NaN if no answer is right."),
    Trap("policy lag", "AReaL before #1569", "The version was read twice, so tokens had one that did not make them."),
    Trap("policy lag", "verl fully_async before #6796", "Aggregated numbers stood under the version after theirs."),
    Trap("stale-sample ratio", "ROLL", "`scheduler/off_policy_ratio` is a mean of steps, no ratio."),
    Trap("queue depth", "TRL AsyncGRPO before #6489", "Of the wait for the queue only the last poll was counted."),
    Trap("NaN and Inf counts", "TRL's log", "`on_log` drops NaN before it averages. Ours are read before that."),
    Trap(
        "validation score mean",
        "verl with several data sources",
        "There is one mean for each source, so none has our name.",
    ),
    Trap("NaN and Inf counts", "miles before #2526", "What was not measured was logged as 0."),
    Trap("GPU utilisation", "SkyRL asynchronous, before #1922", "The monitor of the devices was never started."),
    Trap("validation score mean", "SkyRL asynchronous, before #1929", "An evaluation stood under the next step."),
    Trap("reward mean", "slime, miles", "`rollout/rewards` is normalized by group: its mean is about 0."),
    Trap(
        "entropy",
        "miles",
        "`train/entropy_loss` is 0 where no entropy is computed; ours is there only with `--entropy-coef`.",
    ),
    Trap(
        "entropy",
        "NeMo-RL",
        "`train/approx_entropy` is weighted by the ratio of policy and engine, and strays with their mismatch.",
    ),
    Trap("KL to the reference", "NeMo-RL", "`train/kl_penalty` is 0 if the loss has none. Ours is missing then."),
    Trap(
        "loss: policy",
        "prime-rl",
        "`loss/mean` is a mean over micro-batches of their shares of the loss: it falls with their number.",
    ),
    Trap(
        "MFU",
        "prime-rl",
        "`perf/mfu` is in percent; its time has clipping and the optimizer in it, its tokens the padding.",
    ),
)
