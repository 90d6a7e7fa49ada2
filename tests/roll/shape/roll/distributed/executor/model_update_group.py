"""Who sends weights to whom."""

from __future__ import annotations

import ray


class ModelUpdateGroup:
    def __init__(self, src_cluster, tgt_cluster, pipeline_config, frequency=1):
        self.src_cluster, self.tgt_cluster = src_cluster, tgt_cluster

    def model_update(self, step=None):
        calls = [worker.start_model_update.remote(model_update_name="pair") for worker in self.src_cluster.workers]
        return ray.get(calls)[0].meta_info["metrics"]
