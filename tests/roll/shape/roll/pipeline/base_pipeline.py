"""What all pipelines have."""

from __future__ import annotations

from concurrent import futures
from types import SimpleNamespace

from roll.distributed.executor.model_update_group import ModelUpdateGroup
from roll.distributed.scheduler.protocol import DataProto
from roll.utils.tracking import create_tracker


class BasePipeline:
    def __init__(self, pipeline_config):
        self.pipeline_config = pipeline_config
        self.resource_manager = None
        self.state = SimpleNamespace(step=-1, log_history=[], kv={})
        self.tracker = create_tracker(tracker_name=pipeline_config.track_with, config={})
        self.executor = futures.ThreadPoolExecutor(max_workers=5)
        self.model_update_groups: list[ModelUpdateGroup] = []
        self.checkpoint_clusters: list = []

    def run(self):
        pass

    def set_model_update_pair(self, src_cluster, tgt_cluster, frequency=1):
        self.model_update_groups.append(ModelUpdateGroup(src_cluster, tgt_cluster, self.pipeline_config, frequency))

    def model_update(self, global_step):
        metrics: dict = {}
        for group in self.model_update_groups:
            metrics.update(group.model_update(global_step))
            group.tgt_cluster.process_weights_after_loading()
        return metrics

    def do_checkpoint(self, global_step, is_last_step=None):
        metrics = self.state.log_history[-1]
        metrics["system/step"] = global_step
        if global_step == self.pipeline_config.max_steps - 1:
            for cluster in self.checkpoint_clusters:
                refs = cluster.do_checkpoint(global_step=global_step, is_last_step=is_last_step, blocking=False)
                metrics.update(DataProto.materialize_concat(data_refs=refs).meta_info["metrics"])
