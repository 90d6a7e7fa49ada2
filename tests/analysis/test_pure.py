"""Arithmetic needs no framework: importing all of it loads neither torch nor OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import otel_rl.analysis

FOREIGN = ("torch", "numpy", "opentelemetry", "grpc", "google", "psutil", "transformers")


def test_analysis_imports_nothing_foreign() -> None:
    """In a process of its own, every module of the package."""
    root = Path(otel_rl.analysis.__path__[0])
    files = [path.relative_to(root).with_suffix("") for path in root.rglob("*.py") if path.stem != "__init__"]
    names = sorted(".".join(path.parts) for path in files)
    assert {"stragglers", "goodput", "flops", "ledger", "series.onset"} < set(names)
    imports = "; ".join(f"import otel_rl.analysis.{name}" for name in names)
    code = f"import sys; {imports}; print([name for name in {FOREIGN} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ("[]\n", "") == (done.stdout, done.stderr)
