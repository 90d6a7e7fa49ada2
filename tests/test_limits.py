"""``scripts/limits`` finds what exceeds each limit, and nothing in a small tidy package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "limits"
MODULE = '"""A module."""\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package within all limits."""
    write(tmp_path, "otel_rl/process/state.py", MODULE + "class State:\n    a: int = 1\n\nstate = State()\n")
    write(tmp_path, "otel_rl/main.py", MODULE + "def a():\n    return 1\n\ndef b():\n    return 2\n")
    write(tmp_path, "docs/page.md", "A short sentence.\n\n| a | b |\n")
    write(tmp_path, "pyproject.toml", "")
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts" / "limits")
    return tmp_path


def write(tree: Path, name: str, text: str) -> None:
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def limits(tree: Path, *options: str) -> tuple[int, list[str]]:
    """Run the script in a tree; return its exit code and lines."""
    command = [sys.executable, str(tree / "scripts" / "limits"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "" == done.stderr
    return done.returncode, done.stdout.splitlines()


def test_a_tidy_package_is_within_all_limits(tree: Path) -> None:
    assert (0, []) == limits(tree)
    code, figures = limits(tree, "--figures")
    assert (0, "fields of the state: 1") == (code, next(line for line in figures if "state:" in line))


LONG = "def long():\n" + "    x = 1\n" * 67
EXCEEDED = {
    "a folder": ({f"otel_rl/room/m{n}.py": MODULE for n in range(21)}, ["otel_rl/room: 21 files, at most 20"]),
    "the root": ({f"otel_rl/m{n}.py": MODULE for n in range(11)}, ["otel_rl: 12 files, at most 11"]),
    "a file": ({"otel_rl/long.py": MODULE * 431}, ["otel_rl/long.py: 431 lines, at most 430"]),
    "a module name": (
        {"otel_rl/a/place.py": MODULE, "otel_rl/b/place.py": MODULE, "otel_rl/a/api.py": "", "otel_rl/b/api.py": ""},
        ["module name place stands in otel_rl/a/place.py, otel_rl/b/place.py"],
    ),
    "a class name": (
        {"otel_rl/a.py": MODULE + "class Part: ...\n", "otel_rl/b.py": MODULE + "class Part: ...\n"},
        ["class Part stands in otel_rl/a.py, otel_rl/b.py"],
    ),
    "a body": (
        {"otel_rl/long.py": MODULE + LONG},
        ["otel_rl/long.py: long has 67 lines, at most 66", "the 95th percentile of function bodies is"],
    ),
    "a docstring": (
        {"otel_rl/bad.py": '"""no capital."""\n', "otel_rl/say.py": '"""Say what it is."""\n'},
        [
            "otel_rl/bad.py:1: 'no capital.' is no whole sentence",
            "otel_rl/say.py:1: 'Say what it is.' is no whole sentence",
        ],
    ),
    "the state": (
        {
            "otel_rl/process/state.py": MODULE
            + "class State:\n    a: Any = 1\n"
            + "".join(f"    a{n}: int = 1\n" for n in range(30)),
            **{f"otel_rl/w{n}.py": MODULE + "state.a = 1\n" for n in range(5)},
            "otel_rl/w5.py": MODULE + "state.a[1] = 1\n",
        },
        [
            "otel_rl/process/state.py: State.a is Any",
            "otel_rl/process/state.py: 31 fields, at most 30",
            "the state is assigned by 6 modules, at most 5",
        ],
    ),
    "an import": (
        {"pyproject.toml": 'ignore_imports = ["a -> b"]'},
        ["pyproject.toml: import-linter ignores imports"],
    ),
    "a cell": ({"docs/page.md": f"| a | {'word ' * 41}|\n"}, ["page.md: a cell of 41 words"]),
    "a sentence": ({"README.md": "Word " * 31 + ".\n"}, ["README.md: a sentence of 31 words"]),
}


@pytest.mark.parametrize("what", EXCEEDED)
def test_what_exceeds_a_limit_is_named(tree: Path, what: str) -> None:
    files, expected = EXCEEDED[what]
    for name, text in files.items():
        write(tree, name, text)
    code, found = limits(tree)
    assert (1, expected) == (code, [line[: len(start)] for line, start in zip(found, expected, strict=True)])
