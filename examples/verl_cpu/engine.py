"""A rollout engine for verl without a GPU and vLLM: transformers, one token at a time, in an actor of Ray."""

import asyncio
import os

import ray
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator


def name_of(replica_rank):
    return f"cpu_server_{replica_rank}"


@ray.remote(num_cpus=0)
class Server:
    """Holds a copy of the policy; answers while it is awake, one request after the other."""

    def __init__(self, response_length, path):
        torch.set_num_threads(1)
        self.response_length = response_length
        self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.float32).eval()
        self.global_steps = None
        self.awake = asyncio.Event()
        self.free = asyncio.Lock()

    async def ready(self):
        pass

    async def wake_up(self, tags=None):
        self.awake.set()

    resume_generation = wake_up

    async def sleep(self):
        self.awake.clear()

    async def nothing(self, *_, **__):
        pass

    abort_all_requests = clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = nothing

    async def set_global_steps(self, global_steps):
        self.global_steps = global_steps

    async def load_weights(self, weights):
        self.model.load_state_dict(dict(weights))

    async def generate(self, prompt_ids, sampling_params, request_id, image_data=None, video_data=None, **_):
        await self.awake.wait()
        async with self.free:
            tokens, logprobs = await asyncio.to_thread(self.sample, prompt_ids, **sampling_params)
        return TokenOutput(
            token_ids=tokens,
            log_probs=logprobs if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": self.global_steps},
        )

    @torch.no_grad()
    def sample(self, prompt_ids, max_tokens=None, temperature=1.0, seed=0, **_):
        """Return new tokens and their log-probabilities."""
        generator = torch.Generator().manual_seed(seed)
        next_ids, past, tokens, logprobs = torch.tensor([prompt_ids]), None, [], []
        while len(tokens) < (max_tokens or self.response_length):
            output = self.model(input_ids=next_ids, past_key_values=past, use_cache=True)
            past = output.past_key_values
            scores = torch.log_softmax(output.logits[0, -1] / (temperature or 1.0), -1)
            token = int(torch.multinomial(scores.exp(), 1, generator=generator) if temperature else scores.argmax())
            tokens.append(token)
            logprobs.append(float(scores[token]))
            if token == self.model.config.eos_token_id:
                break
            next_ids = torch.tensor([[token]])
        return tokens, logprobs


class Replica(RolloutReplica):
    """Starts a server, on verl's side."""

    async def launch_servers(self):
        options = {"name": name_of(self.replica_rank), "max_concurrency": 64}
        server = Server.options(**options).remote(self.config.response_length, self.model_config.path)
        await server.ready.remote()
        self._server_address = f"127.0.0.1:{8000 + self.replica_rank}"  # nobody listens; verl knows servers by it
        self._server_handle = server
        self.servers = [server]


class Adapter(BaseRollout):
    """Lives in each rank; the first rank of a replica wakes its server, puts it to sleep and sends it weights."""

    def __init__(self, config, model_config, device_mesh, replica_rank=-1):
        super().__init__(config, model_config, device_mesh)
        replica, rank = divmod(int(os.environ["RANK"]), self.config.tensor_model_parallel_size)
        self.replica_rank = replica if replica_rank == -1 else replica_rank
        self.is_first = rank == 0

    @property
    def server(self):
        return ray.get_actor(name_of(self.replica_rank))

    async def resume(self, tags):
        if self.is_first:
            await self.server.wake_up.remote(tags)

    async def release(self):
        if self.is_first:
            await self.server.sleep.remote()

    async def update_weights(self, weights, wire_format="named_tensors", global_steps=None, **_):
        named = [
            (name, weight.detach().to("cpu", torch.float32).clone())
            async for name, weight in ensure_async_iterator(weights)
        ]
        if self.is_first:
            await self.server.load_weights.remote(named)
            if global_steps is not None:
                await self.server.set_global_steps.remote(global_steps)
