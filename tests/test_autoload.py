"""The sitecustomize that `otel-rl run` puts in front."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest
import wrapt

from otel_rl.autoload import sitecustomize
from otel_rl.autoload.sitecustomize import FRAMEWORKS, FirstImport
from otel_rl.integrations import OURS, choice

pytestmark = pytest.mark.medium

AUTOLOAD = str(files("otel_rl") / "autoload")


def python(code: str, *paths: Path | str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run Python with directories on its path."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=False, env=environ
    )


ROOT = Path(__file__).parent.parent
LOADED = (
    "import sys; print(sorted(name for name in sys.modules if name.startswith(('otel', 'opentelemetry', 'wrapt'))))"
)
SHOWS = "import sys\nprint('otel_rl.process.state' in sys.modules and sys.modules['otel_rl.process.state'].state.on)\n"
"""A module that prints whether otel_rl is on while it runs."""


def test_a_process_is_instrumented_by_itself(tmp_path: Path) -> None:
    """The state is on as soon as the program has imported otel_rl."""
    result = python("from otel_rl.process.state import state; print(state.on)", AUTOLOAD, ROOT)
    assert ("True\n", "") == (result.stdout, result.stderr)


def test_a_process_without_a_framework_imports_nothing_of_ours() -> None:
    """Reward functions and Ray start Python by the hundred. To look for a framework is no import of it."""
    code = f"import importlib.util as util, json, logging; util.find_spec('openai'); util.find_spec('trl'); {LOADED}"
    assert ("[]\n", "") == (python(code, AUTOLOAD, ROOT).stdout, python(code, AUTOLOAD, ROOT).stderr)


def test_every_hooked_package_is_waited_for() -> None:
    """All that integrations name, and nothing else. wandb is hooked for the end of prime-rl, which comes before it."""
    integrations = [one for name, path in OURS.items() if (one := choice.load(name, path)) is not None]
    targets = [hook.target for one in integrations for hook in one.hooks]
    targets += [attachment.module for one in integrations for attachment in one.attachments]
    assert {*FRAMEWORKS, "wandb"} == {target.partition(":")[0].partition(".")[0] for target in targets}


def write(folder: Path, kind: str) -> Path:
    """Write something that `import sglang.known` imports, which shows whether otel_rl is on when it runs first."""
    if kind == "zip":
        with zipfile.ZipFile(folder / "packed.zip", "w") as packed:
            packed.writestr("other.py", "")
            packed.writestr("sglang/__init__.py", SHOWS)
            packed.writestr("sglang/known.py", "")
        return folder / "packed.zip"
    (folder / "other.py").touch()
    (folder / "sglang").mkdir()
    (folder / "sglang" / "known.py").write_text(SHOWS if kind == "namespace" else "")
    if kind == "package":
        (folder / "sglang" / "__init__.py").write_text(SHOWS)
    return folder


THREAD = """
import threading
def work(): import sglang.known
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("package", "import sglang.known"),
        ("namespace", "import sglang.known"),
        ("zip", "import importlib.util; importlib.util.find_spec('sglang'); import other; import sglang.known"),
        ("package", THREAD),
        ("package", "import os\nif os.fork(): os.wait()\nelse: import sglang.known"),
    ],
    ids=["package", "namespace", "zip", "thread", "fork"],
)
def test_a_framework_is_imported_into_a_process_that_records(tmp_path: Path, kind: str, code: str) -> None:
    """The state is on before the first line of it, and nothing is said."""
    result = python(code, AUTOLOAD, write(tmp_path, kind), ROOT)
    assert ("True\n", "") == (result.stdout, result.stderr)


def test_a_spawned_worker_records_once_it_imports_a_framework(tmp_path: Path) -> None:
    """Neither before that, nor the tracker of resources, nor a fork server."""
    (tmp_path / "sglang.py").write_text(SHOWS)
    (tmp_path / "task.py").write_text(f"def work():\n    {LOADED}\n    sys.stdout.flush()\n    import sglang\n")
    code = "import multiprocessing as mp, task\nfor method in ('spawn', 'forkserver'):\n"
    code += "    worker = mp.get_context(method).Process(target=task.work); worker.start(); worker.join()\n"
    result = python(code, AUTOLOAD, tmp_path, ROOT)
    assert ("[]\nTrue\n[]\nTrue\n", "") == (result.stdout, result.stderr)


MANAGER = """
class FunctionActorManager:
    def get_execution_info(self, x): return x
    def {0}(self, x): return x
"""
ON = "print('otel_rl.process.state' in sys.modules)\n"
WORKER = f"""
import sys
import ray._private.function_manager as functions
{ON}
manager = functions.FunctionActorManager()
for _ in range(2):
    print(*(getattr(manager, name)(2) for name in dir(manager) if name[0] != "_"))
{ON}
"""
DASHBOARD = f"""
import multiprocessing, sys
def part():
    import ray
    {ON}
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=part)
        process.start()
        process.join()
"""


