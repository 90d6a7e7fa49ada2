"""Stacks of a real process that cannot answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_rl.journal import page
from otel_rl.stalls.inspect_process import evidence_of
from otel_rl.stalls.members import Process, find_here
from tests.programs.launch import start
from tests.waiting import patience

HOLDING = """
import re, time
import otel_rl

def parse_answer():
    re.match(r"(a+)+$", "a" * 40 + "b")

otel_rl.instrument([])
with otel_rl.step(1):
    with otel_rl.stage("sample"):
        time.sleep(1.2)
    with otel_rl.stage("reward"):
        parse_answer()
"""
"""Its regular expression backtracks for hours, and no other thread runs meanwhile."""


@pytest.mark.medium
def test_the_handler_in_c_is_asked_first_where_no_thread_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flusher would answer once the interpreter is free, and show what comes after the stall."""
    monkeypatch.setattr(page, "MEMORY", Path("/dev/shm"))
    monkeypatch.setattr("otel_rl.stalls.inspect_process.ANSWER_S", 600.0)
    process = start(tmp_path, "-c", HOLDING, OTEL_RL_SIDECAR="false")
    try:
        quiet: list[Process] = []
        for _ in patience():
            found = [one for run in (tmp_path / "runs").glob("*") for one in find_here(run)]
            quiet = [one for one in found if one.page.stage == "rl.reward" and one.is_quiet]
            if quiet:
                break
        evidence = evidence_of(quiet[0])
    finally:
        process.kill()
        process.communicate()
    assert "Stacks, by faulthandler in C:" in evidence
    assert ", line 6 in parse_answer\n" in evidence
