"""The names of vLLM that ROLL's VllmStrategy imports. The engine is roll.third_party.vllm (tiny_engine)."""

__version__ = "0.15.0"
from vllm.sampling_params import SamplingParams as SamplingParams


class RequestOutput:
    pass