@pytest.mark.parametrize(
    ("program", "method", "expected"),
    [
        ("_private/workers/default_worker.py", "load_actor_class", "False\n2 2\n2 2\nTrue\n"),
        ("_private/workers/default_worker.py", "other", "True\n2 2\n2 2\nTrue\n"),
        ("dashboard/dashboard.py", "load_actor_class", "False\nFalse\n"),
        ("other.py", "load_actor_class", "True\nTrue\n"),
    ],
    ids=["worker", "worker of another Ray", "dashboard", "program"],
)
def test_a_process_of_ray_waits_for_its_first_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, method: str, expected: str
) -> None:
    """Where it has one: Ray's dashboard and its parts never do."""
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "torch")
    ray = tmp_path / "ray"
    (ray / program).parent.mkdir(parents=True)
    (ray / "_private").mkdir(exist_ok=True)
    (ray / "__init__.py").touch()
    (ray / "_private" / "function_manager.py").write_text(MANAGER.format(method))
    (ray / program).write_text(WORKER if "worker" in program else DASHBOARD)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((AUTOLOAD, str(ROOT), str(tmp_path)))}
    ran = subprocess.run([sys.executable, ray / program], env=environ, capture_output=True, text=True, check=True)
    assert (expected, "") == (ran.stdout, ran.stderr)


def test_a_framework_that_a_shadowed_sitecustomize_imported_is_no_hindrance(tmp_path: Path) -> None:
    """The state is on before the first line of the program."""
    (tmp_path / "sglang.py").touch()
    (tmp_path / "sitecustomize.py").write_text("import sglang\n")
    assert "True\n" == python(SHOWS, AUTOLOAD, tmp_path, ROOT).stdout


@pytest.mark.parametrize("first", ["opentelemetry.trace", "opentelemetry.sdk.trace", "opentelemetry.context"])
def test_a_program_that_only_makes_spans_is_recorded(first: str) -> None:
    """OpenTelemetry's modules are run once, and our provider serves the spans."""
    code = f"import {first}\nfrom opentelemetry import trace\nimport sys\n"
    code += "print(type(trace.get_tracer('lib').start_span('a')).__name__, trace is sys.modules['opentelemetry.trace'])"
    result = python(code, AUTOLOAD, ROOT)
    assert ("OurSpan True\n", "") == (result.stdout, result.stderr)


def test_opentelemetrys_entry_point_waits_too(tmp_path: Path) -> None:
    """Until a framework is imported; it can be taken back before and after that."""
    (tmp_path / "sglang.py").write_text(SHOWS)
    code = (
        "from otel_rl.instrumentor import OtelRlInstrumentor; import sys; before = list(sys.meta_path)\n"
        "it = OtelRlInstrumentor(); it.instrument(); it.uninstrument(); print(before == sys.meta_path)\n"
        "it.instrument(); print('otel_rl.entry' in sys.modules); import sglang\n"
        "it.uninstrument(); print(sys.modules['otel_rl.process.state'].state.on)\n"
    )
    result = python(code, tmp_path, ROOT)
    assert ("True\nFalse\nTrue\nFalse\n", "") == (result.stdout, result.stderr)


def test_opentelemetrys_entry_point_starts_where_otel_rl_is_used() -> None:
    """The package itself is imported by then."""
    code = "from otel_rl.instrumentor import OtelRlInstrumentor; OtelRlInstrumentor().instrument(); import otel_rl\n"
    assert "True\n" == python(f"{code}otel_rl.stage\n{SHOWS}", ROOT).stdout


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FirstImport]:
    """A finder that waits for `known_a` and `known_b`, which are importable, in this very process."""
    names = frozenset(("known_a", "known_b"))
    monkeypatch.setattr(sitecustomize, "FRAMEWORKS", names)
    monkeypatch.syspath_prepend(tmp_path)
    for name in names:
        (tmp_path / f"{name}.py").write_text("import tests.test_autoload as test\nseen = list(test.started)\n")
    finder = FirstImport(names)
    started.clear()
    yield finder
    finder.remove()
    for name in names:
        sys.modules.pop(name, None)


started: list[str] = []
"""What has started in this test."""


