"""Start OpenRLHF's own trainer: ``openrlhf.cli.train_ppo_ray``, in a Ray of this machine that pretends GPUs.

Usage: start.py FOLDER [further options of OpenRLHF]. FOLDER is what ``make_assets.py`` made.
"""

import runpy
import shutil
import sys
import tempfile
from pathlib import Path

import ray

folder = Path(sys.argv[1])
HERE = Path(__file__).parent
OPTIONS = {
    "actor.model_name_or_path": folder / "model",
    "data.prompt_dataset": folder / "prompts.jsonl",
    "data.input_key": "input",
    "data.label_key": "label",
    "data.max_len": 96,
    "reward.remote_url": HERE / "reward.py",
    "rollout.max_new_tokens": 12,
    "rollout.batch_size": 4,
    "rollout.n_samples_per_prompt": 4,
    "rollout.micro_batch_size": 4,
    "train.batch_size": 16,
    "train.micro_batch_size": 4,
    "train.num_episodes": 1,
    "train.max_epochs": 1,
    "data.max_samples": 12,
    "algo.advantage.estimator": "group_norm",
    "actor.num_nodes": 1,
    "actor.num_gpus_per_node": 2,
    "ref.num_nodes": 1,
    "ref.num_gpus_per_node": 2,
    "vllm.num_engines": 1,
    "vllm.sync_backend": "gloo",
    "ds.zero_stage": 0,
    "ds.attn_implementation": "eager",
    "ckpt.output_dir": folder / "final",
    "ckpt.path": folder / "checkpoints",
    "logger.tensorboard_dir": folder / "tensorboard",
}
ray_folder = tempfile.mkdtemp(prefix="ray")  # a short one: sockets lie below it
ray.init(num_cpus=16, num_gpus=8, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=ray_folder)
given = sys.argv[2:]
sys.argv = ["train_ppo_ray", *(f"--{key}={value}" for key, value in OPTIONS.items()), *given]
try:
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
finally:
    ray.shutdown()
    shutil.rmtree(ray_folder, ignore_errors=True)
