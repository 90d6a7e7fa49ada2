"""Instrument a Python process from outside: `otel-rl run` puts this directory first on PYTHONPATH.

Python imports `sitecustomize` at its start; the one that this file shadows runs first, as it would without us. The file
is read by whatever interpreter the command starts, so it keeps to old syntax and stays silent where otel_rl is not
installed.
"""

import os
import sys


def _run_shadowed() -> None:
    """Run the sitecustomize that Python would have found without this one."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _is_off() -> bool:
    """Whether the settings switch everything off: then nothing of ours is imported, which takes 0.3 s."""
    enabled, disabled = (os.environ.get(name, "").strip().lower() for name in ("OTEL_RL_ENABLED", "OTEL_SDK_DISABLED"))
    return enabled in ("false", "0", "no", "off") or disabled == "true"


def _autoload() -> None:
    """Switch otel_rl on, where this interpreter has it."""
    if _is_off():
        return
    try:
        from otel_rl.guard import guard
    except ImportError:
        return
    with guard("start with the process"):
        from otel_rl import entry

        entry.autoload()


try:
    _run_shadowed()
finally:
    _autoload()
