"""`otel-rl compare` as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from otel_rl.cli import app
from otel_rl.compare.compare_schema import comparison_schema
from otel_rl.report.schema import schema_text
from tests.made_runs import Plan, write_run

cli = CliRunner()
SCHEMA = Path(__file__).parents[2] / "docs" / "compare.schema.json"
LOOP = """
import time, otel_rl
otel_rl.instrument()
for number in range(1, 31):
    with otel_rl.step(number):
        with otel_rl.stage("sample"):
            time.sleep({sample})
        with otel_rl.stage("train"):
            time.sleep(0.004)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make runs: `a`, `b` with a slow rank and a loss that is NaN, `one` of one step."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root, Plan(steps=30, run_id="a"))
    write_run(root, Plan(steps=30, run_id="b", slow_rank=1, nan_loss_step=3))
    write_run(root, Plan(steps=1, run_id="one"))
    return root


def compare(*arguments: object) -> tuple[int, str, str]:
    result = cli.invoke(app, ["compare", *map(str, arguments)], env={"COLUMNS": "120"})
    return result.exit_code, result.stdout, result.stderr


def test_on_the_screen(root: Path) -> None:
    """What became slower and worse comes first, the numbers below."""
    code, text, _ = compare(root / "a", root / "b")
    assert (0, True) == (code, "numbers worse" in text.splitlines()[0])
    assert "stage.rl.reward: 10.0 ms to 20.0 ms, +100 % (+100 % to +100 %)." in text
    assert "Worse: trouble.nonfinite." in text
    code, text, _ = compare(root / "a", root / "a")
    assert (0, True) == (code, "Nothing became slower, larger, less stable or worse by more than noise." in text)
    assert "too few steps to tell" in compare(root / "a", root / "one")[1].splitlines()[0]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [("step_time > 5%", 1), ("step_time > 50%", 0), ("rank.wait > 5%", 4), ("step_tme > 5%", 2), ("hello", 2)],
)
def test_exit_codes(root: Path, condition: str, expected: int) -> None:
    """1 if a condition holds, 4 if none does and one cannot be judged, 2 if it is wrong."""
    assert expected == compare(root / "a", root / "b", "--fail-on", condition)[0]


def test_several_conditions(root: Path) -> None:
    """One that holds decides."""
    several = ("--fail-on", "rank.wait > 5%", "--fail-on", "step_time > 5%", "--fail-on", "step_time < -5%")
    code, text, _ = compare(root / "a", root / "b", *several)
    assert (1, True, True, True) == (code, *(f": {one}: " in text for one in ("fails", "passes", "cannot be judged")))


def test_runs_without_a_step(root: Path) -> None:
    """Nothing can be compared: exit code 3, also with a condition that then cannot be judged."""
    write_run(root, Plan(steps=0, run_id="empty"))
    for pair in (("empty", "empty"), ("a", "empty"), ("empty", "a")):
        code, text, _ = compare(*(root / one for one in pair), "--fail-on", "step_time > 5%")
        assert (3, True, True) == (code, "nothing to compare" in text.splitlines()[0], "cannot be judged" in text)


@pytest.mark.parametrize(("width", "expected"), [(80, "stage.rl.train.optimizer"), (50, "stage.rl.train.o ptimizer")])
def test_names_are_whole_in_a_narrow_terminal(root: Path, width: int, expected: str) -> None:
    """They take several lines where they need them; the limits go first."""
    text = cli.invoke(app, ["compare", str(root / "a"), str(root / "b")], env={"COLUMNS": str(width)}).stdout
    _, _, table = text.partition("\nstage ")
    heads, *rows = table.partition("\nmean ")[0].splitlines()
    assert (width == 80, width) == ("limits" in heads, max(width, *map(len, text.splitlines())))
    assert expected in " ".join(" ".join(row.split("  ")[0] for row in rows).split())


def test_json_keeps_to_its_schema(root: Path) -> None:
    """The documented one, which is that of the code; with conditions and without an interval."""
    assert schema_text(comparison_schema()) == SCHEMA.read_text("utf-8")
    for other in ("b", "one"):
        code, text, _ = compare(root / "a", root / other, "--json", "--fail-on", "step_time > 5%")
        document = json.loads(text)
        jsonschema.validate(document, json.loads(SCHEMA.read_text("utf-8")))
        assert {"b": 1, "one": 4}[other] == code
        assert {"b": True, "one": None}[other] is document["conditions"][0]["holds"]


def test_markdown(root: Path) -> None:
    """Tables as GitHub has them; names are literal."""
    write_run(root, Plan(steps=12, run_id="_evil_ | <b>"))
    code, text, _ = compare(root / "a", root / "_evil_ | <b>", "--markdown")
    assert (0, True, False) == (code, "| step | A | B | change | limits |" in text, "<b>" in text)


def test_wrong_usage(root: Path, tmp_path: Path) -> None:
    """One sentence each: no such run, formats that exclude each other, a file that cannot be written."""
    code, _, error = compare(root / "a", root / "nothing")
    assert (3, True) == (code, error.startswith("otel-rl: "))
    assert 2 == compare(root / "a", root / "b", "--json", "--markdown")[0]
    code, _, error = compare(root / "a", root / "b", "--html", tmp_path / "no" / "x.html")
    assert (1, True) == (code, "cannot write" in error)


def test_a_page_of_both(root: Path, tmp_path: Path) -> None:
    """Differences first, then both runs in each figure; names are text."""
    write_run(root, Plan(steps=30, run_id="evil", slow_rank=1))
    file = tmp_path / "both.html"
    code, _, error = compare(root / "a", root / "evil", "--html", file)
    page = file.read_text("utf-8")
    assert (0, True) == (code, "opens in a browser" in error)
    panels = [page.index(f'id="panel-{name}"') for name in ("differences", "learning", "steps", "ranks")]
    assert sorted(panels) == panels
    assert "stage.rl.reward is slower" in page or "step_time is slower" in page
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert {"differences", "learning", "steps", "ranks"} == set(data["panels"])
    assert {"plot-stages-A", "plot-stages-B"} < set(data["places"].values())
    assert any(one.startswith("plot-step-time-") for one in data["places"].values())


@pytest.mark.slow
def test_real_runs_of_one_loop(tmp_path: Path) -> None:
    """A stage that sleeps three times as long takes so much longer, beyond noise."""
    environ = {**os.environ, "OTEL_RL_DIR": str(tmp_path)}
    for name, sample in (("a", 0.01), ("b", 0.03)):
        program = LOOP.format(sample=sample)
        subprocess.run([sys.executable, "-c", program], check=True, env={**environ, "OTEL_RL_RUN_ID": name})
    numbers = {one["name"]: one for one in json.loads(compare(tmp_path / "a", tmp_path / "b", "--json")[1])["numbers"]}
    sample = numbers["stage.rl.sample"]
    assert 0 < sample["low"] < sample["difference"]
    assert sample["relative"] > 0.5
