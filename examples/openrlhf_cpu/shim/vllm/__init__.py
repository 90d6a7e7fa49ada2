"""The parts of vLLM that OpenRLHF uses. Its engine waits as long as an answer would take, and writes seeded tokens."""

import asyncio
import random
from collections import Counter
from types import SimpleNamespace

__version__ = "0.29.0"
TOKEN_S = 0.005
"""How long a token takes."""


class SamplingParams:
    def __init__(self, **values):
        vars(self).update(values)


class AsyncEngineArgs:
    def __init__(self, *args, **values):
        vars(self).update(values)


class AsyncLLMEngine:
    """Answers a prompt with tokens that depend on it, on the weights, and on how often it was asked with these."""

    def __init__(self, args):
        self.args, self.open, self.weights, self.asked = args, 0, 0, Counter()
        self.output_processor = SimpleNamespace(get_num_unfinished_requests=lambda: self.open)

    @classmethod
    def from_engine_args(cls, args):
        return cls(args)

    async def generate(self, prompt, sampling_params, request_id):
        self.open += 1
        try:
            ids = prompt["prompt_token_ids"]
            case = f"{ids} {self.weights}"
            self.asked[case] += 1
            draw = random.Random(f"{case} {self.asked[case]}")
            limit = sampling_params.max_tokens
            length = draw.randint(max(1, limit // 3), limit)
            await asyncio.sleep(length * TOKEN_S)
            tokens = [draw.randint(5, 250) for _ in range(length)]
            finish = "length" if length == limit else "stop"
            answer = SimpleNamespace(token_ids=tokens, text=str(tokens), finish_reason=finish, logprobs=None)
            yield SimpleNamespace(outputs=[answer], request_id=request_id)
        finally:
            self.open -= 1

    async def collective_rpc(self, method, args=()):
        self.weights += method == "update_weight" and args[3]  # the last parameter of an update
        return [None]

    async def is_sleeping(self):
        return False

    async def _nothing(self, *args, **kwargs):
        pass

    sleep = wake_up = reset_prefix_cache = pause_generation = resume_generation = _nothing
