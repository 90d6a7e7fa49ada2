"""Clusters: actors of one class, told by their environment who they are, whose registered methods it binds."""

from __future__ import annotations

from typing import Any

import ray
from ray.runtime_env import RuntimeEnv
from roll.distributed.scheduler.decorator import BIND_WORKER_METHOD_FLAG, Dispatch, func_generator
from roll.distributed.scheduler.protocol import DataProto

RAY_NAMESPACE = "roll"


def _is_async(kind: type) -> bool:
    return any(getattr(getattr(kind, name), "__code__", None) and getattr(kind, name).__code__.co_flags & 0x80
               for name in dir(kind))  # fmt: skip


class Cluster:
    def __init__(self, name, worker_cls, resource_manager, worker_config):
        self.cluster_name, self.worker_config = name, worker_config
        self.world_size = worker_config.world_size
        kind = ray.remote(worker_cls)
        self.workers: list[Any] = []
        for rank in range(self.world_size):
            worker_name = f"{name}-{rank}"
            env_vars = {"WORLD_SIZE": str(self.world_size), "RANK": str(rank), "LOCAL_RANK": "0"}
            env_vars |= {"CLUSTER_NAME": name, "WORKER_NAME": worker_name}
            options = {"name": worker_name, "namespace": RAY_NAMESPACE, "runtime_env": RuntimeEnv(env_vars=env_vars)}
            options |= {"num_cpus": 0.01, "max_concurrency": 1000 if _is_async(worker_cls) else 1}
            self.workers.append(kind.options(**options).remote(worker_config=worker_config))
        for method_name in dir(worker_cls):
            attribute = getattr(getattr(worker_cls, method_name), BIND_WORKER_METHOD_FLAG, None)
            if attribute is not None:
                functions = _to_all if attribute["dispatch_mode"] is Dispatch.ONE_TO_ALL else _to_ranks, _collect
                setattr(self, method_name, func_generator(self, method_name, *functions, self.execute_all_async))

    def execute_all_async(self, method_name: str, *args, **kwargs):
        if args and all(isinstance(arg, list) and len(arg) == len(self.workers) for arg in args):
            return [getattr(w, method_name).remote(*one) for w, *one in zip(self.workers, *args, strict=True)]
        return [getattr(worker, method_name).remote(*args, **kwargs) for worker in self.workers]


def _to_all(cls, *args, **kwargs):
    return args, kwargs


def _to_ranks(cls, data):
    return (data.chunk(len(cls.workers)),), {}


def _collect(cls, output):
    return DataProto.concat(output) if output and isinstance(output[0], DataProto) else output
