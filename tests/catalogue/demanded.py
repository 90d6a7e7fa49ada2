"""What users ask for, in their own words: by stage, by concern, and by the names that frameworks print."""

from __future__ import annotations

BY_STAGE = {
    "rollout": "prefill (input) tokens, decode (output) tokens, cached tokens, request latency, TTFT, TPOT, "
    "queue time, KV-cache utilisation, KV-cache peak, running requests, waiting requests, preemptions, abort ratio, "
    "timeout ratio, response clip ratio",
    "reward": "reward latency, reward batch tokens, exceptions of reward functions, reward model samples/s, "
    "reward model tokens/s, one span per reward function",
    "old logprob, ref logprob": "log-probability micro-batch tokens, log-probability forward time, "
    "log-probability activation peak, shape of the log-probabilities, response mask ratio",
    "values, advantage": "value time, advantage time, value mean; max; min, return mean; max; min, "
    "advantage mean; max; min",
    "actor update (and critic update)": "update time, forward time, backward time, optimizer time, communication time, "
    "gradient norm, loss: policy, loss: KL, loss: entropy, loss: value, loss: total, clip fraction high, "
    "clip fraction low, ratio mean; max; min, update micro-batch tokens, critic's gradient norm",
    "weight sync, state load and offload": "sync total time, sync execute time, onload time, offload time, sync bytes",
    "checkpoint": "checkpoint time; synchronous part, checkpoint time; background part, checkpoint bytes, "
    "checkpoint path kind",
    "validation": "validation time, validation score mean, validation score max; min",
    "every stage": "start and end, memory allocated; at start and end, memory reserved; at start and end, "
    "memory peak of both, memory peak as fraction of the device, memory before and after loading and offloading, "
    "host RSS and VMS; at start and end, tokens and samples handled, rank; role; device",
}
BY_CONCERN = {
    "correctness": "shape checksum, mask ratio, token alignment; rollout against training, "
    "sample and group id alignment, NaN and Inf counts",
    "stability": "entropy, KL of new and old policy, KL to the reference, gradient norm of the actor, clip fraction, "
    "reward mean, reward max; min, reward standard deviation, critic's loss, SFT losses, learning rate, "
    "critic's learning rate, sample weights, valid-sample ratio",
    "performance": "step time, stage time, tokens/s, samples/s, MFU, SM activity, pipeline bubble",
    "memory": "allocated, reserved, fragmentation ratio, activation peak, KV-cache peak in bytes, "
    "communication-buffer peak, host RSS, host VMS",
    "load balance": "per-rank token count, active time, idle time, queue depth of engines and groups, straggler rank",
    "data quality": "prompt length mean; max; min, response length mean; max; min, clip ratio, aborted ratio, "
    "reward distribution",
    "asynchronous training": "queue depth, policy lag, stale-sample ratio",
    "hardware": "GPU utilisation, GPU memory use, Ascend NPU utilisation and memory use",
    "four log layers": "training loop: epoch; step; elapsed, rollout: samples; reward; KL; length distribution, "
    "update step: loss parts; clip ratio; gradient norm, sample: a trajectory, a user's own fields",
}
"""A semicolon stands for a comma inside a name."""

