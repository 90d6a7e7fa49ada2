"""The file of a user's settings: `otel_rl.toml` beside the runs' folders, or the file that ``OTEL_RL_RULES`` names."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from otel_rl.config.parsers import expanded_path

FILE: Final = "otel_rl.toml"
VARIABLE: Final = "OTEL_RL_RULES"
LARGEST: Final = 1 << 20
DEFAULTS: Final = "the defaults hold"


def settings_path(root: Path, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file with the settings of the runs in a folder; None if there is none."""
    named = environ.get(VARIABLE, "").strip()
    path = expanded_path(named) if named else root / FILE
    return path if named or path.is_file() else None


def parsed(path: Path) -> dict[str, Any]:
    """Read the file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no TOML, or too large, or this Python cannot read TOML.
        RecursionError: it is nested too deeply.
    """
    try:
        toml = import_module("tomllib")
    except ModuleNotFoundError:
        raise ValueError("that needs Python 3.11 or newer") from None
    if path.exists() and not path.is_file():
        raise ValueError("it is no file")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError("it is larger than 1 MiB")
    found: dict[str, Any] = toml.loads(content.decode())
    return found


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number that a double can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max


def why_unread(error: Exception) -> str:
    """Return why the file could not be read, in a word or a sentence."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def table(place: str, found: Any, problems: list[str], otherwise: str = DEFAULTS) -> dict[str, Any]:
    """Return a table of the file; one that is none is a problem."""
    if isinstance(found, dict):
        return found
    problems.append(f"{place} must be a table: {otherwise}.")
    return {}


def strangers(what: str, names: Collection[str], known: Collection[str]) -> Iterator[str]:
    """Yield the problem of each name that nothing has, with the nearest right one."""
    for name in names:
        if name not in known:
            yield f"Unknown {what} {name} is ignored{nearest(name, known) or '.'}"


def nearest(name: str, known: Collection[str]) -> str:
    """Return the question whether another name is meant; empty if none is near."""
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""
