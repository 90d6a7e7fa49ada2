"""Routers of requests to servers, and the proxies by which clients reach them."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from roll.distributed.scheduler.protocol import DataProto


class RouterManager:
    def __init__(self, actor_cluster, router_args, num_gpus_per_node):
        kind = PromptAffinityRouter if router_args.router_name == "PromptAffinityRouter" else EnvAffinityRouter
        self.router: Any = kind(actor_cluster.workers)
        self.inflight_requests: set[str] = set()
        self.need_suspend = self.need_shutdown = False

    async def initialize(self):
        self.resumed, self.empty = asyncio.Event(), asyncio.Event()
        await self.router.initialize()

    async def generate_request(self, payload, request_id, uid):
        return await self.router.generate_request(payload=payload, request_id=request_id, uid=uid)

    async def abort_all(self):
        await self.router.abort_all(list(self.inflight_requests))

    async def on_send_request(self, request_id) -> bool:
        while self.need_suspend:
            await self.resumed.wait()
        if self.need_shutdown:
            return False
        self.inflight_requests.add(request_id)
        return True

    async def on_request_routed(self, request_id):
        self.inflight_requests.remove(request_id)
        self.empty.set()

    def suspend(self):
        self.need_suspend = True
        self.resumed.clear()

    async def resume(self):
        self.need_suspend = False
        self.resumed.set()

    async def shutdown(self):
        self.need_shutdown = True
        await self.abort_all()
        await self.resume()
        await self.wait_complete()

    async def wait_complete(self):
        while self.inflight_requests:
            self.empty.clear()
            await self.empty.wait()


class InprocProxy:
    def __init__(self, router_manager: RouterManager):
        self.router_manager = router_manager

    async def generate_request(self, payload, request_id, uid):
        return await self.router_manager.generate_request(payload=payload, request_id=request_id, uid=uid)

    async def on_send_request(self, request_id):
        return await self.router_manager.on_send_request(request_id)

    async def on_request_routed(self, request_id):
        return await self.router_manager.on_request_routed(request_id)


class RayProxy:
    def __init__(self, router_manager: Any):
        self.router_manager = router_manager

    async def on_send_request(self, request_id):
        return await self.router_manager.on_send_request.remote(request_id)

    def generate_request_sync(self, payload, request_id, uid):
        return ray.get(self.router_manager.generate_request.remote(payload=payload, request_id=request_id, uid=uid))

    def on_send_request_sync(self, request_id):
        return ray.get(self.router_manager.on_send_request.remote(request_id))

    def on_request_routed_sync(self, request_id):
        return ray.get(self.router_manager.on_request_routed.remote(request_id))


class RouterClient:
    def __init__(self, proxy, meta):
        self.proxy = proxy

    def _preprocess_generate(self, req, request_id):
        sampling = {"n": 1, "hold": req.meta_info.get("hold", False)}
        return {"rid": request_id, "input_ids": req.batch["input_ids"][0].tolist(), "sampling_params": sampling}

    def _postprocess_generate(self, req, response):
        said = {key: response[key] for key in ("finish_reasons", "output_token_ids")}
        return DataProto(meta_info={**req.meta_info, **said})

    async def generate_request(self, req: DataProto, request_id, uid):
        payload = self._preprocess_generate(req, request_id)
        if not await self.proxy.on_send_request(request_id):
            return None
        try:
            response = await self.proxy.generate_request(payload=payload, request_id=request_id, uid=uid)
        finally:
            await self.proxy.on_request_routed(request_id)
        return self._postprocess_generate(req, response)

    def generate_request_sync(self, req: DataProto, request_id, uid):
        payload = self._preprocess_generate(req, request_id)
        if not self.proxy.on_send_request_sync(request_id):
            return None
        try:
            response = self.proxy.generate_request_sync(payload=payload, request_id=request_id, uid=uid)
        finally:
            self.proxy.on_request_routed_sync(request_id)
        return self._postprocess_generate(req, response)


class PromptAffinityRouter:
    """Sends the requests of one prompt to one server."""

    def __init__(self, workers):
        self.workers = workers

    async def initialize(self):
        self.loads, self.rank_of = dict.fromkeys(range(len(self.workers)), 0), {}
        self.inflight: list[set[str]] = [set() for _ in self.workers]
        self.lock, self.event = asyncio.Lock(), asyncio.Event()

    async def generate_request(self, payload, request_id, uid):
        credit = payload["sampling_params"]["n"]
        dp_rank = None
        async with self.lock:
            if uid not in self.rank_of:
                dp_rank = self.rank_of[uid] = await self.acquire(credit=credit)
        if dp_rank is None:
            dp_rank = self.rank_of[uid]
            await self.reacquire(dp_rank=dp_rank, credit=credit)
        try:
            self.inflight[dp_rank].add(request_id)
            return await self.workers[dp_rank].generate_request.remote(payload)
        finally:
            self.inflight[dp_rank].remove(request_id)
            self.release(dp_rank=dp_rank, credit=credit)

    async def abort_all(self, request_ids):
        calls = zip(self.workers, self.inflight, strict=True)
        await asyncio.gather(*[worker.abort_requests.remote(list(ids)) for worker, ids in calls])
        self.rank_of.clear()

    async def acquire(self, credit: int) -> int:
        target = min(self.loads, key=self.loads.__getitem__)
        self.loads[target] += credit
        return target

    async def reacquire(self, dp_rank: int, credit: int):
        self.loads[dp_rank] += credit

    def release(self, dp_rank: int, credit: int):
        self.loads[dp_rank] -= credit


class EnvAffinityRouter:
    """Sends the requests of one environment to one server, without a limit."""

    def __init__(self, workers):
        self.workers = workers

    async def initialize(self):
        pass

    async def generate_request(self, payload, request_id, uid):
        return await self.workers[uid % len(self.workers)].generate_request.remote(payload)

    async def abort_all(self, request_ids):
        pass
