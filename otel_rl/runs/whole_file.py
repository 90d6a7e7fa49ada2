"""Files that have their name only once they are whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PART: Final = ".part"


def part_of(path: Path) -> Path:
    """Return where a file is written until it is whole; a device or a pipe is written as it is."""
    path = path.resolve()
    return path.with_name(f"{path.name}{PART}") if path.is_file() or not path.exists() else path


@contextmanager
def replacing(path: Path, part: Path | None = None) -> Iterator[Path]:
    """Yield where to write a file. It gets its name at the end; after an exception or a signal it is removed.

    Raises:
        OSError: it cannot get its name.
    """
    part = part or part_of(path)
    if part == path.resolve():
        yield part
        return
    try:
        yield part
        part.replace(path.resolve())
    finally:
        with suppress(OSError):
            part.unlink()
