"""Lets verl 0.9 train and generate on a CPU, twice with the same result. Every process of verl imports it.

``VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=verl_cpu.device`` are the variables that make verl do so.
"""

import functools
from contextlib import nullcontext
from types import ModuleType

import psutil
import torch
import verl.utils.distributed
import verl.utils.fsdp_utils
from torch.distributed.fsdp import CPUOffloadPolicy
from transformers import AutoModelForTokenClassification
from verl.plugin.platform import PlatformBase, PlatformRegistry
from verl.workers.rollout import base, replica
from verl_cpu import repeatable


def nothing(*_, **__):
    return None


class Device(ModuleType):
    """Stands for ``torch.cuda`` where verl asks for the module of its device."""

    empty_cache = ipc_collect = reset_peak_memory_stats = set_device = staticmethod(nothing)
    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(lambda state, *_: torch.set_rng_state(state))
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    is_available = staticmethod(lambda: True)
    current_device = staticmethod(lambda: torch.device("cpu"))
    get_device_name = staticmethod(lambda *_: "CPU")
    memory_stats = staticmethod(lambda *_: {})
    memory_allocated = max_memory_allocated = memory_reserved = max_memory_reserved = staticmethod(lambda *_: 0)

    def __getattr__(self, name):
        return getattr(torch.cpu, name)

    @staticmethod
    def mem_get_info(*_):
        memory = psutil.virtual_memory()
        return memory.available, memory.total


@PlatformRegistry.register(platform="cpu")
class Platform(PlatformBase):
    """What verl asks of a kind of device. Ray counts the ranks as GPUs that are not there."""

    device_name = vendor_name = "cpu"
    device_module = Device("verl_cpu_device")

    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = nothing

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg):
        return nullcontext()

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False


def load_replica():
    from verl_cpu.engine import Replica

    return Replica


def load_critic(load, *args, **kwargs):
    return load(*args, **{**kwargs, "attn_implementation": "eager"})


# verl asks for "cpu:gloo,cpu:gloo", which torch refuses.
verl.utils.distributed.initialize_global_process_group_ray = functools.partial(
    verl.utils.distributed.initialize_global_process_group_ray, backend="gloo"
)
# The reference policy waits in pinned memory, which needs a GPU.
verl.utils.fsdp_utils.CPUOffloadPolicy = lambda pin_memory: CPUOffloadPolicy(pin_memory=False)
# A critic is loaded with flash-attention, whatever the settings say.
AutoModelForTokenClassification.from_pretrained = functools.partial(
    load_critic, AutoModelForTokenClassification.from_pretrained
)
base._ROLLOUT_REGISTRY["cpu", "async"] = "verl_cpu.engine.Adapter"
replica.RolloutReplicaRegistry.register("cpu", load_replica)
repeatable.patch()
