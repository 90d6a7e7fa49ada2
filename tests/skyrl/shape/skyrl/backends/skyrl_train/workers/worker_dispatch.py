"""The driver's calls to its ranks; of each model there is one here."""

from __future__ import annotations

from typing import Any


class WorkerDispatch:
    def __init__(self, workers: dict, client: Any) -> None:
        self.workers, self.client = workers, client

    def forward(
        self,
        model: str,
        data: Any,
        loss_fn: Any = None,
        loss_fn_config: Any = None,
        model_id: Any = None,
        **worker_kwargs: Any,
    ):
        return self.workers[model].forward(data=data)

    def forward_from_staged(
        self,
        model: str,
        chunk_refs: list,
        loss_fn: Any = None,
        loss_fn_config: Any = None,
        model_id: Any = None,
        **worker_kwargs: Any,
    ):
        return self.workers[model].forward(chunk_refs[0])

    async def save_weights_for_sampler(self, model_id: Any = None):
        await self.client.wake_up(tags=["weights"])
        await self.workers["policy"].broadcast_to_inference_engines(None, None)
