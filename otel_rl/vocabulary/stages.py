"""Spans: the structure of a step's trace and its stages."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import PROPOSAL, SEMCONV, stage

LOOP: Final = stage("rl.loop", "root of a step's trace: one iteration of the loop; emitted by rank 0 only", PROPOSAL)
RANK_SPAN: Final = stage("rl.rank", "container of one rank in a step's trace, named `rl.rank 3`", is_measured=False)
CONTAINER: Final = f"{RANK_SPAN} "
"""How the names of the containers of ranks begin."""
SETUP: Final = stage("rl.setup", "from the start of the process to its first step: import, load, engine start")
SETUP_PROCESS: Final = stage("rl.setup.process", "starting an actor: its process, imports and constructor")
SETUP_MODEL: Final = stage("rl.setup.model", "loading or making the models of a rank")
TEARDOWN: Final = stage("rl.teardown", "from the end of the last step to the end of the loop")

IDLE: Final = stage("rl.idle", "a bubble: this rank waits; `rl.idle.reason` says for what")
SAMPLE: Final = stage("rl.sample", "generating rollouts", PROPOSAL)
SAMPLE_TOKENIZE: Final = stage("rl.sample.tokenize", "texts to token ids: prompts, and what tools answered")
SAMPLE_GENERATE: Final = stage("rl.sample.generate", "token ids to further ones: the engine")
SAMPLE_DECODE: Final = stage("rl.sample.decode", "token ids to texts and messages")
SAMPLE_SUBMIT: Final = stage("rl.sample.submit", "handing prompts to the processes that generate")
SAMPLE_GROUP: Final = stage("rl.sample.group", "all trajectories of one prompt")
TRAJECTORY: Final = stage("rl.sample.trajectory", "one trajectory: turns, calls of tools, its reward")
SAMPLE_TURN: Final = stage("rl.sample.turn", "one answer of the policy, as its caller waits for it")
SAMPLE_SERVE: Final = stage("rl.sample.serve", "one call of a rollout server, in the server's process")
ENVIRONMENT_RESET: Final = stage("rl.environment.reset", "resetting the environments of a rollout, before it is made")
EXECUTE_TOOL: Final = stage(
    "execute_tool", "one call of a tool or an environment; named `execute_tool search`", SEMCONV
)
SAMPLE_PROCESS: Final = stage("rl.sample.process", "rollout post-processing: padding, masks, shuffling, splitting")
LOGPROB: Final = stage("rl.logprob", "log-probabilities of given tokens; `rl.logprob.kind` says of which policy")
LOGPROB_FORWARD: Final = stage("rl.logprob.forward", "forward of one micro-batch of log-probabilities")
VALUE: Final = stage("rl.value", "values by the critic")
REWARD: Final = stage("rl.reward", "rewards; a child per reward function is named `rl.reward accuracy`", PROPOSAL)
ADVANTAGE: Final = stage("rl.advantage", "advantages (and returns) from rewards")
TRAIN: Final = stage("rl.train", "the policy update, if the framework has one call for it", PROPOSAL)
MINI_BATCH: Final = stage("rl.train.mini_batch", "the samples of one optimizer step, on this rank")
FORWARD: Final = stage("rl.train.forward", "forward and loss of one micro-batch")
BACKWARD: Final = stage("rl.train.backward", "backward of one micro-batch")
CLIP: Final = stage("rl.train.clip", "gradient clipping")
OPTIMIZER: Final = stage("rl.train.optimizer", "optimizer step")
COMM: Final = stage("rl.train.comm", "one collective or gather, among the longest of its stage", is_measured=False)
SYNC: Final = stage("rl.sync", "copying new weights to the rollout engine", PROPOSAL)
CHECKPOINT: Final = stage("rl.checkpoint", "writing a checkpoint, or reading one (`rl.checkpoint.load`)")
CHECKPOINT_STAGING: Final = stage("rl.checkpoint.staging", "the part of an asynchronous one that blocks training")
EVALUATE: Final = stage("rl.evaluate", "evaluation")
LOG: Final = stage("rl.log", "logging, metrics and callbacks of the framework and its user")
LOG_GATHER: Final = stage("rl.log.gather", "gathering metrics and texts of all ranks for the log")
OTHER: Final = stage("rl.other", "time of a step under no stage; only readers compute it", is_measured=False)
