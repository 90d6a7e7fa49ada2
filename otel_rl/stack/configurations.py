"""The configurations that this package ships, copied to where the stack runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from otel_rl.journal.filesystem import make_directory
from otel_rl.stack.problem import StackError

PACKAGE: Final = Path(__file__).resolve().parents[1]
NAME: Final = "collector"


def shipped() -> Path:
    """Find the folder of the configurations: in the installed package, or beside it in a checkout.

    Raises:
        StackError: it is in neither place.
    """
    for folder in (PACKAGE / NAME, PACKAGE.parent / NAME):
        if (folder / "standalone.yaml").is_file():
            return folder
    raise StackError(f"the configurations are not in {PACKAGE / NAME}: install otel-rl anew")


def copy(folder: Path) -> None:
    """Copy them all, over an earlier copy: what a newer version of the package ships wins."""
    source = shipped()
    for path in source.rglob("*"):
        if path.is_file():
            target = folder / path.relative_to(source)
            make_directory(target.parent)
            shutil.copyfile(path, target)
            target.chmod(0o644)  # whatever the umask: in a container another user reads it