ROLL = """
val/score/{mean,max,min} critic/{lr,loss,value,vpred,clipfrac,error}
critic/{score,rewards,advantages,returns,values}/{mean,max,min} tokens/{response_length,prompt_length}/{mean,max,min}
actor/{lr,ppo_ratio_high_clipfrac,ppo_ratio_low_clipfrac,ppo_ratio_clipfrac,ratio_mean,ratio_max,ratio_min}
actor/{clipfrac,kl_loss,total_loss,approxkl,policykl} critic/{ref_log_prob,old_log_prob,entropy}/mean
critic/reward_clip_frac actor/{pg_loss,weighted_pg_loss,valid_samples,total_samples,valid_sample_ratio}
actor/{sample_weights_mean,sample_weights_min,sample_weights_max} actor/{sft_loss,positive_sft_loss,negative_sft_loss}
system/{tps,samples} time/{rollout,ref_log_probs_values_reward,old_log_probs_values,adv}
time/<cluster>/{train_step,generate,model_update,compute_log_probs}/{total,execute,onload,offload}
time/<cluster>/{do_checkpoint,compute_values,compute_rewards}/{total,execute,onload,offload}
memory/<cluster>/<method>/{start,end}/{offload,onload}/{allocated,reserved,max_allocated,max_reserved}/<device>
memory/<cluster>/<method>/end/onload/{max_allocated_frac,max_reserved_frac}/<device>
memory/cpu/<cluster>/<method>/{start,end}/{rss,vms}
"""
"""What ROLL's documentation lists."""

VERL = """
global_seqlen/{min,max,minmax_diff,balanced_min,balanced_max,mean}
actor/{entropy,entropy_loss,pg_clipfrac,pg_clipfrac_lower,ppo_kl,pg_loss,kl_loss,kl_coef,loss,grad_norm,lr}
actor/{reward_kl_penalty,reward_kl_penalty_coeff}
{actor,critic}/perf/{max_memory_allocated_gb,max_memory_reserved_gb,cpu_memory_used_gb}
critic/{grad_norm,loss,lr,vf_clipfrac,vf_explained_var,vf_loss,vpred_mean}
critic/{score,rewards,advantages,returns,values}/{mean,max,min} perf/mfu/{actor,critic}
perf/{total_num_tokens,time_per_step,throughput} training/{global_step,epoch}
response_length/{mean,max,min,clip_ratio} response_length_non_aborted/{mean,max,min,clip_ratio} response/aborted_ratio
prompt_length/{mean,max,min,clip_ratio} num_turns/{min,max,mean} training/num_turns/{mean,max,min}
timing_s/{gen,old_log_prob,ref,values,adv,update_actor,update_critic,save_checkpoint,update_weights,step,testing}
timing_s/{reward,switch_to_trainer,switch_to_rollout,switch_wait,dump_rollout_generations}
timing_per_token_ms/{ref,gen,adv,values,update_actor,update_critic}
training/off_policy/{trajectory_spans,trajectory_staleness,trajectory_staleness_worst}/{mean,max,min}
training/{off_policy,filter_groups,rollout_failure}/evicted_samples
training/{rollout_probs_diff_valid,rollout_probs_diff_max,rollout_probs_diff_mean,rollout_probs_diff_std}
training/rollout_actor_probs_pearson_corr
rollout_corr/{training_ppl,training_log_ppl,kl,k3_kl,rollout_ppl,rollout_log_ppl,log_ppl_diff,log_ppl_abs_diff}
rollout_corr/{log_ppl_diff_max,log_ppl_diff_min,ppl_ratio,chi2_token,chi2_seq} val-core/<source>/{acc,reward}/mean@<n>
val-aux/<source>/{reward,score}/mean@<n> val-aux/num_turns/{min,max,mean}
"""
"""What verl 0.9.1 logs, with a critic and in all of its modes."""

TRL = """
loss grad_norm learning_rate epoch num_tokens completions/{mean_length,min_length,max_length,clipped_ratio}
completions/{mean_terminated_length,min_terminated_length,max_terminated_length} reward reward_std
rewards/<function>/{mean,std} frac_reward_zero_std kl entropy clip_ratio/{low_mean,high_mean,region_mean}
clip_ratio/{low_min,high_max} step_time policy_loss entropy_coef aux_loss cispo_clip_ratio vespo/phi_seq_mean
tools/{call_frequency,failure_frequency} sampling/sampling_logp_difference/{mean,max}
sampling/importance_sampling_ratio/{min,mean,max} eval_reward eval_{loss,runtime}
"""
"""What TRL 1.16 hands to ``on_log``."""
