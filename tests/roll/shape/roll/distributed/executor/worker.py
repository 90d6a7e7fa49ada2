"""What all workers have."""

from __future__ import annotations

import os

from roll.distributed.scheduler.decorator import Dispatch, register
from roll.distributed.scheduler.protocol import DataProto
from roll.utils.context_managers import state_offload_manger


class Worker:
    def __init__(self, worker_config):
        self.worker_config = worker_config
        self.cluster_name, self.worker_name = os.environ["CLUSTER_NAME"], os.environ["WORKER_NAME"]
        self.rank = int(os.environ["RANK"])

    def initialize(self, pipeline_config, *args, **kwargs):
        self.pipeline_config = pipeline_config

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_states(self, *args, **kwargs):
        if getattr(self, "strategy", None) is not None:
            self.strategy.load_states()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def offload_states(self, *args, **kwargs):
        if getattr(self, "strategy", None) is not None:
            self.strategy.offload_states()

    def start_model_update(self, *args, **kwargs):
        metrics: dict = {}
        infix = f"{self.cluster_name}/model_update"
        with state_offload_manger(strategy=self.strategy, metrics=metrics, metric_infix=infix):
            self.strategy.model_update(*args, **kwargs)
        return DataProto(meta_info={"metrics": metrics})
