"""Texts of exceptions: they may repeat prompts and answers, so they are kept only where contents are."""

from __future__ import annotations

import sys

from otel_rl.guard import guard
from otel_rl.process.state import state


def text_of(error: BaseException) -> str:
    """Give the text of an exception; nothing where the exception itself fails to say it."""
    with guard("read the text of an exception"):
        return str(error)
    return ""


def is_content(description: str) -> bool:
    """Whether a description repeats the text of the exception that is being handled, and texts are not to be kept."""
    error = sys.exc_info()[1]
    text = "" if error is None or state.config.capture_content else text_of(error)
    return bool(text) and text in description
