"""Batches: tensors, which are arrays here, whatever else there is of each row, and what is said of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray
import torch


class Tensors(dict):
    @property
    def batch_size(self) -> tuple[int]:
        return (len(next(iter(self.values()))),)


class DataProto:
    def __init__(self, batch: Any = None, non_tensor_batch: Any = None, meta_info: Any = None):
        self.batch = None if batch is None else Tensors(batch)
        self.non_tensor_batch = non_tensor_batch or {}
        self.meta_info = {} if meta_info is None else meta_info

    def rows(self, chosen: Any) -> DataProto:
        tensors = {key: value[chosen] for key, value in self.batch.items()}
        return DataProto(tensors, {key: value[chosen] for key, value in self.non_tensor_batch.items()}, self.meta_info)

    def chunk(self, chunks: int) -> list[DataProto]:
        return [self.rows(part) for part in np.array_split(np.arange(self.batch.batch_size[0]), chunks)]

    def to(self, device: str) -> DataProto:
        """Make tensors of the arrays."""
        return DataProto(
            {key: torch.as_tensor(value, device=device) for key, value in self.batch.items()},
            self.non_tensor_batch,
            self.meta_info,
        )

    def union(self, other: DataProto) -> DataProto:
        self.batch.update(other.batch)
        return self

    @staticmethod
    def concat(data: list[DataProto]) -> DataProto:
        tensors, names = (
            {key: np.concatenate([one[key] for one in parts]) for key in parts[0] or ()}
            for parts in ([one.batch for one in data], [one.non_tensor_batch for one in data])
        )
        return DataProto(tensors or None, names, data[0].meta_info)

    @staticmethod
    def materialize_concat(data_refs: Any) -> DataProto:
        return DataProto.concat(ray.get(data_refs))
