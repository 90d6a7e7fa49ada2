"""What is recorded is what would have happened: token ids, losses, parameters and random states, to the last bit."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from otel_rl import vocabulary as v
from otel_rl.version import __version__
from tests.programs.launch import ROOT, Trained, train
from tests.programs.recorded import Recorded

pytestmark = pytest.mark.slow

CONFIG = {"max_steps": 5, "num_iterations": 2, "eval_strategy": "steps", "eval_steps": 2}
JOB: dict[str, Any] = {"config": CONFIG, "rewards": ["digits", "short", "ends"]}
CLOCKS = ("step_time", "runtime", "per_second")
OTEL_RL = ("-c", "from otel_rl.cli import main; main()", "run", "--quiet", "--", sys.executable)


def bits(trained: Trained) -> list[dict[str, Any]]:
    """Leave of each rank's truth what must not change: everything but times."""
    return [
        {
            **truth,
            "logs": [{k: x for k, x in entry.items() if not k.endswith(CLOCKS)} for entry in truth["logs"]],
        }
        for truth in trained.truths
    ]


def installed(directory: Path) -> str:
    """Make a folder in which otel_rl looks installed, with its entry point for ``opentelemetry-instrument``."""
    info = directory / f"otel_rl-{__version__}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: otel-rl\nVersion: {__version__}\n")
    entry = "[opentelemetry_instrumentor]\notel_rl = otel_rl.instrumentor:OtelRlInstrumentor\n"
    (info / "entry_points.txt").write_text(entry)
    return os.pathsep.join((str(directory), str(ROOT)))


def test_recording_changes_no_bit(tmp_path: Path) -> None:
    """Not by ``instrument()`` in the program, and not from outside by ``otel-rl run``, on two ranks."""
    plain = train(tmp_path / "plain", ranks=2, otel=False, **JOB)
    inside = train(tmp_path / "inside", ranks=2, **JOB)
    outside = train(tmp_path / "outside", ranks=2, otel=False, under=OTEL_RL, **JOB)
    assert not plain.runs.exists()
    assert json.dumps(bits(plain)) == json.dumps(bits(inside))
    assert json.dumps(bits(plain)) == json.dumps(bits(outside))
    assert 2 == len(plain.truths)
    for recorded in (Recorded(inside.runs), Recorded(outside.runs)):
        assert 2 == sum(not one.identity.is_sidecar for one in recorded.run.journals)
        assert [v.SETUP, *[v.LOOP] * 5, v.TEARDOWN] == [root.name for root in recorded.roots]
        assert ([], {}) == (recorded.orphans, recorded.errors())
    assert "otel-rl: recorded in " in outside.output


def test_opentelemetrys_own_launcher_records_and_changes_no_bit(tmp_path: Path) -> None:
    """``opentelemetry-instrument python train.py`` in one process, by the installed package's entry point."""
    pytest.importorskip("opentelemetry.instrumentation.auto_instrumentation")
    (tmp_path / "site").mkdir()
    plain = train(tmp_path / "plain", otel=False, **JOB)
    launcher = ("-c", "from opentelemetry.instrumentation.auto_instrumentation import run; run()", sys.executable)
    env = {"PYTHONPATH": installed(tmp_path / "site")}
    launched = train(tmp_path / "launched", otel=False, under=launcher, env=env, **JOB)
    assert json.dumps(bits(plain)) == json.dumps(bits(launched))
    recorded = Recorded(launched.runs)
    assert [1, 2, 3, 4, 5] == list(recorded.steps())
    assert ([], {}) == (recorded.orphans, recorded.errors())
