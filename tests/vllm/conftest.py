"""One tiny model for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder."""
    from tests.vllm.tiny import make

    return make(tmp_path_factory.mktemp("model") / "tiny-qwen2")
