"""The correctness ledger of a training that is right: each sample is noted wherever it passes, and nothing is found."""

from __future__ import annotations

from collections import Counter

import pytest

from otel_rl import vocabulary as v
from otel_rl.report.rows.ledger_rows import ledger
from tests.verl.training import Trained

pytestmark = pytest.mark.verl

SAMPLES = 8
"""Of a step: four prompts, two answers of each."""


def test_samples_are_noted_wherever_they_pass(watched: Trained) -> None:
    """Once by the worker of the agent loops; by ranks for old and reference log-probabilities, and for the update."""
    logs = [log for run in watched.recorded() for log in run.logs(v.LEDGER_SAMPLES)]
    noted = Counter(
        (log.resource[v.ROLE], log.body, log.attributes[v.ITERATION], sample)
        for log in logs
        for sample in log.attributes[v.LEDGER_IDS]
    )
    generated = [(step, sample) for role, _, step, sample in noted if role == "agent_loop"]
    assert {1: SAMPLES, 2: SAMPLES} == Counter(step for step, _ in generated)
    times = {("agent_loop", "rl.sample"): 1, ("actor", "rl.logprob"): 2, ("actor", "rl.train"): 1}
    assert {(*place, *one): count for place, count in times.items() for one in generated} == noted


def test_nothing_is_found(watched: Trained) -> None:
    """Neither by a process nor by a report, although log-probabilities were compared at each update of each rank."""
    (run,) = (run for run in watched.recorded() if any(run.logs(v.LEDGER)))
    assert [] == [*run.logs(v.LEDGER_MISMATCH), *ledger(run).mismatches]
    rows = Counter((log.resource[v.RANK], log.attributes[v.ITERATION]) for log in run.logs(v.LEDGER))
    assert {(rank, step): 1 for rank in range(2) for step in (1, 2)} == rows
