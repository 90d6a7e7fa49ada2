"""Builds the C along with the package; where that fails the package does without it."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULES = ("otel_rl.journal.otlp._native", "otel_rl.journal.columns._decode", "otel_rl.probes._stacks")
BUILT = [f"{module.replace('.', '/')}*.so" for module in MODULES]


class NativeHook(BuildHookInterface[Any]):
    """Compiles each beside its source, for a wheel and for an editable installation alike."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build them, once for every CPython from 3.10 on, and say so in the wheel's name."""
        try:
            # What lies there may be of another version, or of another machine that shares the folder.
            for pattern in BUILT:
                for path in Path(self.root).glob(pattern):
                    path.unlink()
            build()
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            self.app.display_warning(
                f"{', '.join(MODULES)} were not built; what they do is done in Python, or left out: {error}"
            )
            return
        build_data["artifacts"].extend(BUILT)
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

    extensions = [
        Extension(module, [module.replace(".", "/") + ".c"], py_limited_api=True, extra_compile_args=["-g0"])
        for module in MODULES
    ]
    command = build_ext(Distribution({"name": "otel-rl", "ext_modules": extensions, "packages": ["otel_rl"]}))
    command.inplace = command.force = True
    try:
        command.ensure_finalized()
        command.run()
    except (BaseError, CCompilerError) as error:
        raise RuntimeError(str(error)) from error