def test_a_hook_of_the_imported_module_itself_is_called_once(
    known: FirstImport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the module was run: `torch:save` is a function of the very package that started otel_rl."""

    def start() -> None:
        started.append("now")
        wrapt.register_post_import_hook(lambda module: started.append(f"hook {module.seen}"), "known_a")

    monkeypatch.setattr(sitecustomize, "_autoload", start)
    known.install()
    found = importlib.util.find_spec("known_a")
    assert (found is not None, []) == (True, started)
    module = importlib.import_module("known_a")
    importlib.import_module("known_b")
    importlib.reload(module)
    assert ["now", "hook ['now']"] == started
    assert known not in sys.meta_path


def test_a_start_that_does_not_end_is_waited_for_once(known: FirstImport, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork may leave the thread behind that holds the lock."""
    monkeypatch.setattr(FirstImport.start, "__defaults__", (0.01,))
    known.install()
    holder = threading.Thread(target=known.lock.acquire)
    holder.start()
    holder.join()
    importlib.import_module("known_a")
    assert ([], False) == (started, known in sys.meta_path)


def test_no_frame_of_ours_runs_a_framework(known: FirstImport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A warning of it names the program's line, and its exception has the program's frames."""
    (tmp_path / "known_a.py").write_text("import warnings\nwarnings.warn('old', stacklevel=2)\n1 / 0\n")
    monkeypatch.setattr(sitecustomize, "_autoload", lambda: started.append("now"))
    known.install()
    with pytest.warns(UserWarning, match="old") as warned, pytest.raises(ZeroDivisionError) as failed:
        import known_a  # type: ignore[import-not-found]  # noqa: F401
    files = [str(entry.path) for entry in failed.traceback if "importlib" not in str(entry.path)]
    assert ([__file__], [__file__, str(tmp_path / "known_a.py")]) == ([one.filename for one in warned], files)
    assert ["now"] == started


def test_a_lazy_loader_runs_the_module_with_its_hooks(known: FirstImport, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `importlib.util.LazyLoader` is documented to be used."""
    register = wrapt.register_post_import_hook
    monkeypatch.setattr(sitecustomize, "_autoload", lambda: register(lambda module: started.append("hook"), "known_a"))
    known.install()
    spec = importlib.util.find_spec("known_a")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules["known_a"] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    assert [] == started
    assert [] == module.seen
    assert ["hook"] == started


def test_a_loader_is_as_it_was_once_its_module_was_run(known: FirstImport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kind never changes; programs look at it."""
    plain = importlib.import_module("known_a")
    del sys.modules["known_a"]
    monkeypatch.setattr(sitecustomize, "_autoload", lambda: started.append("now"))
    known.install()
    module = importlib.import_module("known_a")

    def about(module: ModuleType) -> tuple[object, ...]:
        assert module.__spec__ is not None
        return type(module.__loader__), vars(module.__loader__), module.__loader__ is module.__spec__.loader

    assert (["now"], about(plain)) == (started, about(module))


def test_a_module_of_a_framework_waits_for_a_start_in_another_thread(
    known: FirstImport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be imported without its hooks otherwise."""
    begun, may_end = threading.Event(), threading.Event()

    def start() -> None:
        begun.set()
        assert may_end.wait(60)
        started.append("whole")

    monkeypatch.setattr(sitecustomize, "_autoload", start)
    known.install()
    threads = [threading.Thread(target=importlib.import_module, args=(name,)) for name in ("known_a", "known_b")]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    threading.Timer(0.05, may_end.set).start()
    for thread in threads:
        thread.join()
    assert [["whole"], ["whole"]] == [sys.modules[name].seen for name in ("known_a", "known_b")]


@pytest.mark.parametrize(("name", "value"), [("OTEL_RL_ENABLED", " False"), ("OTEL_SDK_DISABLED", "true")])
def test_a_process_that_is_switched_off_imports_nothing(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Whatever the program imports."""
    monkeypatch.setenv(name, value)
    code = f"import otel_rl; {LOADED}"
    assert "['otel_rl']\n" == python(code, AUTOLOAD, ROOT).stdout


def test_the_shadowed_sitecustomize_runs(tmp_path: Path) -> None:
    """Once, under its own name, and modules that it made stay importable."""
    (tmp_path / "sitecustomize.py").write_text("print('shadowed', __name__)\nmark = 1\n")
    result = python("import sitecustomize; print(sitecustomize.mark, sitecustomize.__file__)", AUTOLOAD, tmp_path)
    assert f"shadowed sitecustomize\n1 {tmp_path / 'sitecustomize.py'}\n" == result.stdout


def test_a_failing_shadowed_sitecustomize_fails_as_without_us(tmp_path: Path) -> None:
    """Python prints its message and goes on, and we are loaded all the same."""
    (tmp_path / "sitecustomize.py").write_text("1 / 0\n")
    code = "from otel_rl.process.state import state; print(state.on)"
    result = python(code, AUTOLOAD, tmp_path, ROOT)
    assert "True\n" == result.stdout
    assert "ZeroDivisionError" in result.stderr


def test_an_interpreter_without_otel_rl_stays_silent(tmp_path: Path) -> None:
    """The package is hidden by a finder that refuses it."""
    hide = "import sys\nsys.modules['otel_rl'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hide)
    result = python("print('fine')", AUTOLOAD, tmp_path)
    assert ("fine\n", "", 0) == (result.stdout, result.stderr, result.returncode)


def test_a_broken_otel_rl_does_not_break_the_program(tmp_path: Path) -> None:
    """An error at our start is logged, and the program runs."""
    (tmp_path / "sitecustomize.py").write_text(
        "import otel_rl.entry\ndef autoload():\n    raise OSError('broken')\notel_rl.entry.autoload = autoload\n"
    )
    result = python("print('fine')", AUTOLOAD, tmp_path, ROOT)
    assert ("fine\n", 0) == (result.stdout, result.returncode)
    assert "OSError: broken" in result.stderr
