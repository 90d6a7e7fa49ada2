"""A fixture for pytest: import ``captured`` in your ``conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from otel_rl.testing.capture import Capture, capture


@pytest.fixture
def captured() -> Iterator[Capture]:
    """Record the test; ``captured.stop()`` ends the recording and has its spans."""
    with capture() as found:
        yield found
