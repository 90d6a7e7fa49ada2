"""Builds the C of the encoder along with the package; where that fails the package does without it."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = "otel_rl.journal._native"
BUILT = "otel_rl/journal/_native*.so"


class NativeHook(BuildHookInterface[Any]):
    """Compiles ``_native.c`` beside its source, for a wheel and for an editable installation alike."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it, once for every CPython from 3.10 on, and say so in the wheel's name."""
        try:
            # What lies there may be of another version, or of another machine that shares the folder.
            for path in Path(self.root).glob(BUILT):
                path.unlink()
            build()
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            self.app.display_warning(f"{MODULE} was not built, its work is done in Python: {error}")
            return
        build_data["artifacts"].append(BUILT)
        build_data["pure_python"] = False
        build_data["tag"] = f"cp310-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def build() -> None:
    """Compile, without the paths that debuggers look for.

    Raises:
        RuntimeError: there is no compiler, or it failed.
    """
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import BaseError, CCompilerError

    source = MODULE.replace(".", "/") + ".c"
    extension = Extension(MODULE, [source], py_limited_api=True, extra_compile_args=["-g0"])
    command = build_ext(Distribution({"name": "otel-rl", "ext_modules": [extension], "packages": ["otel_rl"]}))
    command.inplace = command.force = True
    try:
        command.ensure_finalized()
        command.run()
    except (BaseError, CCompilerError) as error:
        raise RuntimeError(str(error)) from error
