"""Tests of your own integration, or of your own stages: capture what they record, and check the contract of hooks.

    with capture(INTEGRATION) as captured:
        train()
    assert "rl.reward" in captured.names()

``docs/integrations.md`` has a complete example.
"""

from otel_rl.testing.capture import Capture, CapturedPoint, CapturedSpan, capture
from otel_rl.testing.contract import CHECKS, check_integration

__all__ = ["CHECKS", "Capture", "CapturedPoint", "CapturedSpan", "capture", "check_integration"]
