"""Building the package with and without a compiler: what is in the wheel, and what lies in the tree behind it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

from otel_rl.journal.otlp import encode

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
COMPILED = [
    "otel_rl/journal/columns/_decode.abi3.so",
    "otel_rl/journal/otlp/_native.abi3.so",
    "otel_rl/probes/_stacks.abi3.so",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, in a folder of a name that hatchling knows, with what another machine has built."""
    copy = tmp_path / "build" / "tree"
    for name in ("otel_rl", "collector"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"):
        shutil.copy(ROOT / name, copy)
    for name in COMPILED:
        (copy / name).write_bytes(b"of another machine")
    return copy


def built(tree: Path, target: str, **environ: str) -> tuple[str, list[str]]:
    """Build a wheel or an sdist: its name without the version, and the compiled files in it."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", "made"],
        cwd=tree, env={**os.environ, **environ}, check=True, capture_output=True,
    )  # fmt: skip
    (made,) = (tree / "made").iterdir()
    if target == "sdist":
        listed = subprocess.run(["tar", "tzf", made], capture_output=True, text=True, check=True).stdout.split()
    else:
        listed = zipfile.ZipFile(made).namelist()
    return made.name.partition("-")[2].partition("-")[2], sorted(name for name in listed if name.endswith(".so"))


@pytest.mark.skipif(encode.native is None, reason="no compiler where otel_rl was installed")
def test_a_wheel_holds_what_was_just_compiled(tree: Path) -> None:
    """Even where something newer than the source lies there."""
    name, compiled = built(tree, "wheel")
    assert (COMPILED, True) == (compiled, name.startswith("cp310-abi3-"))
    for one in COMPILED:
        assert (tree / one).read_bytes().startswith(b"\x7fELF")
        assert str(tree).encode() not in (tree / one).read_bytes()


@pytest.mark.parametrize("compiler", ["/bin/false", "", '"unfinished', "/nowhere/cc"])
def test_without_a_compiler_it_is_pure_python(tree: Path, compiler: str) -> None:
    """Nothing of another machine is in the wheel, or is loaded from the tree."""
    assert ("py3-none-any.whl", []) == built(tree, "wheel", CC=compiler)
    assert not any((tree / one).exists() for one in COMPILED)


def test_an_sdist_holds_the_source_alone(tree: Path) -> None:
    """It is for any machine."""
    assert [] == built(tree, "sdist")[1]
