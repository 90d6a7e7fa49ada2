"""Two equal trainings for all tests here: 30 to 60 s each on two cores."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.verl.training import UNDER_OTEL_RL, Trained, train


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A training without otel_rl."""
    return train(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="session")
def inputs(bare: Trained) -> Path:
    """Model, tokenizer and prompts, as they were made for the first training."""
    return bare.directory / "inputs"


@pytest.fixture(scope="session")
def watched(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The same training under ``otel-rl run``."""
    directory = tmp_path_factory.mktemp("watched")
    shutil.copytree(inputs, directory / "inputs")
    return train(directory, under=UNDER_OTEL_RL)
