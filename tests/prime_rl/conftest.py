"""A recording of programs of prime-rl's shape."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.fixtures import Recording
from tests.prime_rl import world
from tests.prime_rl.training import SHAPE


@pytest.fixture
def shaped(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """A recording that is not on yet, beside the shape; the distribution of prime-rl is not installed."""
    monkeypatch.syspath_prepend(str(SHAPE))
    monkeypatch.setattr(world, "CLOCK", [stubbed.tick])
    monkeypatch.setattr("otel_rl.hooks.integration.version", lambda name: "0.8.1")
    yield stubbed
    for name in [name for name in sys.modules if name.partition(".")[0] in ("prime_rl", "wandb")]:
        del sys.modules[name]


@pytest.fixture
def recorded(shaped: Recording) -> Recording:
    """Record what runs of the shape."""
    return shaped.start("prime_rl")
