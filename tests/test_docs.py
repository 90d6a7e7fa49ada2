"""What the documentation names exists, and what it shows runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from otel_rl.hooks import Integration
from otel_rl.integrations import OURS
from otel_rl.journal.read import open_run
from otel_rl.testing.contract import KINDS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_links_lead_somewhere() -> None:
    """Every relative link of a page is a file of the project."""
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8"))]
    assert [] == [(page.name, link) for page, link in links if not (page.parent / link).exists()]


def test_names_of_telemetry_are_those_of_the_catalogue() -> None:
    """Spans, attributes and metrics; a part of a name, a label after it and a figure of ``compare`` count as well.

    The changelog names what is gone.
    """
    known = set(re.findall(r"`(rl\.[\w.]+)", (ROOT / "docs" / "catalogue.md").read_text("utf-8")))
    parts = {name[:end] for name in known for end in range(len(name) + 1) if name[end : end + 1] in ("", ".")}
    unknown = [
        (page.name, name)
        for page in PAGES
        if page.name != "CHANGELOG.md"
        for name in re.findall(r"`(rl\.[a-z_.]*[a-z])[`. {(]", page.read_text("utf-8"))
        if name not in parts and name.rpartition(".")[0] not in known
    ]
    assert [] == unknown


def test_paths_in_backticks_exist() -> None:
    """So do the files and folders that the README names, and the tests of the failure table."""
    named = re.findall(
        r"`((?:otel_rl|scripts|docs|examples|benchmarks)/[\w./]*)`", (ROOT / "README.md").read_text("utf-8")
    )
    tests = re.findall(r"`((?:\w+/)?test_\w+\.py)`", (ROOT / "docs" / "failures.md").read_text("utf-8"))
    paths = [ROOT / name for name in named] + [ROOT / "tests" / name for name in tests]
    assert [] == [str(path) for path in paths if not path.exists()]
    assert len(tests) > 20


def test_reasons_of_the_failure_table_are_those_of_the_code() -> None:
    """A reason that is counted is explained, and one that is explained is counted."""
    source = "".join(path.read_text("utf-8") for path in (ROOT / "otel_rl").rglob("*.py"))
    counted = set(re.findall(r'(?:dropped|_dropped)\["?\w+"?(?:\.\w+)?, "(\w+)"\]', source))
    counted |= set(re.findall(r'refuse\(\s*"(\w+)"', source))
    explained = set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", (ROOT / "docs" / "failures.md").read_text("utf-8")))
    assert set() == counted - explained


def test_the_readme_names_every_integration() -> None:
    """A newcomer reads there what is known."""
    text = (ROOT / "README.md").read_text("utf-8").lower()
    assert [] == [name for name in OURS if name not in text]


@pytest.mark.parametrize("kind", [*KINDS, Integration])
def test_the_fields_of_a_hook_are_explained(kind: type[Any]) -> None:
    """Who writes an integration finds each of them, and no other, in the table."""
    text = (ROOT / "docs" / "integrations.md").read_text("utf-8")
    if kind is Integration:
        table = text.partition("| field of `Integration` |")[2].partition("\n\n")[0]
        found = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    else:
        table = text.partition("| field | hooks |")[2].partition("\n\n")[0]
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.MULTILINE)
        found = {"target"} | {name for name, kinds in rows if kinds == "all" or f"`{kind.__name__}`" in kinds}
    assert {one.name for one in fields(kind)} == found


@pytest.mark.medium
def test_snippets_of_the_readme_run(tmp_path: Path) -> None:
    """Put together they are a program, and what it records is read back."""
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    program = tmp_path / "program.py"
    program.write_text("\n".join(snippets), "utf-8")
    environ = {**os.environ, "OTEL_RL_DIR": str(tmp_path / "runs"), "OTEL_RL_RUN_ID": "readme"}
    subprocess.run([sys.executable, str(program)], check=True, cwd=ROOT, env=environ)
    names = {span.name for span in open_run(tmp_path / "runs" / "readme").spans()}
    assert {"rl.setup", "rl.loop", "rl.rank 0", "rl.sample", "rl.reward", "rl.teardown"} == names
