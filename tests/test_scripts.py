"""``scripts/test`` chooses tests by their markers: none is lost, none runs twice, and it says how to run the rest."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
SPECIAL = ("gpu", "verl", "vllm", "browser")
"""Markers of tests that need an environment of their own."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout whose Python only says which tests it is to run, and ends with 5."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPTS / "test", tmp_path / "scripts")
    for name, program in (("scripts/environment", "true"), (".venv/bin/python", 'printf "%s\\n" "$@"; exit 5')):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)
    return tmp_path


def said(tree: Path, *options: str) -> str:
    """What the script prints; it ends as pytest does."""
    done = subprocess.run([tree / "scripts" / "test", *options], capture_output=True, text=True, check=False)
    assert (5, "") == (done.returncode, done.stderr)
    return done.stdout


def chosen(expression: str, markers: set[str]) -> bool:
    """Whether an expression of markers takes a test that has these."""
    names = set(re.findall(r"\w+", expression)) - {"not", "and", "or"}
    return bool(eval(expression, {name: name in markers for name in names}))


def test_every_test_runs_once(tree: Path) -> None:
    """By the checks, or by ``--slow``; without options those of the checks run."""
    default, slow, quick = (
        re.findall(r"^-m\n(.* .*)$", said(tree, *options), re.MULTILINE)[0]
        for options in ((), ("--slow",), ("--quick",))
    )
    (check,) = re.findall(r'-m "(.*)"', (SCRIPTS / "check").read_text())
    names = ("medium", "slow", "backend", *SPECIAL)
    for has in product((False, True), repeat=len(names)):
        markers = {name for name, is_there in zip(names, has, strict=True) if is_there}
        times = chosen(check, markers) + chosen(slow, markers)
        assert (markers.isdisjoint(SPECIAL), chosen(check, markers)) == (times, chosen(default, markers)), markers
        assert chosen(default, markers) or not chosen(quick, markers)


def test_it_says_how_to_run_the_rest(tree: Path) -> None:
    """At its end, and not to who has chosen himself."""
    last = said(tree).splitlines()[-2:]
    assert all(command in " ".join(last) for command in ("scripts/test --slow", "scripts/test-verl", ".ci/run"))
    assert ".ci/run" not in said(tree, "--slow") + said(tree, "tests/report")
    assert "tests/report" == said(tree, "tests/report").splitlines()[-1]
