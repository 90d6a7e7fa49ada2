"""Stands in for roll.third_party.vllm: an asynchronous engine with the interface that VllmStrategy uses.

It samples token by token with transformers on one thread. A request's random numbers depend on the seed, the weights'
version, the prompt and how many requests that prompt had before, so a run repeats whatever the order of the requests.
"""

import asyncio
import hashlib
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch
from roll.utils.collective import collective
from roll.utils.cuda_ipc_utils import MultiprocessingSerializer
from roll.utils.logging import get_logger
from roll.utils.send_recv_utils import named_tensors_from_bucket
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

logger = get_logger()
TOKEN_S = float(os.environ.get("ROLL_CPU_TOKEN_S", "0"))  # makes generation as slow as wanted


class TinyAsyncLLM:
    def __init__(self, model, dtype, seed, **kwargs):
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)).eval()  # load_format: dummy
        self.seed, self.version, self.aborted, self.running = seed, 0, set(), set()
        self.counts = Counter()
        self.thread = ThreadPoolExecutor(1)
        self.is_loaded = True

    def get_tokenizer(self):
        return self.tokenizer

    async def _call(self, function, *args):
        return await asyncio.get_running_loop().run_in_executor(self.thread, function, *args)

    async def reset_prefix_cache(self):
        pass

    async def load_states(self):
        self.is_loaded = True

    async def offload_states(self, level=1):
        self.is_loaded = False

    async def process_weights_after_loading(self):
        self.counts.clear()

    async def list_loras(self):
        return []

    async def setup_collective_group(self, master_address, master_port, rank_offset, world_size, group_name, backend):
        await self._call(
            lambda: collective.init_collective_group(
                world_size,
                rank=rank_offset,
                backend=backend,
                group_name=group_name,
                master_addr=master_address,
                master_port=master_port,
            )
        )

    async def broadcast_parameter(self, names, dtypes, shapes, group_name, is_lora=False):
        def receive():
            pairs = []
            for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
                weight = torch.empty(shape, dtype=dtype)
                pairs.append((name, weight, collective.broadcast(weight, 0, group_name, async_op=True)))
            for _, _, handle in pairs:
                handle.wait()
            self._load([(name, weight) for name, weight, _ in pairs])

        await self._call(receive)

    async def update_parameter_in_bucket(self, serialized_named_tensors, is_lora=False):
        def receive():
            data = MultiprocessingSerializer.deserialize(serialized_named_tensors[0])
            self._load(named_tensors_from_bucket(data["bucket"], data["tensors_meta"]))

        await self._call(receive)

    def _load(self, pairs):
        state = self.model.state_dict()
        for name, weight in pairs:
            state[name].copy_(weight)
        self.version += 1

    async def abort(self, request_id):
        if request_id in self.running:
            self.aborted.add(request_id)

    def _sample(self, ids, params, generator):
        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0, -1].float()
        scores = logits / max(params.temperature, 1e-4)
        if params.top_k and params.top_k > 0:
            top = torch.topk(scores, min(params.top_k, scores.numel()))
            scores = torch.full_like(scores, float("-inf")).scatter(0, top.indices, top.values)
        probabilities = torch.softmax(scores, -1)
        token = int(torch.multinomial(probabilities, 1, generator=generator))
        if TOKEN_S:
            time.sleep(TOKEN_S)
        return token, float(torch.log_softmax(logits, -1)[token])

    async def _one(self, prompt, params, request_id):
        key = (self.version, tuple(prompt))
        number = self.counts[key]
        self.counts[key] += 1
        digest = hashlib.sha256(f"{self.seed} {key} {number}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        tokens, logprobs, reason = [], [], "length"
        stop = set(params.stop_token_ids or [])
        while len(tokens) < params.max_tokens:
            if request_id in self.aborted:
                reason = "abort"
                break
            token, logprob = await self._call(self._sample, prompt + tokens, params, generator)
            tokens.append(token)
            logprobs.append({token: SimpleNamespace(logprob=logprob)})
            if token in stop:
                reason = "stop"
                break
        return SimpleNamespace(token_ids=tokens, logprobs=logprobs, finish_reason=reason)

    async def generate(self, prompt, sampling_params, request_id, lora_request=None):
        self.running.add(request_id)
        try:
            ids = list(prompt["prompt_token_ids"])
            outputs = [await self._one(ids, sampling_params, request_id) for _ in range(sampling_params.n)]
            yield SimpleNamespace(outputs=outputs, request_id=request_id)
        finally:
            self.running.discard(request_id)
            self.aborted.discard(request_id)


async def create_async_llm(resource_placement_groups, **kwargs):
    logger.info(f"tiny engine instead of vLLM: {kwargs}")
    return TinyAsyncLLM(**kwargs)
