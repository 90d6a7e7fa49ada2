"""What is hooked of ROLL: each function is in ROLL 0.3.0, and in the program of its shape, with the same signature.

``signatures.json`` is of ROLL itself, which is in no package index; ``signatures_0_2_1.json`` is of the oldest version
that is supported. ``scripts/signatures roll`` writes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from otel_rl.integrations.roll.hooks import INTEGRATION
from tests.programs.signatures import script
from tests.roll.training import SHAPE

TABLE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("signatures.json").read_text("utf-8"))
OLDEST: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("signatures_0_2_1.json").read_text("utf-8"))
OPTIONAL = {hook.target for hook in INTEGRATION.hooks if hook.optional}


def test_every_target_is_in_roll() -> None:
    """But for optional ones, which other versions have."""
    assert set(script.targets("roll")) - OPTIONAL <= TABLE.keys() <= set(script.targets("roll"))


def test_the_oldest_version_has_what_the_newest_has() -> None:
    """But for optional functions, and for parameters at the end that came later."""
    assert TABLE.keys() - OPTIONAL <= OLDEST.keys() <= TABLE.keys()
    for target, known in OLDEST.items():
        assert TABLE[target]["is_async"] == known["is_async"]
        assert TABLE[target]["parameters"].startswith(known["parameters"])


def test_the_shape_has_the_signatures_of_roll() -> None:
    """All that it has, and it has all that are not optional."""
    found = script.signatures("roll", SHAPE)
    assert TABLE.keys() - OPTIONAL <= found.keys()
    assert {target: TABLE[target] for target in found} == found


def test_a_missing_function_is_left_out(tmp_path: Path) -> None:
    """An inherited or imported one is found where it is written."""
    (tmp_path / "roll" / "pipeline").mkdir(parents=True)
    (tmp_path / "roll" / "utils").mkdir()
    (tmp_path / "roll" / "utils" / "tracking.py").write_text("def create_tracker(name, *, config=1): pass\n")
    (tmp_path / "roll" / "pipeline" / "base_pipeline.py").write_text(
        "from roll.utils.tracking import create_tracker\n"
        "class Base:\n    async def run(self, *args: int): pass\n"
        "class BasePipeline(Base): pass\n"
    )
    assert {
        "roll.pipeline.base_pipeline:BasePipeline.run": {"is_async": True, "parameters": "self, *args"},
        "roll.pipeline.base_pipeline:create_tracker": {"is_async": False, "parameters": "name, *, config=1"},
    } == script.signatures("roll", tmp_path)
