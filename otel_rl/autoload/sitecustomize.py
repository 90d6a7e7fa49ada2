"""Instrument a Python process from outside: `otel-rl run` puts this directory first on PYTHONPATH.

Python imports `sitecustomize` at its start; the one that this file shadows runs first, as it would without us. Then
nothing happens until the program imports a framework, OpenTelemetry or otel_rl: a Python that has nothing to record
does not pay for the import of otel_rl, 0.3 s and 30 MB. Neither does a process of Ray's that gets no actor and no task.

The file is read by whatever interpreter the command starts, so it keeps to old syntax, imports next to nothing, and
stays silent where otel_rl is not installed.
"""

import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # the import of `typing` takes 4 ms
    from typing import Any
else:
    Any = object

FRAMEWORKS = frozenset((
    "accelerate", "areal", "codetiming", "deepspeed", "megatron", "miles", "nemo_rl", "openai", "openrlhf",
    "prime_rl", "ray", "rl_insight", "roll", "sglang", "skyrl", "slime", "torch", "torch_npu", "transformers", "trl",
    "verl", "vllm",
))  # fmt: skip
"""Packages that integrations hook: otel_rl starts before the first of them runs."""
PARTS = frozenset(("opentelemetry", "otel_rl"))
"""Packages that otel_rl needs itself: it starts when their import is over, since half of one is of no use to it."""
WORKER = "/ray/_private/workers/default_worker.py"
"""The program of a process that Ray keeps for an actor or for tasks; many never get any."""
MANAGER = "ray._private.function_manager"
CALLS = "load_actor_class", "get_execution_info"
"""Methods of its function manager: what such a process calls first for an actor, and for a task."""
WAIT_S = 10.0
"""How long the import of a framework waits for another thread that starts otel_rl. Without a limit, two threads that
each hold what the other needs would wait for ever."""


