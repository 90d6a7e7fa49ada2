"""Tests of the catalogue."""

from pathlib import Path

from otel_rl.catalogue import findings, telemetry
from otel_rl.config import settings
from otel_rl.vocabulary import DEFINITIONS

ROOT = Path(__file__).parents[2]


def test_the_documented_catalogue_is_the_rendered_one() -> None:
    """The file in docs/ is what the vocabulary says today."""
    assert telemetry.render() == (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")


def test_every_row_of_the_vocabulary_is_a_row_of_a_table() -> None:
    """No place, no kind of row and no setting is left out."""
    assert len(DEFINITIONS) + len(settings({})) == sum(
        line.startswith("| `") for line in telemetry.render().splitlines()
    )


def test_a_bar_in_a_cell_does_not_split_it() -> None:
    """What Markdown would read as a border is escaped."""
    assert telemetry.section("t", "", ("x",), [("a|b",)]) == "## t\n\n| x |\n| --- |\n| a\\|b |\n"


def test_a_value_of_a_run_has_its_name_in_the_documentation() -> None:
    """No template of a rule is printed as it stands."""
    assert "Find what the stage keeps from call to call" in findings.render()
    assert set("{}").isdisjoint(findings.render())
