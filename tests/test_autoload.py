"""The sitecustomize that `otel-rl run` puts in front."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

pytestmark = pytest.mark.medium

AUTOLOAD = str(files("otel_rl") / "autoload")


def python(code: str, *paths: Path | str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run Python with directories on its path."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=False, env=environ
    )


def test_a_process_is_instrumented_by_itself(tmp_path: Path) -> None:
    """The state is on before the first line of the program."""
    result = python("from otel_rl.runtime import state; print(state.on)", AUTOLOAD, Path(__file__).parent.parent)
    assert ("True\n", "") == (result.stdout, result.stderr)


@pytest.mark.parametrize(("name", "value"), [("OTEL_RL_ENABLED", " False"), ("OTEL_SDK_DISABLED", "true")])
def test_a_process_that_is_switched_off_imports_nothing(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """It begins as without us: reward functions start Python for every answer."""
    monkeypatch.setenv(name, value)
    code = "import sys; print(sorted(name for name in sys.modules if name.startswith(('otel', 'opentelemetry'))))"
    assert "[]\n" == python(code, AUTOLOAD, Path(__file__).parent.parent).stdout


def test_the_shadowed_sitecustomize_runs(tmp_path: Path) -> None:
    """Once, under its own name, and modules that it made stay importable."""
    (tmp_path / "sitecustomize.py").write_text("print('shadowed', __name__)\nmark = 1\n")
    result = python("import sitecustomize; print(sitecustomize.mark, sitecustomize.__file__)", AUTOLOAD, tmp_path)
    assert f"shadowed sitecustomize\n1 {tmp_path / 'sitecustomize.py'}\n" == result.stdout


def test_a_failing_shadowed_sitecustomize_fails_as_without_us(tmp_path: Path) -> None:
    """Python prints its message and goes on, and we are loaded all the same."""
    (tmp_path / "sitecustomize.py").write_text("1 / 0\n")
    code = "from otel_rl.runtime import state; print(state.on)"
    result = python(code, AUTOLOAD, tmp_path, Path(__file__).parent.parent)
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
    result = python("print('fine')", AUTOLOAD, tmp_path, Path(__file__).parent.parent)
    assert ("fine\n", 0) == (result.stdout, result.returncode)
    assert "OSError: broken" in result.stderr
