"""Engines of a version that is not supported: ``otel-rl doctor`` says so, and they stay as they are."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

import otel_rl
from otel_rl.cli import app
from otel_rl.hooks import Integration
from otel_rl.hooks.install import find
from otel_rl.integrations import OURS, choice
from otel_rl.integrations.choice import NotPossibleError

ENGINES = {
    "vllm": ("0.8.4", "0.34.0", "0.32.0"),
    "sglang": ("0.4.9.post6", "0.6.0", "0.5.23"),
    "openai": ("1.65.5", "4.0.0", "3.54.0"),
    "transformers_generate": ("4.55.4", "6.0.0", "5.23.0"),
}
"""By integration; too old, too new, supported."""
PACKAGES = {engine: engine.partition("_")[0] for engine in ENGINES}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place before all others in which packages are found; what a test imports from it is forgotten."""
    monkeypatch.syspath_prepend(tmp_path / "packages")
    (tmp_path / "packages").mkdir()
    loaded = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in PACKAGES.values()}
    yield tmp_path / "packages"
    for name in [name for name in sys.modules if name.split(".")[0] in PACKAGES.values()]:
        del sys.modules[name]
    sys.modules.update(loaded)


def integration(engine: str) -> Integration:
    """Import the integration of an engine."""
    found = choice.load(engine, OURS[engine])
    assert found is not None
    return found


def install(packages: Path, engine: str, number: str) -> None:
    """Put a package there that has a version and everything that its integration hooks, doing nothing."""
    package = PACKAGES[engine]
    information = packages / f"{package}-{number}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {number}\n")
    for hook in integration(engine).hooks:
        module, _, path = hook.target.partition(":")
        file = packages.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        *outer, name = path.split(".")
        with file.open("a") as source:
            source.write(f"class {outer[0]}(globals().get('{outer[0]}', object)):\n    def {name}(self): ...\n")
    importlib.invalidate_caches()  # a folder that was read in the same tick of its clock counts as unchanged


def held(engine: str) -> dict[str, object]:
    """Give what is hooked as it is now."""
    targets = [hook.target for hook in integration(engine).hooks]
    return {target: getattr(*found) for target in targets if (found := find(target)) is not None}


@pytest.mark.parametrize(("engine", "number"), [(e, number) for e, numbers in ENGINES.items() for number in numbers])
def test_only_a_supported_engine_is_touched(
    packages: Path, monkeypatch: pytest.MonkeyPatch, engine: str, number: str
) -> None:
    """Another one is named, with what is supported; the doctor's exit code is 1."""
    install(packages, engine, number)
    package = PACKAGES[engine]
    assert number == version(package)
    is_supported = number == ENGINES[engine][-1]
    supports = integration(engine).supports
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(app, ["doctor"])
    line = next(line for line in result.stdout.splitlines() if engine in line and f"{package} {number}" in line)
    assert is_supported == ("is instrumented" in line)
    assert is_supported == (f"unsupported {package} {number} is not supported; supports {supports}" not in line)
    assert is_supported == (result.exit_code == 0)
    before = held(engine)
    otel_rl.instrument()
    after = held(engine)
    assert is_supported == all(before[target] is not after[target] for target in before)
    assert is_supported == any(before[target] is not after[target] for target in before)


@pytest.mark.parametrize("engine", ENGINES)
def test_who_asks_for_one_by_name_is_told(packages: Path, engine: str) -> None:
    """It cannot be done, and why."""
    install(packages, engine, ENGINES[engine][1])
    with pytest.raises(NotPossibleError, match=f"{PACKAGES[engine]} {ENGINES[engine][1]} is not supported; supports"):
        otel_rl.instrument([engine])


def test_propagators_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable says whether the context goes along with requests."""
    monkeypatch.setenv("OTEL_PROPAGATORS", "none")
    monkeypatch.setenv("COLUMNS", "200")
    assert "none  [honoured]" in CliRunner().invoke(app, ["doctor"]).stdout
