"""What is hooked of ROLL: each function is in ROLL 0.3.0, and in the program of its shape, with the same signature.

``signatures.json`` is of ROLL itself, which is in no package index; ``signatures_0_2_1.json`` is of the oldest version
that is supported. ``scripts/roll_signatures`` writes them.
"""

from __future__ import annotations

import json
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from otel_rl.integrations.roll.hooks import INTEGRATION
from tests.programs.launch import ROOT
from tests.roll.training import SHAPE

TABLE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("signatures.json").read_text("utf-8"))
OLDEST: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("signatures_0_2_1.json").read_text("utf-8"))
OPTIONAL = {hook.target for hook in INTEGRATION.hooks if hook.optional}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script that reads signatures."""
    path = str(ROOT / "scripts" / "roll_signatures")
    module = ModuleType("roll_signatures")
    module.__file__ = path
    exec(compile(SourceFileLoader("roll_signatures", path).get_data(path), path, "exec"), vars(module))
    return module


def test_every_target_is_in_roll(script: ModuleType) -> None:
    """But for optional ones, which other versions have."""
    assert set(script.targets()) - OPTIONAL <= TABLE.keys() <= set(script.targets())


def test_the_oldest_version_has_what_the_newest_has() -> None:
    """But for optional functions, and for parameters at the end that came later."""
    assert TABLE.keys() - OPTIONAL <= OLDEST.keys() <= TABLE.keys()
    for target, known in OLDEST.items():
        assert TABLE[target]["is_async"] == known["is_async"]
        assert TABLE[target]["parameters"].startswith(known["parameters"])


def test_the_shape_has_the_signatures_of_roll(script: ModuleType) -> None:
    """All that it has, and it has all that are not optional."""
    found = script.signatures(SHAPE)
    assert TABLE.keys() - OPTIONAL <= found.keys()
    assert {target: TABLE[target] for target in found} == found


def test_a_missing_function_is_left_out(script: ModuleType, tmp_path: Path) -> None:
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
    } == script.signatures(tmp_path)
