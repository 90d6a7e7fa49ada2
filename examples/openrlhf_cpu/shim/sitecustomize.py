"""Let OpenRLHF find a CPU where it asks for a GPU: in every process, and before anything else runs."""

import importlib.util
import sys


class Cpu(str):
    """The device's name, and its number where OpenRLHF writes that into another name, which it does not use."""

    def __format__(self, spec):
        return "0"


class OnceTorchIsThere:
    """A finder that completes torch when its import is over."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            pretend(module)

        spec.loader.exec_module = exec_module
        return spec


def pretend(torch):
    """Answer for a device that is the CPU, and draw the same prompts in each training."""
    torch.manual_seed(1)
    torch.cuda.set_device = lambda device: None
    torch.cuda.current_device = lambda: Cpu("cpu")
    torch.cuda.current_stream = lambda device=None: None
    torch.cuda.empty_cache = torch.cuda.synchronize = lambda device=None: None
    import torch.distributed.device_mesh as meshes

    make = meshes.init_device_mesh
    meshes.init_device_mesh = lambda kind, *args, **kwargs: make("cpu", *args, **kwargs)


sys.meta_path.insert(0, OnceTorchIsThere())
