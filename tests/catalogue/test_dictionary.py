"""Tests of the page of numbers: it is up to date, holds what is asked for, and says of each what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.catalogue import dictionary
from otel_rl.catalogue.demand import FRAMEWORKS, Demanded
from otel_rl.catalogue.dictionary import definition, expanded, fed, keys, meaning, seams, topics, unit_of
from otel_rl.catalogue.framework_names import PRINTED
from otel_rl.catalogue.framework_tables import TABLES
from otel_rl.catalogue.series_names import emitted
from otel_rl.catalogue.traps import TRAPS
from tests.catalogue.demanded import BY_CONCERN, BY_STAGE, ROLL, TRL, VERL

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
NUMBERS = {one.name: one for topic in topics() for one in topic.numbers}
ASKED = [name.replace(";", ",") for text in (*BY_STAGE.values(), *BY_CONCERN.values()) for name in text.split(", ")]


def test_the_documented_page_is_the_rendered_one() -> None:
    """The file in docs/ is what the tables and the integrations say today."""
    assert dictionary.render() == PAGE.read_text(encoding="utf-8")


def test_what_is_asked_for_is_in_the_page() -> None:
    """In both tables of its topic: where it is, and what feeds it."""
    rows = [line.split(" | ") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    widths = {name: [len(row) for row in rows if row[0] == f"| {name}"][:2] for name in ASKED}
    expected = [len(dictionary.WHERE), len(dictionary.FROM)]
    assert {} == {name: found for name, found in widths.items() if found != expected}


@pytest.mark.parametrize(("framework", "patterns"), [("roll", ROLL), ("verl", VERL), ("trl", TRL)])
def test_what_a_framework_prints_is_in_the_page(framework: str, patterns: str) -> None:
    """Each name of what its documentation lists, or of what it printed."""
    ours = {name for one in PRINTED[framework] for name in expanded(one.pattern)}
    assert set() == {name for pattern in patterns.split() for name in expanded(pattern)} - ours


def test_names_stand_once() -> None:
    """A number has one row, and so has a name that a framework prints."""
    assert len(NUMBERS) == sum(len(topic.numbers) for topic in topics())
    for printed in PRINTED.values():
        names = [name for one in printed for name in expanded(one.pattern)]
        assert len(names) == len(set(names))


def test_names_of_ours_are_those_of_the_vocabulary() -> None:
    """With labels that there are."""
    ours = [one for number in NUMBERS.values() for one in number.ours]
    assert [] == [one.name for one in ours if definition(one.name) is None]
    assert set() == {key for one in ours for key, _ in one.labels} - v.ATTRIBUTES.keys()


def test_a_number_has_a_meaning_and_a_unit() -> None:
    """Where the row says neither, those of its first name."""
    first = emitted()
    for number in NUMBERS.values():
        assert meaning(number), number.name
        if number.ours and number.ours[0].name in first and not number.means:
            assert unit_of(number) == first[number.ours[0].name].unit, number.name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_feeds_a_number_is_in_the_code(framework: str) -> None:
    """A key is in the integration's table of names, a function and a timer in its hooks; a reason is given."""
    functions = TABLES[framework].functions() if framework in TABLES else set()
    for number in NUMBERS.values():
        assert fed(framework, number, number.feeds[framework]), number.name
        assert _is_in_the_code(framework, number, functions), number.name


def _is_in_the_code(framework: str, number: Demanded, functions: set[str]) -> bool:
    feed = number.feeds[framework]
    if feed.kind in ("never", "open"):
        return bool(feed.note)
    if framework == "own":
        known = {"key": v.SETTABLE, "stage": v.STAGES}.get(feed.kind)
        return known is None or number.ours[0].name in known
    if feed.kind == "kept":
        return {name for one in feed.names for name in expanded(one)}.isdisjoint(TABLES[framework].keys)
    if feed.kind == "measured":
        return True
    found = {"key": keys, "stage": seams}.get(feed.kind)
    return bool(found(framework, number)) if found else functions.issuperset(feed.names)


def test_a_key_that_the_table_maps_is_under_our_name() -> None:
    """Every key of every table of names is on the page."""
    page = PAGE.read_text("utf-8")
    shown = {name for printed in PRINTED.values() for one in printed for name in expanded(one.pattern)}
    missing = [key for tables in TABLES.values() for key in tables.keys if key not in shown and f"`{key}`" not in page]
    assert [] == missing


@pytest.mark.parametrize(
    ("framework", "name", "metric"),
    [
        ("trl", "kl", v.KL_REFERENCE),
        ("trl", "num_tokens", "trl.num_tokens"),
        ("trl", "loss", v.LOSS),
        ("verl", "actor/pg_loss", f"{v.LOSS_TERM}{{policy}}"),
        ("verl", "critic/grad_norm", "verl.critic/grad_norm"),
        ("roll", "critic/score/mean", v.REWARD_SCORE),
        ("roll", "system/tps", "roll.system/tps"),
    ],
)  # fmt: skip
def test_a_name_arrives_as_the_code_records_it(framework: str, name: str, metric: str) -> None:
    """Under our name where there is one, else under the framework's, with its prefix."""
    named = next(one for one in PRINTED[framework] if name in expanded(one.pattern))
    assert metric == dictionary.arrives(framework, named, name)


def test_braces_stand_for_each_of_their_parts() -> None:
    """In all places of a pattern; other names stay as they are."""
    assert ["a/x/c", "a/x/d", "a/y/c", "a/y/d"] == expanded("a/{x,y}/{c,d}")
    assert ["mean@<n>"] == expanded("mean@<n>")


def test_a_trap_belongs_to_a_number() -> None:
    """Of which the page has a row."""
    assert set() == {one.number for one in TRAPS} - NUMBERS.keys()
