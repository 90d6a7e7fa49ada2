"""What is hooked of slime and miles: each function is in their source, and in the program of its shape alike.

``signatures_slime.json`` and ``signatures_miles.json`` are of the commits that the integration names,
``signatures_slime_0_3_0.json`` of the oldest slime that is supported. ``scripts/signatures`` writes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_rl.hooks import Integration
from otel_rl.integrations.slime import hooks, miles
from tests.programs.signatures import script

HERE = Path(__file__).parent
INTEGRATIONS = {"slime": hooks.INTEGRATION, "miles": miles.INTEGRATION}
tables = pytest.mark.parametrize(("name", "table"), [("slime", "slime"), ("slime", "slime_0_3_0"), ("miles", "miles")])


def read(table: str) -> dict[str, dict[str, Any]]:
    """Read a table."""
    found: dict[str, dict[str, Any]] = json.loads((HERE / f"signatures_{table}.json").read_text("utf-8"))
    return found


def optional(integration: Integration) -> set[str]:
    """Return the targets that not every version has."""
    return {hook.target for hook in integration.hooks if hook.optional}


@tables
def test_every_target_is_there(name: str, table: str) -> None:
    """But for optional ones, which other versions have."""
    targets = set(script.targets(name))
    assert targets - optional(INTEGRATIONS[name]) <= read(table).keys() <= targets


def test_versions_of_slime_are_called_alike() -> None:
    """But for parameters at the end that came later."""
    newest = read("slime")
    for target, known in read("slime_0_3_0").items():
        if target in newest:
            assert newest[target]["is_async"] == known["is_async"]
            assert newest[target]["parameters"].startswith(known["parameters"])


def test_each_optional_target_is_in_one_version() -> None:
    """Of slime; no hook is left over."""
    assert set(script.targets("slime")) == read("slime").keys() | read("slime_0_3_0").keys()


@pytest.mark.parametrize("name", ["slime", "miles"])
def test_the_shape_has_the_signatures(name: str) -> None:
    """All that it has, and it has all that are not optional."""
    table, found = read(name), script.signatures(name, HERE / "shape")
    assert table.keys() - optional(INTEGRATIONS[name]) <= found.keys()
    assert {target: table[target] for target in found} == found
