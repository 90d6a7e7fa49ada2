"""Names that frameworks print, and what is to be known of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.catalogue.demand import Named

CRITIC: Final = "with a critic"
DEBUG: Final = "measured on each rank, with ROLL's debug mode on or off; s"
DEBUG_MEMORY: Final = "measured on each rank, with ROLL's debug mode on or off; GiB, on a device"

TRL: Final = (
    Named("loss", ours={"loss": v.LOSS}),
    Named("grad_norm", ours={"grad_norm": v.GRAD_NORM}),
    Named("learning_rate", ours={"learning_rate": v.LEARNING_RATE}),
    Named("epoch", "`rl.loop.iteration` numbers the steps", is_missing=True),
    Named("num_tokens", "all tokens so far, of all ranks"),
    Named("completions/{mean_length,min_length,max_length,clipped_ratio}"),
    Named("completions/{mean_terminated_length,min_terminated_length,max_terminated_length}"),
    Named("{reward,reward_std,frac_reward_zero_std}"),
    Named("rewards/<function>/{mean,std}", "by `rl.reward.function`"),
    Named("kl", "if `beta` is not 0"),
    Named("entropy"),
    Named("clip_ratio/{low_mean,high_mean,region_mean}", "losses `grpo`, `bnpo`, `dr_grpo`, `dapo`, `luspo`; RLOO"),
    Named("clip_ratio/{low_min,high_max}", "of sequences"),
    Named("{policy_loss,entropy_coef}", "with an entropy bonus"),
    Named("aux_loss", "mixtures of experts"),
    Named("{cispo_clip_ratio,vespo/phi_seq_mean}", "the loss of this name"),
    Named("tools/{call_frequency,failure_frequency}", "with tools"),
    Named("sampling/sampling_logp_difference/{mean,max}", "with vLLM and its correction"),
    Named("sampling/importance_sampling_ratio/{min,mean,max}", "with vLLM and its correction"),
    Named("step_time", "of each rank, without the optimizer; `rl.step.time` is the whole step"),
    Named(
        "{train_runtime,train_samples_per_second,train_steps_per_second,total_flos,train_loss}",
        "printed once, at the end; the report has time and steps of the run",
        is_missing=True,
    ),
    Named(
        "eval_{loss,runtime,samples_per_second,steps_per_second}",
        "`rl.evaluate` has the time",
        is_missing=True,
    ),
    Named(
        "eval_reward",
        "`reward` with `rl.mode` `eval`; so have all other names of an evaluation",
        {"eval_reward": v.EVAL_REWARD},
    ),
)

VERL: Final = (
    Named("actor/{entropy,entropy_loss}"),
    Named("actor/{loss,pg_loss,kl_loss,ppo_kl,pg_clipfrac,grad_norm,lr}"),
    Named("actor/{pg_clipfrac_lower,kl_coef,reward_kl_penalty_coeff}"),
    Named("actor/reward_kl_penalty", "with the KL penalty in the reward"),
    Named("{actor,critic}/perf/{max_memory_allocated_gb,max_memory_reserved_gb,cpu_memory_used_gb}"),
    Named("critic/{vf_loss,loss}", CRITIC),
    Named("critic/{grad_norm,lr,vf_clipfrac,vf_explained_var,vpred_mean}", CRITIC),
    Named("critic/values/{mean,max,min}", CRITIC),
    Named("critic/{score,rewards,advantages,returns}/{mean,max,min}"),
    Named("response_length/{mean,max,min,clip_ratio}", "`rl.sample.response.clipped` is made of the last two"),
    Named("response_length_non_aborted/{mean,max,min,clip_ratio}"),
    Named("response/aborted_ratio"),
    Named("prompt_length/{mean,max,min,clip_ratio}"),
    Named("{num_turns,training/num_turns}/{mean,max,min}"),
    Named("tool_call_counts/{mean,max,min}", "with tools"),
    Named("global_seqlen/{min,max,minmax_diff,balanced_min,balanced_max,mean}"),
    Named(
        "timing_s/{step,gen,reward,old_log_prob,ref,values,adv,update_critic,update_actor,update_weights}",
        "also stages, see [verl](verl.md#what-a-trace-holds)",
    ),
    Named("timing_s/{save_checkpoint,testing,switch_to_trainer,switch_to_rollout,switch_wait}", "also stages"),
    Named("timing_s/{dump_rollout_generations,start_profile,stop_profile}", "the first is also a stage"),
    Named(
        "timing_s/agent_loop/{generate_sequences,tool_calls,compute_score,num_preempted}/{min,max,mean}",
        "legacy trainer",
    ),
    Named("timing_per_token_ms/{gen,ref,values,adv,update_actor,update_critic}"),
    Named("perf/{total_num_tokens,time_per_step,throughput}"),
    Named("perf/mfu/{actor,critic,actor_infer}", "ours is `rl.flops.mfu`"),
    Named("training/{global_step,epoch}"),
    Named(
        "training/off_policy/{trajectory_spans,trajectory_staleness,trajectory_staleness_worst}/{mean,max,min}", "V1"
    ),
    Named("training/{off_policy,filter_groups,rollout_failure}/evicted_samples"),
    Named("training/filter_groups/discarded_surplus_samples"),
    Named("training/{rollout_probs_diff_valid,rollout_probs_diff_max,rollout_probs_diff_mean,rollout_probs_diff_std}"),
    Named("training/rollout_actor_probs_pearson_corr"),
    Named("rollout_corr/{kl,k3_kl,training_ppl,rollout_ppl,training_log_ppl,rollout_log_ppl}"),
    Named(
        "rollout_corr/{log_ppl_diff,log_ppl_diff_max,log_ppl_diff_min,log_ppl_abs_diff,ppl_ratio,chi2_token,chi2_seq}"
    ),
    Named("rollout_corr/{rollout_is_mean,rollout_is_max,rollout_is_min,rollout_is_std}", "with rollout correction"),
    Named("rollout_corr/rollout_rs_<option>_{masked_fraction,seq_masked_fraction}", "with rejection"),
    Named("rollout/{spec_accept_rate,spec_accept_length}", "with speculative decoding"),
    Named("val-core/<source>/{acc,reward}/mean@<n>", "`reward` of one data source is ours"),
    Named("val-aux/<source>/{reward,score}/mean@<n>", "likewise"),
    Named("val-aux/num_turns/{mean,max,min}"),
)

ROLL: Final = (
    Named("val/score/{mean,max,min}", "agentic; RLVR: `val_correct/all/mean`"),
    Named("critic/{lr,loss,value,vpred,clipfrac,error}", CRITIC),
    Named("critic/{score,rewards,advantages,returns,values}/{mean,max,min}", "`values` with a critic"),
    Named("tokens/{response_length,prompt_length}/{mean,max,min}", "agentic; RLVR writes `token/`"),
    Named(
        "actor/{lr,ppo_ratio_high_clipfrac,ppo_ratio_low_clipfrac,ppo_ratio_clipfrac,ratio_mean,ratio_max,ratio_min}"
    ),
    Named("actor/{clipfrac,kl_loss,total_loss,approxkl,policykl}"),
    Named(
        "critic/{ref_log_prob,old_log_prob,entropy}/mean",
        "the first two agentic; the last two where old ones are computed anew",
    ),
    Named("critic/reward_clip_frac", "agentic; RLVR: `<domain>/critic/reward_clip_frac`"),
    Named("actor/{pg_loss,weighted_pg_loss,valid_samples,total_samples,valid_sample_ratio}", "all but the first RLVR"),
    Named("actor/{sample_weights_mean,sample_weights_min,sample_weights_max}", "RLVR"),
    Named("actor/{sft_loss,positive_sft_loss,negative_sft_loss}", "no code of ROLL 0.3.0 writes them", is_missing=True),
    Named("system/{tps,samples}", "RLVR: `system/tps/tps`"),
    Named(
        "time/{rollout,ref_log_probs_values_reward,old_log_probs_values,adv}",
        "ROLL 0.3.0 writes `time/step_…` instead, agentic only; those arrive as `roll.…`",
        is_missing=True,
    ),
    Named("time/<cluster>/{train_step,model_update,compute_log_probs,compute_values}/total", "a mean over ranks"),
    Named("time/<cluster>/do_checkpoint/total", "a mean over ranks"),
    Named(
        "time/<cluster>/do_checkpoint/{execute,onload,offload}",
        "checkpoints load and offload nothing; ROLL's own `offload` there is that of its strategy, `roll.…`",
        is_missing=True,
    ),
    Named(
        "time/<cluster>/generate/{total,execute,onload,offload}",
        "no code of ROLL 0.3.0 writes them: its pipelines sample through schedulers",
        is_missing=True,
    ),
    Named(
        "time/<cluster>/compute_rewards/total",
        "ROLL's pipelines do not track it: schedulers ask for rewards; `rl.reward` has the time",
        is_missing=True,
    ),
    Named("time/<cluster>/compute_rewards/{execute,onload,offload}", f"reward workers with a model; {DEBUG}"),
    Named(
        "time/<cluster>/{train_step,model_update,compute_log_probs,compute_values}/{execute,onload,offload}",
        DEBUG,
    ),
    Named(
        "memory/<cluster>/<method>/{start,end}/{offload,onload}/{allocated,reserved,max_allocated,max_reserved}/<device>",
        DEBUG_MEMORY,
    ),
    Named("memory/<cluster>/<method>/end/onload/{max_allocated_frac,max_reserved_frac}/<device>", DEBUG_MEMORY),
    Named("memory/cpu/<cluster>/<method>/{start,end}/{rss,vms}", "measured on each rank; GiB"),
)

PRINTED: Final[Mapping[str, Sequence[Named]]] = {"trl": TRL, "verl": VERL, "roll": ROLL}
