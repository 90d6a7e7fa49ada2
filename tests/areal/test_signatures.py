"""What is hooked of AReaL: each function is in AReaL, and in the program of its shape, with the same signature.

``scripts/signatures areal`` writes ``signatures.json``: the published wheel of 1.0.4 and the tag v2.0.0 give the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.programs.signatures import script

HERE = Path(__file__).parent
TABLE: dict[str, dict[str, Any]] = json.loads((HERE / "signatures.json").read_text("utf-8"))


def test_every_target_is_in_areal() -> None:
    """Without exception."""
    assert set(script.targets("areal")) == TABLE.keys()


def test_the_shape_has_the_signatures_of_areal() -> None:
    """Otherwise what the tests see would not be what AReaL does."""
    assert TABLE == script.signatures("areal", HERE / "shape")
