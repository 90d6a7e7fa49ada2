"""What ROLL needs to run on a machine without a GPU. ROLL is not edited: four modules are completed after import.

roll.platforms                a platform whose devices are pretended: `ROLL_CPU_DEVICES` of them, seen by Ray as GPUs
roll.third_party.vllm         replaced: `create_async_llm` returns an engine of ours, `tiny_engine`
roll.utils.cuda_ipc_utils     weights travel as bytes, not as handles of device memory
roll.utils.send_recv_utils    no patch of torch's CUDA reductions
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types


def _platforms(module):  # noqa: C901 - one class
    import torch
    from roll.platforms.cpu import CpuPlatform
    from roll.platforms.platform import Platform

    class PretendedPlatform(CpuPlatform):
        ray_device_key = "GPU"
        device_control_env_var = "CUDA_VISIBLE_DEVICES"
        ray_experimental_noset = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"

        @classmethod
        def get_custom_env_vars(cls):
            return {**Platform.get_common_envs(), "RAY_get_check_signal_interval_milliseconds": "1"}

        def device_count(self):
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            if os.environ.get("WORKER_NAME") and visible:
                return len(visible.split(","))
            return int(os.environ.get("ROLL_CPU_DEVICES", "2"))

        def current_device(self):
            return torch.device("cpu")

        def _rss(self, device=None):
            import psutil

            return psutil.Process().memory_info().rss

        memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = _rss

        def device_memory_used(self):
            return self._rss()

        def mem_get_info(self, device=None):
            total = 16 * 1024**3
            return total - self._rss(), total

        def _nothing(self, *args, **kwargs):
            return None

        init = _nothing
        reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats = _nothing
        empty_cache = synchronize = set_device = _nothing

        def is_available(self):
            return True

        random = types.SimpleNamespace(get_rng_state_all=lambda: [], set_rng_state_all=lambda states: None)

        def get_rng_state(self, *args):
            return torch.get_rng_state()

        def set_rng_state(self, state, *args):
            torch.set_rng_state(state)

    module.current_platform = PretendedPlatform()


def _ipc(module):
    import io

    import torch

    def serialize(obj, output_str=False):
        buffer = io.BytesIO()
        torch.save(obj, buffer)
        return buffer.getvalue()

    def deserialize(data):
        return torch.load(io.BytesIO(data), weights_only=False)

    module.MultiprocessingSerializer.serialize = staticmethod(serialize)
    module.MultiprocessingSerializer.deserialize = staticmethod(deserialize)


def _send_recv(module):
    module.monkey_patch_torch_reductions = lambda: None


AFTER = {"roll.platforms": _platforms, "roll.utils.cuda_ipc_utils": _ipc, "roll.utils.send_recv_utils": _send_recv}
REPLACED = {"roll.third_party.vllm": "tiny_engine"}


class _Loader(importlib.abc.Loader):
    def __init__(self, loader, after):
        self.loader, self.after = loader, after

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        self.after(module)

    def __getattr__(self, name):
        return getattr(self.loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in REPLACED:
            origin = os.path.join(os.path.dirname(__file__), REPLACED[name] + ".py")
            return importlib.util.spec_from_file_location(name, origin, submodule_search_locations=[])
        if name not in AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _Loader(spec.loader, AFTER[name])
        return spec


def install():
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    gdn = types.ModuleType("roll.third_party.vllm.gdn_patcher")
    gdn.patch_gdn_attention = lambda: None
    sys.modules.setdefault(gdn.__name__, gdn)
