"""What is hooked of SkyRL: each function is in SkyRL 0.4.0, and in the program of its shape, with the same signature.

``scripts/signatures skyrl`` writes ``signatures.json`` from the published wheel.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.programs.signatures import script

HERE = Path(__file__).parent
TABLE: dict[str, dict[str, Any]] = json.loads((HERE / "signatures.json").read_text("utf-8"))


def test_every_target_is_in_skyrl() -> None:
    """All of them, with the classes that Ray sends by value."""
    assert set(script.targets("skyrl")) == TABLE.keys()


def test_the_shape_has_the_signatures_of_skyrl() -> None:
    """Otherwise what the tests see would not be what SkyRL does."""
    assert TABLE == script.signatures("skyrl", HERE / "shape")