class FirstImport:
    """A finder that starts otel_rl with the first import of one of some packages; other finders find the modules.

    To look for a package (`importlib.util.find_spec`) is no import. Loaders stay what they are: two of their methods
    are replaced until the module has been run.
    """

    def __init__(self, packages: Any) -> None:
        self.packages = packages
        self.lock = _thread.RLock()
        self.is_started = False
        self.running: Any = _thread._local()

    def install(self) -> None:
        """Wait for the import of one of the packages; where one is in use already, start now."""
        in_use = FRAMEWORKS | {
            name for name in ("opentelemetry.trace", "otel_rl.process.state") if _package(name) in self.packages
        }
        if in_use.isdisjoint(sys.modules):
            sys.meta_path.insert(0, self)
        else:
            self.start()

    def remove(self) -> None:
        """Stop waiting."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return what the finders after this one find, prepared to start otel_rl when it is loaded."""
        finders = list(sys.meta_path)
        if _package(name) not in self.packages or self not in finders:
            return None
        for finder in finders[finders.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find and find(name, path, target)
            if spec is not None:
                if _is_replaceable(spec.loader):
                    self._prepare(name, spec.loader)
                return spec
        return None

    def _prepare(self, name: str, loader: Any) -> None:
        """Choose when otel_rl starts: before a framework is run, after what it needs itself."""
        (self._before if _package(name) in FRAMEWORKS else self._after)(name, loader)

    def _before(self, name: str, loader: Any) -> None:
        """Start otel_rl before a module of a framework is run, of which no frame of ours is part."""
        create, execute = loader.create_module, loader.exec_module

        def create_module(spec: Any) -> Any:
            if spec.name != name:  # modules of a zip file share their loader
                return create(spec)
            self.start()  # not later: post-import hooks take for loaded what is in sys.modules
            if spec.loader is loader:
                _restore(loader)
                spec.loader = _hooked(name) or loader
            return create(spec)

        def exec_module(module: Any) -> None:  # only where the program replaced the loader, by a lazy one for example
            if module.__name__ == name:
                _restore(loader)
                self.start()
            execute(module)
            wrapt = sys.modules.get("wrapt")
            if wrapt is not None:
                wrapt.notify_module_loaded(module)

        loader.create_module, loader.exec_module = create_module, exec_module

    def _after(self, name: str, loader: Any) -> None:
        """Start otel_rl after a module of a package that it needs was run, and all that imported it there."""
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            if module.__name__ == name:
                _restore(loader)
            self.running.depth = getattr(self.running, "depth", 0) + 1
            try:
                execute(module)
            finally:
                self.running.depth -= 1
            if not self.running.depth:
                self.start(0.0)  # never wait here: another thread that starts otel_rl may wait for this module

        loader.exec_module = exec_module

    def start(self, wait_s: float = WAIT_S) -> None:
        """Start otel_rl once; where another thread does, wait for it."""
        if not self.lock.acquire(timeout=wait_s):
            if wait_s:
                self.remove()  # it waits once: the other thread may be one that is gone after a fork
            return
        try:
            if not self.is_started:
                self.is_started = True
                _autoload()
                self.remove()  # at the end: until then, imports of other threads come by and wait
        finally:
            self.lock.release()


class FirstCall(FirstImport):
    """Does the same in a process of Ray's for actors and tasks, but for Ray itself: there it waits for the first."""

    def _prepare(self, name: str, loader: Any) -> None:
        if _package(name) != "ray":
            super()._prepare(name, loader)
        elif name == MANAGER:
            self._with_call(loader)

    def _with_call(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            _restore(loader)
            execute(module)
            kind = getattr(module, "FunctionActorManager", object)
            if not vars(kind).keys() >= set(CALLS):
                self.start()
            else:
                for name in CALLS:
                    setattr(kind, name, self._starting(kind, name))

        loader.exec_module = exec_module

    def _starting(self, kind: Any, name: str) -> Any:
        method = vars(kind)[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            if vars(kind)[name] is call:
                setattr(kind, name, method)
            self.start()
            return method(*args, **kwargs)

        return call


def _package(name: str) -> str:
    return name.partition(".")[0]


def _is_replaceable(loader: Any) -> bool:
    """Return whether methods of a loader can be replaced; a namespace has none, and frozen modules share a class."""
    return hasattr(loader, "exec_module") and hasattr(loader, "__dict__") and not isinstance(loader, type)


def _hooked(name: str) -> Any:
    """Return the loader of a module that is being imported as wrapt gives it, which calls post-import hooks."""
    from importlib.util import find_spec

    spec = find_spec(name)
    return spec and spec.loader


def _restore(loader: Any) -> None:
    for method in ("create_module", "exec_module"):
        vars(loader).pop(method, None)


def _autoload() -> None:
    """Switch otel_rl on, where this interpreter has it."""
    try:
        from otel_rl.guard import guard
    except ImportError:
        return
    with guard("start with the process"):
        from otel_rl import entry

        entry.autoload()


def _run_shadowed() -> None:
    """Run the sitecustomize that Python would have found without this one."""
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec  # takes 5 ms

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _is_off() -> bool:
    """Return whether the settings switch everything off, or this is a process by which Ray manages a node."""
    if _is_helper_of_ray():
        return True
    enabled, disabled = (os.environ.get(name, "").strip().lower() for name in ("OTEL_RL_ENABLED", "OTEL_SDK_DISABLED"))
    return enabled in ("false", "0", "no", "off") or disabled == "true"


def _is_helper_of_ray() -> bool:
    """Return whether the program is one of Ray's own, but not the one that runs tasks and actors.

    The parts of Ray's dashboard are processes that multiprocessing starts.
    """
    command = getattr(sys, "orig_argv", ())
    if any("multiprocessing" in word for word in command):
        try:
            with open(f"/proc/{os.getppid()}/cmdline") as parent:
                command = parent.read().split("\0")
        except (OSError, ValueError):
            return False
    program = _program(command)
    folders = "/ray/_private/", "/ray/dashboard/", "/ray/autoscaler/"
    return not program.endswith(WORKER) and any(folder in program for folder in folders)


def _program(command: Any) -> str:
    return next((word for word in command[1:] if word.endswith(".py")), "")


if __name__ == "sitecustomize":
    try:
        _run_shadowed()
    finally:
        if not _is_off():
            _is_worker = _program(getattr(sys, "orig_argv", ())).endswith(WORKER)
            (FirstCall if _is_worker else FirstImport)(FRAMEWORKS | PARTS).install()
