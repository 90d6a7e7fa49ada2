"""Pictures in characters, for a terminal and for Markdown."""

from __future__ import annotations

from typing import Final

from otel_rl.analysis.summary import sparkline
from otel_rl.guard import attempt
from otel_rl.report.section import Bar, Picture

EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def drawn(picture: Picture, width: int) -> str:
    """Return a picture; none if it cannot be drawn because of an error of ours."""
    return attempt("draw", "a picture of a report", _draw, picture, width) or ""


def _draw(picture: Picture, width: int) -> str:
    if isinstance(picture, Bar):
        return "" if picture.share is None else bar(picture.share, width)
    return sparkline(picture.values, width)


def bar(share: float, width: int) -> str:
    """Draw a bar; it ends at an eighth of a character."""
    full, rest = divmod(round(min(1.0, max(0.0, share)) * width * 8), 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")
