"""Find the programs of the stack: where the user says, on PATH, or where `scripts/backends` put them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from otel_rl.config.parsers import expanded
from otel_rl.stack.plan import StackError

NAMES: Final[dict[str, tuple[str, ...]]] = {
    "jaeger": ("jaeger",),
    "prometheus": ("prometheus",),
    "collector": ("otelcol-contrib", "otelcol"),
}
"""The file names of each program. The contrib build of the Collector has what our configurations need. The core build,
whose name `otelcol` is also that of our build, does not, so it comes second."""
TEMPO: Final = "tempo"
FOLDER: Final = "OTEL_RL_BACKENDS"
TEMPO_PROGRAM: Final = "OTEL_RL_TEMPO_PROGRAM"
HOW_TO_GET_THEM: Final = (
    "`scripts/backends` of the repository builds them with Go; "
    f"they are also taken from PATH and from the folder that {FOLDER} names"
)
NO_TEMPO: Final = f"No Tempo: put `{TEMPO}` on PATH, or name it in {TEMPO_PROGRAM}. Traces go to Jaeger."


def find_all(environ: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """Return the file of each program that is there; Tempo, which `scripts/backends` does not build, from PATH.

    Raises:
        StackError: ``OTEL_RL_TEMPO_PROGRAM`` names something that is no program.
    """
    found = {part: program for part, names in NAMES.items() if (program := _find(names, environ))}
    tempo = _tempo(environ)
    return found | ({TEMPO: tempo} if tempo else {})


def missing(found: Mapping[str, Path]) -> list[str]:
    return [names[-1] for part, names in NAMES.items() if part not in found]


def _find(names: tuple[str, ...], environ: Mapping[str, str]) -> Path | None:
    for folder in _folders(environ):
        for name in names:
            if program := shutil.which(name, path=folder):
                return Path(program).absolute()
    return None


def _folders(environ: Mapping[str, str]) -> list[str]:
    """List where to look: the folder that the user names, PATH, our builds from the newest to the oldest."""
    named = expanded(environ.get(FOLDER, "").strip())
    on_path = environ.get("PATH", os.defpath).split(os.pathsep)
    cache = Path(environ.get("XDG_CACHE_HOME", "").strip() or Path.home() / ".cache")
    built = sorted((cache / "otel_rl" / "backends").glob("*/bin"), key=_changed, reverse=True)
    return [*filter(None, (named, *on_path)), *map(str, built)]


def _changed(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:  # removed since it was listed
        return 0.0


def _tempo(environ: Mapping[str, str]) -> Path | None:
    named = expanded(environ.get(TEMPO_PROGRAM, "").strip())
    program = shutil.which(named or TEMPO, path=environ.get("PATH", os.defpath))
    if named and program is None:
        raise StackError(f"{TEMPO_PROGRAM}={named} is not a program: correct it, or unset it")
    return Path(program).absolute() if program else None
