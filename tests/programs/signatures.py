"""``scripts/signatures`` as a module: it reads what a framework's functions are called with."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from types import ModuleType

from tests.programs.launch import ROOT

_PATH = str(ROOT / "scripts" / "signatures")
script = ModuleType("signatures")
script.__file__ = _PATH
exec(compile(SourceFileLoader("signatures", _PATH).get_data(_PATH), _PATH, "exec"), vars(script))
