"""Tests of importing: what it loads, and in which orders it works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.medium

ROOT = Path(__file__).parent.parent
MAIN = "from otel_rl.cli import main; main()"
HEAVY = (
    "torch",
    "ray",
    "transformers",
    "trl",
    "accelerate",
    "numpy",
    "opentelemetry.sdk",
    "google.protobuf",
    "wrapt",
    "duckdb",
)


def run(code: str, **environ: str) -> Any:
    """Run a program in a fresh interpreter; it prints one line of JSON last."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_loads_nothing_heavy() -> None:
    """Neither a framework nor the SDK; the time is printed, not asserted."""
    found = run(
        "import json, sys, time; begin = time.perf_counter(); import otel_rl; took = time.perf_counter() - begin\n"
        f"print(json.dumps([took, [name for name in {HEAVY!r} if name in sys.modules]]))"
    )
    print(f"import otel_rl: {found[0] * 1000:.1f} ms")
    assert [] == found[1]


@pytest.mark.parametrize(
    "use",
    [
        "with otel_rl.step(1), otel_rl.stage('reward'): otel_rl.record('x', 1)",
        "otel_rl.stage('reward')(print)",
        "from otel_rl.cli import main",
        "import otel_rl.integrations.trl.hooks, otel_rl.integrations.torch.hooks, otel_rl.integrations.vllm.hooks",
    ],
)
def test_using_it_without_instrument_loads_no_framework(use: str) -> None:
    """Code that opens stages costs nothing where nobody records."""
    frameworks = ("torch", "ray", "transformers", "trl", "accelerate")
    code = f"import json, sys, otel_rl\n{use}\nprint(json.dumps([n for n in {frameworks!r} if n in sys.modules]))"
    assert [] == run(code)


def test_the_command_is_one_thread() -> None:
    """Another one, as numpy has, would get signals that `otel-rl run` passes on."""
    code = "import json, os, sys, otel_rl.cli.commands.run, otel_rl.cli.child\n"
    code += "print(json.dumps([len(os.listdir('/proc/self/task')), 'numpy' in sys.modules]))"
    assert [1, False] == run(code)


@pytest.mark.parametrize("arguments", [["--version"], ["run", "--help"], ["export", "--help"]])
def test_the_module_is_the_command_and_loads_no_framework(arguments: list[str]) -> None:
    """`python -m otel_rl` says what `otel-rl` says, without torch and without the SDK."""
    as_module = [sys.executable, "-X", "importtime", "-m", "otel_rl", *arguments]
    as_command = [sys.executable, "-c", f"import sys; sys.argv = ['otel-rl', *{arguments!r}]\n{MAIN}"]
    found, expected = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        for command in (as_module, as_command)
    )
    loaded = {line.rpartition("|")[2].strip() for line in found.stderr.splitlines()}
    assert [] == [name for name in ("torch", "ray", "transformers", "trl", "opentelemetry.sdk") if name in loaded]
    assert expected.stdout.split() == found.stdout.replace("python -m otel_rl", "otel-rl").split()


def test_instrument_loads_no_framework(tmp_path: Path) -> None:
    """It waits until the program does."""
    code = (
        "import json, sys, otel_rl; otel_rl.instrument()\n"
        "found = [n for n in ('torch', 'ray', 'transformers', 'trl') if n in sys.modules]\n"
        "otel_rl.uninstrument(); print(json.dumps(found))"
    )
    assert [] == run(code, OTEL_RL_DIR=str(tmp_path))


ORDER = """
import json, sys, threading
{first}
{second}
import torch.serialization, torch.distributed
found = [hasattr(f, "__wrapped__") for f in (torch.save, torch.serialization.save, torch.autograd.backward)]
kept = [torch.save]
otel_rl.uninstrument()
found += [hasattr(f, "__wrapped__") for f in (torch.save, torch.serialization.save, torch.autograd.backward)]
threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("otel_rl")]
print(json.dumps([found, torch.save is kept[0].__wrapped__, torch.save is torch.serialization.save, threads]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", ["torch", "otel_rl"])
def test_it_works_before_and_after_the_framework_is_imported(first: str, tmp_path: Path) -> None:
    """Everything is patched in either order, and nothing is after it."""
    pytest.importorskip("torch")
    lines = ["import torch", "import otel_rl; otel_rl.instrument(['torch'])"]
    if first == "otel_rl":
        lines.reverse()
    found = run(ORDER.format(first=lines[0], second=lines[1]), OTEL_RL_DIR=str(tmp_path))
    assert [[True] * 3 + [False] * 3, True, True, []] == found


def test_a_program_that_only_ends_leaves_its_journal(tmp_path: Path) -> None:
    """No uninstrument(), no flush(): the exit does it."""
    code = (
        "import json, otel_rl; otel_rl.instrument([])\n"
        "with otel_rl.step(1), otel_rl.stage('reward'): otel_rl.record('x', 1)\n"
        "print(json.dumps(1))"
    )
    run(code, OTEL_RL_DIR=str(tmp_path), OTEL_RL_RUN_ID="run")
    from otel_rl.journal.read import open_run

    found = open_run(tmp_path / "run")
    assert {"rl.setup", "rl.loop", "rl.rank 0", "rl.reward", "rl.teardown"} == {span.name for span in found.spans()}
    assert ([1], []) == ([point.value for point in found.points("user.x")], found.open_stages())
