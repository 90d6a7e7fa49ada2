"""What of a journal has been sent: the sidecar keeps it in a file beside the journal, the writer reads it there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, cast

from otel_rl.journal.frame import Signal

SUFFIX: Final = ".shipped"


def path_of(directory: Path, writer: str) -> Path:
    """Where it stands what of a writer's journal has been acknowledged."""
    return directory / f"{writer}{SUFFIX}"


def first_unsent(directory: Path, writer: str) -> dict[Signal, int]:
    """Give by signal the first segment of which something still has to be sent; empty where nothing is known."""
    try:
        data: Any = json.loads(path_of(directory, writer).read_bytes())
        return {cast("Signal", signal): int(row["ranges"][0][0][0]) for signal, row in data.items()}
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError):
        return {}
